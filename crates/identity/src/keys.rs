//! Ed25519 key pairs, by which peers are known. Keys are 44 characters of base64, as WireGuard's.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::hkdf;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, ZeroizeOnDrop, Zeroizing};

/// An Ed25519 public key, the identity of a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// The key of these 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the key.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// SubjectPublicKeyInfo, the form of the key in TLS (RFC 7250, RFC 8410).
    pub fn to_spki(self) -> Vec<u8> {
        [&SPKI_PREFIX[..], &self.0].concat()
    }

    /// Reads what [`PublicKey::to_spki`] writes.
    pub fn from_spki(spki: &[u8]) -> Option<Self> {
        spki.strip_prefix(&SPKI_PREFIX)?.try_into().ok().map(Self)
    }

    /// Whether `signature` signs `message` under this key (RFC 8032 section 5.1.7).
    pub fn verifies(&self, message: &[u8], signature: &Signature) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(message, &signature.0).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let bytes = BASE64.decode(text).map_err(|_| InvalidKey)?;
        bytes.try_into().map(Self).map_err(|_| InvalidKey)
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for PublicKey {
    type Error = InvalidKey;

    fn try_from(text: String) -> Result<Self, InvalidKey> {
        text.parse()
    }
}

/// An Ed25519 signature, written in base64.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Signature([u8; 64]);

impl Signature {
    /// The signature of these 64 bytes.
    pub const fn from_bytes(bytes: [u8; 64]) -> Self {
        Self(bytes)
    }

    /// The 64 bytes of the signature.
    pub const fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(self.0))
    }
}

impl From<Signature> for String {
    fn from(signature: Signature) -> Self {
        BASE64.encode(signature.0)
    }
}

impl TryFrom<String> for Signature {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let bytes = BASE64.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or("not a signature: 64 bytes in base64 are expected")
    }
}

/// The text or bytes are not an Ed25519 key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key: 44 characters of base64 that stand for 32 bytes are expected")]
pub struct InvalidKey;

/// An Ed25519 key pair. The private half is wiped on drop.
pub struct Identity {
    seed: Zeroizing<[u8; 32]>,
    public_key: PublicKey,
}

impl Identity {
    /// The pair of a private key of 32 random bytes (RFC 8032 section 5.1.5).
    pub fn from_seed(mut seed: [u8; 32]) -> Self {
        let kept = Zeroizing::new(seed);
        seed.zeroize();
        let pair =
            Ed25519KeyPair::from_seed_unchecked(&*kept).expect("every seed of 32 bytes is a key");
        let public = pair.public_key().as_ref();
        let public_key = PublicKey(public.try_into().expect("an Ed25519 public key has 32 bytes"));
        Self { seed: kept, public_key }
    }

    /// Reads a private key in PKCS #8 (RFC 8410 section 7). Public half optional, but must match.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, InvalidKey> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| InvalidKey)?;
        // In both versions the seed follows a head of 16 bytes, which the library has checked.
        let seed = der.get(16..48).and_then(|seed| seed.try_into().ok()).ok_or(InvalidKey)?;
        let identity = Self::from_seed(seed);
        if identity.public_key.0 != pair.public_key().as_ref() {
            return Err(InvalidKey);
        }
        Ok(identity)
    }

    /// The private key in PKCS #8 (RFC 8410 section 7).
    pub fn to_pkcs8(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new([&PKCS8_PREFIX[..], &self.seed[..]].concat())
    }

    /// Reads what [`Identity::to_base64`] writes.
    pub fn from_base64(text: &str) -> Result<Self, InvalidKey> {
        let bytes = Zeroizing::new(BASE64.decode(text.trim()).map_err(|_| InvalidKey)?);
        bytes.as_slice().try_into().map(Self::from_seed).map_err(|_| InvalidKey)
    }

    /// The private key in base64, 44 characters.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.seed.as_slice())
    }

    /// The public half.
    pub fn public_key(&self) -> PublicKey {
        self.public_key
    }

    /// Signs `message` (RFC 8032 section 5.1.6). Callers begin the message with its purpose, so
    /// that no signature serves another one.
    pub fn sign(&self, message: &[u8]) -> Signature {
        let pair = Ed25519KeyPair::from_seed_unchecked(&*self.seed)
            .expect("every seed of 32 bytes is a key");
        let signature = pair.sign(message);
        Signature(signature.as_ref().try_into().expect("an Ed25519 signature has 64 bytes"))
    }

    /// A secret for `purpose`, the same after a restart.
    pub fn derive(&self, purpose: &[u8]) -> [u8; 32] {
        derive_secret(&self.seed, purpose)
    }
}

impl ZeroizeOnDrop for Identity {}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("public_key", &self.public_key).finish_non_exhaustive()
    }
}

/// HKDF (RFC 5869) of `secret` for `purpose`.
pub fn derive_secret(secret: &[u8; 32], purpose: &[u8]) -> [u8; 32] {
    let mut derived = [0; 32];
    hkdf::Salt::new(hkdf::HKDF_SHA256, b"roadweave")
        .extract(secret)
        .expand(&[purpose], hkdf::HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut derived))
        .expect("HKDF gives 32 bytes from any input");
    derived
}

/// SubjectPublicKeyInfo up to the key (RFC 8410 section 4).
const SPKI_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// PKCS #8 version 1 up to the key (RFC 8410 section 7).
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_key_is_that_of_rfc_8032() {
        // Section 7.1, test 1, in base64.
        let pair = Identity::from_base64("nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=").unwrap();
        let public = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
        assert_eq!(pair.public_key().to_string(), public);
    }

    #[test]
    fn keys_survive_every_form() {
        let identity = Identity::from_seed([7; 32]);
        let public = identity.public_key();
        assert_eq!(public.to_string().parse(), Ok(public));
        let json = serde_json::to_string(&public).unwrap();
        assert_eq!(serde_json::from_str::<PublicKey>(&json).unwrap(), public);
        assert_eq!(PublicKey::from_spki(&public.to_spki()), Some(public));
        assert_eq!(Identity::from_pkcs8(&identity.to_pkcs8()).unwrap().public_key(), public);
        assert_eq!(Identity::from_base64(&identity.to_base64()).unwrap().public_key(), public);
    }

    #[test]
    fn a_signature_holds_for_its_message_and_key_alone() {
        let (one, other) = (Identity::from_seed([1; 32]), Identity::from_seed([2; 32]));
        let signature = one.sign(b"message");
        assert!(one.public_key().verifies(b"message", &signature));
        assert!(!one.public_key().verifies(b"massage", &signature));
        assert!(!other.public_key().verifies(b"message", &signature));
        let text = String::from(signature);
        assert_eq!(Signature::try_from(text.clone()), Ok(signature));
        assert!(Signature::try_from(text[..40].to_owned()).is_err());
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in ["", "AAAA", "not base64 at all!", &"A".repeat(44), &"A".repeat(400)] {
            assert_eq!(text.parse::<PublicKey>(), Err(InvalidKey), "{text}");
        }
        assert!(Identity::from_pkcs8(&[0x30; 48]).is_err());
        assert!(Identity::from_pkcs8(&[]).is_err());
    }

    #[test]
    fn the_private_key_is_wiped_when_it_is_dropped_and_stays_out_of_logs() {
        fn is_wiped<T: ZeroizeOnDrop>(_: &T) {}
        let identity = Identity::from_seed([7; 32]);
        is_wiped(&identity.seed);
        is_wiped(&identity.to_pkcs8());
        let shown = format!("{identity:?}");
        assert!(!shown.contains(&identity.to_base64()) && shown.contains("public_key"));
    }
}
