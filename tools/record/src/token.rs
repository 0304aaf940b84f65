//! An optional token that limits recording to known clients.
//!
//! It never crosses the network: a client proves that it knows the token by a code over its
//! request, which contains the server's challenge to its address (HMAC-SHA-256, RFC 2104). An
//! overheard code is useless elsewhere or later.

use std::fmt;
use std::ops::RangeInclusive;

use ring::hmac;

/// A secret shared by server and clients.
#[derive(Clone)]
pub struct RecordToken(hmac::Key);

/// Why a text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has 16 to 1,024 bytes, not {0}; `openssl rand -base64 24` makes one")]
pub struct TokenError(usize);

impl RecordToken {
    /// A token from a text, trimmed.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let secret = text.trim().as_bytes();
        if !TOKEN_BYTES.contains(&secret.len()) {
            return Err(TokenError(secret.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    pub(crate) fn prove(&self, request: &[u8]) -> [u8; PROOF_BYTES] {
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(hmac::sign(&self.0, request).as_ref());
        proof
    }

    /// Whether the code over a request was made with the token; in constant time.
    pub(crate) fn verify(&self, request: &[u8], proof: &[u8; PROOF_BYTES]) -> bool {
        hmac::verify(&self.0, request, proof).is_ok()
    }
}

impl fmt::Debug for RecordToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordToken(hidden)")
    }
}

pub(crate) const PROOF_BYTES: usize = 32;
/// Shorter tokens can be guessed.
const TOKEN_BYTES: RangeInclusive<usize> = 16..=1_024;
