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
    ConfigError, Connection, ConnectionId, Ecn, Endpoint, Epoch, Event, Identity, Local, Outbox,
    PublicKey, Source, TransportConfig,
};
use roadweave_recovery::Qoe;
use roadweave_schedule::Acknowledged;
use roadweave_types::{DropCounters, DropReason, Instant, PathId, PathSnapshot, Policy, UplinkId};
use roadweave_wire::{Control, Welcome};

use crate::lane::{LaneConfig, Strategy};
use crate::learned::{Learned, keep_learned};
use crate::observe::PacketEvent;
use crate::session::{Session, SessionError, SetError, find_lane};
use crate::status::{SessionStatus, path_reports};
use crate::uplink::{Month, UplinkPolicy, Usage, ip_bytes};

mod paths;
mod race;

use race::{After, Attempt, JOIN_TIMEOUT, RACE_STAGGER, REST_MIN, Spare, after};

/// The smallest MTU that IPv6 allows (RFC 8200 section 5).
const MTU_MIN: u16 = 1280;

/// What a client needs to know.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Its own name, for the server's logs.
    pub name: String,
    /// The server's addresses, tried in turn; empty until [`Client::set_servers`] or
    /// [`Client::set_servers_of`] if not known yet.
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
struct Current {
    id: ConnectionId,
    server: SocketAddr,
    session: Session,
    since: Instant,
    welcome: Option<Welcome>,
}

/// One client: an endpoint, its uplinks, and at most one session.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    endpoint: Endpoint,
    uplinks: BTreeMap<UplinkId, Uplink>,
    /// The server's addresses that count for one uplink only, where there are such.
    servers_of: BTreeMap<UplinkId, Vec<SocketAddr>>,
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
            servers_of: BTreeMap::new(),
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

    /// The server's addresses are others from now on, for all uplinks that [`Client::set_servers_of`] has
    /// told nothing of; a session that is up lives on.
    pub fn set_servers(&mut self, now: Instant, servers: Vec<SocketAddr>) {
        self.config.servers = servers;
        self.service(now);
    }

    /// From now on `servers` are the server's addresses for one uplink, and those of
    /// [`Client::set_servers`] count for the others only: a name that was looked up over an uplink says
    /// nothing of the others. With no address, all count for it again.
    ///
    /// The uplink need not be there yet; what is known of it is forgotten with it.
    pub fn set_servers_of(&mut self, now: Instant, uplink: UplinkId, servers: Vec<SocketAddr>) {
        if servers.is_empty() {
            self.servers_of.remove(&uplink);
        } else {
            self.servers_of.insert(uplink, servers);
        }
        self.service(now);
    }

    /// The server's addresses that are tried over `uplink`.
    pub fn servers_of(&self, uplink: UplinkId) -> &[SocketAddr] {
        self.servers_of.get(&uplink).unwrap_or(&self.config.servers)
    }

    /// Whether there is a session of which no path answers.
    pub fn is_silent(&self) -> bool {
        self.silent_since.is_some()
    }

    /// An uplink is gone; its path is closed, unless it is the last.
    pub fn remove_uplink(&mut self, now: Instant, id: UplinkId) {
        self.servers_of.remove(&id);
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
            None => self
                .uplinks
                .iter()
                .filter(|(id, _)| !self.servers_of(**id).is_empty())
                .map(|(_, uplink)| uplink.next_attempt.max(self.resting_until))
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
        let name =
            |path: &PathSnapshot| self.uplinks.get(&path.uplink?).map(|uplink| uplink.name.clone());
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
