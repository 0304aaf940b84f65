//! What connections and endpoints report, and why they refuse.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::{Instant, PathId, peer_text};

use roadweave_identity::{PublicKey, Refusal};

/// The name of a connection within its endpoint; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The handshake is complete and the peer has proved that it holds this key.
    Connected {
        /// The peer's key.
        peer: PublicKey,
    },
    /// A path was validated and carries datagrams.
    PathUsable(PathId),
    /// A path is gone for good. Its datagrams in flight have been reported lost.
    PathClosed(PathId, PathCloseReason),
    /// A datagram came in, of [`send_on`](crate::Connection::send_on) or of
    /// [`send_feedback_on`](crate::Connection::send_feedback_on).
    Received {
        /// The path it came in on.
        path: PathId,
        /// The datagram as the peer handed it over.
        datagram: Bytes,
    },
    /// The peer received a datagram of [`send_on`](crate::Connection::send_on).
    Acknowledged {
        /// The path it went out on.
        path: PathId,
        /// The sender's token for it.
        token: u64,
        /// When the datagram left.
        sent: Instant,
        /// The length of the packet that it left in, bytes.
        bytes: u32,
        /// Its round trip, without the peer's wait for other packets to acknowledge.
        rtt: Duration,
    },
    /// A datagram of [`send_on`](crate::Connection::send_on) is taken for lost. It may still
    /// arrive; no other event follows for it.
    Lost {
        /// The path it went out on.
        path: PathId,
        /// The sender's token for it.
        token: u64,
    },
    /// A whole message of [`send_message`](crate::Connection::send_message).
    Message(Bytes),
    /// The connection is over; this is its last event.
    Closed(CloseReason),
}

/// Why a path was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathCloseReason {
    /// This side asked for the path to be closed.
    Requested,
    /// The peer asked for the path to be closed.
    ByPeer,
    /// The path answered nothing for
    /// [`unresponsive_timeout`](crate::TransportConfig::unresponsive_timeout).
    Unresponsive,
}

/// CRYPTO_ERROR of the alert no_application_protocol (RFC 9001 section 8.1).
const NO_COMMON_PROTOCOL: u64 = 0x178;

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// This side closed the connection.
    #[error("closed")]
    Local,
    /// The peer closed the connection.
    #[error("closed by the peer, code {code}: {reason}")]
    ByPeer {
        /// What the peer gave to [`close`](crate::Connection::close).
        code: u32,
        /// What the peer gave to [`close`](crate::Connection::close), fit to be shown.
        reason: String,
    },
    /// The server refuses this client, and has proved its key. Another attempt will not help.
    #[error("refused by the server: {0}")]
    Refused(Refusal),
    /// The server is misconfigured, or a network on the way answers in its place.
    #[error("the server has the key {got}, which is not the expected one")]
    WrongServerKey {
        /// The key it showed.
        got: PublicKey,
    },
    /// The connection was closed before the server proved its key. Anybody on the way can do that:
    /// Initial keys follow from cleartext (RFC 9001 section 5.2).
    #[error(
        "closed with code {code:#x} by a peer that had not proved to be the server{}",
        if *code == NO_COMMON_PROTOCOL { "; if it is, upgrade the older end" } else { "" }
    )]
    Unproven {
        /// The code of RFC 9000 section 20.
        code: u64,
    },
    /// The client has another key for this server.
    #[error("the client expects another key of this server")]
    UnexpectedServerKey,
    /// No answer to the handshake in time.
    #[error("no answer to the handshake")]
    HandshakeTimedOut,
    /// Nothing was received for the idle timeout.
    #[error("nothing heard for too long")]
    TimedOut,
    /// The peer restarted and does not know the connection.
    #[error("the peer has lost its state, most likely by a restart")]
    Reset,
    /// The server takes no more connections at present, or a packet on the way says so.
    #[error("the server is busy")]
    Busy,
    /// The peer, or an attacker on the way, claims to have no version of QUIC or of the tunnel in
    /// common with this side.
    #[error("no common version of the protocol")]
    VersionMismatch,
    /// One side broke the protocol.
    #[error("protocol error: {0}")]
    Protocol(String),
}

impl CloseReason {
    /// What an error that this side found means.
    pub(crate) fn of_own(error: &noq_proto::TransportError) -> Self {
        match u64::from(error.code) {
            NO_COMMON_PROTOCOL => Self::VersionMismatch,
            _ => Self::Protocol(peer_text(error.to_string().as_bytes())),
        }
    }
}

/// An event that belongs to no connection.
#[derive(Clone, Debug, PartialEq)]
pub enum EndpointEvent {
    /// A client completed its handshake.
    Incoming(ConnectionId),
    /// A client was not let in.
    Refused {
        /// The address it came from.
        remote: SocketAddr,
        /// The key it showed.
        key: PublicKey,
        /// Why the client was refused.
        why: Refusal,
    },
    /// A client's handshake failed for another reason.
    HandshakeFailed {
        /// The address it came from.
        remote: SocketAddr,
        /// The reason.
        reason: CloseReason,
    },
}

/// Why a datagram was not sent; it is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The congestion window or the pacer of the path holds it back.
    #[error("the path is full")]
    Blocked(Bytes),
    /// The path does not exist, or is not validated yet.
    #[error("the path is not usable")]
    NotUsable(Bytes),
    /// The datagram is larger than [`max_datagram_size`](crate::Connection::max_datagram_size).
    #[error("the datagram is larger than {max} bytes")]
    TooLarge {
        /// The largest datagram at present, bytes.
        max: usize,
        /// The datagram.
        datagram: Bytes,
    },
    /// The connection is over or not yet established.
    #[error("the connection is not open")]
    Closed(Bytes),
}

impl SendError {
    /// The datagram that was not sent.
    pub fn into_datagram(self) -> Bytes {
        match self {
            Self::Blocked(datagram)
            | Self::NotUsable(datagram)
            | Self::TooLarge { datagram, .. }
            | Self::Closed(datagram) => datagram,
        }
    }
}

/// Why a message was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message is longer than [`MESSAGE_MAX`](crate::MESSAGE_MAX).
    #[error("the message is longer than {} bytes", crate::MESSAGE_MAX)]
    TooLarge,
    /// Too many messages wait already.
    #[error("the queue of messages is full")]
    Full,
    /// The connection is over.
    #[error("the connection is not open")]
    Closed,
}

/// Why a path was not opened, closed or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Only clients open paths.
    #[error("only clients open paths")]
    NotClient,
    /// The uplink has a path already.
    #[error("the uplink has a path already")]
    Exists,
    /// There are as many paths as the settings allow.
    #[error("there are too many paths")]
    TooMany,
    /// There is no such path.
    #[error("there is no such path")]
    Unknown,
    /// The last path cannot be closed; close the connection instead.
    #[error("the last path cannot be closed")]
    Last,
    /// The connection is over.
    #[error("the connection is not open")]
    Closed,
}

/// Why no connection was begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Servers do not connect.
    #[error("a server endpoint does not connect")]
    NotClient,
    /// The address cannot be sent to.
    #[error("{0} is not an address to connect to")]
    InvalidAddress(SocketAddr),
    /// The transport library refused.
    #[error("the transport library refuses to connect: {0}")]
    Transport(String),
}
