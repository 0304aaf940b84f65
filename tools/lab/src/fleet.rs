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

mod agenda;
mod controller;
mod faults;
mod figures;
mod members;
mod plan;
mod rollouts;
mod roster;
mod sessions;
mod store;

use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{
    AgentEvent, Down, Kind, PublishedTable, Refused, VerifiedServer, Version, remember_proofs,
};
use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use serde::Serialize;

use self::agenda::{Agenda, FleetEvent};
use self::controller::Replica;
use self::faults::EXPIRY;
pub use self::figures::FleetOutcome;
use self::figures::{FleetFigures, hours};
use self::members::{FleetMember, newcomer};
use self::plan::{PlannedEvent, plan};
use self::rollouts::{cuts_off, is_unreadable};
use self::roster::Roster;
use self::sessions::{PROBE, ProxyModel, Ride, Sessions};
use self::store::Store;

const TURN: Duration = Duration::from_secs(5);

const PROOFS_MAX: usize = 65_536;
/// Time until a box without a proxy tries again.
const AGAIN: Duration = Duration::from_secs(5);
/// Bytes of measuring one candidate: three probes over two uplinks.
const PROBE_BYTES: u64 = 3 * 2 * 1_200;

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
    pub hours: u32,
    pub seed: u64,
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

struct FleetWorld {
    config: FleetConfig,
    agenda: Agenda,
    roster: Roster,
    store: Store,
    backup: Option<Box<Store>>,
    is_database_away: bool,
    replicas: Vec<Replica>,
    members: Vec<FleetMember>,
    sessions: Sessions,
    /// The last table sent to each proxy, the base of differences.
    sent_tables: Vec<Option<Arc<PublishedTable>>>,
    streams: u64,
    figures: FleetFigures,
}

pub fn run(config: &FleetConfig) -> FleetOutcome {
    remember_proofs(if config.is_thorough { 0 } else { PROOFS_MAX });
    let end = Instant::ZERO + Duration::from_secs(3_600) * config.hours;
    let mut world = FleetWorld::new(config);
    while let Some(event) = world.agenda.poll(end) {
        world.handle(event);
    }
    world.agenda.now = end;
    let outcome = FleetOutcome::of(world);
    remember_proofs(0);
    outcome
}

impl FleetWorld {
    fn new(config: &FleetConfig) -> Self {
        let plan = plan(config);
        let joining = plan.iter().filter(|(_, event)| matches!(event, PlannedEvent::Join { .. }));
        let roster = Roster::new(config, joining.count());
        let store = Store::new(&roster, config);
        let agent = |who| newcomer(&roster, Instant::ZERO, who);
        let members = 0..roster.boxes + roster.proxies;
        let mut world = Self {
            agenda: Agenda::new(config.seed),
            backup: None,
            is_database_away: false,
            replicas: (0..config.replicas).map(|_| Replica::new(&store, &roster)).collect(),
            members: members.map(|who| FleetMember::new(agent(who), config.is_thorough)).collect(),
            sessions: Sessions {
                rides: (0..roster.boxes).map(|_| Ride::default()).collect(),
                proxies: (0..roster.proxies).map(|_| ProxyModel::default()).collect(),
            },
            sent_tables: vec![None; config.proxies],
            streams: 0,
            figures: FleetFigures::default(),
            config: config.clone(),
            roster,
            store,
        };
        for who in (0..config.boxes).chain(world.roster.boxes..world.members.len()) {
            world.members[who].enrol(&world.roster, who);
            if world.roster.is_box(who) {
                world.sessions.rides[who].in_tables_from = Some(Version::default());
            }
            let soon = world.agenda.between(0, 10_000);
            world.connect_after(who, soon);
        }
        for (at, event) in plan {
            world.agenda.at(at, FleetEvent::Planned(event));
        }
        world.agenda.after(TURN, FleetEvent::Turn);
        world
    }

    fn handle(&mut self, event: FleetEvent) {
        self.figures.events += 1;
        match event {
            FleetEvent::Turn => {
                self.agenda.after(TURN, FleetEvent::Turn);
                self.send_samples();
                self.turn();
            }
            FleetEvent::Outbox(replica) => self.read_outbox(replica),
            FleetEvent::Connect { who, attempt } => self.connect(who, attempt),
            FleetEvent::Up { who, stream, frames } => self.handle_up(who, stream, frames),
            FleetEvent::Down { who, stream, frames } => self.handle_down(who, stream, frames),
            FleetEvent::Expire { replica, who, stream } => self.drop_desk(replica, who, stream),
            FleetEvent::Silent { replica, who } => self.on_silent(replica, who),
            FleetEvent::Timeout { who } => {
                self.members[who].handle_timeout(self.agenda.now);
                self.flush(who);
            }
            FleetEvent::Choose { who, round } => self.choose(who, round),
            FleetEvent::Planned(event) => self.handle_planned(event),
        }
    }

    fn connect_after(&mut self, who: usize, span: Duration) {
        self.members[who].connect_after(&mut self.agenda, who, span);
    }

    fn has_network(&self, who: usize) -> bool {
        let Some(proxy) = who.checked_sub(self.roster.boxes) else {
            return self.sessions.rides[who].has_network();
        };
        let model = &self.sessions.proxies[proxy];
        model.is_running() && !model.is_partitioned
    }

    fn connect(&mut self, who: usize, attempt: u64) {
        let member = &mut self.members[who];
        if attempt != member.attempt || member.stream.is_some() || !self.has_network(who) {
            return;
        }
        let replica = self.agenda.random.below(self.replicas.len());
        if !self.replicas[replica].works() || self.is_database_away {
            self.members[who].tries += 1;
            let most = 1_000 << self.members[who].tries.min(5);
            let wait = self.agenda.between(most / 2, most);
            return self.connect_after(who, wait);
        }
        self.streams += 1;
        self.open_desk(replica, who, self.streams);
        self.members[who].on_stream_up(self.agenda.now, replica, self.streams);
        self.flush(who);
    }

    fn drop_stream(&mut self, who: usize, again: Option<Duration>) {
        if let Some((replica, stream)) = self.members[who].on_stream_down(self.agenda.now) {
            // A member without a network cannot send a close.
            let span = if self.has_network(who) { Duration::from_millis(20) } else { EXPIRY };
            self.agenda.after(span, FleetEvent::Expire { replica, who, stream });
            self.flush(who);
        }
        if let Some(again) = again {
            self.connect_after(who, again);
        }
    }

    fn handle_down(&mut self, who: usize, stream: u64, frames: Vec<Down>) {
        if self.members[who].stream.map(|(_, held)| held) != Some(stream) {
            return;
        }
        if !self.roster.is_box(who) {
            let model = &mut self.sessions.proxies[who - self.roster.boxes];
            if model.is_frozen {
                return model.backlog.push((stream, frames));
            }
        }
        for frame in frames {
            self.members[who].agent.handle_frame(self.agenda.now, frame);
            // A driver polls after every call.
            self.flush(who);
        }
    }

    fn flush(&mut self, who: usize) {
        while let Some(event) = self.members[who].agent.poll_event() {
            self.handle_agent_event(who, event);
        }
        self.members[who].send(&mut self.agenda, who);
    }

    fn handle_agent_event(&mut self, who: usize, event: AgentEvent) {
        let is_box = self.roster.is_box(who);
        match event {
            AgentEvent::Candidates(servers) => {
                let of = |it: &VerifiedServer| Some((self.roster.proxy(&it.key)?, it.last_resort));
                let candidates = servers.iter().filter_map(of).collect();
                self.sessions.on_candidates(&mut self.agenda, who, candidates);
            }
            AgentEvent::Configure { text, .. } if is_box => {
                self.on_configure(who, &text.unwrap_or_default());
            }
            AgentEvent::Revoked(keys) => {
                // A box has no sessions; its candidates are updated separately.
                for key in keys.iter().filter(|_| !is_box) {
                    self.end_session(who - self.roster.boxes, key);
                }
                self.members[who].agent.on_revoked();
            }
            AgentEvent::Table => self.on_table(who),
            AgentEvent::Drain(drained) => {
                self.sessions.on_drain(&mut self.agenda, who - self.roster.boxes, drained);
            }
            AgentEvent::Refused { .. } => {
                let later = self.agenda.between(5_000, 15_000);
                self.drop_stream(who, Some(later));
            }
            AgentEvent::Warning(text) => {
                // Expected warnings: revocations of a restored controller are older, and a table
                // arrives twice if a proxy has reported its state twice.
                let meant = ["revocations end at", "missing in the revocations", "is held"];
                let is_meant = meant.iter().any(|meant| text.contains(meant));
                if self.config.is_thorough && !is_meant {
                    let name = if is_box { "box" } else { "proxy" };
                    let at = hours(self.agenda.now);
                    self.figures.warn(&format!("{at:.3} h, {name} {who}: {text}"));
                }
                self.figures.warnings += 1;
            }
            AgentEvent::Joined { .. }
            | AgentEvent::Configure { .. }
            | AgentEvent::Anchors(_)
            | AgentEvent::Watch(_)
            | AgentEvent::Persist
            | AgentEvent::Seek => {}
        }
    }

    fn on_table(&mut self, who: usize) {
        let agent = &self.members[who].agent;
        let model = &mut self.sessions.proxies[who - self.roster.boxes];
        model.table = agent.persisted().taken().get(&Kind::Table).copied();
        if self.config.is_thorough {
            let is_withdrawn = |why: &Refused| why.to_string().contains("is revoked");
            let refused = agent.admission().refused;
            let wrong = refused.iter().filter(|(_, why)| !is_withdrawn(why)).count();
            self.figures.wrongly_refused += wrong as u64;
        }
        let is_gone = |who: &usize| {
            let ride = &self.sessions.rides[*who];
            ride.is_forgotten && !model.accepts(ride, self.store.epoch)
        };
        let gone: Vec<usize> = model.boxes.iter().copied().filter(is_gone).collect();
        for who in gone {
            self.set_proxy(who, None);
            self.sessions.choose_after(&mut self.agenda, who, AGAIN);
        }
    }

    fn choose(&mut self, who: usize, round: u64) {
        if round != self.sessions.rides[who].round {
            return;
        }
        if !self.sessions.rides[who].wants() {
            return self.set_proxy(who, None);
        }
        let (now, epoch) = (self.agenda.now, self.store.epoch);
        let chosen = self.sessions.choice(&self.roster, now, epoch, who);
        let probed = self.sessions.rides[who].candidates.len() as u64;
        self.figures.probe_bytes += probed * PROBE_BYTES;
        self.set_proxy(who, chosen);
        let next = match chosen {
            Some(_) => PROBE + self.agenda.between(0, 60_000),
            None => AGAIN,
        };
        self.sessions.choose_after(&mut self.agenda, who, next);
    }

    fn set_proxy(&mut self, who: usize, proxy: Option<usize>) {
        let former = self.sessions.put(who, proxy);
        if former != proxy {
            self.figures.counts.moves += u64::from(former.is_some() && proxy.is_some());
            let agent = &mut self.members[who].agent;
            agent.on_session(self.agenda.now, proxy.is_some());
            agent.set_proxy(proxy.map(|proxy| self.roster.key(self.roster.boxes + proxy)));
            self.flush(who);
        }
        self.account(who);
    }

    fn account(&mut self, who: usize) {
        self.sessions.account(&mut self.figures, self.agenda.now, who);
    }

    fn on_configure(&mut self, who: usize, text: &str) {
        let is_cut_off = cuts_off(who, text);
        let was = std::mem::replace(&mut self.sessions.rides[who].is_cut_off, is_cut_off);
        if was != is_cut_off {
            self.on_network(who, !is_cut_off);
        }
        let agent = &mut self.members[who].agent;
        if let Some(version) = agent.persisted().on_trial()
            && is_unreadable(text)
        {
            agent.refuse(self.agenda.now, version, "line 1: no such field");
        }
    }

    fn on_network(&mut self, who: usize, is_there: bool) {
        if is_there {
            let soon = self.agenda.between(300, 2_000);
            let later = self.agenda.between(500, 4_000);
            self.sessions.choose_after(&mut self.agenda, who, soon);
            self.connect_after(who, later);
        } else {
            self.sessions.rides[who].round += 1;
            self.set_proxy(who, None);
            self.drop_stream(who, None);
        }
        self.account(who);
    }

    fn end_session(&mut self, proxy: usize, key: &PublicKey) {
        self.figures.revoked_at(*key, proxy, self.agenda.now);
        let Some(who) = self.roster.who(key).filter(|who| self.roster.is_box(*who)) else { return };
        self.sessions.rides[who].is_revoked = true;
        if self.sessions.rides[who].on == Some(proxy) {
            self.set_proxy(who, None);
        }
        self.account(who);
    }
}

#[cfg(test)]
mod tests;
