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
mod incoming;
mod response_limiter;
mod setup;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use noq_proto::{ConnectionHandle, DatagramEvent, FourTuple};
use roadweave_proto::{Deadlines, Instant, UplinkId};

use self::dialer::Dialer;
use self::door::Door;
use self::half_open::HalfOpen;
use self::response_limiter::ResponseLimiter;
use crate::config::TransportConfig;
use crate::connection::{Connection, NewConnection};
use crate::epoch::Epoch;
use crate::event::{ConnectError, ConnectionId, EndpointEvent};
use crate::idle_probes::IdleProbes;
use crate::outbox::{Outbox, Transmit};
use crate::probe;
use crate::source::{Local, Source};
use crate::stats::EndpointStats;
use crate::tls::Clock;
use crate::virtual_address;
use roadweave_identity::PublicKey;
use roadweave_identity::tls::{HandshakeRefusal, SERVER_NAME};

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

#[derive(Default)]
struct WorkList {
    drained: BTreeSet<ConnectionId>,
    touched: BTreeSet<ConnectionId>,
    unsent: BTreeSet<ConnectionId>,
    deadlines: Deadlines<ConnectionId>,
    /// Connections that are over, with the times at which the library must forget them.
    closing: Deadlines<ConnectionId>,
}

impl WorkList {
    fn touch(&mut self, id: ConnectionId) {
        self.touched.insert(id);
        self.unsent.insert(id);
    }

    fn on_drained(&mut self, id: ConnectionId) {
        self.closing.set(id, None);
        self.drained.insert(id);
    }
}

impl Endpoint {
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
        let turns_away = self.set_door(now, &source, &packet);
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
        self.note_deadlines(now);
        let mut due = due(&self.work.deadlines, now);
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
        let touched =
            self.work.touched.iter().copied().filter(|id| !self.work.drained.contains(id));
        let touched = touched.filter_map(|id| self.connections.get(&id)?.poll_timeout());
        // A deadline noted before a connection's turn may have been met in it.
        let noted = self.work.deadlines.iter().find(|(_, id)| !self.work.touched.contains(id));
        [noted.map(|(at, _)| at), self.work.closing.earliest()]
            .into_iter()
            .flatten()
            .chain(touched)
            .min()
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
        self.work.touched.insert(id);
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
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("connections", &self.connections)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
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
        self.settle_handshake(id);
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

    fn end_closing(&mut self, now: Instant) -> Vec<ConnectionId> {
        let mut over = due(&self.work.closing, now);
        let excess = self.work.closing.iter().len().saturating_sub(CLOSING_MAX);
        over.extend(self.work.closing.iter().take(excess).skip(over.len()).map(|(_, id)| id));
        over.iter().for_each(|id| self.release(*id));
        over
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

    fn note_deadlines(&mut self, now: Instant) {
        while let Some(id) = self.work.touched.pop_first() {
            let alive = !self.work.drained.contains(&id);
            let connection = self.connections.get(&id).map(Box::as_ref).filter(|_| alive);
            self.work.deadlines.set(id, connection.and_then(Connection::poll_timeout));
            if connection.is_some_and(Connection::is_closed) && !self.work.closing.contains(id) {
                self.work.closing.set(id, Some(now + LINGER));
            }
        }
    }
}

fn due(deadlines: &Deadlines<ConnectionId>, now: Instant) -> Vec<ConnectionId> {
    deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| id).collect()
}

/// Longest memory of an ended connection: a peer could prolong the library's three timeouts.
const LINGER: Duration = Duration::from_secs(3);
const CLOSING_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use roadweave_identity::Identity;

    fn drain(endpoint: &mut Endpoint) -> usize {
        std::iter::from_fn(|| endpoint.poll_transmit().map(drop)).count()
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    fn a_turn_looks_only_at_connections_that_had_a_part_in_it() {
        let epoch = Epoch::new(std::time::Instant::now());
        let identity = Arc::new(Identity::from_seed([1; 32]));
        let server_key = Identity::from_seed([2; 32]).public_key();
        let config = TransportConfig::new([1; 32]);
        let mut endpoint = Endpoint::client(epoch, &config, identity).unwrap();
        let server = SocketAddr::from(([192, 0, 2, 1], 4433));
        let mut connect =
            || endpoint.connect(Instant::ZERO, UplinkId(0), server, server_key).unwrap();
        let ids: Vec<ConnectionId> = (0..50).map(|_| connect()).collect();
        assert_eq!((drain(&mut endpoint), endpoint.work.unsent.len()), (50, 0));
        endpoint.connection_mut(ids[7]).unwrap().close(Instant::ZERO, 0, "");
        assert!(endpoint.work.unsent.iter().eq([&ids[7]]));
        assert_eq!(drain(&mut endpoint), 1);
        let due = endpoint.handle_timeout(Instant::from_millis(150));
        assert!(endpoint.work.unsent.iter().eq(&due), "{due:?}");
    }
}
