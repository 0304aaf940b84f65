//! Cryptography that leaves bytes as they are, so that a call costs little and repeats.
//!
//! A packet is as long as with AEAD_AES_128_GCM (RFC 7714). DTLS is connected from the beginning,
//! with equal keys.

use std::time::{Duration, Instant};

use str0m::config::{DtlsCert, DtlsVersion, KeyingMaterial};
use str0m::crypto::dtls::{
    DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, ProtocolVersion, SrtpProfile,
};
use str0m::crypto::{
    AeadAes128GcmCipher, CryptoError, CryptoProvider, Sha1HmacProvider, Sha1Provider,
    Sha256Provider, SrtpProvider, SupportedAeadAes128Gcm, SupportedAeadAes256Gcm,
    SupportedAes128CmSha1_80,
};

pub fn provider() -> CryptoProvider {
    CryptoProvider {
        srtp_provider: &NullCrypto,
        sha1_hmac_provider: &NullCrypto,
        sha1_provider: &NullCrypto,
        sha256_provider: &NullCrypto,
        dtls_provider: &NullCrypto,
    }
}

#[derive(Debug)]
struct NullCrypto;

impl Sha1HmacProvider for NullCrypto {
    fn sha1_hmac(&self, _: &[u8], _: &[&[u8]]) -> [u8; 20] {
        [0; 20]
    }
}

impl Sha1Provider for NullCrypto {
    fn sha1(&self, _: &[u8]) -> [u8; 20] {
        [0; 20]
    }
}

impl Sha256Provider for NullCrypto {
    fn sha256(&self, _: &[u8]) -> [u8; 32] {
        [0; 32]
    }
}

impl SrtpProvider for NullCrypto {
    fn aes_128_cm_sha1_80(&self) -> &'static dyn SupportedAes128CmSha1_80 {
        unreachable!("the profile is AEAD_AES_128_GCM")
    }

    fn aead_aes_128_gcm(&self) -> &'static dyn SupportedAeadAes128Gcm {
        &NullCrypto
    }

    fn aead_aes_256_gcm(&self) -> &'static dyn SupportedAeadAes256Gcm {
        unreachable!("the profile is AEAD_AES_128_GCM")
    }

    fn srtp_aes_128_ecb_round(&self, _: &[u8], _: &[u8], output: &mut [u8]) {
        output.fill(0);
    }

    fn srtp_aes_256_ecb_round(&self, _: &[u8], _: &[u8], output: &mut [u8]) {
        output.fill(0);
    }
}

impl SupportedAeadAes128Gcm for NullCrypto {
    fn create_cipher(&self, _: [u8; 16], _: bool) -> Box<dyn AeadAes128GcmCipher> {
        Box::new(Self)
    }
}

impl AeadAes128GcmCipher for NullCrypto {
    fn encrypt(
        &mut self,
        _: &[u8; 12],
        _: &[u8],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), CryptoError> {
        output[..input.len()].copy_from_slice(input);
        Ok(())
    }

    fn decrypt(
        &mut self,
        _: &[u8; 12],
        _: &[&[u8]],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, CryptoError> {
        let length = input.len().saturating_sub(TAG);
        output[..length].copy_from_slice(&input[..length]);
        Ok(length)
    }
}

impl DtlsProvider for NullCrypto {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        Some(DtlsCert { certificate: vec![0; CERTIFICATE], private_key: Vec::new() })
    }

    fn new_dtls(
        &self,
        _: &DtlsCert,
        now: Instant,
        _: DtlsVersion,
        _: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        Ok(Box::new(Connected { is_active: false, output: 0, now }))
    }
}

/// DTLS after its handshake.
#[derive(Debug)]
struct Connected {
    is_active: bool,
    /// Outputs so far; the first three are those of a handshake.
    output: u8,
    now: Instant,
}

impl DtlsInstance for Connected {
    fn set_active(&mut self, active: bool) {
        self.is_active = active;
    }

    fn handle_packet(&mut self, _: &[u8]) -> Result<(), DtlsImplError> {
        Ok(())
    }

    fn poll_output<'a>(&mut self, buffer: &'a mut [u8]) -> DtlsOutput<'a> {
        self.output = (self.output + 1).min(4);
        match self.output {
            1 => DtlsOutput::Connected,
            2 => {
                let certificate = &mut buffer[..CERTIFICATE];
                certificate.fill(0);
                DtlsOutput::PeerCert(certificate)
            }
            3 => DtlsOutput::KeyingMaterial(
                KeyingMaterial::new(&[0; KEYS]),
                SrtpProfile::AEAD_AES_128_GCM,
            ),
            _ => DtlsOutput::Timeout(self.now + NEVER),
        }
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.now = now;
        Ok(())
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<usize, DtlsImplError> {
        Ok(data.len())
    }

    fn is_active(&self) -> bool {
        self.is_active
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        None
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        Ok(())
    }
}

const TAG: usize = 16;
/// Two keys of 16 bytes and two salts of 12.
const KEYS: usize = 56;
const CERTIFICATE: usize = 32;
const NEVER: Duration = Duration::from_secs(24 * 3_600);
