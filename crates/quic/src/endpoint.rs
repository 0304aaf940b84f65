//! One end of many connections: finds the connection of each packet, begins and ends them.
//!
//! ```text
//! packet -> handle_packet --known ID--> Connection::handle_packet
//!                         --Initial---> HalfOpen: retry, ignore, or a new connection
//!                         --neither---> ResponseLimiter: stateless reset, or nothing
//! ```
//!
//! A client's endpoint has one connection for each uplink that it tries, a server's one for each
//! client. A server reports a connection by [`EndpointEvent::Incoming`] once its client is let in,
//! and failed handshakes by [`EndpointEvent::Refused`] or [`EndpointEvent::HandshakeFailed`].

mod dialer;
mod door;
mod half_open;
mod response_limiter;
mod work_list;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use noq_proto::{ConnectionError, ConnectionHandle, DatagramEvent, FourTuple};
use roadweave_proto::{Instant, UplinkId, peer_text};

use self::dialer::Dialer;
use self::door::Door;
use self::half_open::{Admission, HalfOpen};
use self::response_limiter::ResponseLimiter;
use self::work_list::WorkList;
use crate::config::{ConfigError, TransportConfig};
use crate::connection::{Connection, NewConnection};
use crate::epoch::Epoch;
use crate::event::{CloseReason, ConnectError, ConnectionId, EndpointEvent};
use crate::idle_probes::IdleProbes;
use crate::outbox::{Ecn, Outbox, Route, Transmit};
use crate::probe;
use crate::source::{Local, Source};
use crate::stats::EndpointStats;
use crate::tls::{self, Clock};
use crate::transport;
use crate::virtual_address;
use roadweave_identity::tls::{HandshakeRefusal, SERVER_NAME};
use roadweave_identity::{Identity, PeerPolicy, PublicKey, derive_secret};

/// One end of many connections.
pub struct Endpoint {
    epoch: Epoch,
    config: Arc<TransportConfig>,
    quic: noq_proto::Endpoint,
    door: Option<Door>,
    idle_probes: Arc<IdleProbes>,
    dialer: Option<Dialer>,
    refusal: Arc<HandshakeRefusal>,
    clock: Arc<Clock>,

    /// Boxed: a node of the map has room for eleven, and a client has few.
    connections: BTreeMap<ConnectionId, Box<Connection>>,
    /// The library's names; it uses them again once drained.
    handles: BTreeMap<ConnectionId, ConnectionHandle>,
    ids: BTreeMap<ConnectionHandle, ConnectionId>,
    next_id: u64,
    half_open: HalfOpen,
    response_limiter: ResponseLimiter,
    work: WorkList,

    events: VecDeque<EndpointEvent>,
    outbox: Outbox,
    scratch: Vec<u8>,
    stats: EndpointStats,
}

impl Endpoint {
    /// An endpoint that connects to servers, each by its key.
    ///
    /// # Errors
    /// The configuration breaks its bounds.
    pub fn client(
        epoch: Epoch,
        config: &TransportConfig,
        identity: Arc<Identity>,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let dialer = Dialer::new(epoch, config, identity)?;
        let (refusal, clock) = (dialer.refusal.clone(), dialer.clock.clone());
        let reset_key = derive_secret(&config.rng_seed, b"reset");
        let endpoint_config = Arc::new(transport::endpoint_config(config, &reset_key)?);
        let quic = noq_proto::Endpoint::new(endpoint_config, None, true);
        Ok(Self::new(epoch, config, quic, Some(dialer), refusal, clock))
    }

    /// An endpoint that lets in whom `policy` lets in.
    ///
    /// The key of its stateless resets is derived from its private key and `reset_salt`, so that
    /// after a restart its former clients learn at once that their connections are gone.
    ///
    /// # Errors
    /// The configuration breaks its bounds.
    pub fn server(
        epoch: Epoch,
        config: &TransportConfig,
        identity: Arc<Identity>,
        policy: Arc<dyn PeerPolicy>,
    ) -> Result<Self, ConfigError> {
        Self::server_of(epoch, config, identity, policy, tls::ALPN)
    }

    /// A server of the version that `alpn` names.
    pub(crate) fn server_of(
        epoch: Epoch,
        config: &TransportConfig,
        identity: Arc<Identity>,
        policy: Arc<dyn PeerPolicy>,
        alpn: &'static [u8],
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let (refusal, clock) = (Arc::new(HandshakeRefusal::default()), Arc::new(Clock::default()));
        let crypto = tls::server(&identity, policy, refusal.clone(), clock.clone(), alpn)?;
        let server = transport::server_config(epoch, config, crypto, clock.clone())?;
        let reset_key = derive_secret(&identity.derive(b"stateless reset"), &config.reset_salt);
        let endpoint_config = Arc::new(transport::endpoint_config(config, &reset_key)?);
        let door = Door::new(server);
        let quic = noq_proto::Endpoint::new(endpoint_config, Some(door.open()), true);
        let endpoint = Self::new(epoch, config, quic, None, refusal, clock);
        Ok(Self { door: Some(door), ..endpoint })
    }

    fn new(
        epoch: Epoch,
        config: &TransportConfig,
        quic: noq_proto::Endpoint,
        dialer: Option<Dialer>,
        refusal: Arc<HandshakeRefusal>,
        clock: Arc<Clock>,
    ) -> Self {
        let response_limiter = match &dialer {
            Some(_) => ResponseLimiter::of_client(),
            None => ResponseLimiter::of_server(),
        };
        Self {
            epoch,
            config: Arc::new(config.clone()),
            quic,
            door: None,
            idle_probes: Arc::default(),
            dialer,
            refusal,
            clock,
            connections: BTreeMap::new(),
            handles: BTreeMap::new(),
            ids: BTreeMap::new(),
            next_id: 0,
            half_open: HalfOpen::default(),
            response_limiter,
            work: WorkList::default(),
            events: VecDeque::new(),
            outbox: Outbox::default(),
            scratch: Vec::new(),
            stats: EndpointStats::default(),
        }
    }

    /// Begins a connection over `uplink` to `server`, which has to prove that it holds
    /// `server_key`.
    ///
    /// It is one attempt over one uplink: race several, keep the first that reports
    /// [`Event::Connected`](crate::Event::Connected), close the others and open their uplinks as
    /// paths.
    ///
    /// # Errors
    /// This is a server, or there is no such address.
    pub fn connect(
        &mut self,
        now: Instant,
        uplink: UplinkId,
        server: SocketAddr,
        server_key: PublicKey,
    ) -> Result<ConnectionId, ConnectError> {
        self.clock.set(now);
        let dialer = self.dialer.as_mut().ok_or(ConnectError::NotClient)?;
        let settings = dialer
            .settings(server_key)
            .map_err(|error| ConnectError::Transport(error.to_string()))?;
        let std_now = self.epoch.to_std(now);
        let (handle, quic) = self.quic.connect(std_now, settings, server, SERVER_NAME).map_err(
            |error| match error {
                noq_proto::ConnectError::InvalidRemoteAddress(address) => {
                    ConnectError::InvalidAddress(address)
                }
                other => ConnectError::Transport(other.to_string()),
            },
        )?;
        let id = self.add(now, handle, quic, Some(uplink), server);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.begin(now);
        }
        self.look_after(now, id);
        Ok(id)
    }

    /// Takes in a packet. Returns the connection that may have new events or packets.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        source: Source,
        packet: BytesMut,
    ) -> Option<ConnectionId> {
        self.clock.set(now);
        self.tidy();
        if probe::is_too_short_to_answer(&packet) {
            self.stats.without_connection += 1;
            return None;
        }
        let local = match source.local {
            Local::Uplink(uplink) => Some(virtual_address::of(uplink)),
            Local::Address(address) => address,
        };
        let network = FourTuple::new(source.remote, local);
        let ecn = source.ecn.and_then(|ecn| noq_proto::EcnCodepoint::from_bits(ecn.bits()));
        let received = self.epoch.to_std(source.received_by(now));
        let bytes = packet.len();
        let turns_away = self.door.as_mut().is_some_and(|door| {
            door.handle_packet(now, &source, &packet, &self.half_open, &mut self.quic)
        });
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let event = self.quic.handle(received, network, ecn, packet, &mut scratch);
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
                self.stats.without_connection += 1;
                if self.response_limiter.allow(now, source.remote) {
                    self.respond(&source, &transmit, &scratch);
                }
                None
            }
            None => {
                match turns_away {
                    true => self.stats.ignored += 1,
                    false => self.stats.without_connection += 1,
                }
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
        self.settle(now);
        let mut due = work_list::due(&self.work.deadlines, now);
        for id in &due {
            if let Some(connection) = self.connections.get_mut(id) {
                connection.handle_timeout(now);
            }
            self.look_after(now, *id);
        }
        let over = self.work.over(now);
        over.iter().for_each(|id| self.release(*id));
        due.extend(over);
        due
    }

    /// Ends a turn: [`poll_timeout`](Endpoint::poll_timeout) then looks at no connection, and
    /// neither does the next turn at those that it has nothing for.
    pub fn settle(&mut self, now: Instant) {
        self.work.settle(now, &self.connections);
    }

    /// When [`handle_timeout`](Endpoint::handle_timeout) wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.work.poll_timeout(&self.connections)
    }

    /// The next event that belongs to no connection.
    pub fn poll_event(&mut self) -> Option<EndpointEvent> {
        self.events.pop_front()
    }

    /// A connection.
    pub fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(&id).map(Box::as_ref)
    }

    /// A connection, mutable.
    pub fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(&id)?;
        self.work.touch(id);
        Some(connection)
    }

    /// All connections, ascending.
    ///
    /// One that is over stays for a few round trips to repeat its close, at most 3 s, and only
    /// among the last 256 that are over; it goes once its events are polled and its packets sent.
    pub fn connection_ids(&self) -> Vec<ConnectionId> {
        let gone = |id: &ConnectionId, connection: &Connection| {
            self.work.drained.contains(id) && connection.is_spent()
        };
        self.connections.iter().filter(|(id, c)| !gone(id, c)).map(|(id, _)| *id).collect()
    }

    /// How many connections there are, including half-open ones and those not yet gone.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Resets, retries and refusals; [`Endpoint::poll_transmit`] has them too.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Whether [`Endpoint::poll_transmit`] has packets.
    pub fn has_packets(&self) -> bool {
        let waits = |id| self.connections.get(&id).is_some_and(|it| it.has_packets());
        !self.outbox.is_empty() || self.work.unsent.iter().copied().any(waits)
    }

    /// The packets of the next non-empty outbox; dropping them clears it.
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        if !self.outbox.is_empty() {
            return Some(Transmit::new(&mut self.outbox));
        }
        let connections = &mut self.connections;
        let mut waits =
            |id: &ConnectionId| connections.get_mut(id).is_some_and(|it| !it.outbox().is_empty());
        let id = std::iter::from_fn(|| self.work.unsent.pop_first()).find(|id| waits(id))?;
        self.connections.get_mut(&id).map(|connection| Transmit::new(connection.outbox()))
    }

    /// Closes every connection with `reason`; the packets are in the outboxes.
    pub fn close(&mut self, now: Instant, reason: &str) {
        for (id, connection) in &mut self.connections {
            connection.close(now, 0, reason);
            self.work.touch(*id);
        }
    }

    /// Counters of the endpoint.
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
            idle_probes: self.idle_probes.clone(),
            refusal: self.refusal.clone(),
            uplink,
            remote,
        };
        self.connections.insert(id, Box::new(Connection::new(now, new)));
        self.handles.insert(id, handle);
        self.ids.insert(handle, id);
        id
    }

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
                    self.work.on_drained(id);
                    break;
                }
            }
            connection.flush(now);
        }
        self.work.touch(id);
        if let Some(event) = self.half_open.settle(id, connection) {
            self.push_event(event);
        }
    }

    /// Bounds half-open connections; admission by key follows later.
    fn handle_incoming(
        &mut self,
        now: Instant,
        source: &Source,
        incoming: noq_proto::Incoming,
        scratch: &mut Vec<u8>,
    ) -> Option<ConnectionId> {
        scratch.clear();
        let proved = incoming.remote_address_validated();
        match self.half_open.admit(now, &self.config, source.remote, proved) {
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
                self.half_open.begin(now, id, source.remote, proved);
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.note_first_marks(source.ecn.is_some());
                    connection.begin(now);
                }
                Some(id)
            }
            Err(error) => {
                if let Some(transmit) = &error.response {
                    self.respond(source, transmit, scratch);
                }
                let reason = match &error.cause {
                    ConnectionError::TransportError(own) => CloseReason::of_own(own),
                    cause => CloseReason::Protocol(peer_text(cause.to_string().as_bytes())),
                };
                let remote = source.remote;
                self.push_event(EndpointEvent::HandshakeFailed { remote, reason });
                None
            }
        }
    }

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

    fn evict(&mut self, id: ConnectionId) {
        self.stats.evicted += 1;
        self.half_open.end(id);
        self.release(id);
        self.connections.remove(&id);
        self.work.unsent.remove(&id);
        self.work.drained.remove(&id);
    }

    fn push_event(&mut self, event: EndpointEvent) {
        match event {
            EndpointEvent::Incoming(_) => return self.events.push_back(event),
            EndpointEvent::Refused { .. } => self.stats.refused += 1,
            EndpointEvent::HandshakeFailed { .. } => self.stats.failed += 1,
        }
        // Failed handshakes come in any number; the newest are dropped, and counted.
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }

    fn respond(&mut self, source: &Source, transmit: &noq_proto::Transmit, packet: &[u8]) {
        self.stats.responses += 1;
        if self.outbox.len() >= RESPONSES_MAX {
            return;
        }
        let (uplink, address) = match source.local {
            Local::Uplink(uplink) => (Some(uplink), None),
            Local::Address(address) => (None, address),
        };
        let ecn = transmit.ecn.and_then(|ecn| Ecn::from_bits(ecn as u8));
        let route = Route { uplink, destination: transmit.destination, source: address, ecn };
        self.outbox.push(route, &packet[..transmit.size]);
    }

    /// Lets the library forget a connection; it stays here until the user has fetched everything.
    fn release(&mut self, id: ConnectionId) {
        if let Some(handle) = self.handles.remove(&id) {
            self.ids.remove(&handle);
            self.quic.handle_event(handle, noq_proto::EndpointEvent::drained());
        }
        self.work.deadlines.set(id, None);
        self.work.on_drained(id);
    }

    fn tidy(&mut self) {
        let Self { connections, half_open, work: WorkList { drained, unsent, .. }, .. } = self;
        drained.retain(|id| {
            let spent = connections.get(id).is_none_or(|it| it.is_spent());
            if spent {
                connections.remove(id);
                unsent.remove(id);
                half_open.end(*id);
            }
            !spent
        });
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

const RESPONSES_MAX: usize = 1024;
const EVENTS_MAX: usize = 1024;
