//! A viewer in a world: the player at the client, its host behind the server.
//!
//! ```text
//!      join, and load something        rest │ watch                 │ pending requests
//! ├─────────────────────────────────┼───────┼───────────────────────┼───────────┤
//! 0    links at their mean rates      0.5 s   links as recorded       30 s at most
//! ```
//!
//! A session in use is measured. Mean rates before the viewer starts let all sessions start alike.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_emulate::{Capacity, DriveLink, DuplexLink, Trace};
use roadweave_proto::wire::StreamPriority;
use roadweave_proto::{Instant, earliest};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{LaneConfig, Strategy, StreamsConfig};

use super::player::{CHUNK, ChunkId, FRAMES_OF_CHUNK, Player, Program};
use super::seen::{ServerTraffic, Viewing};
use crate::web::{Browser, BrowserEvent, ConnectionId, REQUEST, Visit, Visitor};
use crate::world::{World, WorldConfig, WorldError};

#[derive(Debug)]
struct Viewer {
    player: Player,
    next_report: Option<Instant>,
    chunks: BTreeMap<ConnectionId, ChunkId>,
    drains: bool,
}

/// Simulates a viewer of `program` over `links`, whose traces are at `from` when the viewer starts;
/// the program's seed decides all randomness. `strategy` is that of the streams' lane at both ends;
/// with `first_frame`, the first frame of each answer precedes all other data.
pub(super) fn watch(
    (links, from): (&[DriveLink], Duration),
    (strategy, first_frame): (&Strategy, bool),
    congestion: CongestionControl,
    program: Program,
) -> Result<(Viewing, ServerTraffic), WorldError> {
    let lane = LaneConfig { strategy: strategy.clone(), ..StreamsConfig::default().lane };
    let head = if first_frame { program.bitrate.bytes_in(CHUNK) / FRAMES_OF_CHUNK } else { 0 };
    let packets = vec![LaneConfig::new("default", Strategy::xnc())];
    let mut visit = Visit::in_use(WorldConfig {
        streams: Some(StreamsConfig { lane, head, ..StreamsConfig::default() }),
        congestion,
        ..WorldConfig::plain(steady(links, program.seed), packets, program.seed)
    })?;
    visit.world.restart_links(recorded((links, from), program));
    let before = ServerTraffic { again: visit.server_stats().sent_again, ..sent(&visit.world) };
    let start = visit.world.now();
    let mut viewer = Viewer {
        player: Player::new(program, start),
        next_report: strategy.as_str().starts_with("xlink").then_some(start),
        chunks: BTreeMap::new(),
        drains: false,
    };
    let end = start + program.lasting;
    visit.run(&mut viewer, end);
    let viewed = ServerTraffic { again: visit.server_stats().sent_again, ..sent(&visit.world) };
    viewer.drains = true;
    visit.run(&mut viewer, end + DRAIN);
    Ok((viewer.player.finish(visit.world.now()), viewed.since(&before)))
}

impl Visitor for Viewer {
    fn poll_timeout(&self) -> Option<Instant> {
        earliest([self.player.poll_timeout(), self.next_report])
    }

    fn act(&mut self, world: &mut World, browser: &mut Browser, events: Vec<BrowserEvent>) {
        let now = world.now();
        for event in events {
            match event {
                BrowserEvent::Came(id, bytes) => {
                    let chunk = self.chunks.get(&id).copied();
                    if chunk.is_some_and(|chunk| self.player.on_came(now, chunk, bytes)) {
                        self.chunks.remove(&id);
                    }
                }
                BrowserEvent::Over(id) => {
                    if let Some(chunk) = self.chunks.remove(&id)
                        && let Some(bytes) = self.player.on_failed(chunk)
                    {
                        self.ask(world, browser, chunk, bytes);
                    }
                }
            }
        }
        if self.player.poll_timeout().is_some_and(|due| due <= now)
            && self.player.handle_timeout(now)
        {
            for id in std::mem::take(&mut self.chunks).into_keys() {
                browser.cancel(world, id);
            }
        }
        while let Some((chunk, bytes)) = self.player.wants(now) {
            if !self.ask(world, browser, chunk, bytes) {
                break;
            }
            self.player.on_asked(now);
        }
        self.report(world);
    }

    fn goes_on(&self) -> bool {
        !self.drains || self.player.is_loading()
    }
}

impl Viewer {
    fn ask(
        &mut self,
        world: &mut World,
        browser: &mut Browser,
        chunk: ChunkId,
        bytes: u64,
    ) -> bool {
        let Some(id) = browser.open(world, IN_ORDER) else { return false };
        browser.ask(world, id, REQUEST, u32::try_from(bytes).unwrap_or(u32::MAX));
        browser.finish(world, id);
        self.chunks.insert(id, chunk);
        true
    }

    fn report(&mut self, world: &mut World) {
        let now = world.now();
        if self.next_report.is_none_or(|at| now < at) {
            return;
        }
        let qoe = self.player.qoe(now);
        self.next_report = qoe.map(|_| now + REPORT_INTERVAL);
        if let Some(qoe) = qoe {
            let client = world.ends_mut().0;
            // Without a session there is no report.
            let _ = client.report_player(now, StreamsConfig::LANE, PLAYER, qoe);
        }
    }
}

pub(super) fn recorded(
    (links, from): (&[DriveLink], Duration),
    program: Program,
) -> Vec<DuplexLink> {
    let link = |(link, at): (&DriveLink, u64)| {
        let part = |trace: &Trace| trace.part(from, program.lasting + DRAIN);
        let (name, up, down) = (link.name.clone(), part(&link.up), part(&link.down));
        DuplexLink::new(&DriveLink { name, up, down }, at, program.seed)
    };
    links.iter().zip(0..).map(link).collect()
}

pub(super) fn steady(links: &[DriveLink], seed: u64) -> Vec<DuplexLink> {
    let steady =
        |trace: &Trace| trace.with_capacity(Capacity::constant(trace.capacity().mean_rate()));
    let link = |(link, at): (&DriveLink, u64)| {
        let mut world_link = DuplexLink::new(link, at, seed);
        world_link.up.trace = steady(&link.up);
        world_link.down.trace = steady(&link.down);
        world_link
    };
    links.iter().zip(0..).map(link).collect()
}

/// Traffic to the vehicle so far, except for what streams sent again.
pub(super) fn sent(world: &World) -> ServerTraffic {
    let mut sent = ServerTraffic::default();
    for lane in world.server_status().iter().flat_map(|status| &status.stats.lanes) {
        sent.source += lane.sent.source_bytes;
        sent.datagrams += lane.sent.source_datagrams;
        sent.further += lane.sent.duplicate_bytes + lane.sent.coded_bytes;
        sent.further_datagrams += lane.sent.duplicate_datagrams + lane.sent.coded_datagrams;
        sent.lost += lane.sent.recovery.lost;
    }
    sent
}

/// Earlier chunks precede later ones (XLINK section 5.1).
const IN_ORDER: StreamPriority = StreamPriority::new(3, false);
pub(super) const DRAIN: Duration = Duration::from_secs(30);
/// Shortest allowed interval of buffer reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
const PLAYER: u64 = 1;
