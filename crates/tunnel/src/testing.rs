//! What tests of several modules use.

use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::Instant;

pub(crate) fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32])
}

pub(crate) fn key(seed: u8) -> PublicKey {
    identity(seed).public_key()
}

pub(crate) fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}
