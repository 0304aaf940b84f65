//! The controller's database, shared by all replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use roadweave_fleet::records::{DeviceState, ProxyStatus, RolloutState};
use roadweave_fleet::{
    Band, ControllerSession, Documents, Draft, Envelope, Fleet, Head, HealthState, Kind, Outcome,
    Planning, Proxies, Published, PublishedTable, PublishedTrust, Report, Revocation, Revocations,
    Rollouts, Signed, Tables, TrustList, Version,
};
use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

use super::FleetConfig;
use super::rollouts::rollout;
use super::roster::Roster;

/// A change that replicas send. Revocations go to proxies at once, and to boxes if `boxes_too`.
#[derive(Clone, Copy, Debug)]
pub(super) enum StoreChange {
    Revocations { boxes_too: bool },
    Device(usize),
    Table(usize),
    Drain(usize),
}

#[derive(Clone)]
pub(super) struct Store {
    pub epoch: u64,
    number: u64,
    pub published: Arc<Published>,
    pub published_to_boxes: Arc<Published>,
    pub fleet: Fleet,
    pub on: Vec<Option<PublicKey>>,
    reported: Vec<Option<(Version, u8)>>,
    rollouts: Rollouts,
    pub documents: Documents,
    envelopes: BTreeMap<(usize, Kind), Envelope>,
    entries: Tables,
    pub tables: BTreeMap<usize, Arc<PublishedTable>>,
    pub status: Vec<ProxyStatus>,
    pub health: Vec<(HealthState, Band)>,
    pub outbox: Vec<StoreChange>,
    /// The regions whose boxes lack lists of proxies.
    pub unplaced: BTreeSet<usize>,
    lacks_tables: bool,
    lacks_configurations: bool,
}

impl Store {
    pub fn new(roster: &Roster, config: &FleetConfig) -> Self {
        let published = Arc::new(published(roster, 0, &[]));
        let proxies = roster.boxes..roster.boxes + config.proxies;
        let status = proxies.clone().map(|who| {
            let (tenant, proxy) = roster.id(who);
            ProxyStatus { tenant, proxy, ..ProxyStatus::default() }
        });
        let status = status.collect();
        let fleet = Fleet {
            devices: (0..config.boxes).map(|who| (roster.id(who), roster.device(who))).collect(),
            proxies: proxies.map(|who| (roster.id(who), roster.gate(who))).collect(),
            pools: roster.pools(),
            ..Fleet::default()
        };
        let mut store = Self {
            epoch: 0,
            number: 0,
            published_to_boxes: published.clone(),
            published,
            fleet,
            on: vec![None; roster.boxes],
            reported: vec![None; roster.boxes],
            rollouts: Rollouts::default(),
            documents: Documents::default(),
            envelopes: BTreeMap::new(),
            entries: Tables::default(),
            tables: BTreeMap::new(),
            status,
            health: vec![(HealthState::Unheard, Band::Light); config.proxies],
            outbox: Vec::new(),
            unplaced: BTreeSet::new(),
            lacks_tables: true,
            lacks_configurations: false,
        };
        store.place(roster, &Proxies::new(Instant::ZERO), |_| true);
        store.sign_tables(roster);
        store
    }

    /// The restored backup: a new epoch with its own chain of revocations.
    pub fn restored(mut self, roster: &Roster, epoch: u64, config: &FleetConfig) -> Self {
        self.epoch = epoch;
        self.published = Arc::new(published(roster, epoch, self.published.revocations.entries(0)));
        self.published_to_boxes = self.published.clone();
        self.unplaced = (0..config.regions).collect();
        (self.lacks_tables, self.lacks_configurations) = (true, true);
        self.sign_tables(roster);
        self
    }

    pub fn next_version(&mut self) -> Version {
        self.number += 1;
        Version { epoch: self.epoch, number: self.number }
    }

    fn planning(&self) -> Planning<'_> {
        Planning { fleet: &self.fleet, documents: &self.documents, epoch: self.epoch }
    }

    fn write(&mut self, roster: &Roster, drafts: &[Draft]) {
        let version = self.next_version();
        for draft in drafts {
            let (key, kind) = draft.of();
            let who = roster.who(&key).expect("records are about the roster");
            let envelope = draft.sign(&roster.controller, version).expect("it fits an envelope");
            self.documents.insert((key, kind), draft.written(version));
            if let Some(table) = draft.table() {
                let (proxy, table, head) = (who - roster.boxes, table.clone(), envelope.into());
                self.tables.insert(proxy, Arc::new(PublishedTable { version, table, head }));
                self.outbox.push(StoreChange::Table(proxy));
            } else {
                self.envelopes.insert((who, kind), envelope);
                self.outbox.push(StoreChange::Device(who));
            }
        }
    }

    pub fn state(&self, roster: &Roster, who: usize) -> Option<DeviceState> {
        self.fleet.devices.get(&roster.id(who)).map(|device| device.state)
    }

    pub fn desire(&self, roster: &Roster, who: usize, desk: &mut ControllerSession) {
        for kind in [Kind::Candidates, Kind::Configuration] {
            let written = self.documents.get(&(roster.key(who), kind));
            if let Some((written, envelope)) = written.zip(self.envelopes.get(&(who, kind))) {
                desk.desire(kind, written.version, envelope.clone());
            }
        }
    }

    pub fn admit(&mut self, roster: &Roster, proxies: &Proxies, who: usize) {
        self.fleet.devices.entry(roster.id(who)).or_insert_with(|| roster.device(who));
        (self.lacks_tables, self.lacks_configurations) = (true, true);
        self.place(roster, proxies, |other| other == who);
    }

    /// Revokes keys; returns how many were not revoked before.
    pub fn revoke(&mut self, roster: &Roster, keys: &[PublicKey]) -> usize {
        let mut published = Published::clone(&self.published);
        let before = published.revocations.head().serial;
        for key in keys {
            if !published.revocations.is_revoked(key) {
                published.head = add(&mut published.revocations, roster, self.epoch, *key);
            }
            if let Some(who) = roster.who(key)
                && let Some(device) = self.fleet.devices.get_mut(&roster.id(who))
            {
                (device.state, self.lacks_tables) = (DeviceState::Revoked, true);
            }
        }
        let added = published.revocations.head().serial - before;
        if added > 0 {
            self.published = Arc::new(published);
            self.outbox.push(StoreChange::Revocations { boxes_too: false });
        }
        added as usize
    }

    pub fn publish_to_boxes(&mut self) {
        let (before, newest) = (&self.published_to_boxes, &self.published);
        if before.revocations.head() != newest.revocations.head() {
            self.published_to_boxes = self.published.clone();
            self.outbox.push(StoreChange::Revocations { boxes_too: true });
        }
    }

    pub fn place(&mut self, roster: &Roster, proxies: &Proxies, is_placed: impl Fn(usize) -> bool) {
        let drafts = self.planning().candidates(&proxies.offers(&self.fleet), |_, key| {
            let who = roster.who(key).filter(|who| is_placed(*who))?;
            Some(self.on[who])
        });
        self.write(roster, &drafts);
    }

    pub fn sign_tables(&mut self, roster: &Roster) {
        if std::mem::take(&mut self.lacks_tables) {
            let mut entries = std::mem::take(&mut self.entries);
            let drafts = self.planning().tables(&mut entries);
            self.entries = entries;
            self.write(roster, &drafts);
        }
    }

    pub fn configure(&mut self, roster: &Roster, now: Instant) {
        self.rollouts.refresh(&self.fleet, &self.documents, BTreeMap::new(), now);
        let turned = self.rollouts.turn(&self.fleet, now, 0);
        // Progress alone changes no configuration.
        let has_changes = !turned.records.is_empty() || self.lacks_configurations;
        self.fleet.rollouts.extend(turned.records);
        if has_changes {
            self.lacks_configurations = false;
            let drafts = self.planning().configurations(&self.rollouts);
            self.write(roster, &drafts);
        }
    }

    pub fn begin_rollout(&mut self, roster: &Roster, number: u32, cuts: u8, is_refused: bool) {
        let (config, rollout) = rollout(number, cuts, is_refused);
        for tenant in roster.tenants() {
            let of = (tenant, number.to_string());
            self.fleet.configs.insert(of.clone(), config.clone());
            self.fleet.rollouts.insert(of, rollout.clone());
        }
        self.lacks_configurations = true;
    }

    pub fn abort_rollouts(&mut self) {
        for rollout in self.fleet.rollouts.values_mut() {
            if rollout.settings.state != RolloutState::Done {
                rollout.settings.state = RolloutState::Aborted;
            }
        }
        self.lacks_configurations = true;
    }

    pub fn is_rolling(&self) -> bool {
        self.is_any(RolloutState::Running) || self.is_halted()
    }

    pub fn is_halted(&self) -> bool {
        self.is_any(RolloutState::Paused)
    }

    fn is_any(&self, state: RolloutState) -> bool {
        self.fleet.rollouts.values().any(|it| it.settings.state == state)
    }

    /// Takes what a box says of its configuration. Returns the stage (applied, confirmed, rolled
    /// back, refused) if it is new, and whether it is about the version signed last.
    pub fn on_report(
        &mut self,
        roster: &Roster,
        who: usize,
        report: &Report,
    ) -> Option<(usize, bool)> {
        if report.kind != Kind::Configuration || !roster.is_box(who) {
            return None;
        }
        let stage = match report.outcome {
            Outcome::InForce => 0,
            Outcome::Confirmed => 1,
            Outcome::TakenBack { .. } => 2,
            Outcome::Refused { .. } => 3,
        };
        let reported = Some((report.version, stage));
        if std::mem::replace(&mut self.reported[who], reported) == reported {
            return None;
        }
        let key = roster.key(who);
        let written = self.documents.get_mut(&(key, report.kind));
        let written = written.filter(|written| written.version == report.version);
        let is_wanted = written.is_some();
        if let Some(written) = written {
            written.outcome = Some(report.outcome.clone());
            self.rollouts.hear(&key, written);
        }
        Some((usize::from(stage), is_wanted))
    }
}

fn published(roster: &Roster, epoch: u64, entries: &[Revocation]) -> Published {
    let list = TrustList {
        number: 1 + epoch,
        epoch,
        roots: vec![roster.root.public_key()],
        spares: Vec::new(),
        controllers: vec![roster.controller.public_key()],
        approvers: Vec::new(),
    };
    let mut revocations = Revocations::default();
    let empty = Head { epoch, ..Head::EMPTY };
    let mut head = Signed::sign(&empty, &roster.controller).expect("a head is small");
    revocations.extend(&[], &head, [roster.controller.public_key()]).expect("an epoch begins");
    for entry in entries {
        head = add(&mut revocations, roster, epoch, entry.key);
    }
    let trust = Signed::sign(&list, &roster.root).expect("a list is small");
    let trust = vec![PublishedTrust { number: 1 + epoch, list: trust }];
    Published { trust, revocations, head }
}

fn add(revocations: &mut Revocations, roster: &Roster, epoch: u64, key: PublicKey) -> Signed<Head> {
    let entry = revocations.next(key);
    let head = Head { epoch, serial: entry.serial, hash: entry.hash() };
    let head = Signed::sign(&head, &roster.controller).expect("a head is small");
    let key = roster.controller.public_key();
    revocations.extend(&[entry], &head, [key]).expect("it follows on what is there");
    head
}
