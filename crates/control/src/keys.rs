//! Keys derived from the controller's (seal of rows, cipher of answers); random secrets and hashes.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use roadweave_identity::Identity;
use zeroize::Zeroizing;

#[derive(Clone)]
pub struct StoreKeys {
    seal: hmac::Key,
    chain: hmac::Key,
    cipher: Arc<LessSafeKey>,
}

impl StoreKeys {
    pub fn new(controller: &Identity) -> Self {
        let derive = |purpose: &[u8]| Zeroizing::new(controller.derive(purpose));
        let cipher = UnboundKey::new(&CHACHA20_POLY1305, &*derive(b"controller answers"))
            .expect("ChaCha20-Poly1305 takes 32 bytes");
        Self {
            seal: hmac::Key::new(hmac::HMAC_SHA256, &*derive(b"controller seal")),
            chain: hmac::Key::new(hmac::HMAC_SHA256, &*derive(b"controller chain")),
            cipher: Arc::new(LessSafeKey::new(cipher)),
        }
    }

    /// The seal of a row. The parts are length-prefixed, so that they cannot run into each other.
    pub fn seal(&self, parts: &[&str]) -> String {
        tag(&self.seal, parts)
    }

    pub fn is_sealed(&self, parts: &[&str], seal: &str) -> bool {
        verify(&self.seal, parts, seal)
    }

    pub fn link(&self, parts: &[&str]) -> String {
        tag(&self.chain, parts)
    }

    pub fn is_linked(&self, parts: &[&str], link: &str) -> bool {
        verify(&self.chain, parts, link)
    }

    /// Encrypts `text`; [`StoreKeys::decrypt`] needs the same `context`.
    pub fn encrypt(&self, context: &str, text: &str) -> String {
        let mut nonce = [0; NONCE_LEN];
        fill(&mut nonce);
        let mut data = text.as_bytes().to_vec();
        let aad = Aad::from(context.as_bytes());
        self.cipher
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut data)
            .expect("an answer is shorter than the cipher's limit");
        URL_SAFE_NO_PAD.encode([&nonce[..], &data].concat())
    }

    pub fn decrypt(&self, context: &str, text: &str) -> Option<String> {
        let mut data = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = data.split_first_chunk_mut::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened =
            self.cipher.open_in_place(nonce, Aad::from(context.as_bytes()), sealed).ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }
}

fn tag(key: &hmac::Key, parts: &[&str]) -> String {
    hex(hmac::sign(key, &joined(parts)).as_ref())
}

fn verify(key: &hmac::Key, parts: &[&str], tag: &str) -> bool {
    unhex(tag).is_some_and(|tag| hmac::verify(key, &joined(parts), &tag).is_ok())
}

fn joined(parts: &[&str]) -> Vec<u8> {
    let mut whole = Vec::new();
    for part in parts {
        whole.extend_from_slice(&(part.len() as u64).to_be_bytes());
        whole.extend_from_slice(part.as_bytes());
    }
    whole
}

pub fn secret() -> String {
    let mut bytes = Zeroizing::new([0_u8; 32]);
    fill(&mut *bytes);
    URL_SAFE_NO_PAD.encode(*bytes)
}

pub fn identifier() -> String {
    let mut bytes = [0_u8; 16];
    fill(&mut bytes);
    let bits = u128::from_be_bytes(bytes);
    (0..16).map(|at| char::from(LETTERS[(bits >> (5 * at)) as usize & 31])).collect()
}

/// SHA-256 without salt is enough for 256 random bits. Passwords have argon2id.
pub fn hash(secret: &str) -> String {
    hex(digest(&SHA256, secret.as_bytes()).as_ref())
}

/// Fills `bytes` with entropy of the system; panics if it has none.
pub fn fill(bytes: &mut [u8]) {
    SystemRandom::new().fill(bytes).expect("the system gives random bytes");
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let whole = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    if rest.is_empty() { whole } else { None }
}

/// Crockford's base32 alphabet, without letters that are easily confused.
const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(seed: u8) -> StoreKeys {
        StoreKeys::new(&Identity::from_seed([seed; 32]))
    }

    #[test]
    fn a_seal_is_of_these_parts_and_this_key() {
        let keys_1 = keys(1);
        let seal = keys_1.seal(&["device", "a", "bc"]);
        assert!(keys_1.is_sealed(&["device", "a", "bc"], &seal));
        assert!(!keys_1.is_sealed(&["device", "ab", "c"], &seal));
        assert!(!keys_1.is_sealed(&["device", "a", "bc"], &seal[..62]));
        assert!(!keys_1.is_sealed(&["device", "a", "bc"], ""));
        assert!(!keys(2).is_sealed(&["device", "a", "bc"], &seal));
        assert!(!keys_1.is_linked(&["device", "a", "bc"], &seal));
    }

    #[test]
    fn a_kept_answer_opens_in_its_place_alone() {
        let keys_1 = keys(1);
        let kept = keys_1.encrypt("here", "rw1_secret");
        assert!(!kept.contains("secret"));
        assert_eq!(keys_1.decrypt("here", &kept).as_deref(), Some("rw1_secret"));
        assert_eq!(keys_1.decrypt("there", &kept), None);
        assert_eq!(keys_1.decrypt("here", "AAAA"), None);
        assert_eq!(keys(2).decrypt("here", &kept), None);
    }
}
