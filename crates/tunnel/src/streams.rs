//! Streams between a client and their far end: identity, and whether they outlive a session.
//!
//! ```text
//! client ── hello: epoch E ──► server      E: the client's streams with this server
//! client ◄─ welcome: epoch F ─ server      F: the server's streams with this client under E
//!
//! the same E and F as before ─► all goes on, what was not acknowledged is sent again
//! another E or F ────────────► all streams before are over, at both ends
//! ```
//!
//! Behind a proxy the same is agreed between client and anchor, by messages of their own and of the
//! leg. Streams go on when a session is replaced. After a restart of either end, or at another
//! server, both ends start again, since credit counts from the beginning.

mod table;

use std::net::IpAddr;
use std::time::Duration;

use roadweave_proto::{Instant, Order, Pacing, SplitMix64};
use roadweave_stream::{Config, Event, Side, Streams};

pub(crate) use self::table::{StreamsTable, Terms};
use crate::lane::{LaneConfig, patient};

/// How long streams wait for a session, at both ends: as long as a stream waits for an answer.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(120);

/// How streams are carried, and how many.
#[derive(Clone, Debug)]
pub struct StreamsConfig {
    /// Their lane; order and expiry are ignored: unordered, without expiry.
    pub lane: LaneConfig,
    /// The most open streams between a client and its server.
    pub streams_max: usize,
    /// Bytes of each stream that go before all else in the lane: a first frame, or a small answer.
    pub head: u64,
}

impl StreamsConfig {
    /// The name of the lane that carries streams.
    pub const LANE: &str = "streams";
    /// The usual maximum of open streams.
    pub const STREAMS_MAX: usize = 256;

    /// The lane as streams need it: they order their data and wait for late data themselves.
    pub(crate) fn lane(&self) -> LaneConfig {
        LaneConfig { order: Order::Pass, expire_after: None, ..self.lane.clone() }
    }

    pub(crate) fn first_epoch(seed: &[u8; 32]) -> u64 {
        let words = seed.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        words.fold(0, SplitMix64::word)
    }

    pub(crate) fn bounds(&self, side: Side) -> Config {
        Config { head: self.head, ..Config::for_streams(side, self.streams_max) }
    }
}

impl Default for StreamsConfig {
    /// Up to 256 streams, sent as transfers are by default.
    fn default() -> Self {
        Self { lane: default_lane(), streams_max: Self::STREAMS_MAX, head: 0 }
    }
}

/// The lane of streams: as for transfers, but with a short queue, since frames are made on demand.
fn default_lane() -> LaneConfig {
    LaneConfig { rank: 1, pacing: Pacing::Rate, rtp_frames: false, ..patient(StreamsConfig::LANE) }
}

/// Identifies all streams between a client and its server until they start again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamsOwner(pub u64);

/// The far end of clients' streams: a server or an anchor.
pub trait EndsStreams {
    /// Hands to the streams what came for them since the last turn.
    fn hand_over_symbols(&mut self, _now: Instant) {}

    /// The next event of a client's stream, as of the last turn or
    /// [`EndsStreams::hand_over_symbols`].
    fn poll_stream_event(&mut self, _now: Instant) -> Option<(StreamsOwner, Event)> {
        None
    }

    /// The next owner all of whose streams are over; its client's further streams have another.
    fn poll_streams_over(&mut self) -> Option<StreamsOwner> {
        None
    }

    /// The streams of a client, unless they are over. The next turn sends what was written.
    fn streams(&mut self, _owner: StreamsOwner) -> Option<&mut Streams> {
        None
    }

    /// Whether the address belongs to a client that may connect, or lies behind one.
    fn is_of_client(&self, _address: IpAddr) -> bool {
        false
    }

    /// A client's first own inner address of a family, if it has one; not an address behind it.
    fn stream_address(&self, _owner: StreamsOwner, _ipv4: bool) -> Option<IpAddr> {
        None
    }
}
