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
mod clients;
mod connections;
mod drain;
mod figures;
mod forwards;
pub(crate) mod inbox;
mod kept;
mod node;
mod passing;
pub(crate) mod refusals;
mod sessions;
mod shards;
mod speedtest;
mod standbys;
mod strays;
mod streams;
mod totals;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::{DropCounters, DropReason, Instant, PathId};
use roadweave_quic::{ConfigError, ConnectionId, Endpoint, EndpointStats, Epoch, TransportConfig};

use self::budget::{Budget, Ceilings};
use self::drain::Drain;
pub use self::figures::{PathFigures, SessionFigures};
pub use self::forwards::Forwarded;
use self::inbox::Inbox;
pub use self::kept::Kept;
use self::shards::Strays;
pub use self::speedtest::SpeedtestLimits;
use self::standbys::Standbys;
pub use self::strays::{Stray, StrayQueue};
use self::streams::ServerStreams;
use self::waiting::Waiting;
use crate::lane::{EncoderTarget, LaneConfig, Strategy, default_lanes};
use crate::learned::{Learned, keep_learned};
use crate::observe::PacketEvent;
use crate::peers::{Peer, PeerTable};
use crate::proxy::{Legs, ProxyConfig, ProxyStatus};
use crate::rate::{Direction, Limit};
use crate::session::{MEMORY_MAX, Session, SetError, find_lane};
use crate::status::{SessionStatus, path_reports};
use crate::streams::StreamsConfig;

pub use self::drain::{DRAIN_MAX, DrainReason};
pub use self::totals::{RoundTrips, Tally, Totals};

/// The code with which a connection is closed that its client has not used.
pub(crate) const UNUSED: u32 = 2;
/// What a server needs to know.
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
    /// Streams, if the server takes some; a proxy relays those between its clients and their
    /// anchors, and needs no more of it than the lane.
    pub streams: Option<StreamsConfig>,
    /// What it allows of speed tests, if any.
    pub speedtest: Option<SpeedtestLimits>,
    /// Whether clients may reach one another.
    pub clients_reach_clients: bool,
    /// The most bytes that all sessions may hold together.
    pub memory_max: usize,
    /// The most bytes that one session may hold.
    pub client_memory_max: usize,
}

impl ServerConfig {
    /// A server with these inner addresses and the lanes of [`default_lanes`], whose clients do not
    /// reach one another, and whose sessions share [`MEMORY_MAX`]. The MTU suits links of 1,500
    /// bytes.
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
    /// The leg of a proxy to an anchor came up again, or is away.
    Leg {
        /// Which and what, for a person to read.
        told: String,
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
    /// Whether a speed test is under way.
    is_testing: bool,
}

/// One server: an endpoint and the sessions of its clients.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    endpoint: Endpoint,
    peers: Arc<PeerTable>,
    /// What answers through ports of the server.
    forwards: Vec<Forwarded>,
    /// Clients that have changed, and whose sessions have not been looked at since.
    changed: BTreeSet<PublicKey>,
    waiting: Waiting,
    /// Connections that wait, whose client was welcomed and has not used them yet.
    welcomed: BTreeSet<ConnectionId>,
    standbys: Standbys,
    /// Since it was asked to let all clients go.
    drain: Option<Drain>,
    sessions: BTreeMap<ConnectionId, Joined>,
    /// Never iterated.
    by_key: HashMap<PublicKey, ConnectionId>,
    /// Sessions to turn, because something was handled.
    touched: BTreeSet<ConnectionId>,
    budget: Budget,
    timers: BTreeSet<(Instant, ConnectionId)>,
    timer_of: BTreeMap<ConnectionId, Instant>,
    /// Half-open connections that the endpoint has refused for want of room and that are counted
    /// already.
    crowded_out: u64,
    kept: Kept,
    /// What other shards know what to do with.
    strays: Strays,
    inbox: Inbox,
    /// What a proxy has in the place of a device.
    legs: Option<Box<Legs>>,
    /// Connections of a proxy whose clients were told that it relays streams.
    relaying: BTreeSet<ConnectionId>,
    streams: Option<ServerStreams>,
    events: VecDeque<ServerEvent>,
    drops: DropCounters,
    /// Whether sessions note what happens to each packet.
    observes: bool,
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
            sessions: BTreeMap::new(),
            by_key: HashMap::new(),
            touched: BTreeSet::new(),
            timers: BTreeSet::new(),
            timer_of: BTreeMap::new(),
            crowded_out: 0,
            kept: Kept::default(),
            strays: Strays::default(),
            inbox: Inbox::default(),
            legs: None,
            relaying: BTreeSet::new(),
            events: VecDeque::new(),
            drops: DropCounters::default(),
            observes: false,
            asked: None,
        })
    }

    /// A proxy: a server that passes the inner packets of its clients to the anchors of their
    /// tenants, and gives none to its own device. Beside the socket of its sessions it has one for
    /// its legs, [`LEG_SOCKET`](crate::LEG_SOCKET).
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

    /// Lets a lane of the downlink direction follow another strategy, in all sessions and those to
    /// come.
    ///
    /// # Errors
    /// When there is no such lane, or the strategy names an uplink, which a server does not know;
    /// nothing is changed then.
    pub fn set_strategy(&mut self, lane: &str, strategy: Strategy) -> Result<(), SetError> {
        let position = find_lane(&self.config.lanes, lane)?;
        strategy.check(false)?;
        for (id, joined) in &mut self.sessions {
            joined.session.set_strategy(lane, &strategy, false)?;
            self.touched.insert(*id);
        }
        self.config.lanes[position].strategy = strategy;
        Ok(())
    }

    /// Lets devices behind clients, to which ports of this machine lead, answer other clients from
    /// now on, and those no more that are not among `forwards`. Only where a packet filter judges
    /// what passes the machine.
    pub fn set_forwards(&mut self, forwards: Vec<Forwarded>) {
        self.forwards = forwards;
    }

    /// Takes up what [`Server::learned`] gave in an earlier life, for the sessions to come.
    pub fn restore(&mut self, learned: Learned) {
        self.kept.restore(learned);
    }

    /// What the strategies have learned of the clients' networks, as far as they were asked.
    pub fn learned(&self) -> Learned {
        self.kept.learned()
    }

    /// Asks the next session what it has learned: one at a time, since there may be thousands.
    pub fn ask_learned(&mut self) {
        let after = self.asked.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.sessions.range((after, Bound::Unbounded)).next();
        self.asked = next.map(|(id, _)| *id);
        if let Some((_, joined)) = next {
            keep_learned(&mut self.kept.lock().learned, &joined.key, &joined.session);
        }
    }

    /// Asks all sessions what they have learned, before the end.
    pub fn ask_all_learned(&mut self) {
        for joined in self.sessions.values() {
            keep_learned(&mut self.kept.lock().learned, &joined.key, &joined.session);
        }
    }

    /// What the encoders behind this server should do now that send to clients, by the lane's name,
    /// by the client's name.
    pub fn encoder_targets(
        &mut self,
        now: Instant,
    ) -> BTreeMap<String, BTreeMap<String, EncoderTarget>> {
        let targets = |(id, joined): (&ConnectionId, &mut Joined)| {
            let connection = self.endpoint.connection_mut(*id)?;
            Some((joined.peer.name.clone(), joined.session.encoder_targets(now, connection)))
        };
        self.sessions.iter_mut().filter_map(targets).collect()
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
        self.legs.iter_mut().for_each(|legs| legs.close(now));
    }

    /// All sessions, by the time they came.
    pub fn status(&self) -> Vec<SessionStatus> {
        let status = |(id, joined): (&ConnectionId, &Joined)| {
            let connection = self.endpoint.connection(*id)?;
            let name =
                |path: &roadweave_proto::PathSnapshot| joined.path_names.get(&path.id).cloned();
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
        let mut counts = self.kept.refusals();
        counts.extend(self.own_refusals());
        counts
    }

    /// The refusals that are not counted in [`Kept::refusals`], which shards share.
    pub fn own_refusals(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        let EndpointStats { retries, evicted, .. } = self.endpoint.stats();
        let endpoint = [("asked-to-retry", retries), ("gave-way", evicted)];
        let bindings = self.legs.iter().flat_map(|legs| legs.refusals());
        counts.extend(bindings.map(|(kind, count)| (*kind, *count)));
        counts.extend(endpoint.into_iter().filter(|(_, count)| *count > 0));
        counts
    }

    /// The legs and tenants of a proxy.
    pub fn proxy_status(&self) -> Option<ProxyStatus> {
        self.legs.as_ref().map(|legs| legs.status())
    }

    /// How many connections there are: sessions, those that wait, handshakes, and those that are
    /// over and not forgotten yet.
    pub fn connections(&self) -> usize {
        self.endpoint.connection_ids().len()
    }

    /// Bytes that all sessions hold and that wait for the device, with an allowance for each
    /// connection.
    pub fn memory(&self) -> u64 {
        self.budget.total()
    }
}

impl Joined {
    /// Whether a packet of `bytes` bytes is within the client's rate; what is not is counted.
    fn allows(&mut self, now: Instant, direction: Direction, bytes: usize) -> bool {
        let limit = self.limits.as_mut().map(|limits| &mut limits[direction as usize]);
        let passes = limit.is_none_or(|limit| limit.allows(now, bytes));
        if !passes {
            self.session.count_drop(DropReason::RateLimited);
        }
        passes
    }
}
