//! A download as a stream: the share of the links' capacity that becomes goodput.
//!
//! ```text
//! join ─► all paths ─► rest ─► links from their beginning ─► request
//!      ─► server writes as fast as the stream takes it ─► client reads ─► Downloaded
//! ```
//!
//! Client, server and streams are the product's, without a network beyond them: the client reads at
//! once, and the server always has data. For comparison, TCP downloads the same over each link
//! without a tunnel.

use std::time::Duration;

use roadweave_emulate::{Direction, DuplexLink};
use roadweave_proto::wire::{Destination, ResetCode, StreamId, StreamPriority};
use roadweave_quic::CongestionControl;
use roadweave_stream::Event;
use roadweave_tunnel::{LaneConfig, StreamsConfig, StreamsOwner, default_lanes};
use serde::Serialize;

use crate::tcp::fetch::{Fetched, fetch};
use crate::tcp::{Algorithm, SocketConfig};
use crate::world::{World, WorldConfig, WorldError};

/// A download over some links, in a fresh session.
#[derive(Clone, Debug)]
pub struct Download {
    /// The links, which carry the data to the vehicle.
    pub links: Vec<DuplexLink>,
    /// Size of the download; cut off after [`CUT`].
    pub bytes: u64,
    /// Lane of the streams; `None`: the product's default.
    pub lane: Option<LaneConfig>,
    /// The congestion control of every path.
    pub congestion: CongestionControl,
    /// Seed of all randomness in client and server.
    pub seed: u64,
}

/// The result of a download.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Downloaded {
    /// Time from the request to the last byte, or to the cut-off.
    pub seconds: f64,
    /// Goodput, in order, Mbit/s.
    pub goodput_mbps: f64,
    /// By link: rate sent into it towards the vehicle, Mbit/s with all headers.
    pub pushed_mbps: Vec<f64>,
    /// Share of the bytes of the server's lane that were repairs or retransmissions.
    pub redundant: f64,
}

impl Download {
    /// A download over `links` with the product's defaults.
    pub fn new(links: Vec<DuplexLink>, bytes: u64, seed: u64) -> Self {
        Self { links, bytes, lane: None, congestion: CongestionControl::default(), seed }
    }

    /// Runs the download; fails if the world cannot be created.
    pub fn run(&self) -> Result<Downloaded, WorldError> {
        let defaults = StreamsConfig::default();
        let lane = self.lane.clone().unwrap_or_else(|| defaults.lane.clone());
        let mut world = World::joined(WorldConfig {
            streams: Some(StreamsConfig { lane, ..defaults }),
            congestion: self.congestion,
            ..WorldConfig::plain(self.links.clone(), default_lanes(), self.seed)
        })?;
        world.run_until(world.now() + REST);
        world.restart_links(self.links.clone());
        let before = Counted::of(&world);
        let mut ends = Ends::default();
        let lasted = ends.run(&mut world, self.bytes, CUT);
        let after = Counted::of(&world);
        let seconds = lasted.as_secs_f64().max(f64::MIN_POSITIVE);
        let mbps = |bytes: u64| bytes as f64 * 8.0 / seconds / 1e6;
        let pushed = after.links.iter().zip(&before.links);
        let sent = (after.lane - before.lane).max(1) as f64;
        Ok(Downloaded {
            seconds,
            goodput_mbps: mbps(ends.read),
            pushed_mbps: pushed.map(|(now, then)| mbps(now - then)).collect(),
            redundant: (after.redundant - before.redundant) as f64 / sent,
        })
    }

    /// The same download by TCP without a tunnel, over each link alone.
    pub fn by_tcp(&self, algorithm: Algorithm) -> Vec<Fetched> {
        let config = SocketConfig { algorithm, mtu: LINK_MTU, seed: self.seed };
        let alone = |link| fetch(link, &config, (Direction::Down, Some(self.bytes)), CUT);
        self.links.iter().map(alone).collect()
    }
}

#[derive(Debug, Default)]
struct Counted {
    /// Bytes sent into each link towards the vehicle.
    links: Vec<u64>,
    /// Bytes sent by the server's lane of streams, and how many of them were not sent for the first
    /// time.
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

#[derive(Debug, Default)]
struct Ends {
    answering: Option<(StreamsOwner, StreamId)>,
    read: u64,
}

impl Ends {
    fn run(&mut self, world: &mut World, bytes: u64, time: Duration) -> Duration {
        let (begun, end) = (world.now(), world.now() + time);
        let mut asked = None;
        while world.now() < end {
            asked = asked.or_else(|| ask(world));
            if let Some(id) = asked {
                self.read(world, id);
                self.answer(world);
                world.flush();
            }
            if self.read >= bytes {
                break;
            }
            let due = world.poll_timeout().map_or(end, |due| due.max(world.now()).min(end));
            world.handle_timeout(due);
        }
        if let Some(id) = asked {
            world
                .use_client_streams(|now, _, streams| _ = streams.reset(now, id, ResetCode::Other));
            world.flush();
        }
        world.now().since(begun)
    }

    fn read(&mut self, world: &mut World, id: StreamId) {
        let read = world.use_client_streams(|now, _, streams| {
            while streams.poll_event(now).is_some() {}
            let all = |pieces: [&[u8]; 2]| pieces.iter().map(|piece| piece.len()).sum();
            streams.read_with(now, id, all).unwrap_or(0)
        });
        self.read += read.unwrap_or(0) as u64;
    }

    fn answer(&mut self, world: &mut World) {
        while let Some((owner, event)) = world.poll_server_stream() {
            if let Event::Opened { id, .. } = event {
                let accepted = world.use_server_streams(owner, |now, it| it.accept(now, id));
                self.answering = accepted.and_then(Result::ok).map(|()| (owner, id));
            }
        }
        let Some((owner, id)) = self.answering else { return };
        world.use_server_streams(owner, |now, streams| {
            while let Ok(room @ 1..) = streams.room(now, id) {
                let bytes = &CHUNK[..room.min(CHUNK.len())];
                if !streams.write(now, id, bytes).is_ok_and(|taken| taken > 0) {
                    return;
                }
            }
        });
    }
}

fn ask(world: &mut World) -> Option<StreamId> {
    let asked = world.use_client_streams(|now, _, streams| {
        let website = Destination::of_address([192, 0, 2, 80].into(), 80)?;
        let id = streams.open(now, website, StreamPriority::new(3, true)).ok()?;
        streams.write(now, id, b"GET").ok()?;
        Some(id)
    });
    asked.flatten()
}

const REST: Duration = Duration::from_millis(500);
/// Time after which a download is cut off.
pub const CUT: Duration = Duration::from_secs(60);
const LINK_MTU: u16 = 1_500;
static CHUNK: [u8; 1 << 16] = [0; 1 << 16];

#[cfg(test)]
mod tests;
