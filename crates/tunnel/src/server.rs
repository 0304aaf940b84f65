//! The server: the sessions of many clients behind one endpoint.
//!
//! ```text
//! uplinks of all clients ─► endpoint ─► session by connection ─► TUN   (source address checked)
//! TUN ─► destination address ─► peer ─► session ─► paths of that client
//! ```
//!
//! A client may say hello on several connections, and is welcomed on each, since it cannot know
//! which of them its networks let through. The one that it uses becomes its session and replaces
//! the former one. Source: CellFusion section 6.2, with addresses by key, not by connection.

mod accounts;
mod budget;
mod clients;
mod connections;
mod drain;
mod figures;
mod forwards;
mod misrouted;
mod node;
mod passing;
pub(crate) mod refusals;
mod sessions;
mod shards;
mod shared_state;
mod speedtest;
mod standbys;
mod streams;
mod test_book;
mod totals;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::{Deadlines, DropCounters, DropReason, Instant, PathId};
use roadweave_quic::{ConfigError, ConnectionId, Endpoint, EndpointStats, Epoch, TransportConfig};

use self::budget::{Budget, Ceilings};
use self::drain::Drain;
pub use self::figures::SessionFigures;
pub use self::forwards::Forwarded;
pub use self::misrouted::{MisroutedPacket, MisroutedQueue};
use self::shards::Misrouting;
pub use self::shared_state::SharedState;
use self::standbys::Standbys;
use self::streams::ServerStreams;
pub use self::test_book::SpeedtestLimits;
use self::waiting::Waiting;
use crate::lane::{EncoderTarget, LaneConfig, Strategy, default_lanes};
use crate::learned::{Learned, keep_learned};
use crate::observe::PacketEvent;
use crate::peers::{Peer, PeerTable};
use crate::proxy::{Legs, ProxyConfig, ProxyStatus};
use crate::queue::BoundedQueue;
use crate::rate::{Direction, Limit};
use crate::session::{MEMORY_MAX, Session, SetError, find_lane};
use crate::status::{SessionStatus, path_reports};
use crate::streams::StreamsConfig;

pub use self::drain::{DRAIN_MAX, DrainReason};
pub use self::totals::{RoundTrips, Tally, Totals};

/// At most 16 MiB: a batch of input, and what it released.
pub(crate) type Inbox = BoundedQueue<Bytes, { 16 << 20 }, 64>;

/// The code that closes a connection which its client has not used.
pub(crate) const UNUSED: u32 = 2;
/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The transport.
    pub transport: TransportConfig,
    /// The lanes of the downlink direction.
    pub lanes: Vec<LaneConfig>,
    /// The server's own inner addresses, with the length of the network behind each.
    pub gateways: Vec<IpNet>,
    /// The MTU of the TUN devices, bytes.
    pub mtu: u16,
    /// Streams, if the server takes them. A proxy relays those between its clients and their
    /// anchors, and uses only the lane.
    pub streams: Option<StreamsConfig>,
    /// Limits of speed tests, if they are allowed.
    pub speedtest: Option<SpeedtestLimits>,
    /// Whether clients may reach one another.
    pub clients_reach_clients: bool,
    /// The most bytes that all sessions may hold together.
    pub memory_max: usize,
    /// The most bytes that one session may hold.
    pub client_memory_max: usize,
}

impl ServerConfig {
    /// A server with these inner addresses and the lanes of [`default_lanes`]. Its clients cannot
    /// reach one another, its sessions share [`MEMORY_MAX`], its MTU suits links of 1,500 bytes.
    pub fn new(transport: TransportConfig, gateways: Vec<IpNet>) -> Self {
        Self {
            transport,
            lanes: default_lanes(),
            gateways,
            mtu: 1_360,
            streams: None,
            speedtest: None,
            clients_reach_clients: false,
            memory_max: MEMORY_MAX,
            client_memory_max: MEMORY_MAX,
        }
    }
}

/// An event for the driver of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A client's session began.
    Joined {
        /// The client's name in the configuration.
        peer: String,
        /// The client's key.
        key: PublicKey,
    },
    /// A client's session ended.
    Left {
        /// The client's name in the configuration.
        peer: String,
        /// The client's key.
        key: PublicKey,
        /// The reason, as text.
        reason: String,
    },
    /// The leg of a proxy to an anchor came up again, or went down.
    Leg {
        /// The leg and its state, as text.
        text: String,
    },
    /// A client was not let in.
    Refused {
        /// The client and the reason, as text.
        reason: String,
    },
}

#[derive(Debug)]
struct Joined {
    key: PublicKey,
    peer: Arc<Peer>,
    session: Session,
    path_names: BTreeMap<PathId, String>,
    limits: Option<[Limit; 2]>,
    is_testing: bool,
}

/// The sessions, which of them have something new, and when each is due.
#[derive(Debug, Default)]
struct Sessions {
    all: BTreeMap<ConnectionId, Joined>,
    by_key: HashMap<PublicKey, ConnectionId>,
    touched: BTreeSet<ConnectionId>,
    timers: Deadlines<ConnectionId>,
    /// The last one whose strategies were asked for what they have learned.
    asked: Option<ConnectionId>,
}

impl Sessions {
    fn insert(&mut self, id: ConnectionId, joined: Joined) {
        self.all.insert(id, joined);
        self.touched.insert(id);
    }

    fn remove(&mut self, id: ConnectionId) -> Option<Joined> {
        self.touched.remove(&id);
        self.timers.set(id, None);
        let joined = self.all.remove(&id)?;
        if self.by_key.get(&joined.key) == Some(&id) {
            self.by_key.remove(&joined.key);
        }
        Some(joined)
    }
}

/// One server: an endpoint and the sessions of its clients.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    endpoint: Endpoint,
    peers: Arc<PeerTable>,
    forwards: Vec<Forwarded>,
    changed: BTreeSet<PublicKey>,
    waiting: Waiting,
    welcomed: BTreeSet<ConnectionId>,
    standbys: Standbys,
    drain: Option<Drain>,
    sessions: Sessions,
    budget: Budget,
    shared: SharedState,
    misrouting: Misrouting,
    inbox: Inbox,
    legs: Option<Box<Legs>>,
    relaying: BTreeSet<ConnectionId>,
    streams: Option<ServerStreams>,
    events: VecDeque<ServerEvent>,
    drops: DropCounters,
    observes: bool,
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
        let first = StreamsConfig::first_epoch(&config.transport.rng_seed);
        let streams = config.streams.clone().map(|streams| ServerStreams::new(streams, first));
        Ok(Self {
            streams,
            budget: Budget::new(config.memory_max),
            config,
            endpoint,
            peers,
            forwards: Vec::new(),
            changed: BTreeSet::new(),
            waiting: Waiting::new(ceilings.waiting),
            welcomed: BTreeSet::new(),
            standbys: Standbys::new(ceilings.standbys),
            drain: None,
            sessions: Sessions::default(),
            shared: SharedState::default(),
            misrouting: Misrouting::default(),
            inbox: Inbox::default(),
            legs: None,
            relaying: BTreeSet::new(),
            events: VecDeque::new(),
            drops: DropCounters::default(),
            observes: false,
        })
    }

    /// A proxy: a server that forwards its clients' inner packets to the anchors of their tenants.
    /// It needs a second socket for its legs, [`LEG_SOCKET`](crate::LEG_SOCKET).
    ///
    /// # Errors
    /// When the transport settings cannot be used.
    pub fn proxy(
        epoch: Epoch,
        config: ServerConfig,
        proxy: ProxyConfig,
        identity: Arc<Identity>,
        peers: Arc<PeerTable>,
    ) -> Result<Self, ConfigError> {
        let frames = config.streams.as_ref().map(StreamsConfig::lane);
        let legs = Legs::new(epoch, &config.transport, identity.clone(), proxy, frames)?;
        let config = ServerConfig { streams: None, ..config };
        let mut server = Self::new(epoch, config, identity, peers)?;
        server.legs = Some(Box::new(legs));
        Ok(server)
    }

    /// Sets the strategy of a lane of the downlink direction, in all sessions and later ones.
    ///
    /// # Errors
    /// When there is no such lane, or the strategy names an uplink (unknown here): nothing changes.
    pub fn set_strategy(&mut self, lane: &str, strategy: Strategy) -> Result<(), SetError> {
        let position = find_lane(&self.config.lanes, lane)?;
        strategy.check(false)?;
        for (id, joined) in &mut self.sessions.all {
            joined.session.set_strategy(lane, &strategy, false)?;
            self.sessions.touched.insert(*id);
        }
        self.config.lanes[position].strategy = strategy;
        Ok(())
    }

    /// Replaces the devices behind clients to which ports of this machine lead: only these may
    /// answer other clients. Use it only where a packet filter checks what passes the machine.
    pub fn set_forwards(&mut self, forwards: Vec<Forwarded>) {
        self.forwards = forwards;
    }

    /// Restores what [`Server::learned`] returned in an earlier run, for later sessions.
    pub fn restore(&mut self, learned: Learned) {
        self.shared.restore(learned);
    }

    /// What the strategies have learned of the clients' networks, as of the last requests for it.
    pub fn learned(&self) -> Learned {
        self.shared.learned()
    }

    /// Collects what the next session has learned: one at a time, since there may be thousands.
    pub fn ask_learned(&mut self) {
        let after = self.sessions.asked.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.sessions.all.range((after, Bound::Unbounded)).next();
        self.sessions.asked = next.map(|(id, _)| *id);
        if let Some((_, joined)) = next {
            keep_learned(&mut self.shared.lock().learned, &joined.key, &joined.session);
        }
    }

    /// Collects what all sessions have learned, before the end.
    pub fn ask_all_learned(&mut self) {
        for joined in self.sessions.all.values() {
            keep_learned(&mut self.shared.lock().learned, &joined.key, &joined.session);
        }
    }

    /// The targets of the encoders behind this server, by client name and lane name.
    pub fn encoder_targets(
        &mut self,
        now: Instant,
    ) -> BTreeMap<String, BTreeMap<String, EncoderTarget>> {
        let targets = |(id, joined): (&ConnectionId, &mut Joined)| {
            let connection = self.endpoint.connection_mut(*id)?;
            Some((joined.peer.name.clone(), joined.session.encoder_targets(now, connection)))
        };
        self.sessions.all.iter_mut().filter_map(targets).collect()
    }

    /// Starts or stops recording what happens to each packet, in these sessions and later ones.
    pub fn observe_packets(&mut self, is_on: bool) {
        self.observes = is_on;
        self.sessions.all.values_mut().for_each(|joined| joined.session.observe_packets(is_on));
    }

    /// The next event of a client's packet, if [`Server::observe_packets`] is on.
    pub fn poll_packet_event(&mut self) -> Option<(PublicKey, PacketEvent)> {
        let event = |joined: &mut Joined| Some((joined.key, joined.session.poll_packet_event()?));
        self.sessions.all.values_mut().find_map(event)
    }

    /// The next event for the driver.
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        self.events.pop_front()
    }

    /// Closes all connections; [`flush`](crate::flush) it afterwards.
    pub fn close(&mut self, now: Instant) {
        self.endpoint.close(now, "the server stops");
        self.legs.iter_mut().for_each(|legs| legs.close(now));
    }

    /// All sessions, oldest first.
    pub fn status(&self) -> Vec<SessionStatus> {
        let status = |(id, joined): (&ConnectionId, &Joined)| {
            let connection = self.endpoint.connection(*id)?;
            Some(SessionStatus {
                peer: joined.peer.name.clone(),
                public_key: joined.key.to_string(),
                addresses: joined.peer.addresses.iter().map(ToString::to_string).collect(),
                paths: path_reports(connection, |path| joined.path_names.get(&path.id).cloned()),
                stats: joined.session.stats(),
            })
        };
        self.sessions.all.iter().filter_map(status).collect()
    }

    /// What was dropped outside of sessions, by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// How many clients were not let in, by kind, including those that had to prove their address
    /// first and those that gave way to others. They may have returned.
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = self.shared.refusals();
        counts.extend(self.own_refusals());
        counts
    }

    /// The refusals that are not counted in [`SharedState::refusals`], which shards share.
    pub fn own_refusals(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        let EndpointStats { retries, evicted, .. } = self.endpoint.stats();
        let endpoint = [("asked-to-retry", retries), ("gave-way", evicted)];
        let bindings = self.legs.iter().flat_map(|legs| &legs.refusals);
        counts.extend(bindings.map(|(kind, count)| (*kind, *count)));
        counts.extend(endpoint.into_iter().filter(|(_, count)| *count > 0));
        counts
    }

    /// The legs and tenants of a proxy.
    pub fn proxy_status(&self) -> Option<ProxyStatus> {
        self.legs.as_ref().map(|legs| legs.status())
    }

    /// The number of connections: sessions, waiting ones, handshakes, and recently ended ones.
    pub fn connections(&self) -> usize {
        self.endpoint.connection_ids().len()
    }

    /// Bytes held by all sessions and waiting for the device, with an allowance per connection.
    pub fn memory(&self) -> u64 {
        self.budget.total()
    }
}

impl Joined {
    fn allows(&mut self, now: Instant, direction: Direction, bytes: usize) -> bool {
        let limit = self.limits.as_mut().map(|limits| &mut limits[direction as usize]);
        let passes = limit.is_none_or(|limit| limit.allows(now, bytes));
        if !passes {
            self.session.count_drop(DropReason::RateLimited);
        }
        passes
    }
}
