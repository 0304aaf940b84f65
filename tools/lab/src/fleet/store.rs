//! The controller's database, shared by all replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use roadweave_fleet::{
    Band, Body, Candidate, Candidates, Desk, Document, Entry, Envelope, Head, HealthState, Kind,
    Offered, ProxyView, Published, PublishedTable, PublishedTrust, Revocation, Revocations,
    Rollout, Seeker, Signed, Table, TableHead, TrustList, Version, candidates,
};
use roadweave_identity::PublicKey;

use super::FleetConfig;
use super::cast::Cast;

pub(super) type Stored = Arc<(Version, Envelope)>;

#[derive(Clone, Default)]
pub(super) struct Device {
    pub state: DeviceState,
    /// Proxies of its list, and whether each is a last resort.
    pub listed: Vec<(usize, bool)>,
    pub candidates: Option<Stored>,
    pub configuration: Option<Stored>,
    pub former: Option<Stored>,
    pub rollout: Option<u32>,
    pub proxy: Option<usize>,
    pub reported: Option<(Version, u8)>,
}

impl Device {
    /// Hands its documents to the session `desk`.
    pub fn desire(&self, desk: &mut Desk) {
        let kinds = [Kind::Candidates, Kind::Configuration];
        for (kind, stored) in kinds.into_iter().zip([&self.candidates, &self.configuration]) {
            if let Some(stored) = stored {
                desk.desire(kind, stored.0, stored.1.clone());
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DeviceState {
    #[default]
    Unknown,
    Active,
    Revoked,
}

/// A change that replicas send to members. Revocations go to proxies at once, and to boxes too if
/// `boxes_too`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
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
    pub devices: Vec<Device>,
    members: BTreeMap<usize, Arc<Entry>>,
    pub proxies: Vec<ProxyView>,
    pub tables: Vec<Arc<PublishedTable>>,
    pub outbox: Vec<Change>,
    pub unplaced: BTreeSet<usize>,
    pub untabled: BTreeSet<usize>,
    pub rollout: Option<(u32, Rollout)>,
    pub rolling: String,
    pub good: String,
}

impl Store {
    /// A fleet whose boxes and proxies are already members.
    pub fn new(cast: &Cast, config: &FleetConfig) -> Self {
        let published = Arc::new(published(cast, 0, &[]));
        let mut devices = vec![Device::default(); cast.boxes];
        devices[..config.boxes].iter_mut().for_each(|d| d.state = DeviceState::Active);
        let view = |proxy: usize| ProxyView {
            key: cast.key(cast.boxes + proxy),
            scopes: cast.scopes(proxy % config.regions),
            region: cast.region_name(proxy % config.regions).clone(),
            site: cast.site(proxy).clone(),
            is_active: true,
            vital: HealthState::Unheard,
            band: Band::Light,
        };
        let mut store = Self {
            epoch: 0,
            number: 0,
            published_to_boxes: published.clone(),
            published,
            devices,
            members: (0..config.boxes).map(|who| (who, cast.member(who).into())).collect(),
            proxies: (0..config.proxies).map(view).collect(),
            tables: Vec::new(),
            outbox: Vec::new(),
            unplaced: (0..config.regions).collect(),
            untabled: (0..config.regions).collect(),
            rollout: None,
            rolling: String::new(),
            good: "base".to_owned(),
        };
        store.place_all(cast);
        store.sign_tables(cast, config);
        store
    }

    /// The restored backup: a new epoch with its own chain of revocations.
    pub fn restored(mut self, cast: &Cast, epoch: u64, config: &FleetConfig) -> Self {
        self.epoch = epoch;
        self.published = Arc::new(published(cast, epoch, self.published.revocations.entries(0)));
        self.published_to_boxes = self.published.clone();
        self.untabled = (0..config.regions).collect();
        self.unplaced = (0..config.regions).collect();
        self
    }

    pub fn next_version(&mut self) -> Version {
        self.number += 1;
        Version { epoch: self.epoch, number: self.number }
    }

    pub fn sign<B: Body>(&mut self, cast: &Cast, who: usize, body: B) -> Stored {
        let version = self.next_version();
        let document = Document { subject: cast.key(who), version, body };
        let signed = Signed::sign(&document, &cast.controller).expect("it fits an envelope");
        Arc::new((version, signed.into_envelope()))
    }

    pub fn admit(&mut self, cast: &Cast, who: usize) {
        self.devices[who].state = DeviceState::Active;
        self.members.entry(who).or_insert_with(|| cast.member(who).into());
        self.untabled.extend(serving(cast, who));
        self.place(cast, who);
    }

    /// Revokes keys; returns how many were not revoked before.
    pub fn revoke(&mut self, cast: &Cast, keys: &[PublicKey]) -> usize {
        let mut published = Published::clone(&self.published);
        let before = published.revocations.head().serial;
        for key in keys {
            if !published.revocations.is_revoked(key) {
                published.head = add(&mut published.revocations, cast, self.epoch, *key);
            }
            if let Some(who) = cast.who(key).filter(|who| cast.is_box(*who)) {
                self.devices[who].state = DeviceState::Revoked;
                if self.members.remove(&who).is_some() {
                    self.untabled.extend(serving(cast, who));
                }
            }
        }
        let added = published.revocations.head().serial - before;
        if added > 0 {
            self.published = Arc::new(published);
            self.outbox.push(Change::Revocations { boxes_too: false });
        }
        added as usize
    }

    /// Sends boxes the revocations that proxies have.
    pub fn tell_boxes(&mut self) {
        let (told, newest) = (&self.published_to_boxes, &self.published);
        if told.revocations.head() != newest.revocations.head() {
            self.published_to_boxes = self.published.clone();
            self.outbox.push(Change::Revocations { boxes_too: true });
        }
    }

    pub fn place_all(&mut self, cast: &Cast) {
        let regions = std::mem::take(&mut self.unplaced);
        for who in 0..self.devices.len() {
            if regions.contains(&cast.region(who)) {
                self.place(cast, who);
            }
        }
    }

    pub fn place(&mut self, cast: &Cast, who: usize) {
        let device = &self.devices[who];
        if device.state != DeviceState::Active {
            return;
        }
        let seeker = Seeker {
            key: cast.key(who),
            tenant: cast.tenant(who).clone(),
            region: Some(cast.region_name(cast.region(who)).clone()),
            current: device.proxy.map(|proxy| cast.key(cast.boxes + proxy)),
        };
        let Some(list) = candidates(&seeker, &self.proxies) else { return };
        let of = |it: &Offered| Some((cast.proxy(&it.key)?, it.last_resort));
        let list: Vec<(usize, bool)> = list.iter().filter_map(of).collect();
        let set = |list: &[(usize, bool)]| BTreeSet::from_iter(list.iter().copied());
        // The order is only a hint: a box measures.
        if !device.listed.is_empty() && set(&device.listed) == set(&list) {
            return;
        }
        let candidate = |(proxy, last_resort): &(usize, bool)| Candidate {
            last_resort: *last_resort,
            ..cast.candidate(*proxy)
        };
        let proxies = list.iter().map(candidate).collect();
        let signed = self.sign(cast, who, Candidates { proxies });
        let device = &mut self.devices[who];
        (device.listed, device.candidates) = (list, Some(signed));
        self.outbox.push(Change::Device(who));
    }

    pub fn sign_tables(&mut self, cast: &Cast, config: &FleetConfig) {
        let regions = std::mem::take(&mut self.untabled);
        let is_first = self.tables.is_empty();
        for region in regions {
            let served = cast.served(region);
            let members =
                self.members.iter().filter(|(who, _)| served.contains(&cast.region(**who)));
            let table = Table::of(members.map(|(_, member)| member.clone()));
            let version = self.next_version();
            let head = table.head_for(cast.key(cast.boxes + region), version);
            for proxy in (region..cast.proxies).step_by(config.regions) {
                let head = TableHead { subject: cast.key(cast.boxes + proxy), ..head };
                let head = Signed::sign(&head, &cast.controller).expect("a head is small");
                let published = Arc::new(PublishedTable { version, table: table.clone(), head });
                match is_first {
                    true => self.tables.push(published),
                    false => self.tables[proxy] = published,
                }
                self.outbox.push(Change::Table(proxy));
            }
        }
        if is_first {
            let subject = |table: &Arc<PublishedTable>| {
                table.head.verify(cast.controller.public_key()).ok().map(|head| head.subject)
            };
            self.tables.sort_by_key(|table| subject(table).and_then(|key| cast.proxy(&key)));
        }
    }
}

fn serving(cast: &Cast, who: usize) -> BTreeSet<usize> {
    let region = cast.region(who);
    (0..cast.proxies)
        .map(|p| cast.region(cast.boxes + p))
        .filter(|r| cast.served(*r).contains(&region))
        .collect()
}

fn published(cast: &Cast, epoch: u64, entries: &[Revocation]) -> Published {
    let list = TrustList {
        number: 1 + epoch,
        epoch,
        roots: vec![cast.root.public_key()],
        spares: Vec::new(),
        controllers: vec![cast.controller.public_key()],
        approvers: Vec::new(),
    };
    let mut revocations = Revocations::default();
    let empty = Head { epoch, ..Head::EMPTY };
    let mut head = Signed::sign(&empty, &cast.controller).expect("a head is small");
    revocations.extend(&[], &head, [cast.controller.public_key()]).expect("an epoch begins");
    for entry in entries {
        head = add(&mut revocations, cast, epoch, entry.key);
    }
    let trust = Signed::sign(&list, &cast.root).expect("a list is small");
    let trust = vec![PublishedTrust { number: 1 + epoch, list: trust }];
    Published { trust, revocations, head }
}

fn add(revocations: &mut Revocations, cast: &Cast, epoch: u64, key: PublicKey) -> Signed<Head> {
    let entry = revocations.next(key);
    let head = Head { epoch, serial: entry.serial, hash: entry.hash() };
    let head = Signed::sign(&head, &cast.controller).expect("a head is small");
    let key = cast.controller.public_key();
    revocations.extend(&[entry], &head, [key]).expect("it follows on what is there");
    head
}
