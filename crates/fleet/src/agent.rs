//! The fleet's side of a box, a proxy or an anchor: what it was sent, verifies and keeps.
//!
//! ```text
//!              frames                          events, for its driver
//! stream ─────────────► trust, revocations ──► Revoked, Table, Candidates, Anchors
//!        ◄───────────── configuration on trial ─► Configure
//!         have, reports                         Persist: write what is to survive
//! ```
//!
//! It works without a stream: the data plane's needs are kept on disk, and verified when read.

mod persisted_state;
mod taking;
mod trial;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ipnet::IpNet;
use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

use self::persisted_state::OnTrial;
pub use self::persisted_state::PersistedState;
pub use self::trial::Works;
use self::trial::{Decision, Question};
use crate::chain::Chain;
use crate::document::{Kind, Version};
use crate::frame::{HeldVersions, Join, Outcome, Report, Sample, Up};
use crate::name::Name;
use crate::revocation::{Head, Revocation};
use crate::statement::{Role, Statement};
use crate::table::Admission;
use crate::token::JoinToken;

const FRAMES_MAX: usize = 256;
const EVENTS_MAX: usize = 1_024;

/// An event for the driver of an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentEvent {
    /// This side belongs to the fleet now.
    Joined {
        /// Its tenant.
        tenant: Name,
        /// The statement about it.
        statement: Statement,
    },
    /// The controller refuses a request.
    Refused {
        /// Why, for a person.
        reason: String,
        /// Whether to ask again later.
        retry: bool,
    },
    /// A configuration is to be in force; call [`Agent::refuse`] if it cannot be used.
    Configure {
        /// Its version, if it has one.
        version: Option<Version>,
        /// Fields as TOML; `None`: the file alone.
        text: Option<String>,
    },
    /// The proxies to choose among, verified.
    Candidates(Vec<VerifiedServer>),
    /// The anchors to use, verified.
    Anchors(Vec<Egress>),
    /// The members who may connect have changed: see [`Agent::admission`].
    Table,
    /// Keys were revoked: end their sessions, then call [`Agent::on_revoked`].
    Revoked(Vec<PublicKey>),
    /// End all sessions and take no new ones; `false`: take them again.
    Drain(bool),
    /// Send samples often until then.
    Watch(Instant),
    /// [`Agent::persisted`] has changed: write it before a later [`AgentEvent::Configure`] is in
    /// force, whose version may end the program.
    Persist,
    /// Look for a stream now, if none is up.
    Seek,
    /// A warning for a person.
    Warning(String),
}

/// A proxy or an anchor whose chain was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedServer {
    /// Its key.
    pub key: PublicKey,
    /// Its name.
    pub name: Name,
    /// The site of a proxy, if known.
    pub site: Option<Name>,
    /// `host:port` each.
    pub addresses: Vec<String>,
    /// The round trip from it to the anchor, microseconds.
    pub to_anchor_us: u32,
    /// Whether to choose it only if no other is there.
    pub last_resort: bool,
}

/// Where the packets of a tenant leave, verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// The tenant.
    pub tenant: Name,
    /// Its anchor.
    pub anchor: VerifiedServer,
    /// The limit of all its boxes together through this proxy, for each direction.
    pub rate_kbps: Option<u32>,
    /// The anchor's own inner addresses, each with the length of its network.
    pub gateways: Vec<IpNet>,
}

/// The ends of sessions of revoked keys.
#[derive(Debug)]
struct Ending {
    /// Heads whose sessions are still to be ended by the driver.
    waiting: VecDeque<Head>,
    /// All sessions of revoked keys up to this head have ended.
    done: Head,
}

/// A box, a proxy or an anchor at its end of a controller's stream.
#[derive(Debug)]
pub struct Agent {
    key: PublicKey,
    role: Role,
    software: String,
    persisted: PersistedState,
    joining: Option<Joining>,
    addresses: Vec<String>,
    works: Works,
    is_mute: bool,
    sessions: u32,
    anchors: BTreeMap<Name, u32>,
    proxy: Option<PublicKey>,
    /// The controller repeats it on every stream. Not kept: a lost controller would drain for ever.
    drained: bool,
    away_since: Option<Instant>,
    entries: Vec<Revocation>,
    /// The serial after which the next entries are handed back.
    handing_back: Option<u64>,
    asked_for_all: bool,
    /// Whether the revocations on disk were altered, and none came since.
    is_doubtful: bool,
    ending: Ending,
    frames: VecDeque<Up>,
    events: VecDeque<AgentEvent>,
}

/// How a new key joins a fleet.
#[derive(Clone, Debug)]
pub struct Joining {
    /// The token.
    pub token: JoinToken,
    /// The name that it proposes.
    pub name: Name,
    /// The chain of a delegate in the token.
    pub chain: Option<Chain>,
}

impl Agent {
    /// Creates an agent that does not belong to a fleet yet.
    pub fn joining(now: Instant, key: PublicKey, role: Role, software: &str, how: Joining) -> Self {
        let persisted = PersistedState::of_token(&how.token);
        let mut agent = Self::of(now, key, role, software, persisted);
        agent.joining = Some(how);
        agent
    }

    /// Sets where this proxy or anchor listens, `host:port` each, for the controller it joins.
    pub fn listens_at(&mut self, addresses: Vec<String>) {
        self.addresses = addresses;
    }

    /// Sets the addresses of controllers, found under a key that a root names: `host:port` each.
    pub fn set_controllers_at(&mut self, addresses: Vec<String>) {
        self.persisted.addresses = addresses;
        self.push_event(AgentEvent::Persist);
    }

    /// Creates an agent from its persisted state, which it reports as events, revocations first.
    /// Parts that cannot be verified are dropped with a warning.
    pub fn restore(
        now: Instant,
        key: PublicKey,
        role: Role,
        software: &str,
        persisted: PersistedState,
    ) -> Self {
        let mut agent = Self::of(now, key, role, software, persisted);
        agent.is_doubtful = !agent.persisted.has_revocations_of(agent.persisted.trust.signers());
        agent.prove_persisted(now);
        agent
    }

    fn of(
        now: Instant,
        key: PublicKey,
        role: Role,
        software: &str,
        persisted: PersistedState,
    ) -> Self {
        Self {
            key,
            role,
            software: software.to_owned(),
            persisted,
            joining: None,
            addresses: Vec::new(),
            works: Works::default(),
            is_mute: false,
            sessions: 0,
            anchors: BTreeMap::new(),
            proxy: None,
            drained: false,
            away_since: Some(now),
            entries: Vec::new(),
            handing_back: None,
            asked_for_all: false,
            is_doubtful: false,
            ending: Ending { waiting: VecDeque::new(), done: Head::EMPTY },
            frames: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    fn prove_persisted(&mut self, now: Instant) {
        for (what, error) in self.persisted.prove(self.key) {
            self.push_event(AgentEvent::Warning(format!("{what} on disk is not used: {error}")));
        }
        if !self.persisted.has_revocations_of(self.persisted.trust.signers()) {
            let held = self.persisted.trust().revocations().head().serial;
            let text = format!(
                "the revocations on disk are verified only up to {held}, and later ones are not \
                 used: no box is admitted until a controller sends them again"
            );
            self.push_event(AgentEvent::Warning(text));
        }
        let taken = self.persisted.trust().revocations().entries(0);
        let keys: Vec<PublicKey> = taken.iter().map(|entry| entry.key).collect();
        if !keys.is_empty() {
            self.report_revoked(keys);
        }
        let (works, is_mute) = (self.works, self.is_mute);
        if let Some(on_trial) = &mut self.persisted.trial {
            on_trial.trial.begin(now, works, is_mute);
            // The start counts, even if the program ends soon.
            self.push_event(AgentEvent::Persist);
        }
        self.handle_timeout(now);
        if !self.events.iter().any(|event| matches!(event, AgentEvent::Configure { .. })) {
            self.configure();
        }
        self.report_verified();
    }

    fn report_verified(&mut self) {
        self.report_servers();
        if self.role != Role::Box {
            self.push_event(AgentEvent::Table);
        }
    }

    /// The members who may connect here; none while the revocations are uncertain.
    pub fn admission(&self) -> Admission<'_> {
        match self.is_doubtful {
            true => Admission::default(),
            false => self.persisted.admission(self.role),
        }
    }

    fn report_servers(&mut self) {
        self.persisted.servers().into_iter().for_each(|event| self.push_event(event));
    }

    /// The stream to a controller is up; the state of an earlier one is dropped.
    pub fn on_stream_up(&mut self, now: Instant) {
        (self.away_since, self.asked_for_all, self.handing_back) = (None, false, None);
        self.entries.clear();
        self.frames.clear();
        match &self.joining {
            Some(Joining { token, name, chain }) => self.send(Up::Join(Join {
                secret: token.secret,
                tenant: token.tenant.clone(),
                role: self.role,
                name: name.clone(),
                chain: chain.clone(),
                addresses: self.addresses.clone(),
            })),
            None => self.send_have(),
        }
        self.set_works(now, Works { stream: true, ..self.works });
    }

    /// The stream is gone.
    pub fn on_stream_down(&mut self, now: Instant) {
        self.away_since.get_or_insert(now);
        self.set_works(now, Works { stream: false, ..self.works });
    }

    /// Reports whether a box has a session with a proxy.
    pub fn on_session(&mut self, now: Instant, is_up: bool) {
        self.set_works(now, Works { session: is_up, ..self.works });
    }

    /// Reports whether a session is silent; it is given up much later.
    pub fn on_mute(&mut self, now: Instant, is_mute: bool) {
        self.is_mute = is_mute;
        self.set_works(now, self.works);
    }

    /// Sets the proxy that a box is on, and reports it to the controller.
    pub fn set_proxy(&mut self, proxy: Option<PublicKey>) {
        let was = std::mem::replace(&mut self.proxy, proxy);
        if was != proxy && self.away_since.is_none() && self.joining.is_none() {
            self.send_have();
        }
    }

    /// Sets the number of sessions of a proxy or an anchor.
    pub fn on_sessions(&mut self, sessions: u32) {
        self.sessions = sessions;
    }

    /// Sets the round trips of a proxy to its tenants' anchors; changes of a millisecond are sent.
    pub fn on_anchors(&mut self, round_trips: impl IntoIterator<Item = (Name, Duration)>) {
        let reported = |(tenant, round_trip): (Name, Duration)| {
            let millis = u32::try_from(round_trip.as_micros().div_ceil(1_000)).unwrap_or(u32::MAX);
            (tenant, millis.saturating_mul(1_000))
        };
        let anchors = round_trips.into_iter().map(reported).take(Up::ANCHORS_MAX).collect();
        if self.anchors != anchors {
            self.anchors = anchors;
            self.send_anchors();
        }
    }

    fn send_anchors(&mut self) {
        if self.frames.len() < FRAMES_MAX / 2 && self.away_since.is_none() {
            self.send(Up::Anchors { round_trips: self.anchors.clone() });
        }
    }

    /// The sessions of an [`AgentEvent::Revoked`] have ended: call it once for each.
    pub fn on_revoked(&mut self) {
        if let Some(head) = self.ending.waiting.pop_front() {
            self.ending.done = head;
            self.send(Up::Revoked { head });
        }
    }

    fn report_revoked(&mut self, keys: Vec<PublicKey>) {
        self.ending.waiting.push_back(self.persisted.trust().revocations().head());
        self.push_event(AgentEvent::Revoked(keys));
    }

    /// A configuration cannot be used.
    pub fn refuse(&mut self, _: Instant, version: Version, why: &str) {
        if self.persisted.refuse(version) {
            self.configure();
            self.report(Kind::Configuration, version, Outcome::Refused { why: why.to_owned() });
        }
    }

    /// Sets the fields that the file of this box overrides.
    pub fn set_pinned(&mut self, pinned: Vec<String>) {
        self.persisted.pinned = pinned;
    }

    /// Sends samples, unless too many frames wait.
    pub fn send_samples(&mut self, samples: Vec<Sample>) {
        if self.frames.len() < FRAMES_MAX / 2 && self.away_since.is_none() {
            self.send(Up::Samples { samples });
        }
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Instant) {
        let poll = |on_trial: &mut OnTrial| Some((on_trial.version, on_trial.trial.poll(now)?));
        while let Some((version, decision)) = self.persisted.trial.as_mut().and_then(poll) {
            match decision {
                Decision::Confirmed => {
                    if let Some(on_trial) = self.persisted.trial.take() {
                        self.persisted.configuration = Some(on_trial.document);
                    }
                    self.report(Kind::Configuration, version, Outcome::Confirmed);
                }
                Decision::TakenBack(why) => {
                    self.persisted.trial = None;
                    self.configure();
                    let why = why.to_owned();
                    self.report(Kind::Configuration, version, Outcome::TakenBack { why });
                }
                Decision::Compare | Decision::Again => {
                    self.push_event(AgentEvent::Persist);
                    self.configure();
                }
            }
        }
        match self.persisted.trial.as_mut().and_then(|it| it.trial.poll_question()) {
            Some(Question::Ask) => self.send(Up::Alive),
            Some(Question::Seek) => self.push_event(AgentEvent::Seek),
            None => {}
        }
    }

    /// When [`Agent::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.persisted.trial.as_ref()?.trial.poll_timeout()
    }

    /// The next frame to send.
    pub fn poll_frame(&mut self) -> Option<Up> {
        self.frames.pop_front().or_else(|| self.next_surplus())
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<AgentEvent> {
        self.events.pop_front()
    }

    /// What is to be written to disk.
    pub fn persisted(&self) -> &PersistedState {
        &self.persisted
    }

    /// Since when no stream is up.
    pub fn away_since(&self) -> Option<Instant> {
        self.away_since
    }

    /// Whether this side belongs to a fleet.
    pub fn is_member(&self) -> bool {
        self.persisted.chain().is_some()
    }

    fn set_works(&mut self, now: Instant, works: Works) {
        self.works = works;
        if let Some(on_trial) = &mut self.persisted.trial {
            on_trial.trial.on_works(now, works, self.is_mute);
        }
        self.handle_timeout(now);
    }

    fn configure(&mut self) {
        let (version, text) = self.persisted.configuration_in_force();
        self.push_event(AgentEvent::Configure { version, text });
    }

    fn report(&mut self, kind: Kind, version: Version, outcome: Outcome) {
        let outcome = outcome.shortened();
        let pinned = match kind {
            Kind::Configuration => self.persisted.pinned().to_vec(),
            _ => Vec::new(),
        };
        let report = Report { kind, version, outcome, pinned };
        self.persisted.reports.insert(kind, report.clone());
        self.push_event(AgentEvent::Persist);
        if self.away_since.is_none() {
            self.send(Up::Report(report));
        }
    }

    fn send_have(&mut self) {
        let head = self.persisted.trust().revocations().head();
        let is_proved = self.persisted.has_revocations_of(self.persisted.trust.controllers());
        let documents: BTreeMap<Kind, Version> = self.persisted.taken();
        let have = HeldVersions {
            software: self.software.clone(),
            trust: self.persisted.trust().list().number,
            revocations: if is_proved { head } else { Head { epoch: head.epoch, ..Head::EMPTY } },
            documents,
            sessions: self.sessions,
            drained: (self.role != Role::Box).then_some(self.drained),
            proxy: self.proxy,
        };
        self.send(Up::Have(have));
        if !self.anchors.is_empty() {
            self.send_anchors();
        }
        self.send(Up::Revoked { head: self.ending.done });
        for report in self.persisted.reports() {
            self.send(Up::Report(report));
        }
    }

    /// Drops frames beyond the bound: the next stream starts with what is held.
    fn send(&mut self, frame: Up) {
        if self.frames.len() < FRAMES_MAX {
            self.frames.push_back(frame);
        }
    }

    fn push_event(&mut self, event: AgentEvent) {
        let is_queued = event == AgentEvent::Persist && self.events.contains(&event);
        if !is_queued && self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }
}

#[cfg(test)]
mod tests;
