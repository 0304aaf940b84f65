//! What a server reports to its driver.

use roadweave_identity::PublicKey;

/// An event for the driver of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A client's session began.
    Joined {
        /// The client's name in the configuration.
        peer: String,
        /// The client's key.
        key: PublicKey,
    },
    /// A client's session ended.
    Left {
        /// The client's name in the configuration.
        peer: String,
        /// The client's key.
        key: PublicKey,
        /// The reason, as text.
        reason: String,
    },
    /// The leg of a proxy to an anchor came up again, or went down.
    Leg {
        /// The leg and its state, as text.
        text: String,
    },
    /// A client was not let in.
    Refused {
        /// The client and the reason, as text.
        reason: String,
    },
}
