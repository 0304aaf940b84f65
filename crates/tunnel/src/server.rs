//! The server: the sessions of many clients behind one endpoint.
//!
//! ```text
//! uplinks of all clients ─► endpoint ─► session by connection ─► TUN   (source address checked)
//! TUN ─► destination address ─► peer ─► session ─► paths of that client
//! ```
//!
//! A client may say hello on several connections, and is welcomed on each: it cannot know which of
//! them its networks let through. The one that it then uses becomes its session and replaces the
//! one before. Source: CellFusion section 6.2, with addresses that belong to keys and not to
//! connections.

mod accounts;
mod budget;
mod inbox;
mod node;
mod rate;
mod refusals;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use roadweave_quic::{
    ConfigError, Connection, ConnectionId, Endpoint, EndpointEvent, EndpointStats, Epoch, Event,
    Identity, PeerPolicy as _, PublicKey, Refusal, TransportConfig,
};
use roadweave_schedule::Acknowledged;
use roadweave_types::{DropCounters, DropReason, Instant, PathId};
use roadweave_wire::{Control, Welcome};

use self::accounts::Accounts;
use self::budget::{Budget, Ceilings};
use self::inbox::Inbox;
use self::rate::Limit;
use self::refusals::Refusals;
use self::waiting::Waiting;
use crate::lane::{LaneConfig, Strategy};
use crate::learned::{Learned, keep_learned};
use crate::observe::PacketEvent;
use crate::peers::{Peer, PeerTable, Peers, PeersChange};
use crate::session::{Session, SessionConfig, SetError, find_lane};
use crate::status::{SessionStatus, path_reports};

/// Clients whose change is looked at in one turn: packets must not wait for thousands.
const CHANGED_AT_ONCE: usize = 32;
/// The code with which a connection is closed that its client has not used.
pub(crate) const UNUSED: u32 = 2;
/// Paths whose uplink's name is remembered per session.
const NAMED_PATHS_MAX: usize = 64;

/// What a server needs to know.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The transport.
    pub transport: TransportConfig,
    /// The lanes of the downlink direction.
    pub lanes: Vec<LaneConfig>,
    /// The server's own inner addresses.
    pub gateways: Vec<IpAddr>,
    /// The MTU of the TUN devices, bytes.
    pub mtu: u16,
    /// Whether clients may reach one another.
    pub clients_reach_clients: bool,
    /// The most bytes that all sessions may hold together.
    pub memory_max: usize,
    /// The most bytes that one session may hold.
    pub client_memory_max: usize,
}

/// What the driver of a server must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A client's session is up.
    Joined {
        /// The client's name in the configuration.
        peer: String,
        /// The client's key.
        key: PublicKey,
    },
    /// A client's session is over.
    Left {
        /// The client's name in the configuration.
        peer: String,
        /// The client's key.
        key: PublicKey,
        /// Why, for a person to read.
        reason: String,
    },
    /// Someone was not let in.
    Refused {
        /// Who and why, for a person to read.
        reason: String,
    },
}

#[derive(Debug)]
struct Joined {
    key: PublicKey,
    peer: Arc<Peer>,
    session: Session,
    path_names: BTreeMap<PathId, String>,
    /// For what goes to the client and for what comes from it.
    limits: Option<[Limit; 2]>,
}

/// One server: an endpoint and the sessions of its clients.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    endpoint: Endpoint,
    peers: Arc<PeerTable>,
    /// Clients that have changed, and whose sessions have not been looked at since.
    changed: BTreeSet<PublicKey>,
    waiting: Waiting,
    /// Those that wait whose client was welcomed, and has not used them yet.
    welcomed: BTreeSet<ConnectionId>,
    sessions: BTreeMap<ConnectionId, Joined>,
    /// Never iterated.
    by_key: HashMap<PublicKey, ConnectionId>,
    /// Sessions to turn, because something was handled.
    touched: BTreeSet<ConnectionId>,
    budget: Budget,
    timers: BTreeSet<(Instant, ConnectionId)>,
    timer_of: BTreeMap<ConnectionId, Instant>,
    refusals: Refusals,
    /// Those that the endpoint has let knock in vain and that are counted already.
    crowded_out: u64,
    accounts: Accounts,
    inbox: Inbox,
    events: VecDeque<ServerEvent>,
    drops: DropCounters,
    /// Whether sessions note what happens to each packet.
    observes: bool,
    /// What the strategies of sessions have learned, some time ago or until their end.
    learned: Learned,
    /// The session that was asked last what it has learned.
    asked: Option<ConnectionId>,
}

impl Server {
    /// A server without sessions.
    ///
    /// # Errors
    /// When the transport settings cannot be used.
    pub fn new(
        epoch: Epoch,
        config: ServerConfig,
        identity: Arc<Identity>,
        peers: Arc<PeerTable>,
    ) -> Result<Self, ConfigError> {
        let mut transport = config.transport.clone();
        let ceilings = Ceilings::of(config.memory_max, transport.half_open_max);
        transport.half_open_max = ceilings.half_open;
        let endpoint = Endpoint::server(epoch, &transport, identity, peers.clone())?;
        Ok(Self {
            budget: Budget::new(config.memory_max),
            config,
            endpoint,
            peers,
            changed: BTreeSet::new(),
            waiting: Waiting::new(ceilings.waiting),
            welcomed: BTreeSet::new(),
            sessions: BTreeMap::new(),
            by_key: HashMap::new(),
            touched: BTreeSet::new(),
            timers: BTreeSet::new(),
            timer_of: BTreeMap::new(),
            refusals: Refusals::default(),
            crowded_out: 0,
            accounts: Accounts::default(),
            inbox: Inbox::default(),
            events: VecDeque::new(),
            drops: DropCounters::default(),
            observes: false,
            learned: Learned::new(),
            asked: None,
        })
    }

    /// Lets a lane of the downlink direction follow another strategy, in all sessions and those to
    /// come.
    ///
    /// # Errors
    /// When there is no such lane, or the strategy names an uplink, which a server does not know;
    /// nothing is changed then.
    pub fn set_strategy(&mut self, lane: &str, strategy: Strategy) -> Result<(), SetError> {
        let position = find_lane(&self.config.lanes, lane)?;
        strategy.scheduler(self.config.lanes[position].deadline, false)?;
        for (id, joined) in &mut self.sessions {
            joined.session.set_strategy(lane, &strategy, false)?;
            self.touched.insert(*id);
        }
        self.config.lanes[position].strategy = strategy;
        Ok(())
    }

    /// Takes up what [`Server::learned`] gave in an earlier life, for the sessions to come.
    pub fn restore(&mut self, learned: Learned) {
        self.learned = learned;
    }

    /// What the strategies have learned of the clients' networks, as far as they were asked.
    pub fn learned(&self) -> &Learned {
        &self.learned
    }

    /// Asks the next session what it has learned: one at a time, since there may be thousands.
    pub fn ask_learned(&mut self) {
        let after = self.asked.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.sessions.range((after, Bound::Unbounded)).next();
        self.asked = next.map(|(id, _)| *id);
        if let Some((_, joined)) = next {
            keep_learned(&mut self.learned, &joined.key, &joined.session);
        }
    }

    /// Asks all sessions what they have learned, before the end.
    pub fn ask_all_learned(&mut self) {
        for joined in self.sessions.values() {
            keep_learned(&mut self.learned, &joined.key, &joined.session);
        }
    }

    /// What an encoder should make of its next frame, bytes, by the lane's name, by the client's
    /// name: for lanes whose strategy knows.
    pub fn frame_targets(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        let targets = |joined: &Joined| (joined.peer.name.clone(), joined.session.frame_targets());
        self.sessions.values().map(targets).collect()
    }

    /// Begins to note what happens to each packet, in these sessions and those to come, or stops.
    pub fn observe_packets(&mut self, is_on: bool) {
        self.observes = is_on;
        self.sessions.values_mut().for_each(|joined| joined.session.observe_packets(is_on));
    }

    /// Something that happened to a packet of a client, if [`Server::observe_packets`] asked for
    /// it.
    pub fn poll_packet_event(&mut self) -> Option<(PublicKey, PacketEvent)> {
        let event = |joined: &mut Joined| Some((joined.key, joined.session.poll_packet_event()?));
        self.sessions.values_mut().find_map(event)
    }

    /// What the driver must know.
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        self.events.pop_front()
    }

    /// Says goodbye to all clients; [`flush`](crate::flush) it afterwards.
    pub fn close(&mut self, now: Instant) {
        self.endpoint.close(now, "the server stops");
    }

    /// All sessions, by the time they came.
    pub fn status(&self) -> Vec<SessionStatus> {
        let status = |(id, joined): (&ConnectionId, &Joined)| {
            let connection = self.endpoint.connection(*id)?;
            let name =
                |path: &roadweave_types::PathSnapshot| joined.path_names.get(&path.id).cloned();
            Some(SessionStatus {
                peer: joined.peer.name.clone(),
                public_key: joined.key.to_string(),
                addresses: joined.peer.addresses.iter().map(ToString::to_string).collect(),
                paths: path_reports(connection, name),
                stats: joined.session.stats(),
            })
        };
        self.sessions.iter().filter_map(status).collect()
    }

    /// What was discarded outside of any session, by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// Who was not let in, by kind: those that had to prove their address first, and those whose
    /// place went to another, among them. They may have come back.
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = self.refusals.counts();
        let EndpointStats { retries, evicted, .. } = self.endpoint.stats();
        let endpoint = [("asked-to-retry", retries), ("gave-way", evicted)];
        counts.extend(endpoint.into_iter().filter(|(_, count)| *count > 0));
        counts
    }

    /// How many connections there are: sessions, those that wait, handshakes, and those that are
    /// over and not forgotten yet.
    pub fn connections(&self) -> usize {
        self.endpoint.connection_ids().len()
    }

    /// Puts other clients in the place of those that may connect, and returns the former ones, for
    /// somebody to drop who has the time.
    ///
    /// Sessions of clients that are gone, or have other addresses, end with the next calls of
    /// [`Node::handle_timeout`](crate::Node::handle_timeout), some at a time; what else has changed holds for them.
    pub fn replace_peers(&mut self, change: PeersChange) -> Arc<Peers> {
        let PeersChange { peers, changed } = change;
        for key in changed.iter().filter(|key| peers.get(key).is_none()) {
            self.learned.remove(&key.to_string());
            self.accounts.forget(key);
        }
        self.changed.extend(changed);
        self.peers.replace(peers)
    }

    /// Brings some of the sessions into line whose clients have changed.
    fn settle_changed(&mut self, now: Instant) {
        for _ in 0..CHANGED_AT_ONCE {
            let Some(key) = self.changed.pop_first() else { return };
            let Some(id) = self.by_key.get(&key).copied() else { continue };
            let peer = self.let_in(&key);
            let Some(joined) = self.sessions.get_mut(&id) else { continue };
            match peer {
                Ok(peer) if peer.addresses == joined.peer.addresses => {
                    if peer.rate_limit != joined.peer.rate_limit {
                        joined.limits = peer.rate_limit.map(|rate| [Limit::new(rate); 2]);
                    }
                    joined.peer = peer;
                }
                Err(why @ Refusal::Expired) => self.end(now, id, &why.to_string()),
                _ => {
                    let reason = "the server's configuration of this client has changed";
                    self.end(now, id, reason);
                }
            }
        }
    }

    /// Bytes that all sessions hold and that wait for the device, with an allowance for each
    /// connection.
    pub fn memory(&self) -> u64 {
        self.budget.total()
    }

    /// Lets the sessions of clients end whose keys have expired, with the next calls of
    /// [`Node::handle_timeout`](crate::Node::handle_timeout), some at a time. Call it after the table of peers was told the time of
    /// day.
    pub fn on_time_of_day(&mut self) {
        let keys = self.sessions.values().map(|joined| joined.key);
        let expired = keys.filter(|key| self.peers.check(key) == Err(Refusal::Expired));
        self.changed.extend(expired);
    }

    /// The client with `key`, if it may connect.
    fn let_in(&self, key: &PublicKey) -> Result<Arc<Peer>, Refusal> {
        self.peers.check(key)?;
        self.peers.get(key).ok_or(Refusal::Unknown)
    }

    fn pump_endpoint(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                EndpointEvent::Incoming(id) => {
                    // Its hello may have come in the same packet.
                    if !self.sessions.contains_key(&id) && !self.waiting.contains(id) {
                        self.wait_for_use(now, id);
                    }
                    self.pump(now, id);
                }
                EndpointEvent::Refused { remote, key, why } => {
                    let what = format!(" with the key {key}: {why}");
                    self.tell_refusal(now, refusals::kind_of_refusal(why), what, remote);
                }
                EndpointEvent::HandshakeFailed { remote, reason } => {
                    let kind = refusals::kind_of_failure(&reason);
                    self.tell_refusal(now, kind, format!(": {reason}"), remote);
                }
                _ => {}
            }
        }
    }

    fn wait_for_use(&mut self, now: Instant, id: ConnectionId) {
        let Some(key) = self.endpoint.connection(id).and_then(Connection::peer) else { return };
        if let Some(oldest) = self.waiting.add(now, id, key) {
            self.refusals.count_silently(refusals::UNUSED);
            self.end(now, oldest, "too many connections without a session");
        }
    }

    /// Counts a refusal, and tells it unless there are many.
    fn tell_refusal(&mut self, now: Instant, kind: &'static str, what: String, remote: SocketAddr) {
        if let Some(reason) = self.refusals.count(now, kind, what, remote) {
            self.events.push_back(ServerEvent::Refused { reason });
        }
    }

    /// Handles what a connection has to tell.
    fn pump(&mut self, now: Instant, id: ConnectionId) {
        while let Some(event) = self.endpoint.connection_mut(id).and_then(Connection::poll_event) {
            match event {
                Event::Message(message) => self.on_message(now, id, message),
                Event::Closed(reason) => self.forget(id, &reason.to_string()),
                other => self.on_session_event(now, id, other),
            }
        }
        if self.sessions.contains_key(&id) {
            self.touched.insert(id);
            self.take_inner(now, id);
        }
    }

    fn on_session_event(&mut self, now: Instant, id: ConnectionId, event: Event) {
        if matches!(event, Event::Received { .. }) {
            self.join_if_welcomed(now, id);
        }
        let Some(joined) = self.sessions.get_mut(&id) else { return };
        match event {
            Event::Received { datagram, .. } => joined.session.handle_datagram(now, datagram),
            Event::Acknowledged { path, token, sent, bytes, rtt } => {
                let acknowledged = Acknowledged { path, sent, bytes, rtt };
                joined.session.on_acknowledged(now, token, &acknowledged);
            }
            Event::Lost { path, token } => joined.session.on_lost(now, path, token),
            Event::PathClosed(path, _) => _ = joined.path_names.remove(&path),
            _ => {}
        }
    }

    fn on_message(&mut self, now: Instant, id: ConnectionId, message: Bytes) {
        let message = Control::parse(message);
        if !matches!(message, Ok(Control::Hello(_))) {
            self.join_if_welcomed(now, id);
        }
        match message {
            Ok(Control::Hello(_)) => self.welcome(now, id),
            Ok(Control::PathName { path, uplink }) => {
                if let Some(joined) = self.sessions.get_mut(&id)
                    && joined.path_names.len() < NAMED_PATHS_MAX
                {
                    joined.session.name_path(path, &uplink);
                    joined.path_names.insert(path, uplink);
                }
            }
            Ok(Control::PathPolicy { path, policy }) => {
                if self.sessions.contains_key(&id)
                    && let Some(connection) = self.endpoint.connection_mut(id)
                {
                    connection.set_policy(path, policy);
                }
            }
            Ok(Control::LanePromise { lane, promise }) => {
                if let Some(joined) = self.sessions.get_mut(&id) {
                    joined.session.on_lane_promise(now, lane, promise);
                }
            }
            Ok(_) => self.drops.count(DropReason::UnknownMessage),
            Err(_) => self.drops.count(DropReason::MalformedMessage),
        }
    }

    /// Answers a hello. The session begins when the client uses the connection.
    fn welcome(&mut self, now: Instant, id: ConnectionId) {
        if self.sessions.contains_key(&id) || !self.welcomed.insert(id) {
            return;
        }
        self.wait_for_use(now, id);
        let Some(key) = self.endpoint.connection(id).and_then(Connection::peer) else { return };
        // The table may have changed since the handshake.
        let Ok(peer) = self.let_in(&key) else {
            return self.end(now, id, "this client is not let in any more");
        };
        let welcome = Control::Welcome(Welcome {
            addresses: peer.addresses.clone(),
            gateways: self.config.gateways.clone(),
            mtu: self.config.mtu,
        });
        if let Some(connection) = self.endpoint.connection_mut(id)
            && let Err(error) = connection.send_message(welcome.to_bytes())
        {
            tracing::warn!(%error, peer = peer.name, "cannot welcome");
        }
    }

    /// Of the connections on which a client was welcomed, it uses this one.
    fn join_if_welcomed(&mut self, now: Instant, id: ConnectionId) {
        if self.welcomed.remove(&id) {
            self.join(now, id);
        }
    }

    fn join(&mut self, now: Instant, id: ConnectionId) {
        self.waiting.remove(id);
        let Some(connection) = self.endpoint.connection(id) else { return };
        let (key, remote) = (connection.peer(), connection.remote_address(PathId(0)));
        let Some(key) = key else { return };
        // The table may have changed since the welcome.
        let Ok(peer) = self.let_in(&key) else {
            return self.end(now, id, "this client is not let in any more");
        };
        if !self.accounts.may_join(now, key) {
            if let Some(remote) = remote {
                let what = format!(" with the key {key}: it begins too many sessions");
                self.tell_refusal(now, refusals::TOO_MANY_SESSIONS, what, remote);
            }
            return self.end(now, id, "this client begins too many sessions");
        }
        let seed =
            self.config.transport.rng_seed.first_chunk().map_or(0, |c| u64::from_le_bytes(*c));
        let config = SessionConfig {
            lanes: self.config.lanes.clone(),
            peer_sources: Some(peer.addresses.clone()),
            memory_max: self.config.client_memory_max,
            seed: seed ^ id.0,
        };
        let mut session = match Session::new(config, false) {
            Ok(session) => session,
            Err(error) => {
                let refuse = Control::Refuse { reason: error.to_string() };
                if let Some(connection) = self.endpoint.connection_mut(id) {
                    let _ = connection.send_message(refuse.to_bytes());
                }
                // Closed with the next round of those that never say hello, after the refusal has
                // left.
                self.wait_for_use(now, id);
                return;
            }
        };
        session.observe_packets(self.observes);
        if let Some(learned) = self.learned.get(&key.to_string()) {
            session.restore(learned);
        }
        if let Some(old) = self.by_key.insert(key, id) {
            self.end(now, old, "a newer session of the same client replaces it");
        }
        self.by_key.insert(key, id);
        self.events.push_back(ServerEvent::Joined { peer: peer.name.clone(), key });
        let limits = peer.rate_limit.map(|rate| self.accounts.take_limits(&key, rate));
        let path_names = BTreeMap::new();
        let joined = Joined { key, peer, session, path_names, limits };
        self.sessions.insert(id, joined);
        self.touched.insert(id);
    }

    /// Closes a session from this side.
    fn end(&mut self, now: Instant, id: ConnectionId, reason: &str) {
        self.end_with(now, id, 0, reason);
    }

    fn end_with(&mut self, now: Instant, id: ConnectionId, code: u32, reason: &str) {
        if let Some(connection) = self.endpoint.connection_mut(id) {
            connection.close(now, code, reason);
        }
        self.forget(id, reason);
    }

    fn forget(&mut self, id: ConnectionId, reason: &str) {
        self.waiting.remove(id);
        self.welcomed.remove(&id);
        self.budget.remove(id);
        self.touched.remove(&id);
        self.set_timer(id, None);
        let Some(joined) = self.sessions.remove(&id) else { return };
        if self.peers.get(&joined.key).is_some() {
            keep_learned(&mut self.learned, &joined.key, &joined.session);
            self.accounts.keep_limits(joined.key, joined.limits);
        }
        if self.by_key.get(&joined.key) == Some(&id) {
            self.by_key.remove(&joined.key);
        }
        self.events.push_back(ServerEvent::Left {
            peer: joined.peer.name.clone(),
            key: joined.key,
            reason: reason.to_owned(),
        });
    }

    fn close_silent(&mut self, now: Instant) {
        for id in self.waiting.silent(now) {
            self.refusals.count_silently(refusals::UNUSED);
            self.end_with(now, id, UNUSED, "the connection was not used");
        }
    }

    /// Lets those that hold most let go of some of it while all together hold too much.
    fn keep_to_budget(&mut self, now: Instant) {
        let connections = self.endpoint.connection_count().saturating_sub(self.sessions.len());
        self.budget.set_others(connections, self.inbox.bytes);
        let mut asked = None;
        while let Some((id, bytes)) = self.budget.excess(asked) {
            let held = self.budget.of(id);
            if let Some(joined) = self.sessions.get_mut(&id) {
                joined.session.shrink_to(now, bytes);
                self.budget.set(id, joined.session.memory().total());
                self.take_inner(now, id);
            }
            // What it has not let go of then it cannot: the next one is asked.
            asked = Some((held, id));
        }
    }

    fn turn_session(&mut self, now: Instant, id: ConnectionId) {
        let Some(joined) = self.sessions.get_mut(&id) else { return };
        let Some(connection) = self.endpoint.connection_mut(id) else { return };
        joined.session.handle_timeout(now, connection);
        connection.flush(now);
        let next = joined.session.poll_timeout();
        self.budget.set(id, joined.session.memory().total());
        self.set_timer(id, next);
        // Packets that have waited long enough for others.
        self.take_inner(now, id);
    }

    /// Puts out what a session has for the device: at once, since what comes in order waits for
    /// nothing.
    fn take_inner(&mut self, now: Instant, id: ConnectionId) {
        while let Some(joined) = self.sessions.get_mut(&id)
            && let Some((destination, packet)) = joined.session.poll_routed_inner()
        {
            if joined.allows(now, Way::Up, packet.len()) {
                self.deliver(destination, packet);
            }
        }
    }

    /// Puts a client's packet out for the device, unless it goes to a client that it may not reach.
    fn deliver(&mut self, destination: IpAddr, packet: Bytes) {
        if !self.config.clients_reach_clients && self.peers.route(destination).is_some() {
            self.drops.count(DropReason::NoRoute);
        } else if !self.inbox.push(packet) {
            self.drops.count(DropReason::DeviceFull);
        }
    }

    fn set_timer(&mut self, id: ConnectionId, at: Option<Instant>) {
        if let Some(old) = self.timer_of.remove(&id) {
            self.timers.remove(&(old, id));
        }
        if let Some(at) = at {
            self.timers.insert((at, id));
            self.timer_of.insert(id, at);
        }
    }
}

/// The way of an inner packet, by its place in [`Joined::limits`].
#[derive(Clone, Copy)]
enum Way {
    Down,
    Up,
}

impl Joined {
    /// Whether a packet of `bytes` bytes is within the client's rate; what is not is counted.
    fn allows(&mut self, now: Instant, way: Way, bytes: usize) -> bool {
        let limit = self.limits.as_mut().map(|limits| &mut limits[way as usize]);
        let passes = limit.is_none_or(|limit| limit.allows(now, bytes));
        if !passes {
            self.session.count_drop(DropReason::RateLimited);
        }
        passes
    }
}
