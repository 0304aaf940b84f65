//! A vehicle with three links and several servers, which crash, freeze, drain or lose the egress.
//!
//! All servers share one host, whose packets enter at the server of the vehicle's newest session.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::nodes::{Arrival, Config, NodeId, Nodes, key};
use crate::world::{at, count, ms};
use bytes::Bytes;
use roadweave_emulate::{Direction, DuplexLink, LinkSettings, Trace};
use roadweave_proto::{Instant, Rate, SplitMix64};
use roadweave_tunnel::{
    Candidate, CandidatePlace, CandidateReport, Client, ClientEvent, Node as _, ServerEvent,
    default_lanes,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server vanishes without a close.
    Crash,
    /// The server stops, and its input is lost.
    Freeze,
    /// A frozen server continues from its state.
    Thaw,
    /// The server asks its clients to move.
    Drain,
    /// The server loses the egress, and drains after it notices.
    CutFromEgress,
}

const CUT_NOTICED: Duration = Duration::from_millis(500);

/// Three links with round trips of 50 to 70 ms, servers at these sites, and the product's lanes.
pub fn config(sites: &[&str], seed: u64) -> Config {
    let mut random = SplitMix64::new(seed);
    let mut link = |name: &str, least: usize, delay: u64| {
        let rate = Rate::from_kbps((least + random.below(least / 2)) as u64);
        let trace = Trace::constant(rate, ms(delay));
        let settings = |way| LinkSettings::new(trace.clone(), seed << 8 | way);
        DuplexLink { name: name.into(), up: settings(1), down: settings(2) }
    };
    Config {
        sites: sites.iter().map(|site| (*site).to_owned()).collect(),
        links: vec![
            link("wwan0", 20_000, 25),
            link("wwan1", 20_000, 30),
            link("wwan2", 15_000, 35),
        ],
        lanes: default_lanes(),
        seed,
        ..Config::direct(1, "xnc")
    }
}

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
    pub fn new(config: Config) -> Self {
        let mut nodes = Nodes::new(config);
        nodes.start(0);
        Self { nodes, cut: None }
    }

    pub fn at(sites: &[&str]) -> Self {
        Self::new(config(sites, 1))
    }

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

    pub fn set_candidates(&mut self, candidates: Vec<Candidate>) {
        let now = self.now();
        self.client().set_candidates(now, candidates);
        self.flush();
    }

    pub fn reports(&mut self) -> Vec<CandidateReport> {
        let now = self.now();
        self.client().candidates(now)
    }

    pub fn place(&mut self, number: usize) -> CandidatePlace {
        self.reports()[number].place
    }

    pub fn stands_by(&mut self, number: usize) -> bool {
        self.place(number) == CandidatePlace::Standby
    }

    pub fn moves(&self) -> usize {
        count(self.client_events(), |event| matches!(event, ClientEvent::Moved { .. }))
    }

    /// The server that the client uses, or tries first.
    pub fn home(&mut self) -> usize {
        let used = self.client().server().key;
        let mut servers = 0..self.config().sites.len();
        servers.find(|number| key(NodeId::Server(*number)) == used).expect("it is one")
    }

    #[track_caller]
    pub fn check_home(&mut self, home: usize, moves: usize) {
        let now = self.now();
        assert!(self.client().status().is_some(), "no session at {now}");
        assert_eq!((self.home(), self.moves()), (home, moves), "home and moves at {now}");
    }

    pub fn set_dead(&mut self, link: usize, dead: bool) {
        self.nodes.set_dead(0, link as u32, dead);
    }

    pub fn set_all_dead(&mut self, dead: bool) {
        (0..3).for_each(|link| self.set_dead(link, dead));
    }

    pub fn befall(&mut self, number: usize, fault: Fault) {
        let now = self.now();
        match fault {
            Fault::Crash => self.kill_server(number),
            Fault::Freeze => self.freeze(number, true),
            Fault::Thaw => self.freeze(number, false),
            Fault::CutFromEgress => self.cut = Some((number, now)),
            Fault::Drain => self.drain(number),
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
            if self.cut.is_none_or(|(cut, since)| cut != number || at < since) {
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
            self.befall(number, Fault::Drain);
        }
        self.nodes.run_until(end);
    }

    pub fn run_to(&mut self, millis: u64) {
        self.run_until(at(millis));
    }

    pub fn run(&mut self, time: Duration) {
        self.run_until(self.now() + time);
    }
}
