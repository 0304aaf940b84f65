//! Multipath QUIC (RFC 9000, RFC 9221, RFC 10069) with a path chosen for every datagram.

mod config;
mod connection;
mod endpoint;
mod epoch;
mod event;
mod identity;
mod outbox;
mod stats;

pub use config::{ConfigError, CongestionControl, TransportConfig, UnknownCongestionControl};
pub use connection::Connection;
pub use endpoint::{Endpoint, Local, PeerPolicy, Source};
pub use epoch::Epoch;
pub use event::{
    CloseReason, ConnectError, ConnectionId, EndpointEvent, Event, MessageError, PathCloseReason,
    PathError, Refusal, SendError,
};
pub use identity::{Identity, InvalidKey, PublicKey};
pub use outbox::{Ecn, Outbox, Route, Run, Runs};
pub use stats::{ConnectionStats, EndpointStats, PathStats};

/// The longest message of [`Connection::send_message`], bytes.
pub const MESSAGE_MAX: usize = 16 * 1024;
