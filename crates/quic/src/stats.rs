//! Counters of paths, connections and endpoints.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Counters of one path since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathStats {
    /// UDP packets sent.
    pub packets_sent: u64,
    /// UDP payload sent, bytes.
    pub bytes_sent: u64,
    /// UDP packets received.
    pub packets_received: u64,
    /// UDP payload received, bytes.
    pub bytes_received: u64,
    /// Datagrams sent by [`send_on`](crate::Connection::send_on).
    pub datagrams_sent: u64,
    /// Datagrams received from the peer's [`send_on`](crate::Connection::send_on).
    pub datagrams_received: u64,
    /// Bytes of datagrams accounted as first transmissions.
    pub source_bytes: u64,
    /// Bytes of datagrams accounted as redundant: copies, repairs.
    pub redundant_bytes: u64,
    /// Datagrams reported as acknowledged.
    pub datagrams_acknowledged: u64,
    /// Datagrams reported as lost.
    pub datagrams_lost: u64,
    /// Datagrams sent by [`send_feedback_on`](crate::Connection::send_feedback_on).
    pub feedback_sent: u64,
    /// Datagrams received from the peer's
    /// [`send_feedback_on`](crate::Connection::send_feedback_on).
    pub feedback_received: u64,
    /// Packets sent only to see whether the path answers, or to keep it open.
    pub probes_sent: u64,
    /// How often it became suspect.
    pub suspicions: u64,
    /// How often the address of the other side changed (NAT rebinding).
    pub rebindings: u64,
}

impl PathStats {
    /// UDP payload sent and received, bytes.
    pub const fn bytes(&self) -> [u64; 2] {
        [self.bytes_sent, self.bytes_received]
    }
}

/// Whether the packets of a path leave marked as ECN-capable (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EcnMarking {
    /// They do.
    #[default]
    Marked,
    /// They do not: the peer reports no marks, or a network removes them (RFC 9000 section 13.4.2).
    Unreported,
    /// They do not: marked packets vanished on this path where unmarked ones passed.
    Lost,
}

/// Counters of a whole connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionStats {
    /// How long the handshake took, once it is complete.
    pub handshake: Option<Duration>,
    /// Datagrams that left on a wrong path. The gate technique prevents it; a count above zero
    /// means that the library has changed.
    pub on_wrong_path: u64,
    /// Datagrams that had to wait in the library, which should not happen either.
    pub delayed_in_library: u64,
}

/// Counters of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EndpointStats {
    /// Handshakes begun by clients.
    pub handshakes: u64,
    /// Handshakes answered with a request to prove the address.
    pub retries: u64,
    /// Handshakes ignored since too many were under way.
    pub ignored: u64,
    /// Handshakes that gave way to others that had proved their address.
    pub evicted: u64,
    /// Clients whose key was refused.
    pub refused: u64,
    /// Handshakes that failed otherwise.
    pub failed: u64,
    /// Packets that belong to no connection and were no handshake.
    pub without_connection: u64,
    /// Answers to packets of no connection: resets, retries, version negotiation.
    pub responses: u64,
}
