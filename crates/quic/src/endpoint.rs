//! One end of many connections: finds the connection of each packet, begins and ends them.
//!
//! ```text
//! packet -> handle_packet --known ID--> Connection::handle_packet
//!                         --Initial---> Crowd: retry, ignore, or a new connection
//!                         --neither---> Answers: stateless reset, or nothing
//! ```
//!
//! A client's endpoint holds one connection for each uplink that it tries, a server's one for each
//! client. A server's connection becomes known by [`EndpointEvent::Incoming`] once its client is
//! let in; handshakes that fail show as [`EndpointEvent::Refused`] or
//! [`EndpointEvent::HandshakeFailed`].

mod answers;
mod crowd;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use noq_proto::{ConnectionHandle, DatagramEvent, FourTuple};
use ring::hmac;
use roadweave_types::{Instant, UplinkId, peer_text};

use self::answers::Answers;
use self::crowd::{Admission, Crowd};
use crate::config::{ConfigError, TransportConfig};
use crate::connection::{Connection, NewConnection};
use crate::deadlines::Deadlines;
use crate::epoch::Epoch;
use crate::event::{CloseReason, ConnectError, ConnectionId, EndpointEvent, Refusal};
use crate::identity::{Identity, PublicKey, derive_secret};
use crate::outbox::{Ecn, Outbox, Route, Transmit};
use crate::secrets::{SeededIds, TokenKey};
use crate::stats::EndpointStats;
use crate::tls::{self, Clock, Objection};
use crate::transport;
use crate::virtual_address;

/// Where a packet arrived on this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// On the socket of an uplink of the client.
    Uplink(UplinkId),
    /// At an address of the server, if the socket tells.
    Address(Option<IpAddr>),
}

/// Where a packet came from and how it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The address it came from.
    pub remote: SocketAddr,
    /// Where it arrived.
    pub local: Local,
    /// The congestion bits it arrived with.
    pub ecn: Option<Ecn>,
}

/// Says who may connect; asked at each handshake.
pub trait PeerPolicy: Send + Sync {
    /// Whether the holder of `key` may connect.
    ///
    /// # Errors
    ///
    /// Why not; both sides learn it.
    fn check(&self, key: &PublicKey) -> Result<(), Refusal>;
}

/// One end of many connections.
pub struct Endpoint {
    epoch: Epoch,
    config: Arc<TransportConfig>,
    quic: noq_proto::Endpoint,
    /// How to connect, on a client.
    client: Option<noq_proto::ClientConfig>,
    objection: Arc<Objection>,
    clock: Arc<Clock>,

    connections: BTreeMap<ConnectionId, Connection>,
    /// The library's names of the connections; it uses them again when they are drained.
    handles: BTreeMap<ConnectionId, ConnectionHandle>,
    ids: BTreeMap<ConnectionHandle, ConnectionId>,
    next_id: u64,
    /// Connections of clients that have not been let in.
    crowd: Crowd,
    answers: Answers,
    /// Connections whose handle the library has released.
    drained: BTreeSet<ConnectionId>,
    /// Connections that the user may have changed since they were last looked after.
    touched: BTreeSet<ConnectionId>,
    /// Connections that may have packets to send.
    unsent: BTreeSet<ConnectionId>,
    deadlines: Deadlines,
    /// Connections that are over, with the moments at which the library forgets them at the latest.
    closing: Deadlines,

    events: VecDeque<EndpointEvent>,
    outbox: Outbox,
    scratch: Vec<u8>,
    stats: EndpointStats,
}

impl Endpoint {
    /// An endpoint that connects to the holder of `server_key`.
    ///
    /// # Errors
    ///
    /// The configuration breaks its bounds.
    pub fn client(
        epoch: Epoch,
        config: &TransportConfig,
        identity: Arc<Identity>,
        server_key: PublicKey,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let (objection, clock) = (Arc::new(Objection::default()), Arc::new(Clock::default()));
        let crypto = tls::client(&identity, server_key, objection.clone(), clock.clone())?;
        let mut client = noq_proto::ClientConfig::new(Arc::new(crypto));
        client.transport_config(Arc::new(transport::transport_config(config)?));
        client.token_store(Arc::new(noq_proto::NoneTokenStore));
        let ids = Mutex::new(SeededIds::new(&config.rng_seed, b"first connection IDs"));
        client.initial_dst_cid_provider(Arc::new(move || {
            ids.lock().unwrap_or_else(PoisonError::into_inner).draw(INITIAL_ID_LEN)
        }));
        // Clients send no resets that anyone could use; a key that dies with the process will do.
        let reset_key = derive_secret(&config.rng_seed, b"reset");
        let endpoint_config = Arc::new(endpoint_config(config, &reset_key)?);
        let quic = noq_proto::Endpoint::new(endpoint_config, None, true);
        Ok(Self::new(epoch, config, quic, Some(client), objection, clock))
    }

    /// An endpoint that lets in whom `policy` lets in.
    ///
    /// The key of its stateless resets grows out of its private key and `reset_salt`, so that after
    /// a restart it tells the clients of its former life at once that their connections are gone.
    ///
    /// # Errors
    ///
    /// The configuration breaks its bounds.
    pub fn server(
        epoch: Epoch,
        config: &TransportConfig,
        identity: Arc<Identity>,
        policy: Arc<dyn PeerPolicy>,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let (objection, clock) = (Arc::new(Objection::default()), Arc::new(Clock::default()));
        let crypto = tls::server(&identity, policy, objection.clone(), clock.clone())?;
        let token_key = TokenKey::new(&derive_secret(&config.rng_seed, b"tokens"));
        let mut server = noq_proto::ServerConfig::new(Arc::new(crypto), Arc::new(token_key));
        server.transport_config(Arc::new(transport::transport_config(config)?));
        server.time_source(clock.clone());
        let mut no_tokens = noq_proto::ValidationTokenConfig::default();
        no_tokens.sent(0);
        server.validation_token_config(no_tokens);
        let reset_key = derive_secret(&identity.derive(b"stateless reset"), &config.reset_salt);
        let endpoint_config = Arc::new(endpoint_config(config, &reset_key)?);
        let quic = noq_proto::Endpoint::new(endpoint_config, Some(Arc::new(server)), true);
        Ok(Self::new(epoch, config, quic, None, objection, clock))
    }

    fn new(
        epoch: Epoch,
        config: &TransportConfig,
        quic: noq_proto::Endpoint,
        client: Option<noq_proto::ClientConfig>,
        objection: Arc<Objection>,
        clock: Arc<Clock>,
    ) -> Self {
        Self {
            epoch,
            config: Arc::new(config.clone()),
            quic,
            client,
            objection,
            clock,
            connections: BTreeMap::new(),
            handles: BTreeMap::new(),
            ids: BTreeMap::new(),
            next_id: 0,
            crowd: Crowd::default(),
            answers: Answers::default(),
            drained: BTreeSet::new(),
            touched: BTreeSet::new(),
            unsent: BTreeSet::new(),
            deadlines: Deadlines::default(),
            closing: Deadlines::default(),
            events: VecDeque::new(),
            outbox: Outbox::default(),
            scratch: Vec::new(),
            stats: EndpointStats::default(),
        }
    }

    /// Begins a connection to `server` over `uplink`.
    ///
    /// It is one attempt over one uplink: race several, keep the first that reports
    /// [`Event::Connected`](crate::Event::Connected), close the others and open their uplinks as
    /// paths.
    ///
    /// # Errors
    ///
    /// This is a server, or there is no such address.
    pub fn connect(
        &mut self,
        now: Instant,
        uplink: UplinkId,
        server: SocketAddr,
    ) -> Result<ConnectionId, ConnectError> {
        self.clock.set(now);
        let config = self.client.clone().ok_or(ConnectError::NotClient)?;
        let std_now = self.epoch.to_std(now);
        let (handle, quic) =
            self.quic.connect(std_now, config, server, tls::SERVER_NAME).map_err(|error| {
                match error {
                    noq_proto::ConnectError::InvalidRemoteAddress(address) => {
                        ConnectError::InvalidAddress(address)
                    }
                    other => ConnectError::Transport(other.to_string()),
                }
            })?;
        let id = self.add(now, handle, quic, Some(uplink), server);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.begin(now);
        }
        self.look_after(now, id);
        Ok(id)
    }

    /// Takes in a packet. Returns the connection that may have something new: events, packets to
    /// send.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        source: Source,
        packet: BytesMut,
    ) -> Option<ConnectionId> {
        self.clock.set(now);
        self.tidy();
        let local = match source.local {
            Local::Uplink(uplink) => Some(virtual_address::of(uplink)),
            Local::Address(address) => address,
        };
        let network = FourTuple::new(source.remote, local);
        let ecn = source.ecn.and_then(|ecn| noq_proto::EcnCodepoint::from_bits(ecn.bits()));
        let (std_now, bytes) = (self.epoch.to_std(now), packet.len());
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let event = self.quic.handle(std_now, network, ecn, packet, &mut scratch);
        let id = match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                self.ids.get(&handle).copied().inspect(|id| {
                    if let Some(connection) = self.connections.get_mut(id) {
                        connection.handle_packet(now, &source, bytes, event);
                    }
                })
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.handle_incoming(now, &source, incoming, &mut scratch)
            }
            Some(DatagramEvent::Response(transmit)) => {
                self.stats.strays += 1;
                if self.answers.allow(now, source.remote) {
                    self.respond(&source, &transmit, &scratch);
                }
                None
            }
            None => {
                self.stats.strays += 1;
                None
            }
        };
        self.scratch = scratch;
        if let Some(id) = id {
            self.look_after(now, id);
        }
        id
    }

    /// Runs the timers that are due. Returns the connections that may have something new.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<ConnectionId> {
        self.clock.set(now);
        self.tidy();
        self.note_deadlines(now);
        let mut due = self.deadlines.due(now);
        for id in &due {
            if let Some(connection) = self.connections.get_mut(id) {
                connection.handle_timeout(now);
            }
            self.look_after(now, *id);
        }
        due.extend(self.end_closing(now));
        due
    }

    /// When [`handle_timeout`](Endpoint::handle_timeout) wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let touched = self.touched.iter().filter(|id| !self.drained.contains(id));
        let touched = touched.filter_map(|id| self.connections.get(id)?.poll_timeout());
        let deadlines = [self.deadlines.earliest(), self.closing.earliest()];
        deadlines.into_iter().flatten().chain(touched).min()
    }

    /// The next thing that happened beyond the connections.
    pub fn poll_event(&mut self) -> Option<EndpointEvent> {
        self.events.pop_front()
    }

    /// A connection.
    pub fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(&id)
    }

    /// A connection, to be changed.
    pub fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(&id)?;
        self.touched.insert(id);
        self.unsent.insert(id);
        Some(connection)
    }

    /// All connections, ascending.
    ///
    /// One that is over stays for a few round trips, to tell the peer so in case it has not heard,
    /// but no longer than 3 s, which a peer cannot stretch by answering late, and among the last
    /// 256 that are over; it is gone when that is done, its events are polled and its packets sent.
    pub fn connection_ids(&self) -> Vec<ConnectionId> {
        let gone = |id: &ConnectionId, connection: &Connection| {
            self.drained.contains(id) && connection.is_spent()
        };
        self.connections.iter().filter(|(id, c)| !gone(id, c)).map(|(id, _)| *id).collect()
    }

    /// How many connections there are, half-open ones and those that are over and not yet gone
    /// among them.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Packets that belong to no connection: resets, retries, refusals. The driver clears it.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// The packets of the next outbox that is not empty; dropping them forgets them.
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        if !self.outbox.is_empty() {
            return Some(Transmit::new(&mut self.outbox));
        }
        let connections = &mut self.connections;
        let mut waits =
            |id: &ConnectionId| connections.get_mut(id).is_some_and(|it| !it.outbox().is_empty());
        let id = std::iter::from_fn(|| self.unsent.pop_first()).find(|id| waits(id))?;
        self.touched.insert(id);
        self.connections.get_mut(&id).map(|connection| Transmit::new(connection.outbox()))
    }

    /// Closes every connection with `reason`; their goodbyes wait in the outboxes.
    pub fn close(&mut self, now: Instant, reason: &str) {
        for (id, connection) in &mut self.connections {
            connection.close(now, 0, reason);
            self.touched.insert(*id);
            self.unsent.insert(*id);
        }
    }

    /// What the endpoint counts.
    pub fn stats(&self) -> EndpointStats {
        self.stats
    }

    fn add(
        &mut self,
        now: Instant,
        handle: ConnectionHandle,
        quic: noq_proto::Connection,
        uplink: Option<UplinkId>,
        remote: SocketAddr,
    ) -> ConnectionId {
        let id = ConnectionId(self.next_id);
        self.next_id += 1;
        let new = NewConnection {
            epoch: self.epoch,
            config: self.config.clone(),
            quic,
            objection: self.objection.clone(),
            uplink,
            remote,
        };
        self.connections.insert(id, Connection::new(now, new));
        self.handles.insert(id, handle);
        self.ids.insert(handle, id);
        id
    }

    /// A client knocks. Who may enter is decided later, by its key; here only how many may knock at
    /// once.
    fn handle_incoming(
        &mut self,
        now: Instant,
        source: &Source,
        incoming: noq_proto::Incoming,
        scratch: &mut Vec<u8>,
    ) -> Option<ConnectionId> {
        scratch.clear();
        let proved = incoming.remote_address_validated();
        match self.crowd.admit(&self.config, source.remote, proved) {
            Admission::Accept => {}
            Admission::Replace(oldest) => self.evict(oldest),
            Admission::Retry => {
                self.ask_to_retry(source, incoming, scratch);
                return None;
            }
            Admission::Ignore => {
                self.stats.ignored += 1;
                self.quic.ignore(incoming);
                return None;
            }
        }
        self.stats.handshakes += 1;
        match self.quic.accept(incoming, self.epoch.to_std(now), scratch, None) {
            Ok((handle, quic)) => {
                let id = self.add(now, handle, quic, None, source.remote);
                self.crowd.begin(id, source.remote, proved);
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.begin(now);
                }
                Some(id)
            }
            Err(error) => {
                self.stats.failed += 1;
                if let Some(transmit) = &error.response {
                    self.respond(source, transmit, scratch);
                }
                let reason = CloseReason::Protocol(peer_text(error.cause.to_string().as_bytes()));
                let remote = source.remote;
                self.push_event(EndpointEvent::HandshakeFailed { remote, reason });
                None
            }
        }
    }

    /// Lets a client prove that it is where it says.
    fn ask_to_retry(
        &mut self,
        source: &Source,
        incoming: noq_proto::Incoming,
        scratch: &mut Vec<u8>,
    ) {
        match self.quic.retry(incoming, scratch) {
            Ok(transmit) => {
                self.stats.retries += 1;
                self.respond(source, &transmit, scratch);
            }
            Err(error) => {
                self.stats.ignored += 1;
                self.quic.ignore(error.into_incoming());
            }
        }
    }

    /// Forgets a handshake without a word: whoever is where it says it comes from may know nothing
    /// of it.
    fn evict(&mut self, id: ConnectionId) {
        self.stats.evicted += 1;
        self.crowd.end(id);
        self.release(id);
        self.connections.remove(&id);
        self.unsent.remove(&id);
        self.drained.remove(&id);
    }

    /// Lets the library forget a connection, which stays here until the user has all that is left
    /// in it.
    fn release(&mut self, id: ConnectionId) {
        if let Some(handle) = self.handles.remove(&id) {
            self.ids.remove(&handle);
            self.quic.handle_event(handle, noq_proto::EndpointEvent::drained());
        }
        self.deadlines.set(id, None);
        self.closing.set(id, None);
        self.drained.insert(id);
    }

    /// Releases connections that are over for long, and the oldest of those that are too many.
    /// Returns them.
    fn end_closing(&mut self, now: Instant) -> Vec<ConnectionId> {
        let mut over = self.closing.due(now);
        let rest = self.closing.len() - over.len();
        over.extend(self.closing.earliest_of(over.len(), rest.saturating_sub(CLOSING_MAX)));
        over.iter().for_each(|id| self.release(*id));
        over
    }

    /// Puts an answer that belongs to no connection into the outbox.
    fn respond(&mut self, source: &Source, transmit: &noq_proto::Transmit, packet: &[u8]) {
        self.stats.responses += 1;
        let (uplink, address) = match source.local {
            Local::Uplink(uplink) => (Some(uplink), None),
            Local::Address(address) => (None, address),
        };
        let destination = transmit.destination;
        let ecn = transmit.ecn.and_then(|ecn| Ecn::from_bits(ecn as u8));
        let route = Route { uplink, destination, source: address, ecn };
        if self.outbox.len() < RESPONSES_MAX {
            self.outbox.push(route, &packet[..transmit.size]);
        }
    }

    /// After a connection has had its turn: carries word between it and the library's endpoint, and
    /// sees whether its handshake has ended.
    fn look_after(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(&handle) = self.handles.get(&id) {
            while let Some(event) = connection.poll_endpoint_event() {
                let drained = event.is_drained();
                if let Some(reply) = self.quic.handle_event(handle, event) {
                    connection.handle_endpoint_reply(now, reply);
                }
                if drained {
                    self.handles.remove(&id);
                    self.ids.remove(&handle);
                    self.closing.set(id, None);
                    self.drained.insert(id);
                    break;
                }
            }
            connection.flush(now);
        }
        // Its deadline is looked up when somebody asks: packets come in batches.
        self.touched.insert(id);
        self.unsent.insert(id);
        self.settle_handshake(id);
    }

    /// Tells how the handshake of a client ended, if it has.
    fn settle_handshake(&mut self, id: ConnectionId) {
        let Some(remote) = self.crowd.untold(id) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.peer().is_some() {
            self.crowd.end(id);
            self.push_event(EndpointEvent::Incoming(id));
            return;
        }
        let Some(reason) = connection.take_failure() else { return };
        self.crowd.tell(id);
        let event = match connection.refused() {
            Some((key, why)) => {
                self.stats.refused += 1;
                EndpointEvent::Refused { remote, key, why }
            }
            None => {
                self.stats.failed += 1;
                EndpointEvent::HandshakeFailed { remote, reason }
            }
        };
        self.push_event(event);
    }

    fn push_event(&mut self, event: EndpointEvent) {
        // Only failed handshakes can come in any number; the newest are dropped, and counted in
        // `stats`.
        let incoming = matches!(event, EndpointEvent::Incoming(_));
        if incoming || self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }

    /// Removes connections that have nothing more to say.
    fn tidy(&mut self) {
        let (connections, unsent) = (&mut self.connections, &mut self.unsent);
        let crowd = &mut self.crowd;
        self.drained.retain(|id| {
            let spent = connections.get(id).is_none_or(Connection::is_spent);
            if spent {
                connections.remove(id);
                unsent.remove(id);
                crowd.end(*id);
            }
            !spent
        });
    }

    /// Looks up the deadlines of connections that had a turn, and whether they are over.
    fn note_deadlines(&mut self, now: Instant) {
        for id in std::mem::take(&mut self.touched) {
            let alive = !self.drained.contains(&id);
            let connection = self.connections.get(&id).filter(|_| alive);
            self.deadlines.set(id, connection.and_then(Connection::poll_timeout));
            if connection.is_some_and(Connection::is_closed) {
                self.closing.set_once(id, now + LINGER);
            }
        }
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("connections", &self.connections)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

fn endpoint_config(
    config: &TransportConfig,
    reset_key: &[u8; 32],
) -> Result<noq_proto::EndpointConfig, ConfigError> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, reset_key);
    let mut endpoint = noq_proto::EndpointConfig::new(Arc::new(key));
    let seed = config.rng_seed;
    endpoint
        .cid_generator(Arc::new(move || Box::new(SeededIds::new(&seed, b"connection IDs"))))
        .supported_versions(vec![QUIC_VERSION_1])
        .rng_seed(Some(derive_secret(&seed, b"library")))
        // `Answers` bounds them.
        .min_reset_interval(Duration::ZERO)
        .max_udp_payload_size(config.mtu_max.max(UDP_PAYLOAD_MIN))
        .map_err(|_| ConfigError::OutOfBounds { field: "mtu_max" })?;
    Ok(endpoint)
}

/// RFC 9000 section 15.
const QUIC_VERSION_1: u32 = 1;
/// The least that this side takes in a packet, bytes: what an Ethernet carries.
const UDP_PAYLOAD_MIN: u16 = 1472;
/// Length of the ID that a client chooses for a server it does not know, bytes (RFC 9000 section
/// 7.2 asks for 8).
const INITIAL_ID_LEN: usize = 16;
/// The most answers that wait to be sent; more are dropped, as the network might.
const RESPONSES_MAX: usize = 1024;
/// How long the library remembers a connection that is over, at most. It wants three probe timeouts
/// (RFC 9000 section 10.2), which grow with round trips and delays that the peer chooses.
const LINGER: Duration = Duration::from_secs(3);
/// The most connections that are over and remembered.
const CLOSING_MAX: usize = 256;
/// The most failed handshakes that wait to be polled.
const EVENTS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// How many outboxes had packets to send.
    fn drain(endpoint: &mut Endpoint) -> usize {
        let mut outboxes = 0;
        while endpoint.poll_transmit().is_some() {
            outboxes += 1;
        }
        outboxes
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    fn a_turn_looks_only_at_connections_that_had_a_part_in_it() {
        let epoch = Epoch::new(std::time::Instant::now());
        let identity = Arc::new(Identity::from_seed([1; 32]));
        let server_key = Identity::from_seed([2; 32]).public_key();
        let config = TransportConfig::new([1; 32]);
        let mut endpoint = Endpoint::client(epoch, &config, identity, server_key).unwrap();
        let server = SocketAddr::from(([192, 0, 2, 1], 4433));
        let mut connect = || endpoint.connect(Instant::ZERO, UplinkId(0), server).unwrap();
        let ids: Vec<ConnectionId> = (0..50).map(|_| connect()).collect();
        let mut sent = 0;
        sent += drain(&mut endpoint);
        assert_eq!((sent, endpoint.unsent.len()), (50, 0));
        endpoint.connection_mut(ids[7]).unwrap().close(Instant::ZERO, 0, "");
        assert_eq!(endpoint.unsent, BTreeSet::from([ids[7]]));
        sent += drain(&mut endpoint);
        assert_eq!(sent, 51);
        let due = endpoint.handle_timeout(Instant::from_millis(150));
        assert!(endpoint.unsent.iter().eq(&due), "{due:?}");
    }
}
