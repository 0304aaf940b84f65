//! The client: brings a session up over whatever uplinks there are, and keeps it up.
//!
//! ```text
//! racing ──── one attempt answers ───► joining ──── welcome ───► joined
//!   ▲  a new attempt per uplink           │ hello                   │ a path per uplink
//!   │  every second                       ▼                         ▼
//!   ├────────────────── closed: reset, timeout ─────────────────────┤
//! resting ◄── refused, wrong key: 10 s, doubling to 60 s ───────────┤
//!         ◄── ended by the server: at once, then 1 s, doubling ─────┘
//! ```
//!
//! The handshake is raced over all uplinks, since the first of them may be dead. A server that
//! restarted resets the connection, and the race begins anew at once. A refusal will not go away by
//! asking again soon, so there the client rests.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_quic::{
    CloseReason, ConfigError, Connection, ConnectionId, Ecn, Endpoint, Epoch, Event, Identity,
    Local, Outbox, PathError, PublicKey, Source, TransportConfig,
};
use roadweave_recovery::Qoe;
use roadweave_schedule::Acknowledged;
use roadweave_types::{
    DropCounters, DropReason, Instant, PathId, PathSnapshot, PathStatus, Policy, UplinkId,
};
use roadweave_wire::{Control, Hello, Welcome};

use crate::lane::{LaneConfig, Strategy};
use crate::learned::{Learned, keep_learned};
use crate::observe::PacketEvent;
use crate::session::{Session, SessionConfig, SessionError, SetError, find_lane};
use crate::status::{PathStatusReport, SessionStatus, path_reports};
use crate::uplink::{Month, UplinkPolicy, Usage, ip_bytes};

/// How often a new attempt begins on each uplink while none has answered.
const RACE_INTERVAL: Duration = Duration::from_secs(1);
/// How much later the next uplink begins: often the first one answers before.
const RACE_STAGGER: Duration = Duration::from_millis(100);
/// Attempts under way per uplink: an answer may take as many seconds.
const ATTEMPTS_PER_UPLINK: usize = 4;
/// How long a server may take to welcome.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long all paths may be silent before a new connection is tried beside the old one.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long a new connection lets the old one answer, before it takes over.
const SPARE_PATIENCE: Duration = Duration::from_millis(500);
/// How often an uplink without a path gets a new try.
const PATH_RETRY: Duration = Duration::from_secs(1);
const REST_MIN: Duration = Duration::from_secs(10);
const REST_MAX: Duration = Duration::from_secs(60);
/// A session that lived this long was a good one: what went wrong before it counts no more.
const LIVED_WELL: Duration = Duration::from_secs(30);
/// The smallest MTU that IPv6 allows (RFC 8200 section 5).
const MTU_MIN: u16 = 1280;

/// What a client needs to know.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Its own name, for the server's logs.
    pub name: String,
    /// The server's addresses, tried in turn; empty until [`Client::set_servers`] if not known yet.
    pub servers: Vec<SocketAddr>,
    /// The server's public key.
    pub server_key: PublicKey,
    /// The transport.
    pub transport: TransportConfig,
    /// The lanes of the uplink direction.
    pub lanes: Vec<LaneConfig>,
}

/// What the driver of a client must know.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientEvent {
    /// The session is up.
    Joined {
        /// What the server granted.
        welcome: Welcome,
        /// The server's address.
        server: SocketAddr,
    },
    /// The session, or the attempt at one, came to an end; another follows by itself.
    Left {
        /// Why, for a person to read.
        reason: String,
        /// How long the client rests before it tries again.
        rest: Duration,
    },
}

#[derive(Debug)]
struct Uplink {
    name: String,
    /// How many attempts were made over it.
    attempts: usize,
    next_attempt: Instant,
    next_path: Instant,
}

#[derive(Debug)]
struct Attempt {
    uplink: UplinkId,
    server: SocketAddr,
}

#[derive(Debug)]
struct Current {
    id: ConnectionId,
    server: SocketAddr,
    session: Session,
    since: Instant,
    welcome: Option<Welcome>,
}

/// A connection that takes over unless the silent session answers first.
#[derive(Debug)]
struct Spare {
    id: ConnectionId,
    server: SocketAddr,
    since: Instant,
}

/// One client: an endpoint, its uplinks, and at most one session.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    endpoint: Endpoint,
    uplinks: BTreeMap<UplinkId, Uplink>,
    attempts: BTreeMap<ConnectionId, Attempt>,
    current: Option<Current>,
    /// Since when no path of the session answers.
    silent_since: Option<Instant>,
    /// A connection that was made meanwhile.
    spare: Option<Spare>,
    resting_until: Instant,
    /// The rest after the next refusal.
    rest: Duration,
    /// The rest after the next session that the server ends.
    setback: Duration,
    events: VecDeque<ClientEvent>,
    drops: DropCounters,
    /// Whether sessions note what happens to each packet.
    observes: bool,
    /// What the strategies of earlier sessions have learned.
    learned: Learned,
    /// How uplinks may be used that are not as any other, by their names.
    policies: BTreeMap<String, UplinkPolicy>,
    usage: Usage,
    /// The policies that paths of the session have been given.
    path_policies: BTreeMap<PathId, Policy>,
}

impl Client {
    /// A client without uplinks.
    ///
    /// # Errors
    /// When the transport settings or the lanes cannot be used.
    pub fn new(
        epoch: Epoch,
        config: ClientConfig,
        identity: Arc<Identity>,
    ) -> Result<Self, ClientError> {
        let endpoint = Endpoint::client(epoch, &config.transport, identity, config.server_key)?;
        Ok(Self {
            config,
            endpoint,
            uplinks: BTreeMap::new(),
            attempts: BTreeMap::new(),
            current: None,
            silent_since: None,
            spare: None,
            resting_until: Instant::ZERO,
            rest: REST_MIN,
            setback: Duration::ZERO,
            events: VecDeque::new(),
            drops: DropCounters::default(),
            observes: false,
            learned: Learned::new(),
            policies: BTreeMap::new(),
            usage: Usage::default(),
            path_policies: BTreeMap::new(),
        })
    }

    /// Takes up what [`Client::learned`] gave in an earlier life, for the sessions to come.
    pub fn restore(&mut self, learned: Learned) {
        self.learned = learned;
    }

    /// What the strategies have learned of the networks so far, in all sessions.
    pub fn learned(&mut self) -> &Learned {
        if let Some(current) = &self.current {
            keep_learned(&mut self.learned, &self.config.server_key, &current.session);
        }
        &self.learned
    }

    /// From now on the uplink called `name` may be used like this.
    pub fn set_policy(&mut self, name: &str, policy: UplinkPolicy) {
        self.policies.insert(name.to_owned(), policy);
        self.apply_policies();
    }

    /// Takes up what [`Client::usage`] gave in an earlier life.
    pub fn restore_usage(&mut self, usage: Usage) {
        self.usage = usage;
        self.apply_policies();
    }

    /// What the uplinks with a monthly cap have carried in the month.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Tells the time of day, seconds since 1970: a new month may begin.
    pub fn on_time_of_day(&mut self, unix_seconds: u64) {
        self.usage.on_month(Month::of_unix(unix_seconds));
        self.apply_policies();
    }

    /// What an encoder should make of its next frame, bytes, by the lane's name: for lanes whose
    /// strategy knows.
    pub fn frame_targets(&self) -> BTreeMap<String, u64> {
        self.current.as_ref().map(|current| current.session.frame_targets()).unwrap_or_default()
    }

    /// An uplink is there and has an address. Call it again when its address has changed.
    pub fn add_uplink(&mut self, now: Instant, id: UplinkId, name: &str) {
        let stagger = RACE_STAGGER * self.uplinks.len() as u32;
        let uplink = Uplink {
            name: name.to_owned(),
            attempts: self.uplinks.get(&id).map_or(0, |known| known.attempts),
            next_attempt: now + stagger,
            next_path: now,
        };
        self.uplinks.insert(id, uplink);
        self.service(now);
    }

    /// The server's addresses are others from now on; a session that is up lives on.
    pub fn set_servers(&mut self, now: Instant, servers: Vec<SocketAddr>) {
        self.config.servers = servers;
        self.service(now);
    }

    /// An uplink is gone; its path is closed, unless it is the last.
    pub fn remove_uplink(&mut self, now: Instant, id: UplinkId) {
        self.uplinks.remove(&id);
        self.service(now);
    }

    /// Lets a lane of the uplink direction follow another strategy, in this session and those to come.
    ///
    /// # Errors
    /// When there is no such lane or uplink; nothing is changed then.
    pub fn set_strategy(
        &mut self,
        now: Instant,
        lane: &str,
        strategy: Strategy,
    ) -> Result<(), SetError> {
        let position = find_lane(&self.config.lanes, lane)?;
        let uplinks = &self.uplinks;
        let by_name =
            |name: &str| uplinks.iter().find(|(_, uplink)| uplink.name == name).map(|(id, _)| *id);
        // Checked also when there is no session that could be asked.
        strategy.scheduler(self.config.lanes[position].deadline, by_name)?;
        if let Some(current) = &mut self.current {
            current.session.set_strategy(lane, &strategy, by_name)?;
        }
        self.config.lanes[position].strategy = strategy;
        self.service(now);
        Ok(())
    }

    /// Tells what the application behind a lane of the uplink direction has in its buffer. Without a
    /// session nobody asks.
    ///
    /// # Errors
    /// When there is no such lane.
    pub fn set_qoe(&mut self, now: Instant, lane: &str, qoe: Qoe) -> Result<(), SetError> {
        find_lane(&self.config.lanes, lane)?;
        self.current.as_mut().map_or(Ok(()), |current| current.session.set_qoe(now, lane, qoe))
    }

    /// Takes a packet that came in on an uplink.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        uplink: UplinkId,
        remote: SocketAddr,
        ecn: Option<Ecn>,
        packet: BytesMut,
    ) {
        self.count(uplink, ip_bytes(remote, packet.len()));
        let source = Source { remote, local: Local::Uplink(uplink), ecn };
        if let Some(id) = self.endpoint.handle_packet(now, source, packet) {
            self.pump(now, id);
        }
    }

    /// Takes an inner packet from the device. Call [`Client::service`] after a batch of them.
    pub fn handle_inner(&mut self, now: Instant, packet: &[u8]) {
        match &mut self.current {
            Some(Current { session, welcome: Some(_), .. }) => session.handle_inner(now, packet),
            _ => self.drops.count(DropReason::NoSession),
        }
    }

    /// Lets everything that is due happen. Call it after anything was handled, and at
    /// [`Client::poll_timeout`].
    pub fn service(&mut self, now: Instant) {
        for id in self.endpoint.handle_timeout(now) {
            self.pump(now, id);
        }
        if self.joining_takes_too_long(now) {
            self.leave(now, "the server does not welcome this client".into(), After::Setback);
        }
        self.watch_silence(now);
        if self.current.is_some() {
            self.reconcile_paths(now);
            self.apply_policies();
        }
        if self.is_racing(now) {
            self.race(now);
        }
        if let Some(current) = &mut self.current
            && let Some(connection) = self.endpoint.connection_mut(current.id)
        {
            current.session.service(now, connection);
            connection.flush(now);
        }
    }

    /// Whether attempts are due: without a session, or when nothing answers in it.
    ///
    /// A path whose address changed while it was dead may never be validated again, and a server may have
    /// lost the session without a reset that reaches us.
    fn is_racing(&self, now: Instant) -> bool {
        let silent = self.silent_since.is_some_and(|since| now >= since + SILENCE_MAX);
        self.current.is_none() || silent && self.spare.is_none()
    }

    /// Keeps track of whether the session answers, and lets a spare connection take over if it does not.
    fn watch_silence(&mut self, now: Instant) {
        let answers = |current: &Current| {
            let connection = self.endpoint.connection(current.id)?;
            Some(connection.paths().iter().any(PathSnapshot::is_usable))
        };
        let silent = self
            .current
            .as_ref()
            .is_some_and(|current| current.welcome.is_some() && answers(current) == Some(false));
        if !silent {
            if self.silent_since.take().is_some() && self.current.is_some() {
                let spare = self.spare.take().map(|spare| spare.id);
                for id in std::mem::take(&mut self.attempts).into_keys().chain(spare) {
                    self.close_connection(now, id, "the session answers again");
                }
            }
            return;
        }
        self.silent_since.get_or_insert(now);
        if self.spare.as_ref().is_some_and(|spare| now >= spare.since + SPARE_PATIENCE)
            && let Some(Spare { id, server, .. }) = self.spare.take()
        {
            self.leave(now, "the session does not answer any more".into(), After::Silence);
            self.join(now, id, server);
        }
    }

    /// When the silence of the session asks for something.
    fn silence_timeout(&self) -> Option<Instant> {
        let since = self.silent_since?;
        if let Some(spare) = &self.spare {
            return Some(spare.since + SPARE_PATIENCE);
        }
        let attempt = self.uplinks.values().map(|uplink| uplink.next_attempt).min()?;
        Some(attempt.max(since + SILENCE_MAX))
    }

    /// When [`Client::service`] must be called again, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let own = match &self.current {
            Some(current) => {
                let join = current.welcome.is_none().then(|| current.since + JOIN_TIMEOUT);
                [
                    current.session.poll_timeout(),
                    join,
                    self.next_path_try(current.id),
                    self.silence_timeout(),
                ]
                .into_iter()
                .flatten()
                .min()
            }
            None if self.config.servers.is_empty() => None,
            None => self
                .uplinks
                .values()
                .map(|uplink| uplink.next_attempt.max(self.resting_until))
                .min(),
        };
        [own, self.endpoint.poll_timeout()].into_iter().flatten().min()
    }

    /// An inner packet for the device.
    pub fn poll_inner(&mut self) -> Option<Bytes> {
        self.current.as_mut()?.session.poll_inner()
    }

    /// Begins to note what happens to each packet, in this session and those to come, or stops.
    pub fn observe_packets(&mut self, is_on: bool) {
        self.observes = is_on;
        if let Some(current) = &mut self.current {
            current.session.observe_packets(is_on);
        }
    }

    /// Something that happened to a packet, if [`Client::observe_packets`] asked for it.
    pub fn poll_packet_event(&mut self) -> Option<PacketEvent> {
        self.current.as_mut()?.session.poll_packet_event()
    }

    /// What the driver must know.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// Hands over everything that waits for the network, and forgets it.
    pub fn drain(&mut self, mut send: impl FnMut(&Outbox)) {
        let (uplinks, policies, usage) = (&self.uplinks, &self.policies, &mut self.usage);
        self.endpoint.drain(|outbox| {
            for run in outbox.runs() {
                let uplink = run.route.uplink.and_then(|id| uplinks.get(&id));
                if let Some(Uplink { name, .. }) = uplink
                    && is_capped(policies, name)
                {
                    let lengths = run.packets().map(<[u8]>::len);
                    let bytes = lengths.map(|length| ip_bytes(run.route.destination, length)).sum();
                    usage.add(name, bytes);
                }
            }
            send(outbox);
        });
    }

    /// Says goodbye to the server; drain once more afterwards.
    pub fn close(&mut self, now: Instant) {
        self.endpoint.close(now, "the client stops");
    }

    /// The session, once the server has welcomed this client.
    pub fn status(&self) -> Option<SessionStatus> {
        let current = self.current.as_ref()?;
        let welcome = current.welcome.as_ref()?;
        let connection = self.endpoint.connection(current.id)?;
        let name = |path: &roadweave_types::PathSnapshot| {
            self.uplinks.get(&path.uplink?).map(|uplink| uplink.name.clone())
        };
        let mut stats = current.session.stats();
        stats.drops.merge(&self.drops);
        Some(SessionStatus {
            peer: current.server.to_string(),
            public_key: self.config.server_key.to_string(),
            addresses: welcome.addresses.iter().map(ToString::to_string).collect(),
            paths: self.with_usage(path_reports(connection, name)),
            stats,
        })
    }

    /// `reports`, with what their uplinks carry in the month.
    fn with_usage(&self, mut reports: Vec<PathStatusReport>) -> Vec<PathStatusReport> {
        for report in &mut reports {
            let Some(name) = &report.uplink else { continue };
            let cap = self.policies.get(name).and_then(|policy| policy.monthly_cap_bytes);
            report.monthly_cap_bytes = cap;
            report.month_bytes = cap.map(|_| self.usage.of(name));
        }
        reports
    }

    /// What was discarded while there was no session, by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// Handles what a connection has to tell.
    fn pump(&mut self, now: Instant, id: ConnectionId) {
        while let Some(event) = self.endpoint.connection_mut(id).and_then(Connection::poll_event) {
            if self.attempts.contains_key(&id) {
                self.on_attempt_event(now, id, event);
            } else if self.current.as_ref().is_some_and(|current| current.id == id) {
                self.on_session_event(now, event);
            } else if matches!(event, Event::Closed(_)) {
                self.spare.take_if(|spare| spare.id == id);
            }
        }
    }

    fn on_attempt_event(&mut self, now: Instant, id: ConnectionId, event: Event) {
        match event {
            Event::Connected { .. } => {
                let Some(attempt) = self.attempts.remove(&id) else { return };
                for other in std::mem::take(&mut self.attempts).into_keys() {
                    self.close_connection(now, other, "another uplink was faster");
                }
                if self.current.is_some() {
                    self.spare = Some(Spare { id, server: attempt.server, since: now });
                } else {
                    self.join(now, id, attempt.server);
                }
            }
            Event::Closed(reason) => {
                self.attempts.remove(&id);
                if after(&reason) == After::Refusal && self.current.is_none() {
                    self.leave(now, reason.to_string(), After::Refusal);
                }
            }
            _ => {}
        }
    }

    fn join(&mut self, now: Instant, id: ConnectionId, server: SocketAddr) {
        let seed =
            self.config.transport.rng_seed.first_chunk().map_or(0, |c| u64::from_le_bytes(*c));
        let config = SessionConfig {
            lanes: self.config.lanes.clone(),
            peer_sources: None,
            seed: seed ^ id.0,
        };
        let uplinks = &self.uplinks;
        let by_name =
            |name: &str| uplinks.iter().find(|(_, uplink)| uplink.name == name).map(|(id, _)| *id);
        let mut session = match Session::new(config, by_name) {
            Ok(session) => session,
            Err(error) => return self.leave(now, error.to_string(), After::Refusal),
        };
        session.observe_packets(self.observes);
        if let Some(learned) = self.learned.get(&self.config.server_key.to_string()) {
            session.restore(learned);
        }
        self.current = Some(Current { id, server, session, since: now, welcome: None });
        self.path_policies.clear();
        self.send_control(id, &Control::Hello(Hello { name: self.config.name.clone() }));
        self.name_paths(id);
        self.apply_policies();
    }

    fn on_session_event(&mut self, now: Instant, event: Event) {
        let Some(current) = &mut self.current else { return };
        match event {
            Event::Received { datagram, .. } => current.session.handle_datagram(now, datagram),
            Event::Acknowledged { path, token, sent, bytes, rtt } => {
                let acknowledged = Acknowledged { path, sent, bytes, rtt };
                current.session.on_acknowledged(now, token, &acknowledged);
            }
            Event::Lost { path, token } => current.session.on_lost(now, path, token),
            Event::PathUsable(path) => {
                let id = current.id;
                self.name_path(id, path);
                self.apply_policies();
            }
            Event::Message(message) => self.on_message(now, message),
            Event::Closed(reason) => {
                self.leave(now, reason.to_string(), after(&reason));
            }
            _ => {}
        }
    }

    fn on_message(&mut self, now: Instant, message: Bytes) {
        let Some(current) = &mut self.current else { return };
        match Control::parse(message) {
            Ok(Control::Welcome(_)) if current.welcome.is_some() => {
                self.drops.count(DropReason::UnknownMessage);
            }
            Ok(Control::Welcome(welcome)) if welcome.mtu < MTU_MIN => {
                let reason = format!("the server wants an MTU of {} bytes", welcome.mtu);
                self.leave(now, reason, After::Refusal);
            }
            Ok(Control::Welcome(welcome)) => {
                current.since = now;
                current.welcome = Some(welcome.clone());
                self.events.push_back(ClientEvent::Joined { welcome, server: current.server });
            }
            Ok(Control::LaneOrder { lane, order }) => {
                current.session.on_lane_order(now, lane, order);
            }
            Ok(Control::Refuse { reason }) => {
                self.leave(now, format!("refused by the server: {reason}"), After::Refusal);
            }
            Ok(_) => self.drops.count(DropReason::UnknownMessage),
            Err(_) => self.drops.count(DropReason::MalformedMessage),
        }
    }

    /// Ends the session and all attempts, and tries again after the rest that `after` asks for.
    fn leave(&mut self, now: Instant, reason: String, after: After) {
        if let Some(current) = self.current.take() {
            keep_learned(&mut self.learned, &self.config.server_key, &current.session);
            if current.welcome.is_some() && now.since(current.since) >= LIVED_WELL {
                (self.rest, self.setback) = (REST_MIN, Duration::ZERO);
            }
            self.close_connection(now, current.id, "the session is over");
        }
        let spare = self.spare.take().map(|spare| spare.id);
        for id in std::mem::take(&mut self.attempts).into_keys().chain(spare) {
            self.close_connection(now, id, "the session is over");
        }
        self.silent_since = None;
        let grown = |rest: Duration| (rest * 2).clamp(Duration::from_secs(1), REST_MAX);
        let rest = match after {
            After::Silence => Duration::ZERO,
            After::Setback => {
                let grown = grown(self.setback);
                std::mem::replace(&mut self.setback, grown)
            }
            After::Refusal => {
                let grown = grown(self.rest);
                std::mem::replace(&mut self.rest, grown)
            }
        };
        self.resting_until = now + rest;
        for (position, uplink) in (0_u32..).zip(self.uplinks.values_mut()) {
            uplink.next_attempt = now + RACE_STAGGER * position;
        }
        self.events.push_back(ClientEvent::Left { reason, rest });
    }

    /// Begins the attempts that are due.
    fn race(&mut self, now: Instant) {
        if now < self.resting_until || self.config.servers.is_empty() {
            return;
        }
        let due: Vec<UplinkId> = self
            .uplinks
            .iter()
            .filter(|(_, uplink)| uplink.next_attempt <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.drop_oldest_attempt(now, id);
            let Some(uplink) = self.uplinks.get_mut(&id) else { continue };
            // Each uplink goes through all servers: it may reach those of one family only.
            let server = self.config.servers[uplink.attempts % self.config.servers.len()];
            uplink.attempts += 1;
            uplink.next_attempt = now + RACE_INTERVAL;
            match self.endpoint.connect(now, id, server) {
                Ok(connection) => {
                    self.attempts.insert(connection, Attempt { uplink: id, server });
                }
                Err(error) => tracing::warn!(%server, %error, "cannot begin to connect"),
            }
        }
    }

    fn drop_oldest_attempt(&mut self, now: Instant, uplink: UplinkId) {
        let mut on_uplink =
            self.attempts.iter().filter(|(_, attempt)| attempt.uplink == uplink).map(|(id, _)| *id);
        let oldest = on_uplink.next();
        if on_uplink.count() + 1 >= ATTEMPTS_PER_UPLINK
            && let Some(id) = oldest
        {
            self.attempts.remove(&id);
            self.close_connection(now, id, "no answer");
        }
    }

    /// Opens paths over uplinks that have none, and closes those of uplinks that are gone.
    fn reconcile_paths(&mut self, now: Instant) {
        let Some(current) = &self.current else { return };
        let Some(connection) = self.endpoint.connection_mut(current.id) else { return };
        let with_path: Vec<(PathId, Option<UplinkId>)> =
            connection.paths().iter().map(|path| (path.id, path.uplink)).collect();
        for (id, uplink) in &mut self.uplinks {
            let has_path = with_path.iter().any(|(_, on)| *on == Some(*id));
            if has_path || uplink.next_path > now {
                continue;
            }
            uplink.next_path = now + PATH_RETRY;
            if let Err(error) = connection.open_path(now, *id)
                && error != PathError::Exists
            {
                tracing::debug!(uplink = uplink.name, %error, "cannot open a path yet");
            }
        }
        for (path, uplink) in with_path {
            if uplink.is_some_and(|uplink| !self.uplinks.contains_key(&uplink)) {
                // The last path stays until another uplink has one.
                let _ = connection.close_path(now, path);
            }
        }
    }

    fn next_path_try(&self, id: ConnectionId) -> Option<Instant> {
        let connection = self.endpoint.connection(id)?;
        let has_path =
            |id: &UplinkId| connection.paths().iter().any(|path| path.uplink == Some(*id));
        self.uplinks
            .iter()
            .filter(|(id, _)| !has_path(id))
            .map(|(_, uplink)| uplink.next_path)
            .min()
    }

    fn joining_takes_too_long(&self, now: Instant) -> bool {
        self.current
            .as_ref()
            .is_some_and(|current| current.welcome.is_none() && now >= current.since + JOIN_TIMEOUT)
    }

    fn name_paths(&mut self, id: ConnectionId) {
        let paths: Vec<PathId> = self
            .endpoint
            .connection(id)
            .map(|connection| connection.paths().iter().map(|path| path.id).collect())
            .unwrap_or_default();
        paths.into_iter().for_each(|path| self.name_path(id, path));
    }

    /// Tells the server over which uplink a path runs, for its statistics.
    fn name_path(&mut self, id: ConnectionId, path: PathId) {
        let uplink = self.endpoint.connection(id).and_then(|connection| {
            connection.paths().iter().find(|known| known.id == path)?.uplink
        });
        if let Some(uplink) = uplink.and_then(|uplink| self.uplinks.get(&uplink)) {
            let uplink = uplink.name.clone();
            if let Some(current) = self.current.as_mut().filter(|current| current.id == id) {
                current.session.name_path(path, &uplink);
            }
            self.send_control(id, &Control::PathName { path, uplink });
        }
    }

    /// Counts what an uplink with a cap has carried.
    fn count(&mut self, uplink: UplinkId, bytes: u64) {
        if let Some(Uplink { name, .. }) = self.uplinks.get(&uplink)
            && is_capped(&self.policies, name)
        {
            self.usage.add(name, bytes);
        }
    }

    /// Gives the paths of the session the policies of their uplinks, and tells the server, where anything
    /// has changed.
    fn apply_policies(&mut self) {
        let Some(id) = self.current.as_ref().map(|current| current.id) else { return };
        if self.policies.is_empty() {
            return;
        }
        let Some(connection) = self.endpoint.connection(id) else { return };
        let wanted = |path: &PathSnapshot| {
            let name = &self.uplinks.get(&path.uplink?)?.name;
            let policy = self.policies.get(name)?.after(self.usage.of(name));
            (path.status != PathStatus::Validating).then_some((path.id, policy))
        };
        let wanted: BTreeMap<PathId, Policy> =
            connection.paths().iter().filter_map(wanted).collect();
        for (path, policy) in &wanted {
            let known = self.path_policies.get(path).copied().unwrap_or_default();
            if known == *policy {
                continue;
            }
            if let Some(connection) = self.endpoint.connection_mut(id) {
                connection.set_policy(*path, *policy);
            }
            self.send_control(id, &Control::PathPolicy { path: *path, policy: *policy });
        }
        self.path_policies = wanted;
    }

    fn send_control(&mut self, id: ConnectionId, message: &Control) {
        if let Some(connection) = self.endpoint.connection_mut(id)
            && let Err(error) = connection.send_message(message.to_bytes())
        {
            tracing::warn!(%error, "cannot send a control message");
        }
    }

    fn close_connection(&mut self, now: Instant, id: ConnectionId, reason: &str) {
        if let Some(connection) = self.endpoint.connection_mut(id) {
            connection.close(now, 0, reason);
        }
    }
}

fn is_capped(policies: &BTreeMap<String, UplinkPolicy>, name: &str) -> bool {
    policies.get(name).is_some_and(|policy| policy.monthly_cap_bytes.is_some())
}

/// What kind of end it was, and so how soon to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The server restarted or fell silent: at once.
    Silence,
    /// The server ended it: at once the first time, then ever later. Two boxes with one key would
    /// drive each other out without end.
    Setback,
    /// Asking again soon would get the same answer.
    Refusal,
}

fn after(reason: &CloseReason) -> After {
    match reason {
        CloseReason::Refused(_)
        | CloseReason::WrongServerKey { .. }
        | CloseReason::VersionMismatch => After::Refusal,
        CloseReason::ByPeer { .. } | CloseReason::Protocol(_) | CloseReason::Busy => After::Setback,
        _ => After::Silence,
    }
}

/// Why no client can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The transport settings cannot be used.
    #[error(transparent)]
    Transport(#[from] ConfigError),
    /// The lanes cannot be used.
    #[error(transparent)]
    Session(#[from] SessionError),
}
