//! Replicas of a controller: the product's sessions and watches over one store.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_fleet::records::{DeviceState, ProxyState, ProxyStatus};
use roadweave_fleet::{
    Band, ControllerSession, ControllerSessionEvent, Down, Head, HealthState, HeldVersions,
    Proxies, Report, Revocation, Revocations, Sample, Signed, Up,
};
use roadweave_proto::Instant;

use super::agenda::FleetEvent;
use super::figures::{Moment, hours};
use super::members::newcomer;
use super::plan::PlannedEvent;
use super::roster::Roster;
use super::store::{Store, StoreChange};
use super::{FleetWorld, TURN};

/// Interval, ms, of reading the outbox without a notification.
pub(super) const OUTBOX_MS: u64 = 250;
const LOST_NOTICE: usize = 10;
const TURNS_PER_MINUTE: u64 = 60 / TURN.as_secs();
/// Minutes between updates to boxes about revoked boxes.
const BOXES_HEAR: u64 = 6 * 60;
/// In thousandths of a proxy's fair share.
const CAPACITY: u64 = 2_200;
const MOMENT_TURNS: u64 = 120;
const REVIEW: Duration = Duration::from_secs(1_200);

pub(super) struct Replica {
    pub is_up: bool,
    pub is_hung: bool,
    /// By member, with the number of the stream.
    pub desks: BTreeMap<usize, (u64, ControllerSession)>,
    pub backlog: Vec<(usize, u64, Vec<Up>)>,
    pub seen: usize,
    proxies: Proxies,
    /// Per proxy: boxes with a stream to this replica.
    on: Vec<u32>,
    placed: BTreeMap<usize, usize>,
}

impl Replica {
    pub fn new(store: &Store, roster: &Roster) -> Self {
        Self {
            is_up: true,
            is_hung: false,
            desks: BTreeMap::new(),
            backlog: Vec::new(),
            seen: store.outbox.len(),
            proxies: Proxies::new(Instant::ZERO),
            on: vec![0; roster.proxies],
            placed: BTreeMap::new(),
        }
    }

    pub fn begin(&mut self, store: &Store, now: Instant) {
        (self.is_up, self.is_hung) = (true, false);
        (self.seen, self.proxies) = (store.outbox.len(), Proxies::new(now));
    }

    pub fn close(&mut self, who: usize) {
        self.desks.remove(&who);
        self.place(who, None);
    }

    fn place(&mut self, who: usize, proxy: Option<usize>) {
        let former = match proxy {
            Some(proxy) => self.placed.insert(who, proxy),
            None => self.placed.remove(&who),
        };
        former.iter().for_each(|proxy| self.on[*proxy] -= 1);
        proxy.iter().for_each(|proxy| self.on[*proxy] += 1);
    }

    pub fn holds(&self, who: usize, stream: u64) -> bool {
        self.desks.get(&who).is_some_and(|(held, _)| *held == stream)
    }

    pub fn works(&self) -> bool {
        self.is_up && !self.is_hung
    }
}

impl FleetWorld {
    pub(super) fn leader(&self) -> Option<usize> {
        let works = self.replicas.iter().position(Replica::works);
        works.filter(|_| !self.is_database_away)
    }

    pub(super) fn open_desk(&mut self, replica: usize, who: usize, stream: u64) {
        let is_box = self.roster.is_box(who);
        let store = &self.store;
        let state = store.state(&self.roster, who);
        let is_member = !is_box || state == Some(DeviceState::Active);
        let published = if is_box { &store.published_to_boxes } else { &store.published };
        let key = self.roster.key(who);
        let mut desk = ControllerSession::new(self.agenda.now, key, is_member, published.clone());
        if is_box {
            store.desire(&self.roster, who, &mut desk);
        } else {
            if let Some(table) = store.tables.get(&(who - self.roster.boxes)) {
                desk.desire_table(table.clone(), None);
            }
            desk.drain(self.is_drained(who));
        }
        self.replicas[replica].close(who);
        self.replicas[replica].desks.insert(who, (stream, desk));
    }

    pub(super) fn drop_desk(&mut self, replica: usize, who: usize, stream: u64) {
        let is_live = self.members[who].stream == Some((replica, stream));
        let proxy = who.checked_sub(self.roster.boxes);
        let is_frozen = proxy.is_some_and(|proxy| self.sessions.proxies[proxy].is_frozen);
        // The member returned in time.
        if self.replicas[replica].holds(who, stream) && (!is_live || is_frozen) {
            self.replicas[replica].close(who);
        }
    }

    fn is_drained(&self, who: usize) -> bool {
        let proxy = self.store.fleet.proxies.get(&self.roster.id(who));
        proxy.is_some_and(|proxy| proxy.state == ProxyState::Draining)
    }

    pub(super) fn flush_desk(&mut self, replica: usize, who: usize) {
        while let Some((_, desk)) = self.replicas[replica].desks.get_mut(&who) {
            let Some(event) = desk.poll_event() else { break };
            self.handle_desk_event(replica, who, event);
        }
        let Some((stream, desk)) = self.replicas[replica].desks.get_mut(&who) else { return };
        let frames: Vec<Down> = std::iter::from_fn(|| desk.poll_frame()).collect();
        let stream = *stream;
        self.members[who].send_down(&mut self.agenda, who, stream, frames);
    }

    fn use_desk(&mut self, replica: usize, who: usize, act: impl FnOnce(&mut ControllerSession)) {
        if let Some((_, desk)) = self.replicas[replica].desks.get_mut(&who) {
            act(desk);
        }
        self.flush_desk(replica, who);
    }

    pub(super) fn handle_up(&mut self, who: usize, stream: u64, frames: Vec<Up>) {
        let holds = |replica: &Replica| replica.holds(who, stream);
        let Some(replica) = self.replicas.iter().position(holds) else { return };
        if self.replicas[replica].is_hung {
            return self.replicas[replica].backlog.push((who, stream, frames));
        }
        let now = self.agenda.now;
        for frame in frames {
            self.use_desk(replica, who, |desk| desk.handle_frame(now, frame));
        }
    }

    fn handle_desk_event(&mut self, replica: usize, who: usize, event: ControllerSessionEvent) {
        let is_away = self.is_database_away;
        match event {
            ControllerSessionEvent::Join { .. } if is_away => {
                if let Some((_, desk)) = self.replicas[replica].desks.get_mut(&who) {
                    desk.refuse("the controller cannot look at tokens now", true);
                }
            }
            ControllerSessionEvent::Join { .. } => self.join(replica, who),
            ControllerSessionEvent::Have(have) => self.on_have(replica, who, &have),
            ControllerSessionEvent::Report(report) if !is_away => self.on_report(who, &report),
            ControllerSessionEvent::Surplus(entries, head) => self.merge(&entries, &head),
            ControllerSessionEvent::Samples(samples) => self.on_samples(who, &samples),
            ControllerSessionEvent::End(_) => {
                let stream = self.replicas[replica].desks.get(&who).map(|(stream, _)| *stream);
                self.replicas[replica].close(who);
                self.on_refused(who, stream);
            }
            // Reports are repeated on the next stream.
            ControllerSessionEvent::Report(_)
            | ControllerSessionEvent::Revoked(_)
            | ControllerSessionEvent::Ahead { .. }
            | ControllerSessionEvent::Anchors(_)
            | ControllerSessionEvent::Text(_) => {}
        }
    }

    fn join(&mut self, replica: usize, who: usize) {
        let planner = self.leader().unwrap_or(replica);
        self.store.admit(&self.roster, &self.replicas[planner].proxies, who);
        self.notify();
        let (chain, tenant) = (self.roster.chain(who), self.roster.tenant(who).clone());
        if let Some((_, desk)) = self.replicas[replica].desks.get_mut(&who) {
            desk.welcome(chain, tenant);
        }
        self.figures.counts.joins += 1;
        let ride = &mut self.sessions.rides[who];
        ride.in_tables_from = Some(self.store.next_version());
        ride.is_forgotten = false;
        self.account(who);
    }

    fn on_refused(&mut self, who: usize, stream: Option<u64>) {
        if stream.is_none() || self.members[who].stream.map(|(_, held)| held) != stream {
            return;
        }
        self.drop_stream(who, None);
        if self.store.state(&self.roster, who).is_none() {
            // The operator issues another token.
            self.figures.counts.forgotten += 1;
            self.members[who].agent = newcomer(&self.roster, self.agenda.now, who);
            self.connect_after(who, Duration::from_secs(600));
        }
    }

    fn on_have(&mut self, replica: usize, who: usize, have: &HeldVersions) {
        self.status(who);
        if self.roster.is_box(who) {
            let proxy = have.proxy.and_then(|key| self.roster.proxy(&key));
            self.replicas[replica].place(who, proxy);
            if !self.is_database_away {
                self.store.on[who] = have.proxy;
            }
        }
    }

    fn now_ms(&self) -> i64 {
        1_800_000_000_000 + (self.agenda.now.as_nanos() / 1_000_000) as i64
    }

    fn status(&mut self, who: usize) -> Option<&mut ProxyStatus> {
        let proxy = who.checked_sub(self.roster.boxes).filter(|_| !self.is_database_away)?;
        self.store.status[proxy].seen_ms = self.now_ms();
        Some(&mut self.store.status[proxy])
    }

    fn on_samples(&mut self, who: usize, samples: &[Sample]) {
        let load = samples.iter().find_map(|sample| sample.load);
        if let (Some(status), Some(load)) = (self.status(who), load) {
            status.load = Some(load.into());
        }
    }

    pub(super) fn replace(&mut self, proxy: usize) {
        let served = self.roster.served(self.roster.region(self.roster.boxes + proxy));
        self.store.unplaced.extend(served);
    }

    /// Adds revocations that a proxy has and the database lacks.
    fn merge(&mut self, entries: &[Revocation], head: &Signed<Head>) {
        let mut former = Revocations::default();
        let controller = self.roster.controller.public_key();
        if self.is_database_away || former.extend(entries, head, [controller]).is_err() {
            return;
        }
        let keys: Vec<_> = entries.iter().map(|entry| entry.key).collect();
        let merged = self.store.revoke(&self.roster, &keys);
        self.figures.revocations_handed_back += merged as u64;
        self.notify();
    }

    /// One sample stands for two.
    pub(super) fn send_samples(&mut self) {
        let capacity = (self.config.boxes as u64 * CAPACITY / self.roster.proxies as u64).max(1);
        for proxy in 0..self.roster.proxies {
            let who = self.roster.boxes + proxy;
            if !self.sessions.proxies[proxy].is_running() || self.members[who].stream.is_none() {
                continue;
            }
            let sessions = self.sessions.proxies[proxy].boxes.len() as u64;
            let load = (sessions * 1_000_000 / capacity).min(1_000) as u16;
            let sample = Sample {
                device: None,
                uplink: None,
                over_ms: TURN.as_millis() as u32,
                rtt_us: None,
                loss_ppm: None,
                up_bytes: 0,
                down_bytes: 0,
                load: Some(load),
                sessions: u32::try_from(sessions).ok(),
            };
            let agent = &mut self.members[who].agent;
            agent.on_sessions(sessions as u32);
            agent.send_samples(vec![sample]);
            self.flush(who);
        }
    }

    pub(super) fn turn(&mut self) {
        self.figures.turns += 1;
        if self.figures.turns.is_multiple_of(MOMENT_TURNS) {
            let moment = Moment::of(self);
            self.figures.time_line.push(moment);
        }
        let Some(leader) = self.leader() else { return };
        let (now, now_ms) = (self.agenda.now, self.now_ms());
        for proxy in 0..self.roster.proxies {
            let is_used = |replica: &Replica| replica.works() && replica.on[proxy] > 0;
            if self.replicas.iter().any(is_used) {
                self.store.status[proxy].witnessed_ms = now_ms;
            }
        }
        let (fleet, status) = (&self.store.fleet, &self.store.status);
        self.replicas[leader].proxies.look(fleet, status, now, now_ms);
        for proxy in 0..self.roster.proxies {
            let key = self.roster.key(self.roster.boxes + proxy);
            let (vital, band) = self.replicas[leader].proxies.health(&key);
            self.on_health(proxy, vital, band);
        }
        let minute = self.figures.turns / TURNS_PER_MINUTE;
        if self.figures.turns.is_multiple_of(TURNS_PER_MINUTE) {
            self.store.sign_tables(&self.roster);
            self.configure();
            if minute.is_multiple_of(BOXES_HEAR) {
                self.store.publish_to_boxes();
            }
        }
        let regions = std::mem::take(&mut self.store.unplaced);
        if !regions.is_empty() {
            let is_placed = |who| regions.contains(&self.roster.region(who));
            self.store.place(&self.roster, &self.replicas[leader].proxies, is_placed);
        }
        self.notify();
    }

    fn on_health(&mut self, proxy: usize, vital: HealthState, band: Band) {
        let before = std::mem::replace(&mut self.store.health[proxy], (vital, band));
        if before.1 != band {
            self.figures.counts.band_changes += 1;
            self.replace(proxy);
        }
        let former = before.0;
        if former == vital {
            return;
        }
        if vital == HealthState::Dead {
            let model = &self.sessions.proxies[proxy];
            let (is_false, is_used) = (model.is_running(), !model.boxes.is_empty());
            self.figures.counts.declared_dead += 1;
            self.figures.counts.declared_dead_falsely += u64::from(is_false && is_used);
            self.figures.counts.declared_dead_unused += u64::from(is_false && !is_used);
            if self.config.is_thorough && is_false && is_used {
                let text = format!("{:.3} h: {proxy} is alive", hours(self.agenda.now));
                self.figures.warn(&text);
            }
        }
        let is_offered = |vital| matches!(vital, HealthState::Alive | HealthState::Unheard);
        if is_offered(former) != is_offered(vital) || vital == HealthState::Dead {
            self.replace(proxy);
        }
    }

    pub(super) fn roll(&mut self, number: u32, cuts: u8, is_refused: bool) {
        if self.store.is_rolling() || self.leader().is_none() {
            let again = FleetEvent::Planned(PlannedEvent::Roll { number, cuts, is_refused });
            return self.agenda.after(Duration::from_secs(300), again);
        }
        self.store.begin_rollout(&self.roster, number, cuts, is_refused);
        self.figures.counts.rollouts[0] += 1;
        self.configure();
    }

    fn configure(&mut self) {
        let (was_rolling, was_halted) = (self.store.is_rolling(), self.store.is_halted());
        self.store.configure(&self.roster, self.agenda.now);
        self.figures.counts.rollouts[1] += u64::from(was_rolling && !self.store.is_rolling());
        if self.store.is_halted() && !was_halted {
            self.figures.counts.rollouts[2] += 1;
            self.agenda.after(REVIEW, FleetEvent::Planned(PlannedEvent::Review));
        }
        self.notify();
    }

    fn on_report(&mut self, who: usize, report: &Report) {
        if let Some((stage, is_wanted)) = self.store.on_report(&self.roster, who, report) {
            self.figures.counts.versions[stage] += 1;
            if is_wanted && stage >= 2 {
                self.configure();
            }
        }
    }

    pub(super) fn review(&mut self) {
        if self.leader().is_none() {
            let again = FleetEvent::Planned(PlannedEvent::Review);
            return self.agenda.after(Duration::from_secs(10), again);
        }
        if self.store.is_halted() {
            self.store.abort_rollouts();
            self.figures.counts.rollouts[3] += 1;
            self.configure();
        }
    }

    /// One notification in ten is lost; the periodic read of the outbox makes up for it.
    pub(super) fn notify(&mut self) {
        for replica in 0..self.replicas.len() {
            if self.replicas[replica].seen < self.store.outbox.len() {
                let is_lost = self.agenda.random.below(LOST_NOTICE) == 0;
                let (least, most) = if is_lost { (1, OUTBOX_MS) } else { (2, 10) };
                let span = self.agenda.between(least, most);
                self.agenda.after(span, FleetEvent::Outbox(replica));
            }
        }
    }

    pub(super) fn read_outbox(&mut self, replica: usize) {
        if !self.replicas[replica].works() || self.is_database_away {
            return;
        }
        let seen = std::mem::replace(&mut self.replicas[replica].seen, self.store.outbox.len());
        let changes: Vec<StoreChange> = self.store.outbox.iter().skip(seen).copied().collect();
        for change in changes {
            match change {
                StoreChange::Revocations { boxes_too } => self.publish(replica, boxes_too),
                StoreChange::Device(who) => self.send_documents(replica, who),
                StoreChange::Table(proxy) => self.send_table(replica, proxy),
                StoreChange::Drain(proxy) => {
                    let who = self.roster.boxes + proxy;
                    let is_drained = self.is_drained(who);
                    self.use_desk(replica, who, |desk| desk.drain(is_drained));
                }
            }
        }
    }

    fn publish(&mut self, replica: usize, boxes_too: bool) {
        let desks = self.replicas[replica].desks.keys().copied();
        let whom: Vec<usize> = desks.filter(|who| boxes_too || !self.roster.is_box(*who)).collect();
        for who in whom {
            let (store, to_boxes) = (&self.store, self.roster.is_box(who));
            let published = if to_boxes { &store.published_to_boxes } else { &store.published };
            let published = published.clone();
            self.use_desk(replica, who, |desk| desk.publish(published));
        }
    }

    fn send_documents(&mut self, replica: usize, who: usize) {
        let Some((_, desk)) = self.replicas[replica].desks.get_mut(&who) else { return };
        self.store.desire(&self.roster, who, desk);
        self.flush_desk(replica, who);
    }

    fn send_table(&mut self, replica: usize, proxy: usize) {
        let who = self.roster.boxes + proxy;
        let Some(table) = self.store.tables.get(&proxy).cloned() else { return };
        let former = self.sent_tables[proxy].clone();
        if let Some((_, desk)) = self.replicas[replica].desks.get_mut(&who) {
            desk.desire_table(table.clone(), former.as_deref());
            self.sent_tables[proxy] = Some(table);
        }
        self.flush_desk(replica, who);
    }
}
