//! One random world, and its checks.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_emulate::Direction;
use roadweave_lab::strategies;
use roadweave_lab::world::{Tampering, World};
use roadweave_proto::{DropCounters, DropReason, Instant};
use roadweave_tunnel::{ClientEvent, LaneStats, ServerEvent, SessionStatus};

use crate::apps::Apps;
use crate::random_world::ensure;
use crate::random_world::ledger::Ledger;
use crate::random_world::plan::{FIRST_PORT, Flow, FlowKind, Happening, PORTS_PER_LANE, Plan};

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

/// What happened in a world, or the sum of many, which shows that enough happened.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    sent: u64,
    arrived: u64,
    steps: u64,
    fingerprint: u64,
    /// Worlds in which one session lasted from start to end, so that its counters are complete.
    accounted: u64,
    drops: DropCounters,
}

impl Outcome {
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.arrived += other.arrived;
        self.steps += other.steps;
        self.accounted += other.accounted;
        self.drops.merge(&other.drops);
    }

    pub fn check(&self, worlds: u64) {
        assert!(self.accounted * 3 > worlds, "one session lasted: {self:?}");
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

/// Runs `plan`; the error names the plan and the broken invariant.
pub fn run(plan: &Plan) -> Result<Outcome, String> {
    try_run(plan).map_err(|why| format!("{plan:#?}\n{why}"))
}

fn try_run(plan: &Plan) -> Result<Outcome, String> {
    let mut random_world = RandomWorld::new(plan);
    random_world.run_until(at(plan.heal))?;
    random_world.heal();
    let healed = random_world.losses();
    let probes = random_world.begin_probes(at(plan.heal));
    random_world.run_until(at(plan.heal + LIVENESS))?;
    // The repaired links may be too slow for all traffic.
    random_world.flows.retain(|(_, flow)| flow.port % PORTS_PER_LANE == PROBE_PORT);
    random_world.run_until(at(plan.heal + LIVENESS + SETTLE))?;
    let (well, settled) = (random_world.ledger.sent(), random_world.losses());
    random_world.run_until(at(plan.heal + LIVENESS + SETTLE + WELL))?;
    random_world.flows.clear();
    random_world.run_until(at(plan.heal + LIVENESS + SETTLE + WELL + DRAIN))?;
    let sound = random_world.sound_links([&healed, &settled]);
    random_world.check_liveness(&probes, well, &sound)?;
    random_world.check_busyness()?;
    random_world.check_streams(&sound)?;
    // The ledger does not contain frames of streams.
    let accounted = random_world.is_one_session() && plan.fetches.is_empty();
    let drops = random_world.drops();
    if accounted {
        for direction in [Direction::Up, Direction::Down] {
            random_world.check_books(direction)?;
        }
    }
    Ok(Outcome {
        sent: random_world.ledger.sent() as u64,
        arrived: random_world.ledger.arrived_up + random_world.ledger.arrived_down,
        steps: random_world.steps,
        fingerprint: random_world.ledger.fingerprint,
        accounted: accounted.into(),
        drops,
    })
}

fn at(time: Duration) -> Instant {
    Instant::ZERO + time
}

/// By link and direction: packets pushed, and packets lost.
type Losses = Vec<[(u64, u64); 2]>;

struct RandomWorld<'a> {
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
    given: Vec<(Direction, FlowKind)>,
}

impl<'a> RandomWorld<'a> {
    fn new(plan: &'a Plan) -> Self {
        let mut world = World::new(plan.world.clone()).expect("plans make worlds");
        for (link, tampering) in plan.tampering.iter().enumerate() {
            if let Some(tampering) = *tampering {
                world.tamper(link, tampering, plan.world.seed);
            }
        }
        let flows = plan.flows.iter().map(|flow| (at(flow.begin), flow.clone()));
        let script = plan.events.iter().map(|(after, what)| (at(*after), *what));
        Self {
            plan,
            world,
            ledger: Ledger::default(),
            flows: flows.collect(),
            script: script.collect(),
            apps: Apps::default(),
            fetches: plan.fetches.iter().map(|(after, bytes)| (at(*after), *bytes)).collect(),
            next_look: Instant::ZERO,
            steps: 0,
            given: Vec::new(),
        }
    }

    /// Revives links and uplinks; capacity, delay and loss heal by the plan.
    fn heal(&mut self) {
        for link in 0..self.world.links() {
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
            self.play_script(now);
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

    fn play_script(&mut self, now: Instant) {
        while let Some((_, what)) = self.script.front().copied().filter(|(at, _)| *at <= now) {
            self.script.pop_front();
            match what {
                Happening::Link(link, action) => action.act_on(&mut self.world, link),
                Happening::RestartServer => {
                    self.world.restart_server().expect("it could be made before");
                    self.apps.on_far_end_restart();
                }
                Happening::Mtu(link, payload) => self.world.set_mtu(link, payload),
                Happening::Strategy(direction, lane, strategy) => {
                    let lane = format!("lane{lane}");
                    let strategy = strategies::strategy(strategy).expect("known");
                    let set = self.world.set_strategy(direction, &lane, strategy);
                    set.expect("the lane is there");
                }
            }
        }
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
            && self.apps.request(now, (0, self.world.ends_mut().0), [0, bytes]).is_some()
        {
            self.fetches.pop_front();
        }
        self.apps.act_in(&mut self.world);
    }

    /// Checks that each request has ended, if any link could carry it.
    fn check_streams(&self, sound: &[bool]) -> Result<(), String> {
        let are_over = self.fetches.is_empty() && self.apps.all_over();
        ensure(are_over || !sound.contains(&true), || {
            let (left, requests) = (self.fetches.len(), &self.apps.requests);
            format!("requests without an end, {left} never made: {requests:#?}")
        })
    }

    fn check_bounds(&mut self) -> Result<(), String> {
        let now = self.world.now();
        let (up, down) = (self.world.client_status(), self.world.server_status());
        ensure(down.len() <= 1, || format!("at {now} one client has {} sessions", down.len()))?;
        let down = down.into_iter().next();
        if self.world.client_events().len() <= 1 {
            self.note_promises(now, Direction::Up, down.as_ref());
            self.note_promises(now, Direction::Down, up.as_ref());
        } else {
            self.ledger.end_promises();
        }
        for (direction, status) in [(Direction::Up, up), (Direction::Down, down)] {
            let Some(status) = status else { continue };
            let paths = status.paths.len();
            ensure(paths <= PATHS_MAX, || format!("at {now} there are {paths} paths"))?;
            for (lane, config) in status.stats.lanes.iter().zip(self.plan.lanes(direction)) {
                let copies_max = config.queue_bytes_max * paths.max(1) + FRAGMENTS_EXCESS;
                let queue_max = config.queue_bytes_max + FRAGMENTS_EXCESS;
                let sent = &lane.sent;
                ensure(
                    sent.copy_queue_bytes as usize <= copies_max
                        && sent.queue_bytes as usize <= queue_max,
                    || format!("at {now} too much waits: {sent:?}"),
                )?;
            }
        }
        Ok(())
    }

    fn note_promises(&mut self, now: Instant, sent: Direction, receiver: Option<&SessionStatus>) {
        let own = self.plan.lanes(sent.opposite()).len();
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

    fn losses(&self) -> Losses {
        let of_way = |link, direction| {
            let stats = self.world.link_stats(link, direction);
            (stats.pushed, stats.dropped.get(DropReason::LinkLoss))
        };
        let of_link = |link| [Direction::Up, Direction::Down].map(|way| of_way(link, way));
        (0..self.world.links()).map(of_link).collect()
    }

    /// Links that have lost at most a tenth of their packets since each of these moments. Bursts
    /// are counted in packets: on a rarely used link they outlast the repair.
    fn sound_links(&self, since: [&Losses; 2]) -> Vec<bool> {
        let is_sound = |(link, after): (usize, &[(u64, u64); 2])| {
            since.iter().all(|before| {
                let ways = before[link].iter().zip(after);
                let mut since =
                    ways.map(|(before, after)| (after.0 - before.0, after.1 - before.1));
                since.all(|(pushed, lost)| lost * 10 <= pushed)
            })
        };
        self.losses().iter().enumerate().map(is_sound).collect()
    }

    /// Checks that each lane carries nearly all packets now.
    ///
    /// `well` is the first packet that counts; `sound`: by link, whether it could carry packets.
    fn check_liveness(
        &self,
        probes: &[(Direction, u16)],
        well: usize,
        sound: &[bool],
    ) -> Result<(), String> {
        for (direction, port) in probes {
            let is_unreliable = self.plan.is_unreliable(*direction, *port);
            let is_bound = self.plan.is_bound(*direction, *port);
            // A lane that keeps the order discards late packets, and a sound link may lose a tenth,
            // and more of a few packets.
            let discards = self.plan.promising(*direction, *port).is_some();
            let enough = if discards || is_unreliable || is_bound { 5 } else { 9 };
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
            ensure(came * 10 >= sent * enough, || {
                let (events, status) = (self.world.client_events(), self.world.client_status());
                format!(
                    "of {sent} packets {direction:?} to {port} {came} came, {LIVENESS:?} after the \
                     links had healed: {events:?} {status:?}"
                )
            })?;
        }
        Ok(())
    }

    /// Checks the number of wake-ups against the number of packets.
    fn check_busyness(&self) -> Result<(), String> {
        let passed: u64 = self.losses().iter().flatten().map(|(pushed, _)| pushed).sum();
        let seconds = self.world.now().as_secs_f64() as u64;
        let worth =
            STEPS_PER_PACKET * (passed + self.given.len() as u64) + STEPS_PER_SECOND * seconds;
        ensure(self.steps <= worth, || {
            format!("{} steps for {passed} packets in {seconds} s", self.steps)
        })
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

    /// Checks that each packet of a direction was delivered, counted as dropped, or lost in a link.
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
        let check = |holds, [sum, of, parts]: [(&str, u64); 3]| {
            ensure(holds, || {
                format!(
                    "{direction:?}: {sum:?}, {of:?}, {parts:?}: \
                     {sender:#?}\n{receiver:#?}\n{outside:?}"
                )
            })
        };
        let given =
            |way, kind| self.given.iter().filter(|given| **given == (way, kind)).count() as u64;
        let unroutable_down = given(Direction::Down, FlowKind::Unroutable);

        // At the entry.
        let handed = self.given.iter().filter(|(way, _)| *way == direction).count() as u64;
        let entered = sum(sender, |lane| lane.sent.inner_packets);
        let mut refused = dropped(&sender.stats.drops, &AT_ENTRY);
        if direction == Direction::Down {
            refused += dropped(&outside, &[DropReason::NoSession, DropReason::MalformedInner]);
            refused += unroutable_down;
        }
        check(
            handed == entered + refused,
            [("given", handed), ("entered", entered), ("refused", refused)],
        )?;
        // In the queues.
        let left = sum(sender, |lane| lane.sent.sent_packets);
        let waited = sum(sender, |lane| dropped(&lane.sent.drops, &IN_QUEUE));
        let queued = sum(sender, |lane| lane.sent.queue_bytes + lane.sent.copy_queue_bytes);
        check(
            queued == 0 && entered == left + waited,
            [("entered", entered), ("left", left), ("dropped", waited)],
        )?;
        // On the way.
        let delivered = sum(receiver, |lane| lane.received.delivered_packets);
        let datagrams = sum(sender, |lane| lane.sent.source_datagrams);
        let known = sum(receiver, |lane| lane.received.source_datagrams + lane.received.recovered);
        let held = sum(receiver, |lane| lane.received.order.held_packets);
        let discarded = sum(receiver, |lane| dropped(&lane.received.drops, &IN_ORDER));
        let in_pieces = self.plan.flows.iter().any(|flow| flow.bytes > UNFRAGMENTED_MAX);
        check(
            held == 0 && (in_pieces || known == delivered + discarded),
            [("known", known), ("delivered", delivered), ("discarded", discarded)],
        )?;
        check(
            delivered <= left && known <= datagrams,
            [("left", left), ("known", known), ("datagrams", datagrams)],
        )?;
        let excused = sum(sender, |lane| dropped(&lane.sent.drops, &AT_EXIT))
            + sum(receiver, |lane| dropped(&lane.received.drops, &AT_RECEIVER));
        let missing = (datagrams - known).saturating_sub(excused);
        let lost_bytes = self.lost_bytes(direction);
        let smallest = self.smallest_datagram(direction);
        check(
            missing * smallest <= lost_bytes,
            [("missing", missing), ("their least bytes", smallest), ("lost bytes", lost_bytes)],
        )?;
        // At the exit.
        let mut turned_away = dropped(&receiver.stats.drops, &AT_DELIVERY);
        if direction == Direction::Up {
            turned_away += outside.get(DropReason::NoRoute) - unroutable_down;
        }
        check(
            delivered == arrived + turned_away,
            [("delivered", delivered), ("arrived", arrived), ("turned away", turned_away)],
        )
    }

    /// Bytes of the smallest source datagram with its headers; a last fragment may be nearly empty.
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

fn probe(direction: Direction, port: u16) -> Flow {
    let (begin, interval) = (Duration::ZERO, PROBE_INTERVAL);
    Flow { direction, port, begin, interval, bytes: PROBE_BYTES, kind: FlowKind::Good }
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
