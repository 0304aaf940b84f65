//! What connections need after their turn, and how those that are over are forgotten.

use std::time::Duration;

use roadweave_proto::Instant;

use super::Endpoint;
use crate::connection::Connection;
use crate::event::ConnectionId;

impl Endpoint {
    /// Exchanges events with the library's endpoint, and settles the handshake if it has ended.
    pub(super) fn look_after(&mut self, now: Instant, id: ConnectionId) {
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
        self.touched.insert(id);
        self.unsent.insert(id);
        self.settle_handshake(id);
    }

    /// Lets the library forget a connection; it stays here until the user has fetched everything.
    pub(super) fn release(&mut self, id: ConnectionId) {
        if let Some(handle) = self.handles.remove(&id) {
            self.ids.remove(&handle);
            self.quic.handle_event(handle, noq_proto::EndpointEvent::drained());
        }
        self.deadlines.set(id, None);
        self.closing.set(id, None);
        self.drained.insert(id);
    }

    pub(super) fn end_closing(&mut self, now: Instant) -> Vec<ConnectionId> {
        if self.closing.len() == 0 {
            return Vec::new();
        }
        let mut over = self.closing.due(now);
        let rest = self.closing.len() - over.len();
        over.extend(self.closing.earliest_of(over.len(), rest.saturating_sub(CLOSING_MAX)));
        over.iter().for_each(|id| self.release(*id));
        over
    }

    pub(super) fn tidy(&mut self) {
        let (connections, unsent) = (&mut self.connections, &mut self.unsent);
        let half_open = &mut self.half_open;
        self.drained.retain(|id| {
            let spent = connections.get(id).is_none_or(|it| it.is_spent());
            if spent {
                connections.remove(id);
                unsent.remove(id);
                half_open.end(*id);
            }
            !spent
        });
    }

    pub(super) fn note_deadlines(&mut self, now: Instant) {
        while let Some(id) = self.touched.pop_first() {
            let alive = !self.drained.contains(&id);
            let connection = self.connections.get(&id).map(Box::as_ref).filter(|_| alive);
            self.deadlines.set(id, connection.and_then(Connection::poll_timeout));
            if connection.is_some_and(Connection::is_closed) {
                self.closing.set_once(id, now + LINGER);
            }
        }
    }
}

/// Longest memory of a connection that is over. The library wants three probe timeouts (RFC 9000
/// section 10.2), which grow with round trips and delays that the peer chooses.
const LINGER: Duration = Duration::from_secs(3);
const CLOSING_MAX: usize = 256;
