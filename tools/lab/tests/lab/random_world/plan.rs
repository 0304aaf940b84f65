//! The plan of a random world, which follows from one seed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::dice::Dice;
use roadweave_emulate::{
    AtEnd, Capacity, Direction, DuplexLink, GilbertElliott, Jitter, LinkSettings, Timeline, Trace,
};
use roadweave_lab::event::Action;
use roadweave_lab::strategies;
use roadweave_lab::world::{
    Hostility, Machine, OtherServer, Stranger, Strangers, Tampering, WorldConfig,
};
use roadweave_proto::{Instant, Order, Policy, Priority, Rate};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{Caps, LaneConfig, LaneRule, StreamsConfig, UplinkPolicy};

/// A strategy that names an uplink; only for the vehicle.
const BOUND: &str = "single:link0";
/// Strategies that may leave losses unrepaired.
const UNRELIABLE: [&str; 4] = ["minrtt-unreliable", "bonding", "pluribus", "lola"];
/// Time of a packet in addition to the delay of an idle link.
const ON_THE_AIR: Duration = Duration::from_millis(20);
/// The ports of lane n start at n times this, after [`FIRST_PORT`].
pub const PORTS_PER_LANE: u16 = 100;
pub const FIRST_PORT: u16 = 5_000;
pub const FRAME_PACKETS: u16 = 5;

/// A random world. Times are since the start.
#[derive(Debug)]
pub struct Plan {
    /// Attackers are at links until `heal`, and unusable servers without an end.
    pub world: WorldConfig,
    /// Time of all repairs.
    pub heal: Duration,
    /// By link, until `heal`.
    pub tampering: Vec<Option<Tampering>>,
    /// A link whose attacker stays after `heal`.
    pub besieged: Option<usize>,
    pub flows: Vec<Flow>,
    /// Requests over streams: time, and bytes of the answer.
    pub fetches: Vec<(Duration, u64)>,
    /// Ascending.
    pub events: Vec<(Duration, Happening)>,
}

#[derive(Clone, Debug)]
pub struct Flow {
    pub direction: Direction,
    pub port: u16,
    pub begin: Duration,
    pub interval: Duration,
    pub bytes: usize,
    pub kind: FlowKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    Good,
    GoodV6,
    /// The source is not the vehicle's.
    Spoofed,
    /// To an address without a client, or from the vehicle to itself.
    Unroutable,
    /// Not IP.
    Garbage,
    /// Larger than the tunnel carries.
    Oversized,
    /// RTP in frames of [`FRAME_PACKETS`].
    Video,
}

#[derive(Clone, Copy, Debug)]
pub enum Happening {
    Link(usize, Action),
    RestartServer,
    /// The largest UDP payload of a link.
    Mtu(usize, usize),
    Strategy(Direction, usize, &'static str),
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let heal = dice.ms(1_500..4_000);
        let hostile = dice.once_in(4);
        let count = dice.within(1..5);
        let links = (0..count).map(|index| dice.link(heal, hostile, (index, seed)));
        let (tampering, links) = links.unzip();
        let down: Vec<&'static str> = strategies::plain_names().chain(["raven:100"]).collect();
        let up: Vec<&'static str> = down.iter().copied().chain([BOUND]).collect();
        let mut lanes_up = dice.lanes(&up);
        let mut lanes_down = dice.lanes(&down);
        let lanes = [lanes_up.len(), lanes_down.len()];
        let mut flows: Vec<Flow> =
            (0..dice.within(1..5)).map(|index| dice.flow(index as u16, lanes)).collect();
        Dice::new(!seed.rotate_left(16)).videos([&mut lanes_up, &mut lanes_down], &mut flows);
        let quiet = dice.once_in(3);
        let happenings = if quiet { 0 } else { dice.within(1..6) };
        let mut events: Vec<_> = (0..happenings).map(|_| dice.happening(heal, count)).collect();
        for _ in 0..if dice.once_in(2) { dice.within(1..4) } else { 0 } {
            let at = dice.ms(0..heal.as_millis() as u64);
            let change = match dice.once_in(2) {
                true => dice.change(Direction::Up, lanes[0], &up),
                false => dice.change(Direction::Down, lanes[1], &down),
            };
            events.push((at, change));
        }
        events.extend(Dice::new(seed.rotate_left(32)).widths(heal, count));
        events.sort_by_key(|(at, _)| *at);
        let cubic = dice.once_in(3);
        let congestion = if cubic { CongestionControl::Cubic } else { CongestionControl::Bbr };
        let policies = if dice.once_in(2) { dice.policies(count) } else { BTreeMap::new() };
        let (strangers, besieged) = Dice::new(!seed).strangers(count);
        let fetches = Dice::new(seed.rotate_left(16)).fetches(heal);
        let world = WorldConfig {
            lanes_down,
            streams: (!fetches.is_empty()).then(StreamsConfig::default),
            congestion,
            policies,
            strangers,
            machine: Dice::new(!seed.rotate_left(32)).machine(),
            ..WorldConfig::plain(links, lanes_up, seed)
        };
        Self { world, heal, tampering, besieged, flows, fetches, events }
    }

    pub fn lanes(&self, direction: Direction) -> &[LaneConfig] {
        match direction {
            Direction::Up => &self.world.lanes_up,
            Direction::Down => &self.world.lanes_down,
        }
    }

    /// All strategies of the lane of `port` over time.
    fn strategies(&self, direction: Direction, port: u16) -> impl Iterator<Item = &str> {
        let lane = lane_of(port);
        let changes = self.events.iter().filter_map(move |(_, what)| match what {
            Happening::Strategy(way, of, name) if (*way, *of) == (direction, lane) => Some(*name),
            _ => None,
        });
        changes.chain([self.lanes(direction)[lane].strategy.as_str()])
    }

    /// Whether the lane of `port` may be restricted to the first link.
    pub fn is_bound(&self, direction: Direction, port: u16) -> bool {
        self.strategies(direction, port).any(|strategy| strategy == BOUND)
    }

    /// Whether the lane of `port` may leave losses unrepaired.
    pub fn is_unreliable(&self, direction: Direction, port: u16) -> bool {
        // `redundant` sends copies only to links of one priority and within their budgets.
        let copies_less = !self.world.policies.is_empty() || self.world.links.len() == 1;
        self.strategies(direction, port).any(|strategy| {
            UNRELIABLE.contains(&strategy) || copies_less && strategy == "redundant"
        })
    }

    /// Whether the lane of `port` drops late packets, and most are late even on repaired links.
    pub fn is_too_far(&self, direction: Direction, port: u16) -> bool {
        let last = |way: &LinkSettings| way.trace.delay().iter().last().map(|(_, delay)| delay);
        let one_way = |link: &DuplexLink| (last(&link.up)? + last(&link.down)?).checked_div(2);
        let furthest = self.world.links.iter().filter_map(one_way).max().unwrap_or_default();
        let LaneConfig { deadline, expire_after, .. } = &self.lanes(direction)[lane_of(port)];
        let is_lola = self.strategies(direction, port).any(|strategy| strategy == "lola");
        let ways = self.world.links.iter().map(|link| match direction {
            Direction::Up => &link.up,
            Direction::Down => &link.down,
        });
        // Flows may keep the queue of a link full.
        let slowest = ways.map(|way| last(way).unwrap_or_default() + full_queue(way)).max();
        is_lola && *deadline < furthest + ON_THE_AIR
            || expire_after.is_some_and(|age| Some(age) < slowest)
    }

    /// Whether packets of the lane of `port` keep their order: one link, no reordering, no repairs.
    pub fn is_ordered(&self, direction: Direction, port: u16) -> bool {
        let link = &self.world.links[0];
        let way = if direction == Direction::Up { &link.up } else { &link.down };
        self.strategies(direction, port).all(|strategy| strategy == BOUND)
            // These strategies hold flows back one by one.
            && !matches!(
                self.lanes(direction)[lane_of(port)].order,
                Order::Adaptive { .. } | Order::Frames { .. } | Order::Even { .. }
            )
            && way.jitter.is_none_or(|jitter| !jitter.reorders)
            && self.tampering[0].is_none()
    }

    /// The lane of `port`, if it guarantees order.
    pub fn promising(&self, direction: Direction, port: u16) -> Option<usize> {
        let lane = lane_of(port);
        let order = self.lanes(direction)[lane].order;
        matches!(order, Order::Reorder { .. }).then_some(lane)
    }
}

/// How long a packet waits in the full queue of a repaired link.
fn full_queue(way: &LinkSettings) -> Duration {
    match &**way.trace.capacity() {
        Capacity::Rates(rates) => rates.iter().last(),
        Capacity::Opportunities(_) => None,
    }
    .map_or(Duration::ZERO, |(_, rate)| rate.time_for(way.queue_bytes as u64))
}

fn lane_of(port: u16) -> usize {
    usize::from((port - FIRST_PORT) / PORTS_PER_LANE)
}

impl Dice {
    /// In a third of the worlds: requests until `heal`.
    fn fetches(&mut self, heal: Duration) -> Vec<(Duration, u64)> {
        if !self.once_in(3) {
            return Vec::new();
        }
        let mut fetches: Vec<_> = (0..self.within(1..9))
            .map(|_| (self.ms(0..heal.as_millis() as u64), self.within(1..30_000)))
            .collect();
        fetches.sort_unstable();
        fetches
    }

    /// In a third of the worlds some lanes keep the order of frames, and some flows are videos.
    fn videos(&mut self, lanes: [&mut Vec<LaneConfig>; 2], flows: &mut [Flow]) {
        if !self.once_in(3) {
            return;
        }
        for lane in lanes.into_iter().flatten() {
            let max_buffer = self.ms(1..500);
            let decode = self.ms(0..40);
            if !self.once_in(3) {
                lane.order = Order::Frames { deadline: lane.deadline, decode, max_buffer };
            }
        }
        for flow in flows {
            if flow.kind == FlowKind::Good && !self.once_in(4) {
                flow.kind = FlowKind::Video;
            }
        }
    }

    /// A quarter of the machines wake late.
    fn machine(&mut self) -> Machine {
        match self.within(0..8) {
            0 => Machine::Crowded,
            1 => Machine::Busy,
            _ => Machine::Punctual,
        }
    }

    fn link(
        &mut self,
        heal: Duration,
        hostile: bool,
        (index, seed): (u64, u64),
    ) -> (Option<Tampering>, DuplexLink) {
        let share = |dice: &mut Self| match dice.within(0..3) {
            0 => 0.0,
            _ => dice.within(1..100) as f64 / 1_000.0,
        };
        let tampering = hostile.then(|| Tampering {
            corrupt: share(self),
            duplicate: share(self),
            replay: share(self),
            forge: share(self),
        });
        let [up, down] = [0, 1].map(|way| self.way(heal, seed ^ (2 * index + way)));
        (tampering, DuplexLink { name: format!("link{index}"), up, down })
    }

    fn way(&mut self, heal: Duration, seed: u64) -> LinkSettings {
        let rates = self.steps(heal, 300..6_000, Rate::from_kbps, |dice| match dice.within(0..5) {
            0 => 0,
            1 => dice.within(10..300),
            _ => dice.within(300..6_000),
        });
        let delays =
            self.steps(heal, 1..100, Duration::from_millis, |dice| match dice.within(0..4) {
                0 => dice.within(100..600),
                _ => dice.within(1..100),
            });
        let percent = |percent: u64| percent as f64 / 100.0;
        let losses = self.steps(heal, 0..1, percent, |dice| match dice.within(0..4) {
            0 => dice.within(10..100),
            1 => dice.within(1..10),
            _ => 0,
        });
        let burst_loss = self.once_in(4).then(|| {
            let share = self.within(1..8) as f64 / 100.0;
            GilbertElliott::bursts(share, self.within(1..12) as f64)
        });
        let jitter = self.once_in(3).then(|| Jitter {
            deviation: Duration::from_micros(self.within(100..15_000)),
            reorders: self.once_in(2),
        });
        let queue_bytes = match self.within(0..4) {
            0 => self.within(4_500..20_000) as usize,
            _ => self.within(20_000..200_000) as usize,
        };
        let trace = Trace::new(Capacity::Rates(rates), delays, losses);
        LinkSettings { trace, origin: Instant::ZERO, queue_bytes, burst_loss, jitter, seed }
    }

    /// Values of `wild` until `heal`, then one of `calm`.
    fn steps<V: Copy>(
        &mut self,
        heal: Duration,
        calm: std::ops::Range<u64>,
        value: impl Fn(u64) -> V,
        wild: impl Fn(&mut Self) -> u64,
    ) -> Timeline<V> {
        let heal = heal.as_millis() as u64;
        let first = if self.once_in(2) { self.within(calm.clone()) } else { wild(self) };
        let mut steps = vec![(0, first)];
        if self.once_in(2) {
            let mut at = self.within(50..1_000);
            while at < heal {
                steps.push((at, wild(self)));
                at += self.within(50..1_500);
            }
        }
        steps.push((heal, self.within(calm)));
        let steps = steps.into_iter().map(|(at, step)| (Duration::from_millis(at), value(step)));
        Timeline::new(steps, Duration::from_millis(heal + 1), AtEnd::Hold)
            .expect("steps ascend from zero")
    }

    fn lanes(&mut self, strategies: &[&str]) -> Vec<LaneConfig> {
        let count = self.within(1..4) as u16;
        let lane = |index: u16| {
            let strategy = self.one_of(strategies);
            let first = FIRST_PORT + index * PORTS_PER_LANE;
            let ports = first..=first + PORTS_PER_LANE - 1;
            LaneConfig {
                rule: LaneRule { ports: Some(ports), ..LaneRule::default() },
                deadline: self.ms(30..200),
                expire_after: Some(self.ms(150..1_000)).filter(|age| age.as_millis() % 2 == 0),
                queue_bytes_max: self.within(5_000..500_000) as usize,
                rtp_frames: self.once_in(2),
                insurance_percent: 25 * u8::from(self.once_in(4)),
                order: self.order(),
                rank: self.within(0..2) as u8,
                ..LaneConfig::new(
                    format!("lane{index}"),
                    strategies::strategy(strategy).expect("known"),
                )
            }
        };
        (0..count).map(lane).collect()
    }

    fn order(&mut self) -> Order {
        let max_buffer = self.ms(1..500);
        match self.within(0..4) {
            0 => Order::Pass,
            1 => Order::Reorder { max_buffer },
            2 => Order::Even { max_buffer },
            _ => Order::Adaptive { max_buffer },
        }
    }

    fn flow(&mut self, index: u16, lanes: [usize; 2]) -> Flow {
        let direction = if self.once_in(2) { Direction::Up } else { Direction::Down };
        let lanes = if direction == Direction::Up { lanes[0] } else { lanes[1] };
        let kind = match self.within(0..12) {
            0 if direction == Direction::Up => FlowKind::Spoofed,
            1 => FlowKind::Unroutable,
            2 => FlowKind::Garbage,
            3 => FlowKind::Oversized,
            4 => FlowKind::GoodV6,
            _ => FlowKind::Good,
        };
        let bytes = match self.within(0..6) {
            _ if kind == FlowKind::Oversized => self.within(16_384..40_000),
            0 => self.within(2_000..9_000),
            1 => self.within(60..100),
            _ => self.within(100..1_361),
        };
        // At most 300 packets and 1.5 Mbit per second.
        let interval = (bytes * 8 * 1_000 / 1_500).max(3_300);
        Flow {
            direction,
            port: FIRST_PORT + self.within(0..lanes as u64) as u16 * PORTS_PER_LANE + index,
            begin: self.ms(0..1_200),
            interval: Duration::from_micros(interval * self.within(1..6)),
            bytes: bytes as usize,
            kind,
        }
    }

    /// In a third of the worlds the MTU of links changes.
    fn widths(&mut self, heal: Duration, links: u64) -> Vec<(Duration, Happening)> {
        let steps = if self.once_in(3) { self.within(1..5) } else { 0 };
        let step = |_| {
            let at = self.ms(0..heal.as_millis() as u64);
            let payload = self.within(1_200..1_473) as usize;
            (at, Happening::Mtu(self.within(0..links) as usize, payload))
        };
        (0..steps).map(step).collect()
    }

    fn change(
        &mut self,
        direction: Direction,
        lanes: usize,
        strategies: &[&'static str],
    ) -> Happening {
        let lane = self.within(0..lanes as u64) as usize;
        let strategy = self.one_of(strategies);
        Happening::Strategy(direction, lane, strategy)
    }

    fn policies(&mut self, links: u64) -> BTreeMap<String, UplinkPolicy> {
        let policy = |dice: &mut Self| {
            let priorities = [Priority::Primary, Priority::Secondary, Priority::Backup];
            let policy = Policy {
                priority: dice.one_of(&priorities),
                weight: dice.within(1..101) as u8,
                redundancy_percent: dice.once_in(2).then(|| dice.within(0..20) as u8),
                ..Policy::default()
            };
            let cap = dice.once_in(3).then(|| dice.within(1..2_000_000));
            UplinkPolicy { policy, caps: Caps { monthly_bytes: cap, ..Caps::default() } }
        };
        let mut policies = BTreeMap::new();
        for index in 0..links {
            if !self.once_in(3) {
                policies.insert(format!("link{index}"), policy(self));
            }
        }
        policies
    }

    /// In a third of the worlds, on some links and at some addresses; one attacker stays if another
    /// link has none.
    fn strangers(&mut self, links: u64) -> (Strangers, Option<usize>) {
        if !self.once_in(3) {
            return (Strangers::default(), None);
        }
        let mut strangers = Strangers::default();
        for link in 0..links as usize {
            if self.once_in(2) {
                strangers.links.insert(link, self.hostility());
            }
        }
        for number in 0..self.within(0..4) as u8 {
            let address = SocketAddr::from(([192, 0, 2, 10 + number], 4433));
            let kinds = [
                OtherServer::Refuses,
                OtherServer::WrongKey,
                OtherServer::OtherVersion,
                OtherServer::Silent,
            ];
            strangers.servers.push((address, self.one_of(&kinds)));
        }
        let all = strangers.links.len() as u64 == links;
        // It forges packets but blocks none.
        let writes = |kind: &Hostility| matches!(kind, Hostility::Stranger(_));
        let mut writers = strangers.links.iter().filter(|(_, kind)| writes(kind));
        let besieged = writers.next().filter(|_| !all).map(|(link, _)| *link);
        (strangers, besieged)
    }

    fn hostility(&mut self) -> Hostility {
        match self.within(0..8) {
            0 => Hostility::Portal,
            1 => Hostility::HandshakesOnly,
            2 => Hostility::FirstPackets(self.within(1..20) as u32),
            _ => {
                let mut share = || match self.within(0..3) {
                    0 => 0.0,
                    1 => 1.0,
                    _ => self.within(1..100) as f64 / 100.0,
                };
                Hostility::Stranger(Stranger {
                    close: share(),
                    frames: share(),
                    versions: share(),
                    retry: share(),
                    reset: share(),
                    seed: self.within(0..u64::MAX),
                })
            }
        }
    }

    fn happening(&mut self, heal: Duration, links: u64) -> (Duration, Happening) {
        let at = self.ms(0..heal.as_millis() as u64);
        let action = match self.within(0..12) {
            0..3 => Action::Down,
            3..5 => Action::Up,
            5..7 => Action::Rebind,
            7..9 => Action::Unplug,
            9..11 => Action::Plug,
            _ => return (at, Happening::RestartServer),
        };
        (at, Happening::Link(self.within(0..links) as usize, action))
    }
}
