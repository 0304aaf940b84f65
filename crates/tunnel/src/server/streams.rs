//! The streams of a server's clients: they outlive a session, and wait a while for the next one.
//!
//! ```text
//! hello ─► terms of the connection: what both call the streams ─► join: as agreed, or anew
//!                                                     no session ─┴─► 2 minutes ─► over
//! ```
//!
//! A client has the streams of one epoch at a time. What it was told in a welcome holds for that
//! connection: if its streams ended meanwhile it must ask again.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_identity::PublicKey;
use roadweave_quic::{Connection, ConnectionId};
use roadweave_stream::{Event, Side, Streams};
use roadweave_types::Instant;
use roadweave_wire::{Hello, StreamsEpoch};

use super::{Joined, Server};
use crate::lane::LaneConfig;
use crate::peers::Peer;
use crate::rate::Limit;
use crate::session::StreamTurn;
use crate::streams::{KEPT_FOR, StreamsConfig, StreamsOwner};

/// Those that wait may hold this part of the server's memory.
const AWAY_SHARE: usize = 8;
/// How often it is looked what those hold that wait.
const LOOK: Duration = Duration::from_secs(1);

/// What client and server call the same streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Names {
    client: StreamsEpoch,
    server: StreamsEpoch,
}

/// What was agreed on a connection.
#[derive(Clone, Copy, Debug)]
struct Terms {
    names: Names,
    /// Whether there were such streams already.
    goes_on: bool,
    /// Whether the client takes frames that change a priority.
    takes_priorities: bool,
}

/// The streams of one client.
#[derive(Debug)]
struct OfClient {
    names: Names,
    owner: StreamsOwner,
    streams: Streams,
    /// Where they come from.
    peer: Arc<Peer>,
    /// Since when there is no session, if so.
    away_since: Option<Instant>,
}

/// The streams of all clients of a server that takes some.
#[derive(Debug)]
pub(super) struct ServerStreams {
    config: StreamsConfig,
    next_epoch: u64,
    next_owner: u64,
    terms: BTreeMap<ConnectionId, Terms>,
    /// Never iterated.
    by_key: HashMap<PublicKey, OfClient>,
    owners: BTreeMap<StreamsOwner, PublicKey>,
    eventful: BTreeSet<StreamsOwner>,
    over: VecDeque<StreamsOwner>,
    /// Those without a session, the longest first.
    away: BTreeSet<(Instant, StreamsOwner)>,
    away_bytes: usize,
    next_look: Instant,
}

impl ServerStreams {
    /// None yet; names count from `first`.
    pub(super) fn new(config: StreamsConfig, first: u64) -> Self {
        Self {
            config,
            next_epoch: first,
            next_owner: 0,
            terms: BTreeMap::new(),
            by_key: HashMap::new(),
            owners: BTreeMap::new(),
            eventful: BTreeSet::new(),
            over: VecDeque::new(),
            away: BTreeSet::new(),
            away_bytes: 0,
            next_look: Instant::ZERO,
        }
    }

    /// A client says hello on a connection, and calls its streams so; returns what the server calls
    /// them.
    fn agree(
        &mut self,
        id: ConnectionId,
        key: PublicKey,
        client: StreamsEpoch,
        takes_priorities: bool,
    ) -> StreamsEpoch {
        let is_sound = |of: &&OfClient| of.streams.violation().is_none();
        let known = self.by_key.get(&key).filter(|of| of.names.client == client).filter(is_sound);
        let terms = match known {
            Some(of) => Terms { names: of.names, goes_on: true, takes_priorities },
            None => {
                self.next_epoch = self.next_epoch.wrapping_add(1);
                let server = StreamsEpoch(self.next_epoch);
                Terms { names: Names { client, server }, goes_on: false, takes_priorities }
            }
        };
        self.terms.insert(id, terms);
        terms.names.server
    }

    /// The connection of a client becomes its session.
    ///
    /// # Errors
    /// Its streams were to go on, and are over.
    fn on_session(
        &mut self,
        now: Instant,
        id: ConnectionId,
        key: PublicKey,
        peer: &Arc<Peer>,
    ) -> Result<(), StreamsOver> {
        let terms = self.terms.get(&id).copied();
        let takes_priorities = terms.is_some_and(|terms| terms.takes_priorities);
        let of_client = self.by_key.get_mut(&key);
        let known = of_client.filter(|of| terms.is_some_and(|terms| terms.names == of.names));
        match (terms, known) {
            (Some(_), Some(of)) if of.peer.is_where(peer) => {
                of.peer = peer.clone();
                of.streams.set_peer_takes_priorities(takes_priorities);
                of.streams.on_new_session(now);
                if let Some(since) = of.away_since.take() {
                    self.away.remove(&(since, of.owner));
                }
            }
            (Some(Terms { names, goes_on: false, .. }), None) => {
                self.end(&key);
                self.next_owner += 1;
                let owner = StreamsOwner(self.next_owner);
                let mut streams = Streams::new(self.config.bounds(Side::Server));
                streams.set_peer_takes_priorities(takes_priorities);
                let (peer, away_since) = (peer.clone(), None);
                self.owners.insert(owner, key);
                self.by_key.insert(key, OfClient { names, owner, streams, peer, away_since });
            }
            (None, _) => self.end(&key),
            (Some(_), _) => {
                self.end(&key);
                return Err(StreamsOver);
            }
        }
        Ok(())
    }

    /// The session of a client is over; `stays`: the client may come back to where it was.
    fn on_session_over(&mut self, now: Instant, key: &PublicKey, stays: bool) {
        match self.by_key.get_mut(key) {
            Some(of) if stays => {
                of.away_since = Some(now);
                self.away.insert((now, of.owner));
            }
            _ => self.end(key),
        }
    }

    /// The streams of a client are over.
    fn end(&mut self, key: &PublicKey) {
        let Some(of) = self.by_key.remove(key) else { return };
        self.owners.remove(&of.owner);
        self.eventful.remove(&of.owner);
        of.away_since.iter().for_each(|since| _ = self.away.remove(&(*since, of.owner)));
        self.over.push_back(of.owner);
    }

    /// Bytes that the streams hold whose clients are away, as of the last second.
    pub(super) fn away_bytes(&self) -> usize {
        self.away_bytes
    }

    /// Lets those that wait for a session hold no more than `most` bytes: who waits longest ends.
    fn keep_away_to(&mut self, now: Instant, most: usize) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK;
        let key = |(_, owner): &(Instant, StreamsOwner)| self.owners.get(owner).copied();
        let away: Vec<PublicKey> = self.away.iter().filter_map(key).collect();
        let held = |all: &Self, key: &PublicKey| all.memory(key) as usize;
        self.away_bytes = away.iter().map(|key| held(self, key)).sum();
        for key in away {
            if self.away_bytes <= most {
                return;
            }
            self.away_bytes -= held(self, &key);
            self.end(&key);
        }
    }

    /// Ends those that have waited long enough for a session.
    fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, owner)) =
            self.away.first().copied().filter(|(since, _)| *since + KEPT_FOR <= now)
        {
            match self.owners.get(&owner).copied() {
                Some(key) => self.end(&key),
                None => _ = self.away.pop_first(),
            }
        }
    }

    /// When [`ServerStreams::handle_timeout`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.away.first().map(|(since, _)| (*since + KEPT_FOR).min(self.next_look))
    }

    /// The streams of a client, for a turn of its session.
    pub(super) fn turn<'a>(
        &'a mut self,
        id: ConnectionId,
        key: &PublicKey,
        limits: Option<&'a mut [Limit; 2]>,
    ) -> Option<StreamTurn<'a>> {
        self.terms.contains_key(&id).then_some(())?;
        let of = self.by_key.get_mut(key)?;
        Some(StreamTurn::new(&mut of.streams, limits))
    }

    /// A session was turned: its streams may have something to tell.
    pub(super) fn on_turned(&mut self, key: &PublicKey) {
        if let Some(of) = self.by_key.get(key).filter(|of| of.streams.has_events()) {
            self.eventful.insert(of.owner);
        }
    }

    /// Lets the streams of a client hold no more than `bytes` bytes.
    pub(super) fn shed(&mut self, now: Instant, key: &PublicKey, bytes: u64) {
        if let Some(of) = self.by_key.get_mut(key) {
            of.streams.shed(now, usize::try_from(bytes).unwrap_or(usize::MAX));
        }
    }

    /// Bytes that the streams of a client hold.
    fn memory(&self, key: &PublicKey) -> u64 {
        self.by_key.get(key).map_or(0, |of| of.streams.memory() as u64)
    }
}

/// The streams that a client was told of are over.
#[derive(Debug)]
pub(super) struct StreamsOver;

impl Server {
    /// Hands to the streams what has come for them since the last turn.
    pub fn hand_over_symbols(&mut self, now: Instant) {
        let Some(all) = &mut self.streams else { return };
        for id in &self.touched {
            let Some(joined) = self.sessions.get_mut(id) else { continue };
            if let Some(mut turn) = all.turn(*id, &joined.key, joined.limits.as_mut()) {
                joined.session.hand_over_symbols(now, &mut turn);
                all.on_turned(&joined.key);
            }
        }
    }

    /// Something happened to a stream of a client: as of the last turn, or of the last
    /// [`Server::hand_over_symbols`].
    pub fn poll_stream_event(&mut self, now: Instant) -> Option<(StreamsOwner, Event)> {
        let all = self.streams.as_mut()?;
        while let Some(owner) = all.eventful.first().copied() {
            let key = all.owners.get(&owner);
            if let Some(of) = key.and_then(|key| all.by_key.get_mut(key))
                && let Some(event) = of.streams.poll_event(now)
            {
                return Some((owner, event));
            }
            all.eventful.remove(&owner);
        }
        None
    }

    /// All streams of this owner are over, and those that come are of another.
    pub fn poll_streams_over(&mut self) -> Option<StreamsOwner> {
        self.streams.as_mut()?.over.pop_front()
    }

    /// The streams of a client. The next turn sends what was written.
    pub fn streams(&mut self, owner: StreamsOwner) -> Option<&mut Streams> {
        let all = self.streams.as_mut()?;
        let key = all.owners.get(&owner)?;
        self.touched.extend(self.by_key.get(key));
        all.by_key.get_mut(key).map(|of| &mut of.streams)
    }

    /// Whether the address is one of a client that may connect, or behind one.
    pub fn is_of_client(&self, address: IpAddr) -> bool {
        self.peers.route(address).is_some()
    }

    /// The first of a client's own inner addresses of a family, if it has one; none of those that
    /// are behind it.
    pub fn stream_address(&self, owner: StreamsOwner, ipv4: bool) -> Option<IpAddr> {
        let all = self.streams.as_ref()?;
        let of = all.by_key.get(all.owners.get(&owner)?)?;
        let is_own =
            |net: &&IpNet| net.prefix_len() == net.max_prefix_len() && net.addr().is_ipv4() == ipv4;
        of.peer.addresses.iter().find(is_own).map(IpNet::addr)
    }

    /// What the server calls the streams of a client that says hello, if it takes any.
    pub(super) fn agree_on_streams(
        &mut self,
        id: ConnectionId,
        hello: &Hello,
    ) -> Option<StreamsEpoch> {
        let key = self.endpoint.connection(id).and_then(Connection::peer)?;
        let Hello { streams, stream_priorities, .. } = hello;
        Some(self.streams.as_mut()?.agree(id, key, (*streams)?, *stream_priorities))
    }

    /// A connection of `key` becomes the session of its client.
    ///
    /// # Errors
    /// The streams that the client was told of are over.
    pub(super) fn begin_streams(
        &mut self,
        now: Instant,
        id: ConnectionId,
        key: PublicKey,
        peer: &Arc<Peer>,
    ) -> Result<(), StreamsOver> {
        self.streams.as_mut().map_or(Ok(()), |all| all.on_session(now, id, key, peer))
    }

    /// A connection is over; `ended`: it was the session of this client.
    pub(super) fn leave_streams(&mut self, now: Instant, id: ConnectionId, ended: Option<&Joined>) {
        let Some(all) = &mut self.streams else { return };
        all.terms.remove(&id);
        if let Some(Joined { key, peer, .. }) = ended
            && !self.by_key.contains_key(key)
        {
            let stays = self.peers.get(key).is_some_and(|now| now.is_where(peer));
            all.on_session_over(now, key, stays);
        }
    }

    /// Bytes that the streams of a client hold.
    pub(super) fn stream_memory(&self, key: &PublicKey) -> u64 {
        self.streams.as_ref().map_or(0, |all| all.memory(key))
    }

    /// Ends streams whose clients do not come back.
    pub(super) fn tend_streams(&mut self, now: Instant) {
        if let Some(all) = &mut self.streams {
            all.handle_timeout(now);
            all.keep_away_to(now, self.config.memory_max / AWAY_SHARE);
        }
    }

    /// Bytes of streams whose clients are away.
    pub(super) fn away_stream_bytes(&self) -> usize {
        self.streams.as_ref().map_or(0, ServerStreams::away_bytes)
    }

    /// Ends the session of a client that has broken the rules of all its streams: they can go on
    /// no more, and others begin with the next one.
    pub(super) fn end_if_violated(&mut self, now: Instant, id: ConnectionId, key: &PublicKey) {
        let all = self.streams.as_ref();
        let of = all.and_then(|all| all.by_key.get(key).filter(|_| all.terms.contains_key(&id)));
        if let Some(violation) = of.and_then(|of| of.streams.violation()) {
            self.end(now, id, &format!("the client broke the rules of its streams: {violation}"));
        }
    }

    /// The streams of a client that may not come back are over.
    pub(super) fn end_streams_of(&mut self, key: &PublicKey) {
        self.streams.iter_mut().for_each(|all| all.end(key));
    }

    /// The lane for streams of a session on this connection.
    pub(super) fn stream_lane(&self, id: ConnectionId) -> Option<LaneConfig> {
        let all = self.streams.as_ref().filter(|all| all.terms.contains_key(&id))?;
        Some(all.config.lane())
    }
}
