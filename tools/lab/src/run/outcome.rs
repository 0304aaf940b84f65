//! The outcome of a run, and its recorder.

use std::time::Duration;

use roadweave_emulate::{Capacity, Direction, Trace};
use roadweave_proto::{DropCounters, DropReason, Instant};
use roadweave_tunnel::{ClientEvent, ServerEvent};
use serde::{Deserialize, Serialize};

use super::{Causes, TrafficWorld};
use crate::figures::{Run, Timeline};
use crate::scenario::Scenario;
use crate::traffic::{DataStream, Detail, TrafficReport, fairness};
use crate::video::quality::{Percentiles, Player};
use crate::world::World;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunOutcome {
    /// Figures of the judged application; without a video, fps and stall ratio are zero.
    pub run: Run,
    /// Time from a frame's capture to its last packet, of complete frames; zero without a video.
    pub frame_delay_ms: Percentiles,
    /// Where late packets of the judged application lost their time.
    pub causes: Causes,
    /// All applications, in the order of the scenario.
    pub traffic: Vec<TrafficReport>,
    /// Fairness of the bulk transfers, if there are several; see `fairness`.
    pub fairness: Option<f64>,
    /// All links, in the order of the scenario.
    pub links: Vec<LinkReport>,
    /// Events of client and server after the stream began, as text.
    pub events: Vec<(Duration, String)>,
    /// Inner packets discarded by client and server since the start of the stream.
    pub drops: Vec<(DropReason, u64)>,
}

/// Statistics of a link since the start of the stream, vehicle to cloud, with cross traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    pub name: String,
    pub pushed: u64,
    pub pushed_bytes: u64,
    /// Packets lost in transit or while the link was dead.
    pub lost: u64,
    /// Packets dropped by the full queue.
    pub queue_full: u64,
    /// How many of `pushed` were cross traffic.
    pub cross: u64,
}

#[derive(Debug)]
pub(super) struct Recorder {
    start: Instant,
    timeline: Timeline,
    last: WorldCounters,
    inner_bytes: u64,
    datagram_bytes: u64,
    repaired: u64,
    drops_before: DropCounters,
    links_before: Vec<LinkReport>,
    events_before: (usize, usize),
}

#[derive(Clone, Debug, Default)]
struct WorldCounters {
    link_bytes: Vec<u64>,
    repairs: u64,
    inner_bytes: u64,
    datagram_bytes: u64,
}

impl Recorder {
    pub(super) fn new(scenario: &Scenario, world: &mut World) -> Self {
        let links = 0..world.links();
        let name = |link: usize| scenario.links[link].name.clone();
        let timeline = Timeline {
            uplinks: links.clone().map(|link| (name(link), Vec::new())).collect(),
            link_queues: links.clone().map(|link| (name(link), Vec::new())).collect(),
            capacities: scenario
                .links_with_events()
                .iter()
                .map(|link| (link.name.clone(), capacity(&link.up.trace, scenario.duration())))
                .collect(),
            ..Timeline::default()
        };
        Self {
            start: world.now(),
            timeline,
            last: WorldCounters::take(world),
            inner_bytes: 0,
            datagram_bytes: 0,
            repaired: 0,
            drops_before: drops(world),
            links_before: links.map(|link| LinkReport::take(name(link), world, link)).collect(),
            events_before: (world.client_events().len(), world.server_events().len()),
        }
    }

    pub(super) fn sample(&mut self, traffic_world: &mut TrafficWorld) {
        let world = &mut traffic_world.world;
        let reading = WorldCounters::take(world);
        let to_mbps = 8.0 / 1e6 / Timeline::STEP.as_secs_f64();
        for (link, (_, rates)) in self.timeline.uplinks.iter_mut().enumerate() {
            let bytes = reading.link_bytes[link] - self.last.link_bytes[link];
            rates.push(bytes as f64 * to_mbps);
        }
        for (link, (_, bytes)) in self.timeline.link_queues.iter_mut().enumerate() {
            bytes.push(world.link_queue_bytes(link, Direction::Up) as u64);
        }
        let lanes = world.client_status().map(|status| status.stats.lanes).unwrap_or_default();
        self.timeline.lane_queue.push(lanes.iter().map(|lane| lane.sent.queue_bytes).sum());
        // A new session counts from zero.
        let last = std::mem::replace(&mut self.last, reading);
        let now = &self.last;
        let repairs = now.repairs.saturating_sub(last.repairs);
        self.timeline.repairs.push(u32::try_from(repairs).unwrap_or(u32::MAX));
        let repaired = traffic_world.repaired - self.repaired;
        self.repaired += repaired;
        self.timeline.recovered.push(u32::try_from(repaired).unwrap_or(u32::MAX));
        self.inner_bytes += now.inner_bytes.saturating_sub(last.inner_bytes);
        self.datagram_bytes += now.datagram_bytes.saturating_sub(last.datagram_bytes);
    }

    pub(super) fn finish(
        mut self,
        scenario: &Scenario,
        traffic_world: &mut TrafficWorld,
    ) -> RunOutcome {
        let end = traffic_world.world.now();
        let traffic: Vec<TrafficReport> =
            traffic_world.traffic.iter().map(|traffic| traffic.report(end)).collect();
        let judged = scenario.judged().and_then(|index| traffic.get(index));
        let mut outcome = RunOutcome {
            causes: traffic_world.causes.clone(),
            links: self.link_reports(&traffic_world.world),
            events: self.events(&traffic_world.world),
            drops: self.drops(&traffic_world.world),
            ..RunOutcome::default()
        };
        outcome.run.figures.strategy = scenario.strategy();
        outcome.run.figures.redundancy = match self.inner_bytes {
            0 => 0.0,
            inner => self.datagram_bytes as f64 / inner as f64 - 1.0,
        };
        if let Some(report) = judged {
            self.judge(report, &mut outcome);
        }
        outcome.run.timeline = self.timeline;
        outcome.fairness = fairness(&traffic);
        outcome.traffic = traffic;
        outcome
    }

    fn judge(&mut self, report: &TrafficReport, outcome: &mut RunOutcome) {
        let figures = &mut outcome.run.figures;
        figures.delay_ms = report.delay_ms.clone();
        let mut deadline = Player::default().deadline;
        if let Detail::Video(video) = &report.detail {
            figures.fps = video.quality.fps;
            figures.stall_ratio = video.quality.stall_ratio;
            outcome.run.stalls = video.quality.stalls.clone();
            outcome.frame_delay_ms = video.quality.frame_delay.clone();
            deadline = video.player.deadline;
        }
        let Some(stream) = report.stream() else { return };
        outcome.run.delays = stream.delays();
        let sent = stream.log.packets.len().max(1) as f64;
        let late = outcome.run.delays.iter().filter(|delay| **delay > deadline).count();
        let lost = stream.log.packets.len() - outcome.run.delays.len();
        figures.late = late as f64 / sent;
        figures.residual_loss = (lost + late) as f64 / sent;
        self.count_missing(stream, deadline);
    }

    fn count_missing(&mut self, stream: &DataStream, deadline: Duration) {
        let steps = self.timeline.repairs.len();
        (self.timeline.missing, self.timeline.late) = (vec![0; steps], vec![0; steps]);
        for (sent, arrival) in stream.log.packets.iter().zip(&stream.arrivals) {
            let step = (sent.since(self.start).as_nanos() / Timeline::STEP.as_nanos()) as usize;
            let late = arrival.map(|arrival| arrival.since(*sent) > deadline);
            if step < steps && late != Some(false) {
                self.timeline.missing[step] += 1;
                self.timeline.late[step] += u32::from(late == Some(true));
            }
        }
    }

    fn link_reports(&self, world: &World) -> Vec<LinkReport> {
        let since = |(link, before): (usize, &LinkReport)| {
            let now = LinkReport::take(before.name.clone(), world, link);
            LinkReport {
                pushed: now.pushed - before.pushed,
                pushed_bytes: now.pushed_bytes - before.pushed_bytes,
                lost: now.lost - before.lost,
                queue_full: now.queue_full - before.queue_full,
                cross: now.cross - before.cross,
                name: now.name,
            }
        };
        self.links_before.iter().enumerate().map(since).collect()
    }

    fn events(&self, world: &World) -> Vec<(Duration, String)> {
        let (client, server) = self.events_before;
        let client = world.client_events()[client..].iter();
        let client = client.map(|(at, event)| (at.since(self.start), describe_client(event)));
        let server = world.server_events()[server..].iter();
        let server = server.map(|(at, event)| (at.since(self.start), describe_server(event)));
        let mut all: Vec<_> = client.chain(server).collect();
        all.sort_by_key(|(at, _)| *at);
        all
    }

    fn drops(&self, world: &World) -> Vec<(DropReason, u64)> {
        let now = drops(world);
        let since = |(reason, count): (DropReason, u64)| {
            (reason, count.saturating_sub(self.drops_before.get(reason)))
        };
        now.iter().map(since).filter(|(_, count)| *count > 0).collect()
    }
}

impl WorldCounters {
    fn take(world: &World) -> Self {
        let pushed = |link| {
            let cross = world.cross_stats(link, Direction::Up).pushed_bytes;
            world.link_stats(link, Direction::Up).pushed_bytes - cross
        };
        let mut reading =
            Self { link_bytes: (0..world.links()).map(pushed).collect(), ..Self::default() };
        for lane in world.client_status().iter().flat_map(|status| &status.stats.lanes) {
            let sent = &lane.sent;
            reading.repairs += sent.coded_datagrams + sent.duplicate_datagrams;
            reading.inner_bytes += sent.sent_bytes;
            reading.datagram_bytes += sent.source_bytes + sent.coded_bytes + sent.duplicate_bytes;
        }
        reading
    }
}

impl LinkReport {
    fn take(name: String, world: &World, link: usize) -> Self {
        let stats = world.link_stats(link, Direction::Up);
        Self {
            name,
            pushed: stats.pushed,
            pushed_bytes: stats.pushed_bytes,
            lost: stats.dropped.get(DropReason::LinkLoss),
            queue_full: stats.dropped.get(DropReason::LinkQueueFull),
            cross: world.cross_stats(link, Direction::Up).pushed,
        }
    }
}

fn drops(world: &World) -> DropCounters {
    let mut all = DropCounters::default();
    for status in world.client_status().iter().chain(&world.server_status()) {
        all.merge(&status.stats.drops);
        for lane in &status.stats.lanes {
            all.merge(&lane.sent.drops);
            all.merge(&lane.received.drops);
        }
    }
    all
}

fn describe_client(event: &ClientEvent) -> String {
    match event {
        ClientEvent::Joined { .. } => "the client joined".into(),
        ClientEvent::Moved { name, reason, .. } => {
            format!("the client moved to {name}: {reason}")
        }
        ClientEvent::Left { reason, .. } => format!("the client left: {reason}"),
        ClientEvent::Notice(notice) => notice.to_string(),
    }
}

fn describe_server(event: &ServerEvent) -> String {
    match event {
        ServerEvent::Joined { .. } => "the server has a session".into(),
        ServerEvent::Left { reason, .. } => format!("the server ended a session: {reason}"),
        ServerEvent::Leg { text } => text.clone(),
        ServerEvent::Refused { reason } => format!("the server refused {reason}"),
    }
}

fn capacity(trace: &Trace, duration: Duration) -> Vec<f64> {
    let steps = duration.as_nanos().div_ceil(Timeline::STEP.as_nanos()) as u32;
    match trace.capacity().as_ref() {
        Capacity::Rates(rates) => {
            (0..steps).map(|step| rates.at(Timeline::STEP * step).as_bps() as f64 / 1e6).collect()
        }
        Capacity::Opportunities(opportunities) => {
            let mut mbps = vec![0.0; steps as usize];
            for (at, bytes) in opportunities.until(duration) {
                let step = (at.as_nanos() / Timeline::STEP.as_nanos()) as usize;
                if let Some(rate) = mbps.get_mut(step) {
                    *rate += bytes as f64 * 8.0 / 1e6 / Timeline::STEP.as_secs_f64();
                }
            }
            mbps
        }
    }
}
