//! Between one stream's desk and the store: who the peer is, and what it tells.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{
    Chain, Desk, DeskEvent, Have, Kind, Name, Report as Outcome, Role, Sample as Figures, Secret,
    Trust,
};
use roadweave_identity::PublicKey;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::post::Word;
use super::{Streams, is_passing};
use crate::authority::{Authority, NotSigned};
use crate::clock::now_ms;
use crate::model::{Device, DeviceState, Proxy, ProxyRole, ProxyState};
use crate::outbox::Live;
use crate::plan::signing;
use crate::store::{Enrolment, Note, PaperOutcome, ProxyStatus, Report, Sample, Store, StoreError};

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Peer {
    /// Nobody that is known.
    Stranger,
    /// A box.
    Device { tenant: String, id: String },
    /// A proxy or anchor.
    Proxy { tenant: String, id: String },
}

/// Keeps what one peer tells.
pub(super) struct Keeper<'a> {
    streams: &'a Streams,
    key: PublicKey,
    address: SocketAddr,
    peer: Peer,
    have: Have,
    outcomes: BTreeMap<String, Value>,
    /// The last revocation that a proxy has in force.
    confirmed: i64,
    load: Option<i64>,
    /// When something came from it last, milliseconds since 1970.
    heard_ms: i64,
    /// The proxy that a box was written to be on.
    on: Option<Option<PublicKey>>,
    is_dirty: bool,
    /// Whether what it is to have could not be read yet.
    lacks_papers: bool,
    quiet_ticks: u32,
    devices: HashMap<PublicKey, Option<(String, String)>>,
}

impl<'a> Keeper<'a> {
    pub(super) async fn new(
        streams: &'a Streams,
        key: PublicKey,
        address: SocketAddr,
    ) -> Result<Self, StoreError> {
        let peer = peer(&streams.store, key).await?;
        Ok(Self {
            streams,
            key,
            address,
            peer,
            have: Have::default(),
            outcomes: BTreeMap::new(),
            confirmed: 0,
            load: None,
            heard_ms: now_ms(),
            on: None,
            is_dirty: false,
            lacks_papers: false,
            quiet_ticks: 0,
            devices: HashMap::new(),
        })
    }

    pub(super) fn key(&self) -> PublicKey {
        self.key
    }

    pub(super) fn is_member(&self) -> bool {
        self.peer != Peer::Stranger
    }

    /// Whether it lets others in.
    pub(super) fn is_gate(&self) -> bool {
        matches!(self.peer, Peer::Proxy { .. })
    }

    pub(super) fn name(&self) -> String {
        match &self.peer {
            Peer::Stranger => format!("stranger {}", self.key),
            Peer::Device { tenant, id } | Peer::Proxy { tenant, id } => format!("{tenant}/{id}"),
        }
    }

    /// Something came from it.
    pub(super) fn heard(&mut self) {
        self.heard_ms = now_ms();
    }

    /// The stream is up, or has begun to belong to somebody: what is to hold there is sent.
    pub(super) async fn arrived(&mut self, desk: &mut Desk) {
        if !self.is_member() {
            return;
        }
        self.is_dirty = true;
        match self.streams.store.papers_of(&self.key.to_string()).await {
            Ok(papers) => {
                self.lacks_papers = false;
                for paper in papers {
                    let kind = signing::kind(&paper.kind).filter(|kind| *kind != Kind::Table);
                    if let Some((kind, (version, envelope))) = kind.zip(signing::opened(&paper)) {
                        desk.desire(kind, version, envelope);
                    }
                }
            }
            Err(error) => {
                self.lacks_papers = true;
                tracing::debug!(who = %self.name(), %error, "documents wait for the database");
            }
        }
        if let Some(table) = self.streams.post.table(&self.key) {
            desk.desire_table(table, None);
        }
        if let Peer::Proxy { tenant, id } = &self.peer {
            let proxy = self.streams.store.get::<Proxy>(tenant, id).await;
            if proxy.is_ok_and(|proxy| proxy.record.state == ProxyState::Draining) {
                desk.drain();
            }
        }
    }

    /// The stream is gone.
    pub(super) fn left(&mut self) {
        self.is_dirty = self.is_member();
        if let Some(on) = self.on.flatten() {
            self.streams.post.moved(Some(on), None);
        }
        self.flush(false);
    }

    /// Takes what was sent to it by name.
    pub(super) fn take(&mut self, word: Word, desk: &mut Desk) {
        match word {
            Word::Published(published) => desk.publish(published),
            // It is sent what was there before it, once it is let in.
            _ if !self.is_member() => {}
            Word::Document(kind, version, envelope) => desk.desire(kind, version, *envelope),
            Word::Table(table, former) => desk.desire_table(table, former.as_deref()),
            Word::Watch => desk.watch(WATCH),
            Word::Drain => desk.drain(),
            Word::Look => self.lacks_papers = true,
        }
    }

    /// Writes what waits; a proxy that is heard is said to be there now and then.
    pub(super) async fn tick(&mut self, desk: &mut Desk) {
        if self.lacks_papers {
            self.arrived(desk).await;
        }
        self.quiet_ticks += 1;
        if self.quiet_ticks >= QUIET_TICKS {
            self.quiet_ticks = 0;
            self.is_dirty |= self.is_gate();
        }
        self.flush(true);
    }

    fn flush(&mut self, connected: bool) {
        if !std::mem::take(&mut self.is_dirty) {
            return;
        }
        let note = match &self.peer {
            Peer::Stranger => return,
            Peer::Proxy { tenant, id } => Note::Status(ProxyStatus {
                tenant: tenant.clone(),
                proxy: id.clone(),
                connected,
                seen_ms: self.heard_ms,
                serial: self.confirmed,
                load: self.load,
                sessions: self.have.sessions.into(),
                software: shown(&self.have.software),
                witnessed_ms: 0,
            }),
            Peer::Device { tenant, id } => {
                let report = json!({
                    "connected": connected,
                    "software": shown(&self.have.software),
                    "trust": self.have.trust,
                    "documents": self.outcomes,
                });
                let report = Report { device: id.clone(), at_ms: now_ms(), report };
                Note::Report { tenant: tenant.clone(), report }
            }
        };
        self.streams.recorder.note(note);
    }

    /// A box says which proxy it is on.
    fn place(&mut self) {
        let Peer::Device { tenant, id } = &self.peer else { return };
        let (before, now) = (self.on.replace(self.have.proxy), self.have.proxy);
        if before == Some(now) {
            return;
        }
        self.streams.post.moved(before.flatten(), now);
        let proxy = now.map(|key| key.to_string());
        let (tenant, device) = (tenant.clone(), id.clone());
        self.streams.recorder.note(Note::On { tenant, device, proxy });
    }

    /// Does what the desk has to be done.
    ///
    /// # Errors
    /// Why the stream must end.
    pub(super) async fn handle(
        &mut self,
        event: DeskEvent,
        desk: &mut Desk,
    ) -> Result<(), &'static str> {
        match event {
            DeskEvent::Join { secret, tenant, role, name, chain, addresses } => {
                let asks = Asks { secret, tenant, role, name, addresses };
                self.join(asks, chain, desk).await
            }
            DeskEvent::Have(have) => {
                self.have = have;
                self.is_dirty = true;
                self.place();
                Ok(())
            }
            DeskEvent::Report(outcome) => {
                self.report(&outcome);
                Ok(())
            }
            DeskEvent::Revoked(serial) => {
                self.confirmed = i64::try_from(serial).unwrap_or(i64::MAX);
                // Somebody waits for it.
                self.is_dirty = true;
                self.flush(true);
                Ok(())
            }
            DeskEvent::Surplus(entries, head) => self.surplus(&entries, &head).await,
            DeskEvent::Samples(samples) => {
                for figures in samples {
                    self.sample(figures).await;
                }
                Ok(())
            }
            DeskEvent::Text(text) => {
                tracing::info!(who = %self.name(), text, "says");
                Ok(())
            }
            DeskEvent::End(why) => Err(why),
        }
    }

    fn report(&mut self, report: &Outcome) {
        let kind = signing::text(report.kind);
        self.outcomes.insert(kind.to_owned(), serde_json::to_value(report).unwrap_or_default());
        self.is_dirty = true;
        let Ok(outcome) = serde_json::to_string(&report.outcome) else { return };
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let version = (number(report.version.epoch), number(report.version.number));
        let public_key = self.key.to_string();
        let of = PaperOutcome { public_key, kind: kind.to_owned(), version, outcome };
        self.streams.recorder.note(Note::Outcome(of));
    }

    async fn join(
        &mut self,
        asks: Asks,
        chain: Option<Chain>,
        desk: &mut Desk,
    ) -> Result<(), &'static str> {
        let delegated = chain.map(|chain| self.delegated(chain, asks.role, &asks.tenant));
        let delegated = match delegated.transpose() {
            Ok(delegated) => delegated,
            Err(why) => {
                desk.refuse(&why.to_string(), false);
                return Err("its chain leads nowhere");
            }
        };
        let enrolled = match asks.role {
            Role::Box => self.join_box(&asks, delegated).await,
            Role::Proxy => self.join_gate(&asks, ProxyRole::Proxy, delegated).await,
            Role::Anchor => self.join_gate(&asks, ProxyRole::Anchor, delegated).await,
            Role::Delegate => Err(StoreError::Refused("a delegate does not join".to_owned())),
        };
        match enrolled {
            Ok(entry) => self.welcome(entry, desk).await,
            Err(error) if is_passing(&error) => {
                desk.refuse("the controller's database does not answer", true);
                Err("the database is away")
            }
            Err(error) => {
                desk.refuse(&error.to_string(), false);
                tracing::info!(key = %self.key, %error, "a key may not join");
                Err("it may not join")
            }
        }
    }

    fn enrolment(&self, asks: &Asks) -> Enrolment {
        Enrolment {
            secret: asks.secret.into(),
            public_key: self.key.to_string(),
            name: Some(asks.name.as_str().to_ascii_lowercase()),
        }
    }

    async fn join_box(&self, asks: &Asks, delegated: Option<String>) -> Result<Entry, StoreError> {
        let authority = &self.streams.authority;
        let admit = move |of: &str, device: &Device| match &delegated {
            Some(chain) if of == asks.tenant.as_str() => Ok(Some(chain.clone())),
            _ => authority.admit_device(of, device),
        };
        let enrolled = self.streams.store.enrol(&self.enrolment(asks), now_ms(), admit).await?;
        let device = enrolled.device;
        Ok(Entry {
            waits: device.record.state == DeviceState::Pending,
            statement: device.record.statement,
            peer: Peer::Device { tenant: device.tenant, id: device.record.id },
        })
    }

    async fn join_gate(
        &self,
        asks: &Asks,
        role: ProxyRole,
        delegated: Option<String>,
    ) -> Result<Entry, StoreError> {
        let told = asks.addresses.iter().filter_map(|text| text.parse().ok());
        let mut addresses: Vec<SocketAddr> = told.collect();
        if addresses.is_empty() {
            // Where it comes from is where it can be reached, as a rule; people can change it.
            addresses.push(SocketAddr::new(self.address.ip().to_canonical(), PROXY_PORT));
        }
        let authority = &self.streams.authority;
        let admit = move |of: &str, shared: bool, proxy: &Proxy| match &delegated {
            Some(chain) if of == asks.tenant.as_str() => Ok(Some(chain.clone())),
            _ => authority.admit_proxy(of, shared, proxy),
        };
        let enrolment = self.enrolment(asks);
        let store = &self.streams.store;
        let proxy = store.enrol_proxy(&enrolment, role, addresses, now_ms(), admit).await?;
        Ok(Entry {
            waits: false,
            statement: proxy.record.statement,
            peer: Peer::Proxy { tenant: proxy.tenant, id: proxy.record.id },
        })
    }

    async fn welcome(&mut self, entry: Entry, desk: &mut Desk) -> Result<(), &'static str> {
        if entry.waits {
            desk.refuse("somebody has to let this box in: ask again in a while", true);
            return Err("it waits to be let in");
        }
        let (Peer::Device { tenant, .. } | Peer::Proxy { tenant, .. }) = &entry.peer else {
            return Err("nobody joined");
        };
        let chain = entry.statement.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let (Some(chain), Ok(name)) = (chain, tenant.parse()) else {
            desk.refuse("the root key is elsewhere: this token needs a delegate", false);
            return Err("nobody can sign for it");
        };
        desk.welcome(chain, name);
        self.peer = entry.peer;
        self.arrived(desk).await;
        Ok(())
    }

    /// A chain that a token's delegate has made, as JSON, if it leads from the root to this key.
    fn delegated(&self, chain: Chain, role: Role, tenant: &Name) -> Result<String, NotSigned> {
        let authority = &self.streams.authority;
        let trust = Trust::pinned(authority.root_key(), authority.controller().public_key());
        let admitted = chain.verify(&trust).map_err(NotSigned::new)?;
        let scope = roadweave_fleet::Scope::Tenant(tenant.clone());
        let statement = admitted.statement;
        if statement.key != self.key || statement.role != role || statement.scope != scope {
            return Err(NotSigned::new("the chain is not about this key"));
        }
        serde_json::to_string(&chain).map_err(NotSigned::new)
    }

    /// Keys that a proxy knows as revoked and the database does not: it is a copy of an older one.
    async fn surplus(
        &mut self,
        entries: &[roadweave_fleet::Revocation],
        head: &roadweave_fleet::Signed<roadweave_fleet::Head>,
    ) -> Result<(), &'static str> {
        if !matches!(self.peer, Peer::Proxy { .. }) {
            return Err("only proxies hand revocations back");
        }
        // Whole and signed by this controller, or nobody's word.
        let mut theirs = roadweave_fleet::Revocations::default();
        let controller = self.streams.authority.controller().public_key();
        theirs.extend(entries, head, [controller]).map_err(|_| "its revocations do not hold")?;
        let taken = self.take_back(entries).await;
        taken.map_err(|error| {
            tracing::error!(%error, "revocations that a proxy has handed back are not kept");
            "revocations are not kept"
        })
    }

    async fn take_back(&self, entries: &[roadweave_fleet::Revocation]) -> Result<(), StoreError> {
        let Peer::Proxy { tenant, .. } = &self.peer else { return Ok(()) };
        let actor = crate::store::Actor::new(format!("stream:{}", self.name()));
        let mut change = self.streams.store.change(actor, now_ms()).await?;
        let mut count = 0;
        for entry in entries {
            let key = entry.key.to_string();
            if change.is_revoked(&key).await? {
                continue;
            }
            let owner = change.owner_of_key(&key).await?.unwrap_or_else(|| tenant.clone());
            let sign =
                |serial, previous: &str| Authority::revoke(&key, &entry.reason, serial, previous);
            change.revoke(&owner, &key, &entry.reason, sign).await?;
            count += 1;
        }
        if count > 0 {
            tracing::warn!(count, "revocations came back that the database did not have");
            change.commit().await?;
        }
        Ok(())
    }

    async fn sample(&mut self, figures: Figures) {
        if let Some(load) = figures.load {
            self.load = Some(load.into());
            self.is_dirty = true;
        }
        let Some(key) = figures.device else { return };
        let Some((tenant, device)) = self.device(key).await else { return };
        let sample = Sample { device, at_ms: now_ms(), figures: named(&figures) };
        let live = Live { tenant: tenant.clone(), sample: sample.clone() };
        self.streams.outbox.tell_figures(live);
        // What finds no room is lost, as the next sample comes soon.
        let _ = self.streams.samples.try_send((tenant, sample));
    }

    /// The box with this key, if this peer may speak of it: a proxy of those that it may serve, a
    /// box of itself.
    async fn device(&mut self, key: PublicKey) -> Option<(String, String)> {
        let own = match &self.peer {
            Peer::Stranger => return None,
            Peer::Device { tenant, id } => {
                return (key == self.key).then(|| (tenant.clone(), id.clone()));
            }
            Peer::Proxy { tenant, .. } => tenant.clone(),
        };
        if let Some(known) = self.devices.get(&key) {
            return known.clone();
        }
        if self.devices.len() >= DEVICES_MAX {
            self.devices.clear();
        }
        let found = match self.streams.store.find::<Device>("public_key", &key.to_string()).await {
            Ok(found) => Some(found),
            Err(StoreError::NotFound { .. }) => None,
            Err(_) => return None,
        };
        let host =
            self.streams.store.get::<crate::model::Tenant>(&own, &own).await.ok()?.record.host;
        let found = found.filter(|it| host || it.tenant == own);
        let known = found.map(|it| (it.tenant, it.record.id));
        self.devices.insert(key, known.clone());
        known
    }
}

/// A key that wants to join.
struct Asks {
    secret: Secret,
    tenant: Name,
    role: Role,
    name: Name,
    addresses: Vec<String>,
}

/// What came of it.
struct Entry {
    peer: Peer,
    statement: Option<String>,
    /// Whether somebody has to let it in first.
    waits: bool,
}

async fn peer(store: &Store, key: PublicKey) -> Result<Peer, StoreError> {
    let text = key.to_string();
    match store.find::<Device>("public_key", &text).await {
        Ok(found) if found.record.state == DeviceState::Active => {
            return Ok(Peer::Device { tenant: found.tenant, id: found.record.id });
        }
        Ok(_) => return Ok(Peer::Stranger),
        Err(StoreError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    match store.find::<Proxy>("public_key", &text).await {
        Ok(found) if found.record.state != ProxyState::Revoked => {
            Ok(Peer::Proxy { tenant: found.tenant, id: found.record.id })
        }
        Ok(_) | Err(StoreError::NotFound { .. }) => Ok(Peer::Stranger),
        Err(error) => Err(error),
    }
}

/// A sample's figures by name, in base units.
fn named(figures: &Figures) -> BTreeMap<String, f64> {
    let uplink = figures.uplink.as_deref().map(shown);
    let seconds = f64::from(figures.over_ms.max(1)) / 1e3;
    let mut all = BTreeMap::new();
    let mut put = |name: &str, value: f64| {
        let name = match &uplink {
            Some(uplink) => format!("{uplink}/{name}"),
            None => name.to_owned(),
        };
        all.insert(name, value);
    };
    if let Some(rtt) = figures.rtt_us {
        put("rtt_seconds", f64::from(rtt) / 1e6);
    }
    if let Some(loss) = figures.loss_ppm {
        put("loss_ratio", f64::from(loss) / 1e6);
    }
    put("up_bytes_per_second", figures.up_bytes as f64 / seconds);
    put("down_bytes_per_second", figures.down_bytes as f64 / seconds);
    all
}

/// A text of a peer's, fit to be shown.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(60).collect()
}

/// Writes samples in batches, so that thousands a second are one transaction.
pub(super) async fn keep_samples(store: Arc<Store>, mut inbox: mpsc::Receiver<(String, Sample)>) {
    let mut batch: Vec<(String, Sample)> = Vec::new();
    while inbox.recv_many(&mut batch, SAMPLES_AT_ONCE).await > 0 {
        if let Err(error) = store.keep_samples(&merged(std::mem::take(&mut batch))).await {
            tracing::debug!(%error, "samples are lost");
        }
        tokio::time::sleep(SAMPLES_REST).await;
    }
}

/// The samples of a box at one time as one.
fn merged(batch: Vec<(String, Sample)>) -> Vec<(String, Sample)> {
    let mut all: BTreeMap<(String, String, i64), BTreeMap<String, f64>> = BTreeMap::new();
    for (tenant, sample) in batch {
        let at = sample.at_ms - sample.at_ms.rem_euclid(crate::store::STEPS_MS[0]);
        all.entry((tenant, sample.device, at)).or_default().extend(sample.figures);
    }
    let one = |((tenant, device, at_ms), figures)| (tenant, Sample { device, at_ms, figures });
    all.into_iter().map(one).collect()
}

const WATCH: Duration = Duration::from_secs(30);
const QUIET_TICKS: u32 = 5;
const DEVICES_MAX: usize = 4096;
/// Where proxies listen, unless they say otherwise.
const PROXY_PORT: u16 = 4433;
const SAMPLES_AT_ONCE: usize = 5000;
const SAMPLES_REST: Duration = Duration::from_secs(1);
