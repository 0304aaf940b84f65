//! Signed payloads in DSSE envelopes (<https://github.com/secure-systems-lab/dsse>, version 1).
//!
//! The signature covers the bytes as carried, with their type before them: no canonical form.

mod proofs;

use std::marker::PhantomData;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use roadweave_identity::{Identity, PublicKey, Signature};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::proofs::remember_proofs;

/// With base64 and field names it fits a frame.
const PAYLOAD_MAX: usize = 40 * 1024;
const SIGNATURES_MAX: usize = 4;

pub trait Payload: Serialize + DeserializeOwned {
    /// The type in the signature.
    const TYPE: &'static str;
}

/// An envelope that is not verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Envelope {
    payload_type: String,
    payload: String,
    signatures: Vec<KeyedSignature>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyedSignature {
    #[serde(rename = "keyid")]
    key: PublicKey,
    #[serde(rename = "sig")]
    signature: Signature,
}

/// An envelope that claims to hold a `T`; [`Signed::verify`] reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Signed<T> {
    envelope: Envelope,
    #[serde(skip)]
    payload: PhantomData<fn() -> T>,
}

impl<T: Payload> Signed<T> {
    /// Signs `payload`.
    pub fn sign(payload: &T, identity: &Identity) -> Result<Self, EnvelopeError> {
        let bytes = serde_json::to_vec(payload).map_err(|_| EnvelopeError::Malformed)?;
        if bytes.len() > PAYLOAD_MAX {
            return Err(EnvelopeError::TooLarge);
        }
        let signature = identity.sign(&encoding_before_signing(T::TYPE, &bytes));
        let envelope = Envelope {
            payload_type: T::TYPE.to_owned(),
            payload: BASE64.encode(bytes),
            signatures: vec![KeyedSignature { key: identity.public_key(), signature }],
        };
        Ok(Self { envelope, payload: PhantomData })
    }

    /// Adds the signature of `identity`.
    pub fn countersign(mut self, identity: &Identity) -> Result<Self, EnvelopeError> {
        if self.envelope.signatures.len() >= SIGNATURES_MAX {
            return Err(EnvelopeError::TooLarge);
        }
        let bytes = self.bytes()?;
        let signature = identity.sign(&encoding_before_signing(T::TYPE, &bytes));
        let key = identity.public_key();
        self.envelope.signatures.push(KeyedSignature { key, signature });
        Ok(self)
    }

    /// The payload and its signer, if one of `keys` has signed it as this type.
    pub fn verify_by(
        &self,
        keys: impl IntoIterator<Item = PublicKey>,
    ) -> Result<(T, PublicKey), EnvelopeError> {
        if self.envelope.payload_type != T::TYPE {
            return Err(EnvelopeError::OtherType);
        }
        if self.envelope.signatures.len() > SIGNATURES_MAX {
            return Err(EnvelopeError::TooLarge);
        }
        let bytes = self.bytes()?;
        let signed = encoding_before_signing(T::TYPE, &bytes);
        let holds = |key: &PublicKey| {
            let mut signatures = self.envelope.signatures.iter().take(SIGNATURES_MAX);
            signatures.any(|by| by.key == *key && proofs::holds(*key, &signed, &by.signature))
        };
        let key = keys.into_iter().find(holds).ok_or(EnvelopeError::NotSigned)?;
        let payload = serde_json::from_slice(&bytes).map_err(|_| EnvelopeError::Malformed)?;
        Ok((payload, key))
    }

    /// The payload, if `key` has signed it as this type.
    pub fn verify(&self, key: PublicKey) -> Result<T, EnvelopeError> {
        self.verify_by([key]).map(|(payload, _)| payload)
    }

    /// The payload of what was verified before, by keys that may not count any more.
    pub(crate) fn peek(&self) -> Option<T> {
        serde_json::from_slice(&self.bytes().ok()?).ok()
    }

    /// The keys that claim to have signed it, not verified.
    pub fn claimed_keys(&self) -> impl Iterator<Item = PublicKey> {
        self.envelope.signatures.iter().take(SIGNATURES_MAX).map(|by| by.key)
    }

    pub(crate) fn bytes(&self) -> Result<Vec<u8>, EnvelopeError> {
        if self.envelope.payload.len() > PAYLOAD_MAX.div_ceil(3) * 4 {
            return Err(EnvelopeError::TooLarge);
        }
        BASE64.decode(&self.envelope.payload).map_err(|_| EnvelopeError::Malformed)
    }

    /// The envelope, to be kept or sent on.
    pub fn into_envelope(self) -> Envelope {
        self.envelope
    }
}

impl<T> From<Envelope> for Signed<T> {
    fn from(envelope: Envelope) -> Self {
        Self { envelope, payload: PhantomData }
    }
}

fn encoding_before_signing(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    #[error("it is not signed by a trusted key")]
    NotSigned,
    #[error("it has another type than expected")]
    OtherType,
    #[error("its content cannot be parsed")]
    Malformed,
    #[error("it is larger than {PAYLOAD_MAX} bytes, or has more than {SIGNATURES_MAX} signatures")]
    TooLarge,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{identity, key, sign};

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Order(u32);
    impl Payload for Order {
        const TYPE: &'static str = "order";
    }
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Other(u32);
    impl Payload for Other {
        const TYPE: &'static str = "other";
    }

    #[test]
    fn the_encoding_is_that_of_dsse() {
        let encoded = encoding_before_signing("http://example.com/HelloWorld", b"hello world");
        assert_eq!(encoded, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }

    #[test]
    fn what_was_signed_is_read_as_that_alone() {
        let (signed, one, other) = (sign(&Order(7), 1), key(1), key(2));
        assert_eq!(signed.verify(one), Ok(Order(7)));
        assert_eq!(signed.verify(other), Err(EnvelopeError::NotSigned));
        let envelope = signed.clone().into_envelope();
        let read = Signed::<Other>::from(envelope.clone()).verify(one);
        assert_eq!(read, Err(EnvelopeError::OtherType));
        let renamed = Envelope { payload_type: "other".into(), ..envelope.clone() };
        let read = Signed::<Other>::from(renamed).verify(one);
        assert_eq!(read, Err(EnvelopeError::NotSigned));
        let changed = Envelope { payload: BASE64.encode("8"), ..envelope };
        assert_eq!(Signed::<Order>::from(changed).verify(one), Err(EnvelopeError::NotSigned));
        let both = signed.countersign(&identity(2)).expect("two signatures");
        assert_eq!(both.verify(other), Ok(Order(7)));
    }
}
