//! The streams of a server's clients: what was agreed on each connection, and what sessions carry.
//!
//! The offer in a welcome holds for that connection. A proxy only relays streams (`crate::proxy`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use roadweave_proto::wire::StreamsOffer;
use roadweave_quic::{Connection, ConnectionId};
use roadweave_stream::{Event, Streams};

use super::{Joined, Server};
use crate::lane::LaneConfig;
use crate::peers::Peer;
use crate::rate::Limit;
use crate::session::StreamTurn;
use crate::streams::{EndsStreams, StreamsConfig, StreamsOver, StreamsOwner, StreamsTable, Terms};

/// Streams without a session may hold this part of the server's memory.
const AWAY_SHARE: usize = 8;

#[derive(Debug)]
pub(super) struct ServerStreams {
    pub(super) table: StreamsTable<PublicKey>,
    terms: BTreeMap<ConnectionId, Terms>,
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

impl Server {
    pub(super) fn agree_on_streams(
        &mut self,
        id: ConnectionId,
        client: Option<StreamsOffer>,
    ) -> Option<StreamsOffer> {
        let key = self.endpoint.connection(id).and_then(Connection::peer)?;
        let all = self.streams.as_mut()?;
        let terms = all.table.agree(&key, client?);
        all.terms.insert(id, terms);
        Some(terms.offer())
    }

    pub(super) fn begin_streams(
        &mut self,
        now: Instant,
        id: ConnectionId,
        key: PublicKey,
        peer: &Arc<Peer>,
    ) -> Result<(), StreamsOver> {
        let Some(all) = &mut self.streams else { return Ok(()) };
        let terms = all.terms.get(&id).copied();
        all.table.begin(now, key, terms, peer)
    }

    pub(super) fn leave_streams(&mut self, now: Instant, id: ConnectionId, ended: Option<&Joined>) {
        let Some(all) = &mut self.streams else { return };
        all.terms.remove(&id);
        if let Some(Joined { key, peer, .. }) = ended
            && !self.sessions.by_key.contains_key(key)
        {
            let stays = self.peers.get(key).is_some_and(|now| now.is_where(peer));
            all.table.on_away(now, key, stays);
        }
    }

    pub(super) fn stream_memory(&self, key: &PublicKey) -> u64 {
        self.streams.as_ref().map_or(0, |all| all.table.memory(key))
    }

    pub(super) fn tend_streams(&mut self, now: Instant) {
        if let Some(all) = &mut self.streams {
            all.table.handle_timeout(now, self.config.memory_max / AWAY_SHARE);
        }
    }

    /// Ends the session of a client that broke the rules of all its streams, which cannot go on.
    pub(super) fn end_if_violated(&mut self, now: Instant, id: ConnectionId, key: &PublicKey) {
        let all = self.streams.as_ref().filter(|all| all.terms.contains_key(&id));
        if let Some(violation) = all.and_then(|all| all.table.violation(key)) {
            self.end(now, id, &format!("the client broke the rules of its streams: {violation}"));
        }
    }

    pub(super) fn end_streams_of(&mut self, key: &PublicKey) {
        self.streams.iter_mut().for_each(|all| all.table.end(key));
    }

    pub(super) fn stream_lane(&self, id: ConnectionId) -> Option<LaneConfig> {
        if self.relaying.contains(&id) {
            return self.legs.as_ref()?.frames.clone();
        }
        let all = self.streams.as_ref().filter(|all| all.terms.contains_key(&id))?;
        Some(all.table.config().lane())
    }
}
