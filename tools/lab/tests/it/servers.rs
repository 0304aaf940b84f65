//! One vehicle with three links and several servers; a server can crash, freeze, drain or lose its
//! egress. And what a viewer sees of it: a video from the vehicle, and a fault in the middle.
//!
//! All servers share one host behind them; packets to the vehicle enter at the server of its newest
//! session.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::nodes::{Arrival, Config, NodeId, Nodes, key};
use crate::world::ms;
use bytes::Bytes;
use roadweave_emulate::{Direction, DuplexLink, LinkSettings, Trace};
use roadweave_lab::traffic::{Detail, TrafficSpec};
use roadweave_proto::{Instant, Rate, SplitMix64};
use roadweave_tunnel::{
    Candidate, Client, ClientEvent, DrainReason, LaneConfig, Node as _, ServerEvent, default_lanes,
};

/// A fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The server vanishes without a close.
    Crash,
    /// The server stops, and its input is lost.
    Freeze,
    /// A frozen server continues from its state.
    Thaw,
    /// The server asks its clients to move within this many milliseconds.
    Drain(u32),
    /// The server loses the egress, and drains after it notices.
    CutFromEgress,
}

/// A vehicle and its servers.
pub struct Servers {
    nodes: Nodes,
    /// The server without an egress, and since when.
    cut: Option<(usize, Instant)>,
}

impl Deref for Servers {
    type Target = Nodes;

    fn deref(&self) -> &Nodes {
        &self.nodes
    }
}

impl DerefMut for Servers {
    fn deref_mut(&mut self) -> &mut Nodes {
        &mut self.nodes
    }
}

impl Servers {
    pub fn client(&mut self) -> &mut Client {
        self.nodes.client(0).expect("it runs")
    }

    pub fn client_events(&self) -> &[(Instant, ClientEvent)] {
        self.nodes.client_events(0)
    }

    /// All servers in the client's initial order.
    pub fn candidates(&self) -> Vec<Candidate> {
        let config = self.config();
        (0..config.sites.len()).map(|number| config.candidate(number)).collect()
    }

    /// How often the client changed its server.
    pub fn moves(&self) -> usize {
        let moves = self.client_events().iter();
        moves.filter(|(_, event)| matches!(event, ClientEvent::Moved { .. })).count()
    }

    /// The server that the client uses, or tries first.
    pub fn home(&mut self) -> usize {
        let used = self.client().server().key;
        let mut servers = 0..self.config().sites.len();
        servers.find(|number| key(NodeId::Server(*number)) == used).expect("it is one")
    }

    pub fn set_dead(&mut self, link: usize, dead: bool) {
        self.nodes.set_dead(0, link as u32, dead);
    }

    pub fn befall(&mut self, number: usize, fault: Fault) {
        let now = self.now();
        match fault {
            Fault::Crash => self.kill_server(number),
            Fault::Freeze => self.freeze(number, true),
            Fault::Thaw => self.freeze(number, false),
            Fault::CutFromEgress => self.cut = Some((number, now)),
            Fault::Drain(over) => {
                self.server(number).drain(now, DrainReason::Command, ms(over.into()));
            }
        }
        self.flush();
    }

    /// Accepts an inner packet in either direction. Call [`Nodes::flush`] after a batch.
    pub fn handle_inner(&mut self, direction: Direction, packet: &[u8]) {
        let now = self.now();
        match direction {
            Direction::Up => self.client().handle_inner(now, packet),
            Direction::Down => {
                let newest = (0..self.config().sites.len()).max_by_key(|number| {
                    let events = self.server_events(*number).iter();
                    let joined = |event: &ServerEvent| matches!(event, ServerEvent::Joined { .. });
                    events.filter(|(_, event)| joined(event)).map(|(at, _)| *at).max()
                });
                self.server(newest.expect("a server")).handle_inner(now, packet);
            }
        }
    }

    /// The next inner packet that left the tunnel: time, direction, packet.
    pub fn poll_arrival(&mut self) -> Option<(Instant, Direction, Bytes)> {
        loop {
            let Arrival { at, node, packet, .. } = self.nodes.poll_arrival()?;
            let NodeId::Server(number) = node else { return Some((at, Direction::Down, packet)) };
            let is_cut = |(cut, since): &(usize, Instant)| *cut == number && at >= *since;
            if !self.cut.as_ref().is_some_and(is_cut) {
                return Some((at, Direction::Up, packet));
            }
        }
    }

    pub fn run_until(&mut self, end: Instant) {
        if let Some((number, since)) = self.cut
            && end >= since + CUT_NOTICED
            && !self.server(number).is_draining()
        {
            self.nodes.run_until(since + CUT_NOTICED);
            self.befall(number, Fault::Drain(0));
        }
        self.nodes.run_until(end);
    }

    pub fn run(&mut self, time: Duration) {
        self.run_until(self.now() + time);
    }
}

/// A video during a fault of its server.
#[derive(Clone, Debug)]
pub struct Failover {
    pub links: Vec<DuplexLink>,
    pub lanes: Vec<LaneConfig>,
    /// Seed of the time of the fault and all other randomness.
    pub seed: u64,
}

/// What the viewer saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The longest time between two complete frames, from half a second before the fault on.
    pub gap_ms: f64,
    /// Frames that never became complete.
    pub frames_lost: usize,
    /// Number of moves to another server.
    pub moves: usize,
}

impl Failover {
    /// Three links with round trips of 50 to 70 ms, and the product's lanes.
    pub fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let link = |name: &str, rate: u64, delay: u64| {
            let trace = Trace::constant(Rate::from_kbps(rate), ms(delay));
            let settings = |way| LinkSettings::new(trace.clone(), seed << 8 | way);
            DuplexLink { name: name.into(), up: settings(1), down: settings(2) }
        };
        let mut vary = |rate: u64| rate + random.below(rate as usize / 2) as u64;
        let (a, b, c) = (vary(20_000), vary(20_000), vary(15_000));
        let links = vec![link("wwan0", a, 25), link("wwan1", b, 30), link("wwan2", c, 35)];
        Self { links, lanes: default_lanes(), seed }
    }

    /// Servers at these sites, in the client's order; `to_anchor` is their distance from the egress
    /// in ms, if given. The client starts.
    pub fn fleet(&self, sites: &[&str], to_anchor: &[u64]) -> Servers {
        let mut nodes = Nodes::new(Config {
            sites: sites.iter().map(|site| (*site).to_owned()).collect(),
            to_anchor: to_anchor.iter().copied().map(ms).collect(),
            links: self.links.clone(),
            lanes: self.lanes.clone(),
            seed: self.seed,
            ..Config::crowd(1, "xnc")
        });
        nodes.start(0);
        Servers { nodes, cut: None }
    }

    /// Runs a video of 30 Mbit/s and the fault.
    pub fn run(&self, fault: Fault) -> Seen {
        let mut fleet = self.fleet(&["here", "there"], &[]);
        fleet.run_until(VIDEO_BEGINS);
        let video = TrafficSpec::video(Rate::from_kbps(30_000), LASTS);
        let mut video = video.build(VIDEO_BEGINS, self.seed);
        let jitter = SplitMix64::word(self.seed, 7) % 1_000_000_000;
        let faulted = VIDEO_BEGINS + FAULT_AFTER + Duration::from_nanos(jitter);
        let (mut due, end) = (Some(faulted), VIDEO_BEGINS + LASTS + SETTLES);
        while fleet.now() < end {
            let next = [fleet.poll_timeout(), video.poll_timeout(), due, Some(end)];
            let next = next.into_iter().flatten().min().unwrap_or(end).max(fleet.now());
            fleet.run_until(next.min(end));
            while let Some((direction, packet)) = video.poll_transmit(fleet.now()) {
                fleet.handle_inner(direction, &packet);
            }
            if due.take_if(|at| *at <= fleet.now()).is_some() {
                let home = fleet.home();
                fleet.befall(home, fault);
            }
            fleet.flush();
            while let Some((at, _, packet)) = fleet.poll_arrival() {
                video.handle_arrival(at, Direction::Up, &packet);
            }
        }
        let report = video.report(end);
        let Detail::Video(seen) = report.detail else { unreachable!("it is a video") };
        let mut completed: Vec<Instant> =
            seen.playout.frames.iter().filter_map(|frame| frame.completed).collect();
        completed.sort_unstable();
        let looked_at = completed.windows(2).filter(|it| it[1] + BEFORE >= faulted);
        let gap = looked_at.map(|it| it[1].since(it[0])).max().unwrap_or(LASTS);
        Seen {
            gap_ms: gap.as_secs_f64() * 1e3,
            frames_lost: seen.playout.frames.len() - completed.len(),
            moves: fleet.moves(),
        }
    }
}

const CUT_NOTICED: Duration = Duration::from_millis(500);
const VIDEO_BEGINS: Instant = Instant::from_millis(6_000);
const LASTS: Duration = Duration::from_secs(12);
/// Time from the beginning of the video to the fault, plus up to a second.
const FAULT_AFTER: Duration = Duration::from_secs(5);
const SETTLES: Duration = Duration::from_secs(3);
const BEFORE: Duration = Duration::from_millis(500);
