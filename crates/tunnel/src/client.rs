//! The client: brings a session up over whatever uplinks there are, and keeps it up.
//!
//! ```text
//! racing ──── an attempt is welcomed ───► joined
//!   ▲  attempts on each pair of              │ a path per uplink
//!   │  uplink and server address,            │
//!   │  each with its own rests               ▼
//!   └──────────────── closed: reset, timeout; ended by the server: that address rests,
//!                     at once, then 1 s, doubling
//! ```
//!
//! The handshake is raced over all uplinks and all of the server's addresses, since any of them may
//! be dead, hostile or misconfigured. What is answered on one pair lets that pair rest, and no
//! other. A server that restarted resets the connection, and the race begins anew at once.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};
use roadweave_quic::{ConfigError, ConnectionId, Endpoint, Epoch, TransportConfig};
use roadweave_recovery::Qoe;
use roadweave_types::{DropCounters, Instant, PathId, PathSnapshot, Policy, UplinkId};
use roadweave_wire::Welcome;

use crate::lane::{LANES_MAX, LaneConfig, Strategy};
use crate::learned::{Learned, keep_learned};
use crate::node::Node;
use crate::observe::PacketEvent;
use crate::session::{Session, SessionError, SetError, changeable, find_lane};
use crate::status::{SessionStatus, path_reports};
use crate::uplink::{Month, UplinkPolicy, Usage};

mod binding;
mod events;
mod node;
mod notices;
mod outages;
mod pairs;
mod paths;
mod race;
mod report;
mod silence;

use binding::Bindings;
pub use notices::Notice;
use notices::NoticeLimiter;
use outages::Outages;
use pairs::{Pair, Pairs};
use race::{AcceptedConnection, Attempt, RACE_STAGGER};
pub use report::{PairReport, PairState, UplinkReport};
use silence::Flapping;

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
    /// The most bytes that the session may hold.
    pub memory_max: usize,
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
    /// The session came to an end; another follows by itself.
    Left {
        /// Why, for a person to read.
        reason: String,
        /// How long the client rests before it tries again.
        rest: Duration,
    },
    /// Something that a person should know.
    Notice(Notice),
}

#[derive(Debug)]
struct Uplink {
    name: String,
    /// Since when it is there.
    since: Instant,
    /// Whether anything has come in over it.
    heard: bool,
    next_attempt: Instant,
    next_path: Instant,
    /// How often a path was asked for that came to nothing.
    path_failures: usize,
    /// When a path that was asked for gives way to one to another address, unless it is usable by
    /// then.
    path_deadline: Instant,
}

#[derive(Debug)]
struct Current {
    id: ConnectionId,
    /// On which it began.
    pair: Pair,
    session: Session,
    since: Instant,
    welcome: Welcome,
    /// Whether it has fallen silent, so that its pair may have to rest for it.
    doubted: bool,
}

/// One client: an endpoint, its uplinks, and at most one session.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    endpoint: Endpoint,
    bindings: Bindings,
    uplinks: BTreeMap<UplinkId, Uplink>,
    /// The server's addresses that count for one uplink only, where there are such.
    servers_of: BTreeMap<UplinkId, Vec<SocketAddr>>,
    attempts: BTreeMap<ConnectionId, Attempt>,
    current: Option<Current>,
    /// Since when no path of the session answers.
    silent_since: Option<Instant>,
    /// Until when nobody waits for a session that does not answer: this end was paused.
    fast_failover_until: Instant,
    /// Since when the session falls silent again and again, if it does.
    flapping: Option<Flapping>,
    /// A connection that was welcomed beside a session that does not answer, to replace it.
    replacement: Option<AcceptedConnection>,
    pairs: Pairs,
    /// How long the client backs off after the next session that the server ends.
    backoff: Duration,
    events: VecDeque<ClientEvent>,
    notice_limiter: NoticeLimiter,
    outages: Outages,
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
    /// Connected networks behind this end.
    local_networks: Vec<IpNet>,
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
        let bindings = Bindings::new(identity.clone());
        let endpoint = Endpoint::client(epoch, &config.transport, identity)?;
        let lanes = config.lanes.len();
        if !(1..=LANES_MAX).contains(&lanes) {
            return Err(SessionError::Lanes(lanes).into());
        }
        let mut client = Self {
            pairs: Pairs::new(0),
            config,
            endpoint,
            bindings,
            uplinks: BTreeMap::new(),
            servers_of: BTreeMap::new(),
            attempts: BTreeMap::new(),
            current: None,
            silent_since: None,
            flapping: None,
            fast_failover_until: Instant::ZERO,
            replacement: None,
            backoff: Duration::ZERO,
            events: VecDeque::new(),
            notice_limiter: NoticeLimiter::default(),
            outages: Outages::default(),
            drops: DropCounters::default(),
            observes: false,
            learned: Learned::new(),
            policies: BTreeMap::new(),
            usage: Usage::default(),
            path_policies: BTreeMap::new(),
            local_networks: Vec::new(),
        };
        client.pairs = Pairs::new(client.seed());
        Ok(client)
    }

    /// What all that is random here grows out of.
    fn seed(&self) -> u64 {
        self.config.transport.rng_seed.first_chunk().map_or(0, |c| u64::from_le_bytes(*c))
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
            since: now,
            heard: false,
            next_attempt: now + stagger,
            next_path: now,
            path_failures: 0,
            path_deadline: now,
        };
        self.uplinks.insert(id, uplink);
        self.pairs.reset_backoff(now, Some(id));
        self.outages.forget(id);
        self.on_lanes_or_uplinks(now);
        self.handle_timeout(now);
    }

    /// The server's addresses are others from now on, for all uplinks that
    /// [`Client::set_servers_of`] has told nothing of; a session that is up lives on.
    pub fn set_servers(&mut self, now: Instant, servers: Vec<SocketAddr>) {
        self.config.servers = servers;
        self.forget_pairs();
        self.handle_timeout(now);
    }

    /// From now on `servers` are the server's addresses for one uplink, and those of
    /// [`Client::set_servers`] count for the others only: a name that was looked up over an uplink
    /// says nothing of the others. With no address, all count for it again.
    ///
    /// The uplink need not be there yet; what is known of it is forgotten with it.
    pub fn set_servers_of(&mut self, now: Instant, uplink: UplinkId, servers: Vec<SocketAddr>) {
        if servers.is_empty() {
            self.servers_of.remove(&uplink);
        } else {
            self.servers_of.insert(uplink, servers);
        }
        if let Some(uplink) = self.uplinks.get_mut(&uplink) {
            (uplink.path_failures, uplink.path_deadline) = (0, now);
        }
        self.forget_pairs();
        self.handle_timeout(now);
    }

    /// The server's addresses that are tried over `uplink`.
    pub fn servers_of(&self, uplink: UplinkId) -> &[SocketAddr] {
        self.servers_of.get(&uplink).unwrap_or(&self.config.servers)
    }

    /// Whether there is a session of which no path answers.
    pub fn is_silent(&self) -> bool {
        self.silent_since.is_some()
    }

    /// Forgets what is known of pairs that are none any more.
    fn forget_pairs(&mut self) {
        let (uplinks, servers_of) = (&self.uplinks, &self.servers_of);
        let all = &self.config.servers;
        self.pairs.retain(|(uplink, server)| {
            let servers = servers_of.get(&uplink).unwrap_or(all);
            uplinks.contains_key(&uplink) && servers.contains(&server)
        });
    }

    /// An uplink is gone; its path is closed, unless it is the last.
    pub fn remove_uplink(&mut self, now: Instant, id: UplinkId) {
        self.servers_of.remove(&id);
        self.uplinks.remove(&id);
        self.drop_attempts(now, "its uplink is gone", |attempt| attempt.pair.0 == id);
        if let Some(replacement) = self.replacement.take_if(|replacement| replacement.pair.0 == id)
        {
            self.close_connection(now, replacement.id, "its uplink is gone");
        }
        self.outages.forget(id);
        self.forget_pairs();
        self.on_lanes_or_uplinks(now);
        self.handle_timeout(now);
    }

    /// Lets the lanes of the uplink direction be others, in this session and those to come, as far
    /// as that can be while it lives. Returns what cannot, for a person to read. Lanes that name
    /// uplinks that are not there wait for them.
    ///
    /// # Errors
    /// When a strategy cannot be used; nothing is changed then.
    pub fn set_lanes(
        &mut self,
        now: Instant,
        lanes: Vec<LaneConfig>,
    ) -> Result<Vec<String>, SetError> {
        let (lanes, kept) = changeable(&self.config.lanes, lanes);
        for lane in &lanes {
            lane.strategy.scheduler(lane.deadline, true)?;
        }
        if let Some(current) = &mut self.current {
            current.session.set_lanes(now, &lanes, true)?;
        }
        self.config.lanes = lanes;
        self.on_lanes_or_uplinks(now);
        self.handle_timeout(now);
        Ok(kept)
    }

    /// Lets a lane of the uplink direction follow another strategy, in this session and those to
    /// come. If it names an uplink that is not there, the lane waits for it;
    /// [`Client::waiting_lanes`] tells.
    ///
    /// # Errors
    /// When there is no such lane; nothing is changed then.
    pub fn set_strategy(
        &mut self,
        now: Instant,
        lane: &str,
        strategy: Strategy,
    ) -> Result<(), SetError> {
        let position = find_lane(&self.config.lanes, lane)?;
        if let Some(current) = &mut self.current {
            current.session.set_strategy(lane, &strategy, true)?;
        }
        self.config.lanes[position].strategy = strategy;
        self.on_lanes_or_uplinks(now);
        self.handle_timeout(now);
        Ok(())
    }

    /// Tells what the application behind a lane of the uplink direction has in its buffer. Without
    /// a session nobody asks.
    ///
    /// # Errors
    /// When there is no such lane.
    pub fn set_qoe(&mut self, now: Instant, lane: &str, qoe: Qoe) -> Result<(), SetError> {
        find_lane(&self.config.lanes, lane)?;
        self.current.as_mut().map_or(Ok(()), |current| current.session.set_qoe(now, lane, qoe))
    }

    /// The connected networks behind this end are these from now on: nothing from the tunnel may
    /// claim to come from there.
    pub fn set_local_networks(&mut self, networks: impl Iterator<Item = IpNet> + Clone) {
        if !networks.clone().eq(self.local_networks.iter().copied()) {
            self.local_networks = networks.collect();
            self.refuse_local_sources();
        }
    }

    /// Keeps the server from speaking as this end, or as what lies behind it.
    fn refuse_local_sources(&mut self) {
        if let Some(Current { session, welcome, .. }) = &mut self.current {
            let local = self.local_networks.iter();
            session.refuse_sources(local.chain(&welcome.addresses).copied().collect());
        }
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

    /// Says goodbye to the server; [`flush`](crate::flush) it afterwards.
    pub fn close(&mut self, now: Instant) {
        self.endpoint.close(now, "the client stops");
    }

    /// The session, once the server has welcomed this client.
    pub fn status(&self) -> Option<SessionStatus> {
        let current = self.current.as_ref()?;
        let connection = self.endpoint.connection(current.id)?;
        let name =
            |path: &PathSnapshot| self.uplinks.get(&path.uplink?).map(|uplink| uplink.name.clone());
        let mut stats = current.session.stats();
        stats.drops.merge(&self.drops);
        Some(SessionStatus {
            peer: current.pair.1.to_string(),
            public_key: self.config.server_key.to_string(),
            addresses: current.welcome.addresses.iter().map(ToString::to_string).collect(),
            paths: self.with_usage(path_reports(connection, name)),
            stats,
        })
    }

    /// What was discarded while there was no session, by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
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
