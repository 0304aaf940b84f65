//! How fast this processor seals packets.

use std::time::{Duration, Instant};

use ring::aead::{AES_128_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

const TRIAL: Duration = Duration::from_millis(40);
const PACKET: usize = 1_200;

/// Bits a second that the faster of QUIC's ciphers seals on one processor.
pub(super) fn crypto_bps() -> Option<u64> {
    [&AES_128_GCM, &CHACHA20_POLY1305].into_iter().filter_map(cipher_bps).max()
}

fn cipher_bps(cipher: &'static Algorithm) -> Option<u64> {
    let key = LessSafeKey::new(UnboundKey::new(cipher, &vec![7; cipher.key_len()]).ok()?);
    let mut packet = vec![0; PACKET];
    let (begin, mut bytes) = (Instant::now(), 0_u64);
    while begin.elapsed() < TRIAL {
        // The key protects nothing, so one nonce is enough.
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let _tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut packet).ok()?;
        bytes += PACKET as u64;
    }
    Some((bytes as f64 * 8.0 / begin.elapsed().as_secs_f64()) as u64)
}

pub(super) fn has_aes() -> Option<bool> {
    #[cfg(target_arch = "x86_64")]
    return Some(std::arch::is_x86_feature_detected!("aes"));
    #[cfg(target_arch = "aarch64")]
    return Some(std::arch::is_aarch64_feature_detected!("aes"));
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    None
}
