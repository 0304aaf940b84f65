//! A download as a stream: how much of what the links can carry becomes its goodput?
//!
//! ```text
//! join ─► all paths ─► [a download that nobody counts] ─► rest ─► links from their beginning
//!      ─► request ─► server writes as fast as the stream takes it ─► client reads ─► Downloaded
//! ```
//!
//! Client, server and their streams are the product's. Beyond them there is no network: whoever
//! asks reads at once, and whoever answers always has more. The same is downloaded by TCP, for
//! comparison: through a tunnel that has been used as much, and over each link without one.

use std::time::Duration;

use roadweave_emulate::{Direction, DriveLink, DuplexLink};
use roadweave_quic::CongestionControl;
use roadweave_stream::Event;
use roadweave_tunnel::{LaneConfig, StreamsConfig, StreamsOwner, default_lanes};
use roadweave_wire::{Destination, ResetCode, StreamId, StreamPriority};
use serde::Serialize;

use crate::tcp::fetch::{Fetched, fetch};
use crate::tcp::tunnelled::{REST, Tunnelled, WARM, WARM_TIME};
use crate::tcp::{Algorithm, SocketConfig};
use crate::world::{World, WorldConfig, WorldError};

/// A download over some links.
#[derive(Clone, Debug)]
pub struct Download {
    /// The links, which carry the data to the vehicle.
    pub links: Vec<DuplexLink>,
    /// How much is downloaded.
    pub size: Size,
    /// How the frames of streams are sent; `None`: as the product does by default.
    pub lane: Option<LaneConfig>,
    /// The congestion control of every path.
    pub congestion: CongestionControl,
    /// Whether the session has carried a download before.
    pub is_warm: bool,
    /// Decides all that is random in client and server.
    pub seed: u64,
}

/// How much is downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many bytes; cut off after [`CUT`].
    Bytes(u64),
    /// As much as comes in so long.
    Time(Duration),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Downloaded {
    /// From the request to the last byte, or to the end of the time for it.
    pub seconds: f64,
    /// What came in order, Mbit/s.
    pub goodput_mbps: f64,
    /// By link: what it could have carried meanwhile, Mbit/s with all headers.
    pub capacity_mbps: Vec<f64>,
    /// By link: what was given to it towards the vehicle meanwhile, Mbit/s with all headers.
    pub pushed_mbps: Vec<f64>,
    /// By link: the share of the packets towards the vehicle that its queue had no room for, or
    /// that it lost.
    pub lost: Vec<f64>,
    /// By link: the longest queue towards the vehicle, bytes, the time before included.
    pub queue_bytes_max: Vec<usize>,
    /// Of the bytes that the server's lane sent: the share that was a repair or sent again.
    pub redundant: f64,
}

impl Download {
    /// A download over `links` as the product does by default, in a session that has carried
    /// nothing.
    pub fn new(links: Vec<DuplexLink>, size: Size, seed: u64) -> Self {
        let congestion = CongestionControl::default();
        Self { links, size, lane: None, congestion, is_warm: false, seed }
    }

    /// Downloads.
    ///
    /// # Errors
    /// [`WorldError`] when the links make no world.
    pub fn run(&self) -> Result<Downloaded, WorldError> {
        let defaults = StreamsConfig::default();
        let lane = self.lane.clone().unwrap_or_else(|| defaults.lane.clone());
        let mut world = World::joined(WorldConfig {
            streams: Some(StreamsConfig { lane, ..defaults }),
            congestion: self.congestion,
            ..WorldConfig::plain(self.links.clone(), default_lanes(), self.seed)
        })?;
        if self.is_warm {
            let mut before = Ends::default();
            before.run(&mut world, WARM, WARM_TIME);
            world.run_until(world.now() + WARM_TIME);
        }
        world.run_until(world.now() + REST);
        world.restart_links(self.links.clone());
        let before = Counted::of(&world);
        let mut ends = Ends::default();
        let (bytes, time) = self.size.limits();
        let lasted = ends.run(&mut world, bytes.unwrap_or(u64::MAX), time);
        Ok(self.downloaded(&before, &Counted::of(&world), ends.read, lasted))
    }

    /// The same by a connection of TCP through the tunnel, with the lanes that it has by default.
    ///
    /// # Errors
    /// [`WorldError`] when the links make no world.
    pub fn by_tunnel(&self, algorithm: Algorithm) -> Result<Fetched, WorldError> {
        let (bytes, time) = self.size.limits();
        let tunnel = Tunnelled {
            congestion: self.congestion,
            is_warm: self.is_warm,
            ..Tunnelled::new(self.links.clone(), algorithm, self.seed)
        };
        tunnel.fetch((Direction::Down, bytes), time)
    }

    /// The same by TCP without a tunnel, over each link alone.
    pub fn by_links(&self, algorithm: Algorithm) -> Vec<Fetched> {
        let (bytes, time) = self.size.limits();
        let config = SocketConfig { algorithm, mtu: LINK_MTU, seed: self.seed };
        let alone = |link| fetch(link, &config, (Direction::Down, bytes), time);
        self.links.iter().map(alone).collect()
    }

    fn downloaded(
        &self,
        before: &Counted,
        after: &Counted,
        read: u64,
        lasted: Duration,
    ) -> Downloaded {
        let seconds = lasted.as_secs_f64().max(f64::MIN_POSITIVE);
        let mbps = |bytes: u64| bytes as f64 * 8.0 / seconds / 1e6;
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let links = after.links.iter().zip(&before.links);
        let capacity = |link: &DuplexLink| link.down.trace.capacity().mean_rates(lasted, lasted);
        Downloaded {
            seconds,
            goodput_mbps: mbps(read),
            capacity_mbps: self.links.iter().map(|link| capacity(link)[0] / 1e6).collect(),
            pushed_mbps: links.clone().map(|(now, then)| mbps(now.bytes - then.bytes)).collect(),
            lost: links
                .map(|(now, then)| share(now.lost - then.lost, now.packets - then.packets))
                .collect(),
            queue_bytes_max: after.links.iter().map(|link| link.queue_bytes_max).collect(),
            redundant: share(after.redundant - before.redundant, after.lane - before.lane),
        }
    }
}

impl Size {
    /// How many bytes, if that is known, and for how long at most.
    fn limits(self) -> (Option<u64>, Duration) {
        match self {
            Self::Bytes(bytes) => (Some(bytes), CUT),
            Self::Time(time) => (None, time),
        }
    }
}

impl Downloaded {
    /// What connections of TCP without a tunnel could have got of all links together, Mbit/s.
    pub fn possible_mbps(&self) -> f64 {
        self.capacity_mbps.iter().sum::<f64>() * TCP_SHARE
    }
}

/// The links of a drive, with what was recorded of the uplink in both directions, as downloads
/// between namespaces have it.
pub fn links_of_drive(links: &[DriveLink], seed: u64) -> Vec<DuplexLink> {
    let mirrored = |link: &DriveLink| DriveLink::symmetric(link.name.clone(), link.up.clone());
    let links = links.iter().map(mirrored).zip(0..);
    links.map(|(link, at)| DuplexLink::new(&link, at, seed)).collect()
}

/// What was counted of a world until a moment.
#[derive(Debug, Default)]
struct Counted {
    links: Vec<LinkCount>,
    /// Bytes that the server's lane of streams has sent, and those that were not the first.
    lane: u64,
    redundant: u64,
}

#[derive(Debug)]
struct LinkCount {
    packets: u64,
    bytes: u64,
    lost: u64,
    queue_bytes_max: usize,
}

impl Counted {
    fn of(world: &World) -> Self {
        let of_link = |link| {
            let stats = world.link_stats(link, Direction::Down);
            LinkCount {
                packets: stats.pushed,
                bytes: stats.pushed_bytes,
                lost: stats.dropped.total(),
                queue_bytes_max: stats.queue_bytes_max,
            }
        };
        let mut counted =
            Self { links: (0..world.links()).map(of_link).collect(), ..Self::default() };
        if let Some(lane) = world.server_status().first().and_then(|it| it.stats.lanes.last()) {
            counted.redundant = lane.sent.duplicate_bytes + lane.sent.coded_bytes;
            counted.lane = lane.sent.source_bytes + counted.redundant;
        }
        counted
    }
}

/// Both ends of one download.
#[derive(Debug, Default)]
struct Ends {
    answering: Option<(StreamsOwner, StreamId)>,
    read: u64,
}

impl Ends {
    /// Asks for `bytes` bytes and reads them, for at most `time`; returns how long it took.
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

    /// Writes as much as the stream takes.
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

/// Opens a stream, if there is a session that carries any.
fn ask(world: &mut World) -> Option<StreamId> {
    let asked = world.use_client_streams(|now, _, streams| {
        let website = Destination::of_address([192, 0, 2, 80].into(), 80)?;
        let id = streams.open(now, website, StreamPriority::new(3, true)).ok()?;
        streams.write(now, id, b"GET").ok()?;
        Some(id)
    });
    asked.flatten()
}

/// What TCP makes of a packet of 1,500 bytes: 20 are the header of IPv4, 32 its own, timestamps
/// among them.
const TCP_SHARE: f64 = 1448.0 / 1500.0;
/// A download that takes longer is cut off.
pub const CUT: Duration = Duration::from_secs(60);
/// The largest IP packet of a link without a tunnel, bytes.
const LINK_MTU: u16 = 1_500;
/// What is written at one time.
static CHUNK: [u8; 1 << 16] = [0; 1 << 16];

#[cfg(test)]
mod tests;
