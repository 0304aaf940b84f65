//! Handshakes that clients begin: let in, asked to retry, ignored, refused.

use roadweave_proto::{Instant, peer_text};

use super::Endpoint;
use super::half_open::Admission;
use crate::event::{CloseReason, ConnectionId, EndpointEvent};
use crate::outbox::{Ecn, Route};
use crate::source::{Local, Source};

impl Endpoint {
    /// Bounds half-open connections; admission by key follows later.
    pub(super) fn handle_incoming(
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

    pub(super) fn settle_handshake(&mut self, id: ConnectionId) {
        let Some(remote) = self.half_open.unreported(id) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.peer().is_some() {
            self.half_open.end(id);
            self.push_event(EndpointEvent::Incoming(id));
            return;
        }
        let Some(reason) = connection.take_failure() else { return };
        self.half_open.report(id);
        let event = match connection.peer.refused {
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
        // Only failed handshakes come in any number; the newest are dropped, and counted.
        let incoming = matches!(event, EndpointEvent::Incoming(_));
        if incoming || self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }

    pub(super) fn respond(
        &mut self,
        source: &Source,
        transmit: &noq_proto::Transmit,
        packet: &[u8],
    ) {
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
}

const RESPONSES_MAX: usize = 1024;
const EVENTS_MAX: usize = 1024;
