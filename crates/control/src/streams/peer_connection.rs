//! The connection of one stream's session with the store: the peer's identity and its reports.

mod joining;
mod samples;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_fleet::{
    ControllerSession, ControllerSessionEvent, Head, HeldVersions, Join, Kind, Report as Outcome,
    Sample as Figures,
};
use roadweave_identity::PublicKey;
use serde_json::{Value, json};

use self::joining::{Applicant, JoinedPeer, Refusal};
pub(super) use self::samples::store_samples;
use self::samples::{Devices, named};
use super::mailboxes::StreamMessage;
use super::{Streams, publishing};
use crate::clock::now_ms;
use crate::keys;
use crate::model::{Device, DeviceState, Proxy, ProxyState, word};
use crate::outbox::Live;
use crate::store::{
    Actor, DocumentOutcome, Note, ProxyStatus, Report, Result, Sample, Store, Stored, document,
    found,
};

#[derive(Clone, Debug)]
struct PeerRecord {
    tenant: String,
    id: String,
    is_gate: bool,
}

pub(super) struct PeerConnection<'a> {
    streams: &'a Streams,
    pub(super) key: PublicKey,
    /// Distinguishes this stream from others of the same key in the database.
    stream: String,
    address: SocketAddr,
    peer: Option<PeerRecord>,
    pub(super) issuers: Vec<PublicKey>,
    have: HeldVersions,
    outcomes: BTreeMap<String, Value>,
    confirmed: Head,
    /// Whether a newer document than the database's was reported.
    is_ahead: bool,
    load: Option<i64>,
    anchors: BTreeMap<String, u32>,
    heard_ms: i64,
    on: Option<Option<PublicKey>>,
    is_dirty: bool,
    is_heard: bool,
    lacks_documents: bool,
    quiet_ticks: u32,
    devices: Devices,
}

impl<'a> PeerConnection<'a> {
    pub(super) async fn new(
        streams: &'a Streams,
        key: PublicKey,
        address: SocketAddr,
    ) -> Result<Self> {
        let (peer, issuers) = peer(&streams.store, key).await?;
        Ok(Self {
            streams,
            key,
            stream: keys::identifier(),
            address,
            peer,
            issuers,
            have: HeldVersions::default(),
            outcomes: BTreeMap::new(),
            confirmed: Head::EMPTY,
            is_ahead: false,
            load: None,
            anchors: BTreeMap::new(),
            heard_ms: now_ms(),
            on: None,
            is_dirty: false,
            is_heard: false,
            lacks_documents: false,
            quiet_ticks: 0,
            devices: Devices::default(),
        })
    }

    pub(super) fn is_member(&self) -> bool {
        self.peer.is_some()
    }

    pub(super) fn is_gate(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.is_gate)
    }

    pub(super) fn name(&self) -> String {
        match &self.peer {
            None => format!("stranger {}", self.key),
            Some(PeerRecord { tenant, id, .. }) => format!("{tenant}/{id}"),
        }
    }

    pub(super) fn heard(&mut self) {
        (self.heard_ms, self.is_heard) = (now_ms(), true);
    }

    pub(super) async fn arrived(&mut self, session: &mut ControllerSession) {
        if !self.is_member() {
            return;
        }
        self.is_dirty = true;
        match document::of_member(&self.streams.store, &self.key).await {
            Ok(documents) => {
                self.lacks_documents = false;
                for document in documents {
                    let envelope = document.opened().filter(|_| document.of.1 != Kind::Table);
                    if let Some(envelope) = envelope {
                        session.desire(document.of.1, document.written.version, envelope);
                    }
                }
            }
            Err(error) => {
                self.lacks_documents = true;
                tracing::debug!(who = %self.name(), %error, "documents wait for the database");
            }
        }
        if let Some(table) = self.streams.mailboxes.table(&self.key) {
            session.desire_table(table, None);
        }
        if let Some(PeerRecord { tenant, id, is_gate: true }) = &self.peer {
            match self.streams.store.get::<Proxy>(tenant, id).await {
                Ok(proxy) => session.drain(proxy.record.state == ProxyState::Draining),
                Err(error) => self.lacks_documents |= error.is_passing(),
            }
        }
    }

    pub(super) fn left(&mut self) {
        self.is_dirty = self.is_member();
        if let (Some(on), Some(peer)) = (self.on.flatten(), &self.peer) {
            self.streams.mailboxes.moved(&peer.tenant, Some(on), None);
        }
        self.flush(false);
    }

    pub(super) fn take(&mut self, message: StreamMessage, session: &mut ControllerSession) {
        match message {
            StreamMessage::Published(published) => session.publish(published),
            _ if !self.is_member() => {}
            StreamMessage::Document(kind, version, envelope) => {
                session.desire(kind, version, *envelope)
            }
            StreamMessage::Table(table, former) => session.desire_table(table, former.as_deref()),
            StreamMessage::Watch => session.watch(WATCH),
            StreamMessage::Drain(drained) => session.drain(drained),
            StreamMessage::Look => self.lacks_documents = true,
        }
    }

    pub(super) async fn tick(&mut self, session: &mut ControllerSession) {
        if self.lacks_documents {
            self.arrived(session).await;
        }
        self.quiet_ticks += 1;
        if self.quiet_ticks >= QUIET_TICKS {
            self.quiet_ticks = 0;
            // A silent stream may have a successor with better knowledge.
            self.is_dirty |= self.is_gate() && std::mem::take(&mut self.is_heard);
        }
        self.flush(true);
    }

    fn flush(&mut self, connected: bool) {
        if !std::mem::take(&mut self.is_dirty) {
            return;
        }
        let Some(PeerRecord { tenant, id, is_gate }) = self.peer.clone() else { return };
        let stream = self.stream.clone();
        let note = match is_gate {
            true => Note::Status(ProxyStatus {
                tenant,
                proxy: id,
                connected,
                seen_ms: self.heard_ms,
                serial: i64::try_from(self.confirmed.serial).unwrap_or(i64::MAX),
                hash: self.confirmed.hash.into(),
                stream,
                load: self.load,
                sessions: self.have.sessions.into(),
                software: shown(&self.have.software),
                witnessed_ms: 0,
                anchors: self.anchors.clone(),
            }),
            false => {
                let report = json!({
                    "connected": connected,
                    "software": shown(&self.have.software),
                    "trust": self.have.trust,
                    "documents": self.outcomes,
                });
                let report = Report { device: id, at_ms: now_ms(), report };
                Note::Report { tenant, report, stream, connected }
            }
        };
        self.streams.recorder.note(note);
    }

    fn place(&mut self) {
        let Some(PeerRecord { tenant, id, is_gate: false }) = &self.peer else { return };
        let (before, now) = (self.on.replace(self.have.proxy), self.have.proxy);
        if before == Some(now) {
            return;
        }
        self.streams.mailboxes.moved(tenant, before.flatten(), now);
        let proxy = now.map(|key| key.to_string());
        let (tenant, device) = (tenant.clone(), id.clone());
        self.streams.recorder.note(Note::On { tenant, device, proxy });
    }

    pub(super) async fn handle(
        &mut self,
        event: ControllerSessionEvent,
        session: &mut ControllerSession,
    ) -> Result<(), &'static str> {
        match event {
            ControllerSessionEvent::Join(asks) => return self.join(asks, session).await,
            ControllerSessionEvent::Have(have) => {
                self.have = have;
                self.is_dirty = true;
                self.place();
            }
            ControllerSessionEvent::Report(outcome) => self.report(&outcome),
            ControllerSessionEvent::Ahead { kind, held } => {
                if !std::mem::replace(&mut self.is_ahead, true) {
                    let (who, kind) = (self.name(), word(&kind));
                    let (epoch, number) = (held.epoch, held.number);
                    tracing::warn!(
                        who,
                        kind,
                        epoch,
                        number,
                        "holds a newer document than the database: the database is an older copy, \
                         or the claim is false"
                    );
                }
            }
            ControllerSessionEvent::Revoked(head) => {
                self.confirmed = head;
                self.is_dirty = true;
                self.flush(true);
            }
            ControllerSessionEvent::Surplus(entries, head) => {
                let Some(PeerRecord { tenant, is_gate: true, .. }) = &self.peer else {
                    return Err("only proxies return revocations");
                };
                let actor = Actor::new(format!("stream:{}", self.name()));
                let Streams { store, authority, .. } = self.streams;
                return publishing::restore((store, authority), (tenant, &actor), &entries, &head)
                    .await;
            }
            ControllerSessionEvent::Samples(samples) => {
                for figures in samples {
                    self.sample(figures).await;
                }
            }
            ControllerSessionEvent::Anchors(round_trips) => {
                let named = round_trips.into_iter().map(|(name, it)| (name.to_string(), it));
                self.anchors = named.collect();
                self.is_dirty = true;
            }
            ControllerSessionEvent::Text(text) => tracing::info!(who = %self.name(), text, "says"),
            ControllerSessionEvent::End(why) => return Err(why),
        }
        Ok(())
    }

    async fn join(
        &mut self,
        asks: Join,
        session: &mut ControllerSession,
    ) -> Result<(), &'static str> {
        let Self { streams, key, address, .. } = *self;
        match (Applicant { streams, key, address }).join(asks).await {
            Ok(JoinedPeer { peer, issuers, chain, tenant }) => {
                session.welcome(chain, tenant);
                session.signed_by(issuers.clone());
                (self.peer, self.issuers) = (Some(peer), issuers);
                self.arrived(session).await;
                Ok(())
            }
            Err(Refusal { reason, retry, why }) => {
                session.refuse(&reason, retry);
                Err(why)
            }
        }
    }

    async fn sample(&mut self, figures: Figures) {
        let Some(peer) = &self.peer else { return };
        if figures.device.is_none() && peer.is_gate {
            self.load = figures.load.map(i64::from).or(self.load);
            self.have.sessions = figures.sessions.unwrap_or(self.have.sessions);
            self.is_dirty = true;
        }
        let Some(key) = figures.device else { return };
        let Streams { store, outbox, samples, .. } = self.streams;
        let found = self.devices.find(store, (peer, self.key), key).await;
        let Some((tenant, device)) = found else { return };
        let sample = Sample { device, at_ms: now_ms(), figures: named(&figures) };
        outbox.send_figures(Live { tenant: tenant.clone(), sample: sample.clone() });
        let _ = samples.try_send((tenant, sample));
    }

    fn report(&mut self, report: &Outcome) {
        let kind = word(&report.kind);
        self.outcomes.insert(kind.clone(), serde_json::to_value(report).unwrap_or_default());
        self.is_dirty = true;
        let Ok(outcome) = serde_json::to_string(&report.outcome) else { return };
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let version = (number(report.version.epoch), number(report.version.number));
        let public_key = self.key.to_string();
        let of = DocumentOutcome { public_key, kind, version, outcome };
        self.streams.recorder.note(Note::Outcome(of));
    }
}

async fn peer(store: &Store, key: PublicKey) -> Result<(Option<PeerRecord>, Vec<PublicKey>)> {
    let text = key.to_string();
    let member = match found(store.find::<Device>("public_key", &text).await)? {
        Some(Stored { tenant, record: Device { id, state, delegates, .. }, .. }) => {
            let member = PeerRecord { tenant, id, is_gate: false };
            (state == DeviceState::Active).then_some((member, delegates))
        }
        None => {
            let proxy = found(store.find::<Proxy>("public_key", &text).await)?;
            let proxy = proxy.filter(|it| it.record.state != ProxyState::Revoked);
            proxy.map(|Stored { tenant, record: Proxy { id, delegates, .. }, .. }| {
                (PeerRecord { tenant, id, is_gate: true }, delegates)
            })
        }
    };
    let (member, delegates) = member.unzip();
    Ok((member, keys_of(&delegates.unwrap_or_default())))
}

fn keys_of(texts: &[String]) -> Vec<PublicKey> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(60).collect()
}

const WATCH: Duration = Duration::from_secs(30);
const QUIET_TICKS: u32 = 5;
