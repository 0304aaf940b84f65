//! Streams between a client and their far end, its server or its tenant's anchor: whose they are,
//! and whether they outlive a session.
//!
//! ```text
//! client ── hello: epoch E ──► server      E: the client's streams with this server
//! client ◄─ welcome: epoch F ─ server      F: the server's streams with this client under E
//!
//! the same E and F as before ─► all goes on, what was not acknowledged is sent again
//! another E or F ────────────► all streams before are over, at both ends
//! ```
//!
//! From a proxy: the same, between client and anchor, by messages of their own and of the leg.
//!
//! A session may be replaced at any time, and its streams go on in the next one. But a server that
//! was restarted, another server, or a box that was restarted knows nothing of them: then both ends
//! begin anew, since credit is counted from the beginning.

mod table;

use std::time::Duration;

use roadweave_proto::{Order, SplitMix64};
use roadweave_stream::{Config, Side};

pub(crate) use self::table::{StreamsOver, StreamsTable, Terms};
use crate::lane::{LaneConfig, stream_lane};

/// How long streams wait for a session, at both ends: as long as one of them waits for an answer.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(120);

/// How streams are carried, and how many.
#[derive(Clone, Debug)]
pub struct StreamsConfig {
    /// How their frames are sent: in no order, and none expires, whatever it says.
    pub lane: LaneConfig,
    /// The most streams that may be open between a client and its server.
    pub streams_max: usize,
    /// So many of the first bytes that this end sends in each stream go before everything else in
    /// the lane: the first video frame, or an answer that is small.
    pub head: u64,
}

impl StreamsConfig {
    /// The name of the lane that carries streams.
    pub const LANE: &str = "streams";

    /// The lane, as streams need it: they keep their order by themselves, and wait for what is
    /// late.
    pub(crate) fn lane(&self) -> LaneConfig {
        LaneConfig { order: Order::Pass, expire_after: None, ..self.lane.clone() }
    }

    /// The number from which the names of streams count in one life of the program, whose other
    /// random numbers grow out of `seed` as well.
    pub(crate) fn first_epoch(seed: &[u8; 32]) -> u64 {
        let words = seed.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        words.fold(0, SplitMix64::word)
    }

    /// The bounds of the streams of one end.
    pub(crate) fn bounds(&self, side: Side) -> Config {
        Config { head: self.head, ..Config::for_streams(side, self.streams_max) }
    }
}

impl Default for StreamsConfig {
    /// Up to 256 streams, sent as transfers are by default.
    fn default() -> Self {
        Self { lane: stream_lane(), streams_max: 256, head: 0 }
    }
}

/// Names all streams between a client and its server until they begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamsOwner(pub u64);
