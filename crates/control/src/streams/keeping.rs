//! Between one stream's desk and the store: who the peer is, and what it tells.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{
    Chain, Desk, DeskEvent, Have, Name, Report as Outcome, Role, Sample as Figures, Secret, Trust,
};
use roadweave_identity::PublicKey;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::is_passing;
use crate::authority::{Authority, NotSigned};
use crate::clock::now_ms;
use crate::model::{Device, DeviceState, Proxy, ProxyState};
use crate::store::{Changed, Enrolment, ProxyStatus, Report, Sample, Store, StoreError};

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
    store: &'a Arc<Store>,
    authority: &'a Authority,
    samples: &'a mpsc::Sender<(String, Sample)>,
    key: PublicKey,
    peer: Peer,
    have: Have,
    outcomes: BTreeMap<String, Value>,
    /// The last revocation that a proxy has in force.
    confirmed: i64,
    load: Option<i64>,
    is_dirty: bool,
    quiet_ticks: u32,
    devices: HashMap<PublicKey, Option<(String, String)>>,
}

impl<'a> Keeper<'a> {
    pub(super) async fn new(
        store: &'a Arc<Store>,
        authority: &'a Authority,
        samples: &'a mpsc::Sender<(String, Sample)>,
        key: PublicKey,
    ) -> Result<Self, StoreError> {
        let peer = peer(store, key).await?;
        Ok(Self {
            store,
            authority,
            samples,
            key,
            peer,
            have: Have::default(),
            outcomes: BTreeMap::new(),
            confirmed: 0,
            load: None,
            is_dirty: false,
            quiet_ticks: 0,
            devices: HashMap::new(),
        })
    }

    pub(super) fn is_member(&self) -> bool {
        self.peer != Peer::Stranger
    }

    pub(super) fn name(&self) -> String {
        match &self.peer {
            Peer::Stranger => format!("stranger {}", self.key),
            Peer::Device { tenant, id } | Peer::Proxy { tenant, id } => format!("{tenant}/{id}"),
        }
    }

    /// The stream is up, or has missed changes.
    pub(super) async fn arrived(&mut self, desk: &mut Desk) {
        self.is_dirty = self.is_member();
        if let Peer::Proxy { tenant, id } = &self.peer {
            let proxy = self.store.get::<Proxy>(tenant, id).await;
            if proxy.is_ok_and(|proxy| proxy.record.state == ProxyState::Draining) {
                desk.drain();
            }
        }
    }

    /// The stream is gone.
    pub(super) async fn left(&mut self) {
        if let Some(status) = self.status(false) {
            self.kept(self.store.keep_proxy_status(&status).await);
        }
        self.flush().await;
    }

    /// Something has changed in the store.
    pub(super) async fn changed(&mut self, change: &Changed, desk: &mut Desk) {
        let (Peer::Device { tenant, id } | Peer::Proxy { tenant, id }) = &self.peer else { return };
        if change.tenant != *tenant || change.subject != *id {
            return;
        }
        match (&self.peer, &*change.kind) {
            (Peer::Device { .. }, "watch") => desk.watch(WATCH),
            (Peer::Proxy { .. }, "proxy") => self.arrived(desk).await,
            _ => {}
        }
    }

    /// Writes what waits; a proxy is said to be there now and then.
    pub(super) async fn tick(&mut self) {
        self.quiet_ticks += 1;
        if self.quiet_ticks >= QUIET_TICKS {
            self.quiet_ticks = 0;
            self.is_dirty |= matches!(self.peer, Peer::Proxy { .. });
        }
        self.flush().await;
    }

    async fn flush(&mut self) {
        if !std::mem::take(&mut self.is_dirty) {
            return;
        }
        if let Some(status) = self.status(true) {
            self.kept(self.store.keep_proxy_status(&status).await);
        }
        if let Peer::Device { tenant, id } = &self.peer {
            let report = json!({
                "software": self.have.software,
                "trust": self.have.trust,
                "documents": self.outcomes,
            });
            let report = Report { device: id.clone(), at_ms: now_ms(), report };
            self.kept(self.store.keep_report(tenant, &report).await);
        }
    }

    /// What could not be written is written later.
    fn kept(&mut self, written: Result<(), StoreError>) {
        if let Err(error) = written {
            self.is_dirty = is_passing(&error);
            tracing::debug!(who = %self.name(), %error, "not kept");
        }
    }

    fn status(&self, connected: bool) -> Option<ProxyStatus> {
        let Peer::Proxy { tenant, id } = &self.peer else { return None };
        Some(ProxyStatus {
            tenant: tenant.clone(),
            proxy: id.clone(),
            connected,
            seen_ms: now_ms(),
            serial: self.confirmed,
            load: self.load,
            sessions: self.have.sessions.into(),
            software: shown(&self.have.software),
        })
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
            DeskEvent::Join { secret, tenant, role, name, chain } => {
                self.join(secret, tenant, role, name, chain, desk).await
            }
            DeskEvent::Have(have) => {
                self.have = have;
                self.is_dirty = true;
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
                self.flush().await;
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

    fn report(&mut self, outcome: &Outcome) {
        let kind = serde_json::to_value(outcome.kind).unwrap_or_default();
        let kind = kind.as_str().unwrap_or_default().to_owned();
        self.outcomes.insert(kind, serde_json::to_value(outcome).unwrap_or_default());
        self.is_dirty = true;
    }

    async fn join(
        &mut self,
        secret: Secret,
        tenant: Name,
        role: Role,
        name: Name,
        chain: Option<Chain>,
        desk: &mut Desk,
    ) -> Result<(), &'static str> {
        if role != Role::Box {
            desk.refuse("a proxy or anchor is admitted by its key: roadweave fleet proxy", false);
            return Err("it is no box");
        }
        let delegated = match chain.map(|chain| self.delegated(chain, &tenant)).transpose() {
            Ok(delegated) => delegated,
            Err(why) => {
                desk.refuse(&why.to_string(), false);
                return Err("its chain leads nowhere");
            }
        };
        let enrolment = Enrolment {
            secret: secret.into(),
            public_key: self.key.to_string(),
            name: Some(String::from(name).to_ascii_lowercase()),
        };
        let authority = self.authority;
        let admit = move |of: &str, device: &Device| match &delegated {
            Some(chain) if of == tenant.as_str() => Ok(Some(chain.clone())),
            _ => authority.admit_device(of, device),
        };
        match self.store.enrol(&enrolment, now_ms(), admit).await {
            Ok(enrolled) => self.welcome(enrolled.device.tenant, &enrolled.device.record, desk),
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

    fn welcome(
        &mut self,
        tenant: String,
        device: &Device,
        desk: &mut Desk,
    ) -> Result<(), &'static str> {
        if device.state == DeviceState::Pending {
            desk.refuse("somebody has to let this box in: ask again in a while", true);
            return Err("it waits to be let in");
        }
        let chain = device.statement.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let (Some(chain), Ok(name)) = (chain, tenant.parse()) else {
            desk.refuse("the root key is elsewhere: this token needs a delegate", false);
            return Err("nobody can sign for it");
        };
        desk.welcome(chain, name);
        self.peer = Peer::Device { tenant, id: device.id.clone() };
        self.is_dirty = true;
        Ok(())
    }

    /// A chain that a token's delegate has made, as JSON, if it leads from the root to this key.
    fn delegated(&self, chain: Chain, tenant: &Name) -> Result<String, NotSigned> {
        let controller = self.authority.controller().public_key();
        let trust = Trust::pinned(self.authority.root_key(), controller);
        let admitted = chain.verify(&trust).map_err(NotSigned::new)?;
        let scope = roadweave_fleet::Scope::Tenant(tenant.clone());
        let statement = admitted.statement;
        if statement.key != self.key || statement.role != Role::Box || statement.scope != scope {
            return Err(NotSigned::new("the chain is not about this box"));
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
        let controller = self.authority.controller().public_key();
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
        let mut change = self.store.change(actor, now_ms()).await?;
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
        // What finds no room is lost, as the next sample comes soon.
        let _ = self.samples.try_send((tenant, sample));
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
        let found = match self.store.find::<Device>("public_key", &key.to_string()).await {
            Ok(found) => Some(found),
            Err(StoreError::NotFound { .. }) => None,
            Err(_) => return None,
        };
        let host = self.store.get::<crate::model::Tenant>(&own, &own).await.ok()?.record.host;
        let found = found.filter(|it| host || it.tenant == own);
        let known = found.map(|it| (it.tenant, it.record.id));
        self.devices.insert(key, known.clone());
        known
    }
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
const SAMPLES_AT_ONCE: usize = 5000;
const SAMPLES_REST: Duration = Duration::from_secs(1);
