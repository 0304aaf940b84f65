//! The fleet's side of a box, a proxy or an anchor: what it has been told, proved, and keeps.
//!
//! ```text
//!              frames                          events, for its driver
//! stream ─────────────► trust, revocations ──► Revoked, Table, Candidates, Anchors
//!        ◄───────────── configuration on trial ─► Configure
//!         have, reports                         Keep: write what is to survive
//! ```
//!
//! It goes on without a stream for as long as that is away: everything that the data plane needs
//! is in what it keeps, and proves itself again when it is read.

mod keeping;
mod taking;
mod trial;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

pub use self::keeping::{Kept, KeptError};
pub use self::trial::Works;
use self::trial::{Decision, Question};
use crate::chain::Chain;
use crate::document::{Kind, Version};
use crate::frame::{HeldVersions, Outcome, Report, Sample, Up};
use crate::name::Name;
use crate::revocation::{Head, Revocation};
use crate::statement::{Role, Statement};
use crate::token::JoinToken;

/// The most frames that wait for the stream.
const FRAMES_MAX: usize = 256;
/// The most events that wait for the driver; it takes them after every call.
const EVENTS_MAX: usize = 1_024;

/// What the driver of an agent must do or know.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentEvent {
    /// This side belongs to the fleet from now on.
    Joined {
        /// The tenant that this side belongs to.
        tenant: Name,
        /// What is said of it.
        statement: Statement,
    },
    /// The controller does not do what was asked.
    Refused {
        /// Why, for a person.
        reason: String,
        /// Whether to ask again later.
        retry: bool,
    },
    /// A configuration is to be in force; if it cannot be used, [`Agent::refuse`] it.
    Configure {
        /// The configuration's version, if it has one.
        version: Option<Version>,
        /// Fields as TOML, none to go by the file alone.
        text: Option<String>,
    },
    /// The proxies to choose among, all of them proved.
    Candidates(Vec<VerifiedServer>),
    /// The anchors to lead to, all of them proved.
    Anchors(Vec<Egress>),
    /// Others may connect than before: ask [`Agent::admission`].
    Table,
    /// Keys are withdrawn: end their sessions, then call [`Agent::on_revoked`].
    Revoked(Vec<PublicKey>),
    /// Let go of all sessions, and take no new ones; or take them again, if it is `false`.
    Drain(bool),
    /// Send figures often until then.
    Watch(Instant),
    /// What [`Agent::kept`] gives has changed: write it, before a [`AgentEvent::Configure`] that
    /// comes after it is in force. It may be a version that ends the program.
    Keep,
    /// A stream is to be sought now, if none is up.
    Seek,
    /// Something that a person should know.
    Warning(String),
}

/// A proxy or an anchor whose statements have been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedServer {
    /// Its key.
    pub key: PublicKey,
    /// Its name.
    pub name: Name,
    /// The site of the proxy, if that was told.
    pub site: Option<Name>,
    /// Where it listens, `host:port` each.
    pub addresses: Vec<String>,
    /// The round trip from it to the anchor, microseconds.
    pub to_anchor_us: u32,
    /// Whether the proxy should be chosen only when no other is there.
    pub last_resort: bool,
}

/// Where the packets of a tenant leave, proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// The tenant.
    pub tenant: Name,
    /// Its anchor.
    pub anchor: VerifiedServer,
    /// The most that all its boxes together may send, and receive, through this proxy.
    pub rate_kbps: Option<u32>,
}

/// One side of a controller's stream: a box, a proxy or an anchor.
#[derive(Debug)]
pub struct Agent {
    key: PublicKey,
    role: Role,
    software: String,
    kept: Kept,
    /// What it shows to belong to the fleet, until it does.
    joining: Option<Joining>,
    /// Where a proxy or an anchor listens, told when it joins.
    addresses: Vec<String>,
    works: Works,
    /// Whether nothing comes through the session of a box.
    is_mute: bool,
    sessions: u32,
    /// How far a proxy is from the anchors of its tenants, microseconds.
    anchors: BTreeMap<Name, u32>,
    proxy: Option<PublicKey>,
    /// Whether the controller wants no sessions here. It says so on every stream; nothing of it is
    /// kept, so that a controller that is gone for good leaves no proxy drained for ever.
    drained: bool,
    /// Since when there is no stream.
    away_since: Option<Instant>,
    /// Entries that wait for their head.
    entries: Vec<Revocation>,
    /// After which serial the next entries are to be handed back, while that is under way.
    handing_back: Option<u64>,
    /// Whether all of the table was asked for on this stream.
    asked_for_all: bool,
    /// Whether the revocations on disk were not those that were signed, and none came since.
    is_doubtful: bool,
    /// The ends up to which the driver was told, and has not ended the sessions yet.
    ending: VecDeque<Head>,
    /// Up to which end no session of a withdrawn key is left.
    ended: Head,
    frames: VecDeque<Up>,
    events: VecDeque<AgentEvent>,
}

/// How a new key asks to belong to a fleet.
#[derive(Clone, Debug)]
pub struct Joining {
    /// The token that the machine was handed.
    pub token: JoinToken,
    /// The name that it would like.
    pub name: Name,
    /// What a delegate in the token has said of it.
    pub chain: Option<Chain>,
}

impl Agent {
    /// An agent that does not belong to a fleet yet.
    pub fn joining(now: Instant, key: PublicKey, role: Role, software: &str, how: Joining) -> Self {
        let kept = Kept::of_token(&how.token);
        let mut agent = Self::of(now, key, role, software, kept);
        agent.joining = Some(how);
        agent
    }

    /// Where this proxy or anchor listens, `host:port` each, for the controller that it joins.
    pub fn listens_at(&mut self, addresses: Vec<String>) {
        self.addresses = addresses;
    }

    /// Controllers listen elsewhere from now on, `host:port` each: call it once one was met there
    /// whose key a root names.
    pub fn set_controllers_at(&mut self, addresses: Vec<String>) {
        self.kept.set_addresses(addresses);
        self.tell(AgentEvent::Keep);
    }

    /// An agent with what an earlier life of it has kept. What of that does not prove itself is
    /// forgotten, with a warning; what does comes as events, revocations first.
    pub fn restore(now: Instant, key: PublicKey, role: Role, software: &str, kept: Kept) -> Self {
        let mut agent = Self::of(now, key, role, software, kept);
        agent.is_doubtful = !agent.kept.has_held_revocations();
        agent.prove_kept(now);
        agent
    }

    fn of(now: Instant, key: PublicKey, role: Role, software: &str, kept: Kept) -> Self {
        Self {
            key,
            role,
            software: software.to_owned(),
            kept,
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
            ending: VecDeque::new(),
            ended: Head::EMPTY,
            frames: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The stream to a controller is up; nothing of an earlier one counts.
    pub fn on_stream_up(&mut self, now: Instant) {
        (self.away_since, self.asked_for_all, self.handing_back) = (None, false, None);
        self.entries.clear();
        self.frames.clear();
        match &self.joining {
            Some(Joining { token, name, chain }) => self.send(Up::Join {
                secret: token.secret,
                tenant: token.tenant.clone(),
                role: self.role,
                name: name.clone(),
                chain: chain.clone(),
                addresses: self.addresses.clone(),
            }),
            None => self.send_have(),
        }
        self.set_works(now, Works { stream: true, ..self.works });
    }

    /// The stream is gone.
    pub fn on_stream_down(&mut self, now: Instant) {
        self.away_since.get_or_insert(now);
        self.set_works(now, Works { stream: false, ..self.works });
    }

    /// A box has a session with a proxy, or has none.
    pub fn on_session(&mut self, now: Instant, is_up: bool) {
        self.set_works(now, Works { session: is_up, ..self.works });
    }

    /// Whether nothing comes through the session of a box, which is given up much later.
    pub fn on_mute(&mut self, now: Instant, is_mute: bool) {
        self.is_mute = is_mute;
        self.set_works(now, self.works);
    }

    /// The proxy that a box is on, of which it tells the controller.
    pub fn set_proxy(&mut self, proxy: Option<PublicKey>) {
        let was = std::mem::replace(&mut self.proxy, proxy);
        if was != proxy && self.away_since.is_none() && self.joining.is_none() {
            self.send_have();
        }
    }

    /// How many sessions a proxy or an anchor has.
    pub fn on_sessions(&mut self, sessions: u32) {
        self.sessions = sessions;
    }

    /// How far a proxy is from the anchors of its tenants: the round trips of those that are
    /// measured, told by the millisecond and where they are others than before.
    pub fn on_anchors(&mut self, round_trips: impl IntoIterator<Item = (Name, Duration)>) {
        let told = |(tenant, round_trip): (Name, Duration)| {
            let millis = u32::try_from(round_trip.as_micros().div_ceil(1_000)).unwrap_or(u32::MAX);
            (tenant, millis.saturating_mul(1_000))
        };
        let anchors = round_trips.into_iter().map(told).take(Up::ANCHORS_MAX).collect();
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

    /// The sessions of the keys of an [`AgentEvent::Revoked`] have ended: call it once for each.
    pub fn on_revoked(&mut self) {
        if let Some(head) = self.ending.pop_front() {
            self.ended = head;
            self.send(Up::Revoked { head });
        }
    }

    /// Tells the driver whose sessions are to end.
    fn tell_revoked(&mut self, keys: Vec<PublicKey>) {
        self.ending.push_back(self.kept.trust().revocations().head());
        self.tell(AgentEvent::Revoked(keys));
    }

    /// The version of a configuration cannot be used, for what `why` says.
    pub fn refuse(&mut self, _: Instant, version: Version, why: &str) {
        if self.kept.refuse(version) {
            self.configure();
            self.report(Kind::Configuration, version, Outcome::Refused { why: why.to_owned() });
        }
    }

    /// Fields of the configuration that the file of this box sets otherwise.
    pub fn set_pinned(&mut self, pinned: Vec<String>) {
        self.kept.set_pinned(pinned);
    }

    /// Sends figures, unless too much waits already.
    pub fn send_samples(&mut self, samples: Vec<Sample>) {
        if self.frames.len() < FRAMES_MAX / 2 && self.away_since.is_none() {
            self.send(Up::Samples { samples });
        }
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((version, decision)) = self.kept.poll_trial(now) {
            match decision {
                Decision::Confirmed => {
                    self.kept.confirm();
                    self.report(Kind::Configuration, version, Outcome::Confirmed);
                }
                Decision::TakenBack(why) => {
                    self.kept.take_back();
                    self.configure();
                    let why = why.to_owned();
                    self.report(Kind::Configuration, version, Outcome::TakenBack { why });
                }
                Decision::Compare | Decision::Again => {
                    self.tell(AgentEvent::Keep);
                    self.configure();
                }
            }
        }
        match self.kept.poll_question() {
            Some(Question::Ask) => self.send(Up::Alive),
            Some(Question::Seek) => self.tell(AgentEvent::Seek),
            None => {}
        }
    }

    /// When [`Agent::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.kept.trial_timeout()
    }

    /// What is to be sent.
    pub fn poll_frame(&mut self) -> Option<Up> {
        self.frames.pop_front().or_else(|| self.next_surplus())
    }

    /// What the driver must do or know.
    pub fn poll_event(&mut self) -> Option<AgentEvent> {
        self.events.pop_front()
    }

    /// What is to survive the program.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Since when there is no stream to a controller, if there is none.
    pub fn away_since(&self) -> Option<Instant> {
        self.away_since
    }

    /// Whether this side belongs to a fleet.
    pub fn is_member(&self) -> bool {
        self.kept.chain().is_some()
    }

    fn set_works(&mut self, now: Instant, works: Works) {
        self.works = works;
        self.kept.on_works(now, works, self.is_mute);
        self.handle_timeout(now);
    }

    /// Tells the driver which configuration is to be in force.
    fn configure(&mut self) {
        let (version, text) = self.kept.configuration_in_force();
        self.tell(AgentEvent::Configure { version, text });
    }

    fn report(&mut self, kind: Kind, version: Version, outcome: Outcome) {
        let outcome = outcome.shortened();
        let pinned = match kind {
            Kind::Configuration => self.kept.pinned().to_vec(),
            _ => Vec::new(),
        };
        let report = Report { kind, version, outcome, pinned };
        self.kept.set_report(report.clone());
        self.tell(AgentEvent::Keep);
        if self.away_since.is_none() {
            self.send(Up::Report(report));
        }
    }

    fn send_have(&mut self) {
        let head = self.kept.trust().revocations().head();
        let is_proved = self.kept.has_proved_revocations();
        let documents: BTreeMap<Kind, Version> = self.kept.taken();
        let have = HeldVersions {
            software: self.software.clone(),
            trust: self.kept.trust().list().number,
            // Where their end is not signed by who counts, all of it is to come again.
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
        self.send(Up::Revoked { head: self.ended });
        // What became of each document may not have been heard.
        for report in self.kept.reports() {
            self.send(Up::Report(report));
        }
    }

    /// What is sent beyond the bound goes: a stream that does not take it starts with what is
    /// had.
    fn send(&mut self, frame: Up) {
        if self.frames.len() < FRAMES_MAX {
            self.frames.push_back(frame);
        }
    }

    fn tell(&mut self, event: AgentEvent) {
        let is_told = event == AgentEvent::Keep && self.events.contains(&event);
        if !is_told && self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }
}

#[cfg(test)]
mod tests;
