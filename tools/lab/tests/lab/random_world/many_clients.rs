//! Up to 16 clients at one server in random worlds: they start, die, lose uplinks and send; some
//! are hostile with a valid key; the server restarts, and its list of clients changes.
//!
//! Invariants: a packet is delivered at most once, unchanged, and only to its receiver; each client
//! has at most one session; memory stays within share and budget; and soon after all repairs every
//! honest client carries packets again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::dice::Dice;
use crate::nodes::{Arrival, ClientId, Config, Hostile, NodeId, Nodes, inner_address, key};
use crate::world::{number, udp_v4};
use roadweave_proto::{Instant, Rate};
use roadweave_tunnel::{Node as _, Peers};

const STEP: Duration = Duration::from_millis(20);
/// Time of the repairs, ms.
const HEAL: u64 = 2_500;
/// ms from the repairs until every client must carry packets.
const RECOVERY: u64 = 4_000;
/// Longest rest of a client that the server did not know, ms: 12.5 s.
const REST: u64 = 12_500;
/// Duration of that check, ms.
const LOOK: u64 = 1_500;
const OUTSIDE: [u8; 4] = [198, 51, 100, 1];
/// The sum of memory is only checked from time to time.
const UNCHECKED: u64 = 512 << 10;
const STRATEGIES: [&str; 6] = ["xnc", "minrtt", "redundant", "raven", "ecf", "xlink"];

#[derive(Debug)]
struct Plan {
    config: Config,
    /// Vehicles with a hostile client.
    hostile: BTreeSet<usize>,
    events: Vec<(u64, Happening)>,
}

#[derive(Clone, Copy, Debug)]
enum Happening {
    Start(usize),
    Kill(usize),
    Dead(usize, u32, bool),
    RestartServer,
    /// Reloads the list of clients, without this one.
    Reload(Option<usize>),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub vehicles: usize,
    pub held_max: u64,
    /// By vehicle, direction (whether down) and number.
    came: BTreeSet<(usize, bool, u64)>,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0xc0ffee);
        // Few vehicles in most worlds, since they cost most of the run time.
        let most = dice.within(2..17);
        let vehicles = dice.within(1..most + 1) as usize;
        let strategy = dice.one_of(&STRATEGIES);
        let mut config = Config {
            uplinks: dice.within(1..4) as u32,
            delay: Duration::from_millis(dice.within(1..100)),
            loss: if dice.once_in(2) { dice.within(0..30) as f64 / 1_000.0 } else { 0.0 },
            client_memory_max: (dice.within(1..5) as usize) << 20,
            memory_max: (dice.within(6..20) as usize) << 20,
            seed,
            ..Config::direct(vehicles, strategy)
        };
        if dice.once_in(4) {
            let limited = dice.within(0..vehicles as u64) as usize;
            config.rate_limits.insert(limited, Rate::from_kbps(dice.within(1_000..5_000)));
        }
        let hostile = (1..vehicles).filter(|_| dice.once_in(6)).collect();
        let mut events: Vec<_> =
            (0..vehicles).map(|vehicle| (dice.within(0..800), Happening::Start(vehicle))).collect();
        for _ in 0..dice.within(0..8) {
            let (at, vehicle) = (dice.within(100..HEAL), dice.within(0..vehicles as u64) as usize);
            match dice.within(0..5) {
                0 => {
                    events.push((at, Happening::Kill(vehicle)));
                    events.push((dice.within(at..HEAL), Happening::Start(vehicle)));
                }
                1 | 2 => {
                    let uplink = dice.within(0..u64::from(config.uplinks)) as u32;
                    events.push((at, Happening::Dead(vehicle, uplink, true)));
                    events.push((HEAL, Happening::Dead(vehicle, uplink, false)));
                }
                3 => events.push((at, Happening::RestartServer)),
                _ => {
                    events.push((at, Happening::Reload(Some(vehicle))));
                    events.push((dice.within(at..HEAL), Happening::Reload(None)));
                }
            }
        }
        // The server knows all clients in the end.
        events.push((HEAL, Happening::Reload(None)));
        events.sort_by_key(|(at, _)| *at);
        Self { config, hostile, events }
    }

    /// When every client must carry packets, ms.
    fn well(&self) -> u64 {
        let forgets = |(_, what): &(u64, Happening)| matches!(what, Happening::Reload(Some(_)));
        HEAL + RECOVERY + if self.events.iter().any(forgets) { REST } else { 0 }
    }
}

/// Runs the nodes of a seed; the error names the broken invariant and the plan.
pub fn run(seed: u64) -> Result<Outcome, String> {
    let plan = Plan::new(seed);
    Run::new(&plan).run().map_err(|why| format!("{plan:#?}\n{why}"))
}

struct Run<'a> {
    plan: &'a Plan,
    nodes: Nodes,
    hostile: BTreeMap<usize, Hostile>,
    known: Peers,
    next: usize,
    sent: u64,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan) -> Self {
        let vehicles = plan.config.boxes;
        Self {
            plan,
            nodes: Nodes::new(plan.config.clone()),
            hostile: BTreeMap::new(),
            known: plan.config.peers().collect(),
            next: 0,
            sent: 0,
            outcome: Outcome { vehicles, ..Outcome::default() },
        }
    }

    fn run(mut self) -> Result<Outcome, String> {
        let mut first_well = None;
        let (well, end) = (self.plan.well(), self.plan.well() + LOOK);
        while self.nodes.now() < Instant::from_millis(end) {
            let now = self.nodes.now();
            while let Some((at, what)) = self.plan.events.get(self.next).copied()
                && Instant::from_millis(at) <= now
            {
                self.next += 1;
                self.happen(what);
            }
            if now >= Instant::from_millis(well) {
                first_well.get_or_insert(self.sent);
            }
            self.send();
            for hostile in self.hostile.values_mut() {
                hostile.press(&mut self.nodes);
            }
            self.nodes.flush();
            self.nodes.run_until(now + STEP);
            self.take_arrivals()?;
            self.check_bounds()?;
        }
        let last = self.sent;
        self.nodes.run_until(Instant::from_millis(end + 1_000));
        self.take_arrivals()?;
        self.check_liveness(first_well.unwrap_or(0), last)?;
        Ok(self.outcome)
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Start(vehicle) if self.plan.hostile.contains(&vehicle) => {
                let hostile = Hostile::start(&mut self.nodes, vehicle);
                self.hostile.insert(vehicle, hostile);
            }
            Happening::Start(vehicle) => self.nodes.start(vehicle),
            Happening::Kill(vehicle) => {
                self.hostile.remove(&vehicle);
                self.nodes.kill(vehicle);
            }
            Happening::Dead(vehicle, uplink, dead) => self.nodes.set_dead(vehicle, uplink, dead),
            // A new server knows all clients.
            Happening::RestartServer => {
                self.nodes.start_server(0);
                self.known = self.plan.config.peers().collect();
            }
            Happening::Reload(gone) => {
                let gone = gone.map(|vehicle| key(ClientId::from(vehicle).into()));
                let read = || self.plan.config.peers().filter(|(key, _)| Some(*key) != gone);
                let change = Peers::after(&self.known, read());
                self.nodes.server(0).replace_peers(change);
                self.known = read().collect();
            }
        }
    }

    /// A packet from and to each vehicle, and sometimes one with a foreign source.
    fn send(&mut self) {
        let now = self.nodes.now();
        let vehicles = self.plan.config.boxes;
        for vehicle in 0..vehicles {
            let inner = inner_address(vehicle).octets();
            let down = packet(OUTSIDE, inner, self.sent);
            self.nodes.server(0).handle_inner(now, &down);
            let Some(client) = self.nodes.client(vehicle) else { continue };
            client.handle_inner(now, &packet(inner, OUTSIDE, self.sent));
            if self.sent.is_multiple_of(8) && vehicles > 1 {
                let other = inner_address((vehicle + 1) % vehicles).octets();
                client.handle_inner(now, &packet(other, OUTSIDE, u64::MAX - vehicle as u64));
                client.handle_inner(now, &packet(inner, other, u64::MAX - vehicle as u64));
            }
        }
        self.sent += 1;
    }

    fn take_arrivals(&mut self) -> Result<(), String> {
        for arrival in self.nodes.arrivals() {
            let Arrival { at, node, packet: came, .. } = &arrival;
            let error = |why: &str| Err(format!("at {at} {why}: {arrival:?}"));
            let number = number(came);
            let whose = |address: &[u8]| {
                let mut vehicles = 0..self.plan.config.boxes;
                vehicles.find(|vehicle| inner_address(*vehicle).octets() == address)
            };
            let key = match (node, whose(&came[12..16])) {
                (NodeId::Client(id), None) => (id.number, true, number),
                (NodeId::Server(_), Some(vehicle)) if self.plan.hostile.contains(&vehicle) => {
                    continue;
                }
                (NodeId::Server(_), Some(vehicle)) => (vehicle, false, number),
                _ => return error("a packet came out where it may not"),
            };
            // While a vehicle is unknown, its address is outside of the tunnel.
            if number > self.sent && whose(&came[16..20]).is_some_and(|to| self.was_gone(to)) {
                continue;
            }
            let inner = inner_address(key.0).octets();
            let [source, destination] = if key.1 { [OUTSIDE, inner] } else { [inner, OUTSIDE] };
            if came[..] != packet(source, destination, number)[..] || number >= self.sent {
                return error("a packet came that nobody sent");
            }
            if !self.outcome.came.insert(key) {
                return error("a packet came twice");
            }
        }
        Ok(())
    }

    fn was_gone(&self, vehicle: usize) -> bool {
        let is_gone =
            |what: &Happening| matches!(what, Happening::Reload(Some(gone)) if *gone == vehicle);
        self.plan.events.iter().any(|(_, what)| is_gone(what))
    }

    fn check_bounds(&mut self) -> Result<(), String> {
        let now = self.nodes.now();
        let mut keys = BTreeSet::new();
        for status in self.nodes.server(0).status() {
            let held = status.stats.memory.total();
            self.outcome.held_max = self.outcome.held_max.max(held);
            if held > self.plan.config.client_memory_max as u64 + UNCHECKED {
                return Err(format!("at {now} {} holds {held} bytes", status.peer));
            }
            if !keys.insert(status.public_key) {
                return Err(format!("at {now} {} has two sessions", status.peer));
            }
        }
        let all = self.nodes.server(0).memory();
        if all > self.plan.config.memory_max as u64 + UNCHECKED {
            return Err(format!("at {now} all hold {all} bytes"));
        }
        Ok(())
    }

    fn check_liveness(&self, first: u64, last: u64) -> Result<(), String> {
        let honest = (0..self.plan.config.boxes).filter(|v| !self.plan.hostile.contains(v));
        for (vehicle, down) in honest.flat_map(|vehicle| [(vehicle, false), (vehicle, true)]) {
            let sent = last - first;
            let came = &self.outcome.came;
            let came = came.range((vehicle, down, first)..(vehicle, down, last)).count();
            if (came as u64) * 10 < sent * 9 {
                let events = self.nodes.client_events(vehicle);
                return Err(format!(
                    "of {sent} packets of vehicle {vehicle} (down: {down}) {came} came in the end: \
                     {events:#?}"
                ));
            }
        }
        Ok(())
    }
}

fn packet(source: [u8; 4], destination: [u8; 4], number: u64) -> Vec<u8> {
    udp_v4(source, destination, number, 400)
}
