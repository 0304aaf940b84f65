//! Who may connect, and why not.

use std::fmt;

use crate::keys::PublicKey;

/// Says who may connect; asked at each handshake.
pub trait PeerPolicy: Send + Sync {
    /// Whether the holder of `key` may connect.
    ///
    /// # Errors
    ///
    /// Why not; both sides learn it.
    fn check(&self, key: &PublicKey) -> Result<(), Refusal>;
}

/// Why a server does not let a client in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The server does not know the key.
    Unknown,
    /// The key was good once; its time is over.
    Expired,
    /// The key was withdrawn.
    Revoked,
    /// The key is good, but may not be used for this.
    Forbidden,
}

impl Refusal {
    /// Every reason there is.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Expired, Self::Revoked, Self::Forbidden];

    /// Whether the refusal also ends sessions under way: who is in stays in while nobody new is let
    /// in.
    pub fn ends_sessions(self) -> bool {
        self != Self::Forbidden
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "the server does not know this client's key",
            Self::Expired => "this client's key has expired",
            Self::Revoked => "this client's key was revoked",
            Self::Forbidden => "this client's key may not be used here",
        })
    }
}
