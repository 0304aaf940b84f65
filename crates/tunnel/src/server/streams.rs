//! The streams of a server's clients: what was agreed on each connection, and what sessions carry.
//!
//! The offer in a welcome holds for that connection. A proxy only relays streams (`crate::proxy`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use roadweave_proto::wire::StreamsOffer;
use roadweave_quic::ConnectionId;
use roadweave_stream::{Event, Streams, Violation};

use super::Server;
use crate::lane::LaneConfig;
use crate::rate::Limit;
use crate::session::StreamTurn;
use crate::streams::{EndsStreams, StreamsConfig, StreamsOwner, StreamsTable, Terms};

/// Streams without a session may hold this part of the server's memory.
const AWAY_SHARE: usize = 8;

#[derive(Debug)]
pub(super) struct ServerStreams {
    pub(super) table: StreamsTable<PublicKey>,
    pub(super) terms: BTreeMap<ConnectionId, Terms>,
}

impl ServerStreams {
    pub(super) fn new(config: StreamsConfig, first: u64) -> Self {
        Self { table: StreamsTable::new(config, first), terms: BTreeMap::new() }
    }

    pub(super) fn turn<'a>(
        &'a mut self,
        id: ConnectionId,
        key: &PublicKey,
        limits: Option<&'a mut [Limit; 2]>,
    ) -> Option<StreamTurn<'a>> {
        self.terms.contains_key(&id).then_some(())?;
        Some(StreamTurn::new(self.table.get_mut(key)?, limits))
    }

    pub(super) fn agree(
        &mut self,
        id: ConnectionId,
        key: &PublicKey,
        client: StreamsOffer,
    ) -> StreamsOffer {
        let terms = self.table.agree(key, client);
        self.terms.insert(id, terms);
        terms.offer()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, memory_max: usize) {
        self.table.handle_timeout(now, memory_max / AWAY_SHARE);
    }

    /// How a client with this connection broke the rules of all its streams, which cannot go on.
    pub(super) fn violation(&self, id: ConnectionId, key: &PublicKey) -> Option<Violation> {
        self.terms.contains_key(&id).then(|| self.table.violation(key))?
    }

    pub(super) fn lane(&self, id: ConnectionId) -> Option<LaneConfig> {
        self.terms.contains_key(&id).then(|| self.table.config().lane())
    }
}

impl EndsStreams for Server {
    fn hand_over_symbols(&mut self, now: Instant) {
        let Some(all) = &mut self.streams else { return };
        for id in &self.sessions.touched {
            let Some(joined) = self.sessions.all.get_mut(id) else { continue };
            if let Some(mut turn) = all.turn(*id, &joined.key, joined.limits.as_mut()) {
                joined.session.hand_over_symbols(now, &mut turn);
                all.table.on_turned(&joined.key);
            }
        }
    }

    fn poll_stream_event(&mut self, now: Instant) -> Option<(StreamsOwner, Event)> {
        self.streams.as_mut()?.table.poll_event(now)
    }

    fn poll_streams_over(&mut self) -> Option<StreamsOwner> {
        self.streams.as_mut()?.table.over.pop_front()
    }

    fn streams(&mut self, owner: StreamsOwner) -> Option<&mut Streams> {
        let (key, streams) = self.streams.as_mut()?.table.of(owner)?;
        self.sessions.touched.extend(self.sessions.by_key.get(&key));
        Some(streams)
    }

    fn is_of_client(&self, address: IpAddr) -> bool {
        self.peers.route(address).is_some()
    }

    fn stream_address(&self, owner: StreamsOwner, ipv4: bool) -> Option<IpAddr> {
        self.streams.as_ref()?.table.address(owner, ipv4)
    }
}
