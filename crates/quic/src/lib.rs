//! Multipath QUIC (RFC 9000, RFC 9221, RFC 10069) with a path chosen for every datagram.
//!
//! The QUIC library schedules paths by itself. This crate, the only one of the product that names
//! it, makes it send each datagram on the path that a scheduler chose, and reports its fate. It
//! does no I/O and reads no clock: packets and time come in, packets and events go out.
//!
//! ```text
//!            Endpoint                                 tls             who may talk to whom
//!               | one for each peer                   secrets         seeds, tokens
//!           Connection                                payload         data or feedback
//!            |  |  '---------- control                whole, reliable messages
//!            |  '--------- outbox                     packets for the network, in batches
//!          Path ...
//!          |  '------- pacer                          a token bucket
//!         Gate ------- meter                          what was sent, its fate, round-trip times
//! ```
//!
//! Start reading at [`Connection`], then `gate`.

mod config;
mod congestion;
mod connection;
mod control;
mod endpoint;
mod epoch;
mod event;
mod gate;
mod idle_probes;
mod meter;
mod outbox;
mod pacer;
mod path;
mod payload;
mod probe;
mod read_delay;
mod secrets;
mod shard;
#[cfg(test)]
mod simulation;
mod source;
mod stats;
mod tls;
mod transport;
mod virtual_address;

pub use config::{ConfigError, CongestionControl, TransportConfig};
pub use connection::Connection;
pub use endpoint::Endpoint;
pub use epoch::Epoch;
pub use event::{
    CloseReason, ConnectError, ConnectionId, EndpointEvent, Event, MessageError, PathCloseReason,
    PathError, SendError,
};
pub use outbox::{Ecn, Outbox, Route, Run, Runs, Transmit};
pub use probe::{ProbeOutcome, Prober};
pub use shard::{SHARDS_MAX, Shard, ShardMap};
pub use source::{Local, Source};
pub use stats::{ConnectionStats, EcnMarking, EndpointStats, PathStats};

/// The longest message of [`Connection::send_message`], bytes.
pub const MESSAGE_MAX: usize = 16 * 1024;
