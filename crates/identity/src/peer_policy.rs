//! Decides who may connect.

use crate::keys::PublicKey;

/// Decides who may connect; asked at each handshake.
pub trait PeerPolicy: Send + Sync {
    /// Whether the holder of `key` may connect; both sides learn a refusal.
    fn check(&self, key: &PublicKey) -> Result<(), Refusal>;
}

/// Why a server refuses a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The server does not know the key.
    #[error("the server does not know this client's key")]
    Unknown,
    /// The key has expired.
    #[error("this client's key has expired")]
    Expired,
    /// The key was revoked.
    #[error("this client's key was revoked")]
    Revoked,
    /// The key is valid, but not for this.
    #[error("this client's key may not be used here")]
    Forbidden,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Expired, Self::Revoked, Self::Forbidden];
}
