//! One random world, and its checks.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_emulate::Direction;
use roadweave_lab::strategies;
use roadweave_lab::world::{Tampering, World};
use roadweave_proto::{DropCounters, DropReason, Instant};
use roadweave_tunnel::{ClientEvent, LaneStats, ServerEvent, SessionStatus};

use crate::random_world::ledger::Ledger;
use crate::random_world::plan::{FIRST_PORT, Flow, Happening, Kind, PORTS_PER_LANE, Plan};
use crate::world::apps::Apps;

/// Packets must get through again this long after all links are repaired.
const LIVENESS: Duration = Duration::from_secs(15);
/// Time after that for the probes, the only traffic, to overtake queued packets.
const SETTLE: Duration = Duration::from_secs(2);
/// Time after that in which packets must arrive.
const WELL: Duration = Duration::from_secs(2);
/// The longest time of a packet in transit: recovery without a deadline gives up after 10 s.
const DRAIN: Duration = Duration::from_secs(12);
const LOOK: Duration = Duration::from_millis(20);
/// The last port of a lane, used by probes.
const PROBE_PORT: u16 = PORTS_PER_LANE - 1;
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
const PROBE_BYTES: usize = 100;
/// Fits into a datagram of a new path: QUIC's smallest packet less its headers.
const UNFRAGMENTED_MAX: usize = 1_100;
/// Minimum headers of a source datagram and its symbol, bytes.
const DATAGRAM_HEADER_MIN: u64 = 8;

#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    sent: u64,
    arrived: u64,
    steps: u64,
    fingerprint: u64,
    /// From the repair of all links to the first packet, in the slowest lane.
    revival: Duration,
    /// Whether one session lasted from start to end, so that its counters are complete.
    accounted: bool,
    drops: DropCounters,
}

/// Sums over all worlds, which show that enough happened.
#[derive(Debug, Default)]
pub struct Seen {
    worlds: u64,
    accounted: u64,
    sent: u64,
    arrived: u64,
    steps: u64,
    revival_max: Duration,
    drops: DropCounters,
}

impl Seen {
    pub fn add(&mut self, outcome: &Outcome) {
        self.worlds += 1;
        self.accounted += u64::from(outcome.accounted);
        self.sent += outcome.sent;
        self.arrived += outcome.arrived;
        self.steps += outcome.steps;
        self.revival_max = self.revival_max.max(outcome.revival);
        self.drops.merge(&outcome.drops);
    }

    pub fn check(&self) {
        assert!(self.accounted * 3 > self.worlds, "one session lasted: {self:?}");
        assert!(self.arrived * 3 > self.sent && self.arrived < self.sent, "{self:?}");
        for reason in SEEN {
            assert!(self.drops.get(reason) > 0, "no packet was dropped as {reason:?}: {self:?}");
        }
    }
}

/// Reasons that occur in any hundred worlds.
const SEEN: [DropReason; 11] = [
    DropReason::QueueFull,
    DropReason::QueueExpired,
    DropReason::RepairExpired,
    DropReason::NoSession,
    DropReason::SpoofedSource,
    DropReason::NoRoute,
    DropReason::MalformedInner,
    DropReason::OversizedInner,
    DropReason::Duplicate,
    DropReason::OutOfOrder,
    DropReason::ArrivedExpired,
];

/// Runs `plan`; the error names the broken invariant.
pub fn run(plan: &Plan) -> Result<Outcome, String> {
    let mut stage = Stage::new(plan)?;
    stage.run_until(at(plan.heal))?;
    stage.heal();
    let healed = stage.losses();
    let probes = stage.begin_probes(at(plan.heal));
    stage.run_until(at(plan.heal + LIVENESS))?;
    // The repaired links may be too slow for all traffic.
    stage.flows.retain(|(_, flow)| flow.port % PORTS_PER_LANE == PROBE_PORT);
    stage.run_until(at(plan.heal + LIVENESS + SETTLE))?;
    let (well, settled) = (stage.ledger.sent(), stage.losses());
    stage.run_until(at(plan.heal + LIVENESS + SETTLE + WELL))?;
    stage.flows.clear();
    stage.run_until(at(plan.heal + LIVENESS + SETTLE + WELL + DRAIN))?;
    let sound = stage.sound_links([&healed, &settled]);
    let revival = stage.check_liveness(&probes, well, &sound)?;
    stage.check_busyness()?;
    stage.check_streams(&sound)?;
    // The ledger does not contain frames of streams.
    let accounted = stage.is_one_session() && plan.fetches.is_empty();
    let drops = stage.drops();
    if accounted {
        for direction in [Direction::Up, Direction::Down] {
            stage.check_books(direction).map_err(|why| format!("{direction:?}: {why}"))?;
        }
    }
    Ok(Outcome {
        sent: stage.ledger.sent() as u64,
        arrived: stage.ledger.arrived_up + stage.ledger.arrived_down,
        steps: stage.steps,
        fingerprint: stage.ledger.fingerprint,
        revival,
        accounted,
        drops,
    })
}

fn at(time: Duration) -> Instant {
    Instant::ZERO + time
}

/// Packets pushed into one direction of a link, and those it lost.
#[derive(Clone, Copy, Debug)]
struct Losses {
    pushed: u64,
    lost: u64,
}

struct Stage<'a> {
    plan: &'a Plan,
    world: World,
    ledger: Ledger,
    /// Flows with the time of their next packet.
    flows: Vec<(Instant, Flow)>,
    script: VecDeque<(Instant, Happening)>,
    apps: Apps,
    fetches: VecDeque<(Instant, u64)>,
    next_look: Instant,
    steps: u64,
    given: Vec<(Direction, Kind)>,
}

impl<'a> Stage<'a> {
    fn new(plan: &'a Plan) -> Result<Self, String> {
        let mut world = World::new(plan.world()).map_err(|error| error.to_string())?;
        for (link, link_plan) in plan.links.iter().enumerate() {
            if let Some(tampering) = link_plan.tampering {
                world.tamper(link, tampering, plan.seed);
            }
        }
        let flows = plan.flows.iter().map(|flow| (at(flow.begin), flow.clone()));
        let script = plan.events.iter().map(|(after, what)| (at(*after), *what));
        Ok(Self {
            plan,
            world,
            ledger: Ledger::default(),
            flows: flows.collect(),
            script: script.collect(),
            apps: Apps::new(),
            fetches: plan.fetches.iter().map(|(after, bytes)| (at(*after), *bytes)).collect(),
            next_look: Instant::ZERO,
            steps: 0,
            given: Vec::new(),
        })
    }

    /// Revives links and uplinks; capacity, delay and loss heal by the plan.
    fn heal(&mut self) {
        for link in 0..self.plan.links.len() {
            self.world.set_dead(link, false);
            self.world.add_uplink(link);
            if self.plan.besieged != Some(link) {
                self.world.set_hostility(link, None).expect("nothing is to be made");
            }
            self.world.tamper(link, Tampering::default(), 0);
        }
    }

    fn begin_probes(&mut self, now: Instant) -> Vec<(Direction, u16)> {
        let mut probes = Vec::new();
        for direction in [Direction::Up, Direction::Down] {
            for lane in 0..self.plan.lanes(direction).len() as u16 {
                let port = FIRST_PORT + lane * PORTS_PER_LANE + PROBE_PORT;
                probes.push((direction, port));
                self.flows.push((now, probe(direction, port)));
            }
        }
        probes
    }

    fn run_until(&mut self, end: Instant) -> Result<(), String> {
        loop {
            let flow = self.flows.iter().map(|(next, _)| *next);
            let event = self.script.front().map(|(at, _)| *at);
            let fetch = self.fetches.front().map(|(at, _)| (*at).max(self.next_look));
            let own = flow.chain(event).chain(fetch).chain([self.next_look, end]).min();
            let due = [own, self.world.poll_timeout()].into_iter().flatten().min();
            let now = due.unwrap_or(end).max(self.world.now());
            self.world.handle_timeout(now);
            self.steps += 1;
            self.play_script(now)?;
            self.transmit(now);
            self.use_streams(now);
            self.world.flush();
            while let Some(arrival) = self.world.poll_arrival() {
                self.ledger.note(self.plan, &arrival)?;
            }
            if self.next_look <= now {
                self.next_look = now + LOOK;
                self.check_bounds()?;
            }
            if now >= end {
                return Ok(());
            }
        }
    }

    fn play_script(&mut self, now: Instant) -> Result<(), String> {
        while self.script.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, what)) = self.script.pop_front() else { break };
            match what {
                Happening::Link(link, action) => action.act_on(&mut self.world, link),
                Happening::RestartServer => {
                    self.world.restart_server().map_err(|error| error.to_string())?;
                    self.apps.on_server_restart();
                }
                Happening::Mtu(link, payload) => self.world.set_mtu(link, payload),
                Happening::Strategy(direction, lane, strategy) => {
                    let lane = format!("lane{lane}");
                    let strategy = strategies::strategy(strategy).expect("known");
                    let set = self.world.set_strategy(direction, &lane, strategy);
                    set.map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(())
    }

    fn transmit(&mut self, now: Instant) {
        for (next, flow) in &mut self.flows {
            while *next <= now {
                let packet = self.ledger.packet(now, flow);
                self.world.handle_inner(flow.direction, &packet);
                self.given.push((flow.direction, flow.kind));
                *next += flow.interval;
            }
        }
    }

    /// Makes due requests once there is a session, and answers them.
    fn use_streams(&mut self, now: Instant) {
        if self.plan.fetches.is_empty() {
            return;
        }
        while let Some((at, bytes)) = self.fetches.front().copied()
            && at <= now
            && self.apps.fetch(&mut self.world, bytes).is_some()
        {
            self.fetches.pop_front();
        }
        self.apps.act(&mut self.world);
    }

    /// Checks that each request has ended, if any link could carry it.
    fn check_streams(&self, sound: &[bool]) -> Result<(), String> {
        if self.fetches.is_empty() && self.apps.all_over() || !sound.contains(&true) {
            return Ok(());
        }
        let (left, fetches) = (self.fetches.len(), &self.apps.fetches);
        Err(format!("requests without an end, {left} never made: {fetches:#?}"))
    }

    /// Checks paths and queues against their limits.
    fn check_bounds(&mut self) -> Result<(), String> {
        let now = self.world.now();
        let up = self.world.client_status();
        let down = self.world.server_status();
        if down.len() > 1 {
            return Err(format!("at {now} one client has {} sessions", down.len()));
        }
        let down = down.into_iter().next();
        let one_session = self.world.client_events().len() <= 1;
        if one_session {
            self.note_promises(now, Direction::Up, down.as_ref());
            self.note_promises(now, Direction::Down, up.as_ref());
        } else {
            self.ledger.end_promises();
        }
        for (direction, status) in [(Direction::Up, up), (Direction::Down, down)] {
            let Some(status) = status else { continue };
            if status.paths.len() > PATHS_MAX {
                return Err(format!("at {now} there are {} paths", status.paths.len()));
            }
            for (lane, config) in status.stats.lanes.iter().zip(self.plan.lanes(direction)) {
                let copies_max = config.queue_bytes_max * status.paths.len().max(1);
                if lane.sent.copy_queue_bytes as usize > copies_max + FRAGMENTS_EXCESS {
                    return Err(format!("at {now} too many copies wait: {:?}", lane.sent));
                }
                if lane.sent.queue_bytes as usize > config.queue_bytes_max + FRAGMENTS_EXCESS {
                    return Err(format!("at {now} too much waits: {:?}", lane.sent));
                }
            }
        }
        Ok(())
    }

    /// Records the lanes whose receiver keeps the order.
    fn note_promises(&mut self, now: Instant, sent: Direction, receiver: Option<&SessionStatus>) {
        let own = self.plan.lanes(other(sent)).len();
        for lane in 0..self.plan.lanes(sent).len() {
            let name = format!("received-{lane}");
            let lanes = receiver.map_or(&[][..], |receiver| &receiver.stats.lanes);
            let stats = match lane < own {
                true => lanes.get(lane),
                false => lanes.iter().find(|stats| stats.name == name),
            };
            if stats.is_some_and(|stats| stats.received.order.order == "reorder") {
                self.ledger.promise(now, sent, lane);
            }
        }
    }

    fn losses(&self) -> Vec<[Losses; 2]> {
        let of_way = |link, direction| {
            let stats = self.world.link_stats(link, direction);
            Losses { pushed: stats.pushed, lost: stats.dropped.get(DropReason::LinkLoss) }
        };
        let of_link = |link| [Direction::Up, Direction::Down].map(|way| of_way(link, way));
        (0..self.world.links()).map(of_link).collect()
    }

    /// Links that have lost at most a tenth of their packets since each of these moments. Bursts
    /// are counted in packets: on a rarely used link they outlast the repair.
    fn sound_links(&self, since: [&[[Losses; 2]]; 2]) -> Vec<bool> {
        let after = self.losses();
        let is_sound = |link: usize| {
            since.iter().all(|before| {
                let ways = before[link].iter().zip(&after[link]);
                ways.map(|(before, after)| (after.pushed - before.pushed, after.lost - before.lost))
                    .all(|(pushed, lost)| lost * 10 <= pushed)
            })
        };
        (0..after.len()).map(is_sound).collect()
    }

    /// Checks that each lane carried packets soon after the repair, and carries nearly all now.
    ///
    /// `well` is the first packet that counts; `sound`: by link, whether it could carry packets.
    /// Returns the time to the first packet of the slowest lane.
    fn check_liveness(
        &self,
        probes: &[(Direction, u16)],
        well: usize,
        sound: &[bool],
    ) -> Result<Duration, String> {
        let mut slowest = Duration::ZERO;
        for (direction, port) in probes {
            let is_unreliable = self.plan.is_unreliable(*direction, *port);
            let is_bound = self.plan.is_bound(*direction, *port);
            let enough = match self.plan.promising(*direction, *port) {
                // It discards late packets.
                Some(_) => 5,
                // A sound link may lose a tenth, and more of a few packets.
                None if is_unreliable || is_bound => 5,
                None => 9,
            };
            let fit = if is_unreliable {
                !sound.contains(&false)
            } else if is_bound {
                sound[0]
            } else {
                sound.contains(&true)
            };
            if !fit || self.plan.is_too_far(*direction, *port) {
                continue;
            }
            let (sent, came) = self.ledger.share(*direction, *port, well);
            if came * 10 < sent * enough {
                let events = self.world.client_events();
                return Err(format!(
                    "of {sent} packets {direction:?} to {port} {came} came, {LIVENESS:?} after the \
                     links had healed: {events:?} {:?}",
                    self.world.client_status()
                ));
            }
            let first = self.ledger.first_arrival(*direction, *port);
            slowest =
                slowest.max(first.map_or(Duration::MAX, |first| first.since(at(self.plan.heal))));
        }
        Ok(slowest)
    }

    /// Checks the number of wake-ups against the number of packets.
    fn check_busyness(&self) -> Result<(), String> {
        let ways = |link| [Direction::Up, Direction::Down].map(|direction| (link, direction));
        let passed: u64 = (0..self.world.links())
            .flat_map(ways)
            .map(|(link, direction)| self.world.link_stats(link, direction).pushed)
            .sum();
        let seconds = self.world.now().as_secs_f64() as u64;
        let worth =
            STEPS_PER_PACKET * (passed + self.given.len() as u64) + STEPS_PER_SECOND * seconds;
        if self.steps > worth {
            return Err(format!("{} steps for {passed} packets in {seconds} s", self.steps));
        }
        Ok(())
    }

    /// Whether one session lasted from start to end; failed attempts do not count.
    fn is_one_session(&self) -> bool {
        let restarts = |(_, what): &(_, _)| matches!(what, Happening::RestartServer);
        let joins = |(_, event): &&(_, _)| !matches!(event, ServerEvent::Refused { .. });
        let client = self.world.client_events();
        let server: Vec<_> = self.world.server_events().iter().filter(joins).collect();
        !self.plan.events.iter().any(restarts)
            && matches!(client, [(_, ClientEvent::Joined { .. })])
            && matches!(server[..], [(_, ServerEvent::Joined { .. })])
    }

    fn drops(&mut self) -> DropCounters {
        let mut drops = DropCounters::default();
        let ends = self.world.client_status().into_iter().chain(self.world.server_status());
        for status in ends {
            drops.merge(&status.stats.drops);
            for lane in &status.stats.lanes {
                drops.merge(&lane.sent.drops);
                drops.merge(&lane.received.drops);
            }
        }
        drops.merge(self.world.ends_mut().1.drops());
        drops
    }

    /// Checks that every packet of one direction was delivered, counted as dropped, or lost in a
    /// link.
    fn check_books(&mut self, direction: Direction) -> Result<(), String> {
        let (Some(client), [server]) =
            (self.world.client_status(), &self.world.server_status()[..])
        else {
            return Err("there is no session".into());
        };
        let outside = self.world.ends_mut().1.drops().clone();
        let (sender, receiver, arrived) = match direction {
            Direction::Up => (&client, server, self.ledger.arrived_up),
            Direction::Down => (server, &client, self.ledger.arrived_down),
        };
        let books = || format!("{sender:#?}\n{receiver:#?}\n{outside:?}");
        let given =
            |kind| self.given.iter().filter(|given| **given == (direction, kind)).count() as u64;
        let handed = self.given.iter().filter(|(way, _)| *way == direction).count() as u64;

        // At the entry.
        let entered = sum(sender, |lane| lane.sent.inner_packets);
        let mut refused = dropped(&sender.stats.drops, &AT_ENTRY);
        if direction == Direction::Down {
            refused += dropped(&outside, &[DropReason::NoSession, DropReason::MalformedInner]);
            refused += given(Kind::Unroutable);
        }
        if handed != entered + refused {
            return Err(format!(
                "{handed} given, {entered} entered, {refused} refused: {}",
                books()
            ));
        }
        // In the queues.
        let left = sum(sender, |lane| lane.sent.sent_packets);
        let waited = sum(sender, |lane| dropped(&lane.sent.drops, &IN_QUEUE));
        if sum(sender, |lane| lane.sent.queue_bytes + lane.sent.copy_queue_bytes) > 0
            || entered != left + waited
        {
            return Err(format!("{entered} entered, {left} left, {waited} dropped: {}", books()));
        }
        // On the way.
        let delivered = sum(receiver, |lane| lane.received.delivered_packets);
        let datagrams = sum(sender, |lane| lane.sent.source_datagrams);
        let known = sum(receiver, |lane| lane.received.source_datagrams + lane.received.recovered);
        let held = sum(receiver, |lane| lane.received.order.held_packets);
        let discarded = sum(receiver, |lane| dropped(&lane.received.drops, &IN_ORDER));
        let in_pieces = self.plan.flows.iter().any(|flow| flow.bytes > UNFRAGMENTED_MAX);
        if held > 0 || !in_pieces && known != delivered + discarded {
            return Err(format!(
                "{known} known, {delivered} delivered, {discarded} late, {held} held: {}",
                books()
            ));
        }
        if delivered > left || known > datagrams {
            return Err(format!("{delivered} of {left}, {known} of {datagrams} came: {}", books()));
        }
        let excused = sum(sender, |lane| dropped(&lane.sent.drops, &AT_EXIT))
            + sum(receiver, |lane| dropped(&lane.received.drops, &AT_RECEIVER));
        let missing = (datagrams - known).saturating_sub(excused);
        let lost_bytes = self.lost_bytes(direction);
        let smallest = self.smallest_datagram(direction);
        if missing * smallest > lost_bytes {
            return Err(format!(
                "{missing} of {smallest} bytes or more are missing, {lost_bytes} were lost: {}",
                books()
            ));
        }
        // At the exit.
        let mut turned_away = dropped(&receiver.stats.drops, &AT_DELIVERY);
        if direction == Direction::Up {
            let unroutable_down = self
                .given
                .iter()
                .filter(|(way, kind)| (*way, *kind) == (Direction::Down, Kind::Unroutable));
            turned_away += outside.get(DropReason::NoRoute) - unroutable_down.count() as u64;
        }
        if delivered != arrived + turned_away {
            return Err(format!(
                "{delivered} delivered, {arrived} arrived, {turned_away} turned away: {}",
                books()
            ));
        }
        Ok(())
    }

    /// Bytes of the smallest source datagram in `direction`, with its headers. A last fragment may
    /// be nearly empty.
    fn smallest_datagram(&self, direction: Direction) -> u64 {
        let flows = self.plan.flows.iter().filter(|flow| flow.direction == direction);
        let sizes = flows.map(|flow| match flow.bytes {
            bytes if bytes > UNFRAGMENTED_MAX => 0,
            bytes => bytes as u64,
        });
        sizes.min().unwrap_or(PROBE_BYTES as u64).min(PROBE_BYTES as u64) + DATAGRAM_HEADER_MIN
    }

    fn lost_bytes(&self, direction: Direction) -> u64 {
        let of_link = |link| {
            let dropped = self.world.link_stats(link, direction).dropped_bytes;
            dropped + self.world.useless_bytes(link, direction)
        };
        let lost: u64 = (0..self.world.links()).map(of_link).sum();
        lost + self.world.undeliverable() * PACKET_MAX
    }
}

fn other(direction: Direction) -> Direction {
    match direction {
        Direction::Up => Direction::Down,
        Direction::Down => Direction::Up,
    }
}

fn probe(direction: Direction, port: u16) -> Flow {
    let (begin, interval) = (Duration::ZERO, PROBE_INTERVAL);
    Flow { direction, port, begin, interval, bytes: PROBE_BYTES, kind: Kind::Good }
}

fn sum(status: &SessionStatus, of_lane: impl Fn(&LaneStats) -> u64) -> u64 {
    status.stats.lanes.iter().map(of_lane).sum()
}

fn dropped(drops: &DropCounters, reasons: &[DropReason]) -> u64 {
    reasons.iter().map(|reason| drops.get(*reason)).sum()
}

/// Where a packet may be dropped, in order.
const AT_ENTRY: [DropReason; 3] =
    [DropReason::NoSession, DropReason::MalformedInner, DropReason::OversizedInner];
const IN_QUEUE: [DropReason; 3] =
    [DropReason::QueueFull, DropReason::QueueExpired, DropReason::FrameShed];
const AT_EXIT: [DropReason; 3] =
    [DropReason::SendFailed, DropReason::OversizedInner, DropReason::CopyUnsent];
const AT_RECEIVER: [DropReason; 3] =
    [DropReason::Late, DropReason::IdJump, DropReason::ReceiveMemory];
const IN_ORDER: [DropReason; 2] = [DropReason::OutOfOrder, DropReason::ArrivedExpired];
const AT_DELIVERY: [DropReason; 2] = [DropReason::SpoofedSource, DropReason::DeviceFull];
const PACKET_MAX: u64 = 1_500;
/// A path for each link, and some that are being replaced.
const PATHS_MAX: usize = 16;
/// For headers of fragments.
const FRAGMENTS_EXCESS: usize = 512;
/// Wake-ups allowed for packets and for timers.
const STEPS_PER_PACKET: u64 = 12;
const STEPS_PER_SECOND: u64 = 400;
