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
mod config;
mod connections;
mod drain;
mod event;
mod figures;
mod forwards;
mod node;
pub(crate) mod refusals;
mod sessions;
mod shards;
mod shared_state;
mod speedtest;
mod standbys;
mod streams;
mod test_book;
mod totals;
mod turns;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use roadweave_identity::{Identity, PeerPolicy as _, PublicKey, Refusal};
use roadweave_proto::wire::Reason;
use roadweave_proto::{DropCounters, Instant};
use roadweave_quic::{ConfigError, ConnectionId, Endpoint, EndpointStats, Epoch};

use self::budget::{Budget, Ceilings};
pub use self::config::ServerConfig;
pub use self::drain::{DRAIN_MAX, DrainReason};
use self::drain::{DRAINS, Drain};
pub use self::event::ServerEvent;
pub use self::figures::SessionFigures;
pub use self::forwards::Forwarded;
use self::sessions::{Joined, Sessions};
use self::shards::Misrouting;
pub use self::shards::{MisroutedPacket, MisroutedQueue};
pub use self::shared_state::SharedState;
use self::standbys::Standbys;
use self::streams::ServerStreams;
pub use self::test_book::SpeedtestLimits;
pub use self::totals::{RoundTrips, Tally, Totals};
use self::waiting::Waiting;
use crate::lane::{EncoderTarget, Strategy};
use crate::learned::{Learned, keep_learned};
use crate::node::Node as _;
use crate::observe::PacketEvent;
use crate::peers::{PeerTable, Peers, PeersChange};
use crate::proxy::{Legs, ProxyConfig, ProxyStatus, ProxyTenant};
use crate::queue::BoundedQueue;
use crate::session::{SetError, find_lane};
use crate::status::{SessionStatus, path_reports};
use crate::streams::StreamsConfig;

/// At most 16 MiB: a batch of input, and what it released.
pub(crate) type Inbox = BoundedQueue<Bytes, { 16 << 20 }, 64>;

/// The code that closes a connection which its client has not used.
pub(crate) const UNUSED: u32 = 2;

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
    drain: Drain,
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
            misrouting: Misrouting::new(config.transport.shard),
            config,
            endpoint,
            peers,
            forwards: Vec::new(),
            changed: BTreeSet::new(),
            waiting: Waiting::new(ceilings.waiting),
            welcomed: BTreeSet::new(),
            standbys: Standbys::new(ceilings.standbys),
            drain: Drain::default(),
            sessions: Sessions::default(),
            shared: SharedState::default(),
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

    /// Replaces the clients that may connect, and returns the former table, which may be dropped
    /// elsewhere.
    ///
    /// Sessions of clients that are gone or have other addresses end with the next calls of
    /// [`Node::handle_timeout`](crate::Node::handle_timeout), some at a time; other changes apply
    /// to them.
    pub fn replace_peers(&mut self, change: PeersChange) -> Arc<Peers> {
        let PeersChange { peers, changed } = change;
        self.shared.forget(changed.iter().filter(|key| peers.get(key).is_none()));
        self.changed.extend(changed);
        self.peers.replace(peers)
    }

    /// Refuses these keys from now on. Their sessions end with the next calls of
    /// [`Node::handle_timeout`](crate::Node::handle_timeout), until [`Server::is_settled`].
    pub fn revoke(&mut self, keys: impl IntoIterator<Item = PublicKey>) {
        let keys: Vec<PublicKey> = keys.into_iter().collect();
        self.shared.forget(keys.iter());
        self.peers.revoke(keys.iter().copied());
        self.changed.extend(keys.into_iter().filter(|key| self.sessions.by_key.contains_key(key)));
    }

    /// Whether all changes of clients were applied to their sessions.
    pub fn is_settled(&self) -> bool {
        self.changed.is_empty()
    }

    /// Ends the sessions of clients whose keys have expired, with the next calls of
    /// [`Node::handle_timeout`](crate::Node::handle_timeout), some at a time. Call it after setting
    /// the time of day of the table of peers.
    pub fn on_time_of_day(&mut self) {
        let keys = self.sessions.all.values().map(|joined| joined.key).chain(self.standbys.keys());
        let expired = keys.filter(|key| self.peers.check(key) == Err(Refusal::Expired));
        self.changed.extend(expired);
    }

    /// Shares `state` with the other shards, instead of an own one.
    pub fn share_state(&mut self, state: SharedState) {
        self.shared = state;
    }

    /// The next packet for another shard; give it to [`Server::handle_misrouted`] there. Poll it
    /// until it returns `None` after each [`Node::handle_packet`](crate::Node::handle_packet) and
    /// [`Node::handle_inner`](crate::Node::handle_inner), or after some of them.
    pub fn poll_misrouted(&mut self) -> Option<MisroutedPacket> {
        self.misrouting.pop()
    }

    /// Takes a packet from another shard. One that is not for this shard either is dropped.
    pub fn handle_misrouted(&mut self, now: Instant, packet: MisroutedPacket) {
        self.misrouting.is_closed = true;
        match packet {
            MisroutedPacket::Packet { meta, payload, .. } => {
                self.handle_packet(now, &meta, &payload)
            }
            MisroutedPacket::Inner { packet, .. } => self.handle_inner(now, &packet),
        }
        self.misrouting.is_closed = false;
    }

    /// A client has a newer session with another shard: the one here ends.
    pub fn on_replaced(&mut self, now: Instant, key: &PublicKey) {
        if let Some(id) = self.sessions.by_key.get(key).copied() {
            let name = self.sessions.all.get(&id).map(|joined| joined.peer.name.clone());
            self.replace(now, id, *key, &name.unwrap_or_default());
        }
        self.end_streams_of(key);
    }

    /// Entries of these clients in the shared table of peers have changed. Sessions of clients that
    /// are gone or have other addresses end with the next calls of
    /// [`Node::handle_timeout`](crate::Node::handle_timeout), some at a time.
    pub fn on_changed(&mut self, keys: impl IntoIterator<Item = PublicKey>) {
        let (by_key, standbys) = (&self.sessions.by_key, &self.standbys);
        let streams = self.streams.as_ref();
        let is_here = |key: &PublicKey| {
            by_key.contains_key(key)
                || standbys.of(key).is_some()
                || streams.is_some_and(|all| all.table.peer(key).is_some())
        };
        self.changed.extend(keys.into_iter().filter(is_here).collect::<Vec<_>>());
    }

    /// Takes no new clients, and asks those with a session to go to another server: spread over
    /// `over`, at most a minute, and again as long as they stay. [`Server::is_drained`] shows when
    /// all are gone. Clients that know no other server stay until the server closes.
    pub fn drain(&mut self, now: Instant, reason: DrainReason, over: Duration) {
        if !self.drain.begin(now, reason, over, self.sessions.all.keys().copied()) {
            return;
        }
        for id in self.standbys.ids() {
            self.end(now, id, DRAINS);
        }
        for id in std::mem::take(&mut self.welcomed) {
            self.refuse(now, id, DRAINS, Reason::Drain);
        }
    }

    /// Withdraws `reason`. After the last one, clients may come again, and the remaining ones stay.
    pub fn undrain(&mut self, reason: DrainReason) {
        self.drain.withdraw(reason);
    }

    /// Whether it asks its clients to leave.
    pub fn is_draining(&self) -> bool {
        self.drain.is_on()
    }

    /// Whether it is draining, and no session is left.
    pub fn is_drained(&self) -> bool {
        self.drain.is_on() && self.sessions.all.is_empty()
    }

    /// Replaces the tenants, if this is a proxy. Sessions of tenants that are gone or have another
    /// anchor end, and so do all that are about to begin: clients return at once and sign for the
    /// present anchor. Changed addresses and rates of tenants apply at once; changed gateways reach
    /// a box with its next session.
    pub fn set_tenants(&mut self, now: Instant, tenants: Vec<ProxyTenant>) {
        let Some(legs) = &self.legs else { return };
        let moved = legs.moved(&tenants);
        if !moved.is_empty() {
            let is_moved = |joined: &Joined| moved.contains(&joined.peer.tenant);
            let ended = self.sessions.all.iter().filter(|(_, joined)| is_moved(joined));
            let begun = self.welcomed.iter().copied().chain(self.standbys.ids());
            let ended: Vec<ConnectionId> = ended.map(|(id, _)| *id).chain(begun).collect();
            for id in ended {
                self.end(now, id, "the anchor of its tenant is another");
            }
        }
        if let Some(legs) = &mut self.legs {
            legs.set_tenants(now, tenants);
        }
    }

    /// Sets the addresses of an anchor, each tried in turn while its leg is not up.
    pub fn set_anchor_addresses(&mut self, anchor: PublicKey, addresses: Vec<SocketAddr>) {
        if let Some(legs) = &mut self.legs {
            legs.set_addresses(anchor, addresses);
        }
    }

    /// Whether the leg to an anchor is up.
    pub fn is_leg_up(&self, anchor: PublicKey) -> bool {
        self.legs.as_ref().is_some_and(|legs| legs.is_up(anchor))
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

    /// What the sessions have carried so far, for the first `most` of them.
    pub fn figures(&self, most: usize) -> Vec<SessionFigures> {
        let figures = self.sessions.all.iter().take(most).filter_map(|(id, joined)| {
            Some(SessionFigures::of(joined, self.endpoint.connection(*id)?))
        });
        figures.collect()
    }

    /// The number of sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.all.len()
    }

    /// The number of clients with a standby here.
    pub fn standbys(&self) -> usize {
        self.standbys.count()
    }

    /// Whether the client with this key has a session.
    pub fn has_session(&self, key: &PublicKey) -> bool {
        self.sessions.by_key.contains_key(key)
    }

    /// The totals over all sessions.
    pub fn totals(&self) -> Totals {
        self.tally().into()
    }

    /// The counts for [`Server::totals`].
    pub fn tally(&self) -> Tally {
        let (sessions, standbys) = (self.sessions() as u64, self.standbys() as u64);
        let draining = self.is_draining();
        let totals = Totals { sessions, standbys, draining, ..Totals::default() };
        let connections = self.sessions.all.keys().filter_map(|id| self.endpoint.connection(*id));
        Tally::of(totals, connections)
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

    /// By tenant name, the smoothed round trip to its anchor if the leg is up; empty without legs.
    pub fn anchor_round_trips(&self) -> Vec<(String, Duration)> {
        self.legs.as_ref().map(|legs| legs.round_trips()).unwrap_or_default()
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
