//! A download as a stream: the share of the links' capacity that becomes goodput.
//!
//! ```text
//! join ─► all paths ─► rest ─► links from their beginning ─► request
//!      ─► host writes as fast as the stream takes it ─► browser reads ─► Downloaded
//! ```
//!
//! Client, server and streams are the product's, without a network beyond them: the client reads at
//! once, and the server always has data. For comparison, TCP downloads the same over each link
//! without a tunnel.

use std::time::Duration;

use roadweave_emulate::{Direction, DuplexLink};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{LaneConfig, StreamsConfig, default_lanes};
use serde::Serialize;

use crate::tcp::{SocketConfig, fetch};
use crate::web::{Loading, Visit};
use crate::world::{World, WorldConfig, WorldError};

/// A download over some links, in a fresh session.
#[derive(Clone, Debug)]
pub struct Download {
    /// The links, which carry the data to the vehicle.
    pub links: Vec<DuplexLink>,
    /// Size of the download; cut off after [`CUT`].
    pub bytes: u32,
    /// Lane of the streams; `None`: the product's default.
    pub lane: Option<LaneConfig>,
    pub congestion: CongestionControl,
    pub seed: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Downloaded {
    /// Time from the request to the last byte, or to the cut-off.
    pub seconds: f64,
    pub goodput_mbps: f64,
    /// By link: rate sent into it towards the vehicle, Mbit/s with all headers.
    pub pushed_mbps: Vec<f64>,
    /// Share of the bytes of the server's lane that were repairs or retransmissions.
    pub redundant: f64,
}

impl Download {
    /// A download over `links` with the product's defaults.
    pub fn new(links: Vec<DuplexLink>, bytes: u32, seed: u64) -> Self {
        Self { links, bytes, lane: None, congestion: CongestionControl::default(), seed }
    }

    /// Runs the download; fails if the world cannot be created.
    pub fn run(&self) -> Result<Downloaded, WorldError> {
        let defaults = StreamsConfig::default();
        let lane = self.lane.clone().unwrap_or_else(|| defaults.lane.clone());
        let mut visit = Visit::new(WorldConfig {
            streams: Some(StreamsConfig { lane, ..defaults }),
            congestion: self.congestion,
            ..WorldConfig::plain(self.links.clone(), default_lanes(), self.seed)
        })?;
        visit.world.run_until(visit.world.now() + REST);
        visit.world.restart_links(self.links.clone());
        let before = Counted::of(&visit.world);
        let mut loading = Loading::new(self.bytes, 1);
        let begun = visit.world.now();
        visit.run(&mut loading, begun + CUT);
        let after = Counted::of(&visit.world);
        let seconds = visit.world.now().since(begun).as_secs_f64().max(f64::MIN_POSITIVE);
        let mbps = |bytes: u64| bytes as f64 * 8.0 / seconds / 1e6;
        let pushed = after.links.iter().zip(&before.links);
        let sent = (after.lane - before.lane).max(1) as f64;
        Ok(Downloaded {
            seconds,
            goodput_mbps: mbps(loading.received()),
            pushed_mbps: pushed.map(|(now, then)| mbps(now - then)).collect(),
            redundant: (after.redundant - before.redundant) as f64 / sent,
        })
    }

    /// Goodput of the same download by TCP over the first link without a tunnel, Mbit/s.
    pub fn by_tcp(&self, algorithm: CongestionControl) -> f64 {
        let config = SocketConfig { algorithm, mtu: LINK_MTU, seed: self.seed };
        let what = (Direction::Down, Some(self.bytes.into()));
        fetch(&self.links[0], &config, what, CUT).goodput_mbps()
    }
}

#[derive(Debug, Default)]
struct Counted {
    links: Vec<u64>,
    /// Bytes sent by the server's lane of streams, and how many of them were sent again.
    lane: u64,
    redundant: u64,
}

impl Counted {
    fn of(world: &World) -> Self {
        let of_link = |link| world.link_stats(link, Direction::Down).pushed_bytes;
        let mut counted =
            Self { links: (0..world.links()).map(of_link).collect(), ..Self::default() };
        if let Some(lane) = world.server_status().first().and_then(|it| it.stats.lanes.last()) {
            counted.redundant = lane.sent.duplicate_bytes + lane.sent.coded_bytes;
            counted.lane = lane.sent.source_bytes + counted.redundant;
        }
        counted
    }
}

const REST: Duration = Duration::from_millis(500);
/// Time after which a download is cut off.
pub const CUT: Duration = Duration::from_secs(60);
const LINK_MTU: u16 = 1_500;

#[cfg(test)]
mod tests;
