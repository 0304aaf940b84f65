//! A whole fleet in virtual time: the control plane with the product's agents, controller sessions
//! and plan, over a model of the data plane.
//!
//! ```text
//!  boxes ──Agent──┐  streams, with delays           ┌session─┐
//!  proxies ─Agent─┴──────────────────────────────►  │ replica│──► Store (the database)
//!     sessions are a model: who is on which proxy   └─ Proxies     records, documents,
//!     faults: plan.rs                                              revocations, outbox
//! ```
//!
//! The product's own code handles every message, signature, proof and decision about documents,
//! revocations, tables, candidates, health and waves. docs/lab.md lists what is modelled, batched
//! and skipped. Equal configurations give equal bytes.

mod controller;
mod figures;
mod members;
mod plan;
mod rollouts;
mod roster;
mod sessions;
mod store;
mod streams;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{Down, PublishedTable, Up, remember_proofs};
use roadweave_proto::{Instant, SplitMix64};
use serde::Serialize;

use self::controller::Replica;
use self::figures::FleetFigures;
pub use self::figures::FleetOutcome;
use self::members::{FleetMember, ProxyModel, Ride};
use self::plan::{PlannedEvent, plan};
use self::roster::Roster;
use self::store::Store;

const TURN: Duration = Duration::from_secs(5);

const PROOFS_MAX: usize = 65_536;

/// Configuration of a fleet.
#[derive(Clone, Debug, Serialize)]
pub struct FleetConfig {
    /// Boxes at the start; more are added later.
    pub boxes: usize,
    /// Proxies, spread over [`FleetConfig::regions`] with two sites each.
    pub proxies: usize,
    /// Replicas of the controller, which share one database.
    pub replicas: usize,
    /// Regions, with two tenants each.
    pub regions: usize,
    /// Duration.
    pub hours: u32,
    /// Seed of all randomness.
    pub seed: u64,
    /// Whether faults occur.
    pub faults: bool,
    /// Whether messages are serialized and proxies verify every member.
    pub is_thorough: bool,
}

impl FleetConfig {
    /// A fleet with three replicas, five regions and faults.
    pub fn new(boxes: usize, proxies: usize, hours: u32, seed: u64) -> Self {
        Self {
            boxes,
            proxies,
            replicas: 3,
            regions: 5.min(proxies.div_ceil(2)).max(1),
            hours,
            seed,
            faults: true,
            is_thorough: false,
        }
    }
}

/// `Connect` counts for the latest planned attempt, `Silent` if the replica still does not answer.
#[derive(Debug)]
enum FleetEvent {
    Turn,
    Outbox(usize),
    Connect { who: usize, attempt: u64 },
    Up { who: usize, stream: u64, frames: Vec<Up> },
    Down { who: usize, stream: u64, frames: Vec<Down> },
    Expire { replica: usize, who: usize, stream: u64 },
    Silent { replica: usize, who: usize },
    Timeout { who: usize },
    Choose { who: usize, round: u64 },
    Planned(PlannedEvent),
}

struct FleetWorld {
    config: FleetConfig,
    now: Instant,
    end: Instant,
    random: SplitMix64,
    queue: BTreeMap<(Instant, u64), FleetEvent>,
    sequence: u64,
    roster: Roster,
    store: Store,
    backup: Option<Box<Store>>,
    is_database_away: bool,
    replicas: Vec<Replica>,
    members: Vec<FleetMember>,
    rides: Vec<Ride>,
    proxies: Vec<ProxyModel>,
    /// The last table sent to each proxy, the base of differences.
    sent_tables: Vec<Option<Arc<PublishedTable>>>,
    streams: u64,
    figures: FleetFigures,
}

/// Runs a fleet.
pub fn run(config: &FleetConfig) -> FleetOutcome {
    remember_proofs(if config.is_thorough { 0 } else { PROOFS_MAX });
    let mut world = FleetWorld::new(config);
    while let Some(((at, _), event)) = world.queue.pop_first() {
        if at > world.end {
            break;
        }
        world.now = at;
        world.handle(event);
    }
    world.now = world.end;
    let outcome = world.outcome();
    remember_proofs(0);
    outcome
}

impl FleetWorld {
    fn new(config: &FleetConfig) -> Self {
        let hours = Duration::from_secs(3_600) * config.hours;
        let plan = plan(config);
        let joining = plan.iter().filter(|(_, event)| matches!(event, PlannedEvent::Join { .. }));
        let roster = Roster::new(config, joining.count());
        let store = Store::new(&roster, config);
        let mut world = Self {
            now: Instant::ZERO,
            end: Instant::ZERO + hours,
            random: SplitMix64::new(config.seed),
            queue: BTreeMap::new(),
            sequence: 0,
            backup: None,
            is_database_away: false,
            replicas: (0..config.replicas).map(|_| Replica::new(&store, &roster)).collect(),
            members: Vec::new(),
            rides: Vec::new(),
            proxies: Vec::new(),
            sent_tables: vec![None; config.proxies],
            streams: 0,
            figures: FleetFigures::default(),
            config: config.clone(),
            roster,
            store,
        };
        world.people();
        for (at, event) in plan {
            world.at(at, FleetEvent::Planned(event));
        }
        world.after(TURN, FleetEvent::Turn);
        world
    }

    fn handle(&mut self, event: FleetEvent) {
        self.figures.events += 1;
        match event {
            FleetEvent::Turn => {
                self.after(TURN, FleetEvent::Turn);
                self.send_samples();
                self.turn();
            }
            FleetEvent::Outbox(replica) => self.read_outbox(replica),
            FleetEvent::Connect { who, attempt } => self.connect(who, attempt),
            FleetEvent::Up { who, stream, frames } => self.handle_up(who, stream, frames),
            FleetEvent::Down { who, stream, frames } => self.handle_down(who, stream, frames),
            FleetEvent::Expire { replica, who, stream } => {
                self.drop_desk(replica, who, Some(stream))
            }
            FleetEvent::Silent { replica, who } => self.on_silent(replica, who),
            FleetEvent::Timeout { who } => {
                let now = self.now;
                self.members[who].timeout = None;
                self.members[who].agent.handle_timeout(now);
                self.flush(who);
            }
            FleetEvent::Choose { who, round } => self.choose(who, round),
            FleetEvent::Planned(event) => self.handle_planned(event),
        }
    }

    fn at(&mut self, at: Instant, event: FleetEvent) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    fn after(&mut self, span: Duration, event: FleetEvent) {
        self.at(self.now + span, event);
    }

    fn between(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.random.next_u64() % (most - least + 1))
    }
}

#[cfg(test)]
mod tests;
