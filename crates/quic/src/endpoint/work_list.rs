//! Which connections of an endpoint have something to do, so that no turn looks at all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_proto::{Deadlines, Instant, earliest};

use crate::connection::Connection;
use crate::event::ConnectionId;

#[derive(Default)]
pub(super) struct WorkList {
    pub(super) drained: BTreeSet<ConnectionId>,
    pub(super) touched: BTreeSet<ConnectionId>,
    pub(super) unsent: BTreeSet<ConnectionId>,
    pub(super) deadlines: Deadlines<ConnectionId>,
    /// Connections that are over, with the times at which the library must forget them.
    closing: Deadlines<ConnectionId>,
}

type Connections = BTreeMap<ConnectionId, Box<Connection>>;

impl WorkList {
    pub(super) fn touch(&mut self, id: ConnectionId) {
        self.touched.insert(id);
        self.unsent.insert(id);
    }

    pub(super) fn on_drained(&mut self, id: ConnectionId) {
        self.closing.set(id, None);
        self.drained.insert(id);
    }

    pub(super) fn poll_timeout(&self, connections: &Connections) -> Option<Instant> {
        let touched = self.touched.iter().copied().filter(|id| !self.drained.contains(id));
        let touched = touched.filter_map(|id| connections.get(&id)?.poll_timeout());
        // A deadline noted before a connection's turn may have been met in it.
        let noted = self.deadlines.iter().find(|(_, id)| !self.touched.contains(id));
        earliest([noted.map(|(at, _)| at), self.closing.earliest(), touched.min()])
    }

    /// Notes the deadlines of the connections that had a part in this turn.
    pub(super) fn settle(&mut self, now: Instant, connections: &Connections) {
        while let Some(id) = self.touched.pop_first() {
            let alive = !self.drained.contains(&id);
            let connection = connections.get(&id).map(Box::as_ref).filter(|_| alive);
            self.deadlines.set(id, connection.and_then(Connection::poll_timeout));
            if connection.is_some_and(Connection::is_closed) && !self.closing.contains(id) {
                self.closing.set(id, Some(now + LINGER));
            }
        }
    }

    pub(super) fn over(&self, now: Instant) -> Vec<ConnectionId> {
        let mut over = due(&self.closing, now);
        let excess = self.closing.iter().len().saturating_sub(CLOSING_MAX);
        over.extend(self.closing.iter().take(excess).skip(over.len()).map(|(_, id)| id));
        over
    }
}

pub(super) fn due(deadlines: &Deadlines<ConnectionId>, now: Instant) -> Vec<ConnectionId> {
    deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| id).collect()
}

/// Longest memory of an ended connection: a peer could prolong the library's three timeouts.
const LINGER: Duration = Duration::from_secs(3);
const CLOSING_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use roadweave_identity::Identity;
    use roadweave_proto::UplinkId;

    use super::*;
    use crate::{Endpoint, Epoch, TransportConfig};

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
        let due = endpoint.poll_timeout();
        endpoint.settle(Instant::ZERO);
        assert!(due.is_some() && endpoint.work.touched.is_empty());
        assert_eq!(endpoint.poll_timeout(), due);
        assert_eq!(drain(&mut endpoint), 1);
        let due = endpoint.handle_timeout(Instant::from_millis(150));
        assert!(endpoint.work.unsent.iter().eq(&due), "{due:?}");
    }
}
