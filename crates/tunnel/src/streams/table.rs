//! The streams of many clients at their far end: they wait a while between sessions.
//!
//! ```text
//! hello, attach ─► terms: what both call the streams ─► begin: as agreed, or new
//!                                           no session ─┴─► 2 minutes ─► over
//! ```
//!
//! A client has streams of one epoch at a time. `K` is its key, at an anchor with the tenant.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_proto::Instant;
use roadweave_proto::wire::{StreamsEpoch, StreamsOffer};
use roadweave_stream::{Event, Side, Streams, Violation};

use super::{KEPT_FOR, StreamsConfig, StreamsOwner};
use crate::peers::Peer;

const LOOK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) client: StreamsEpoch,
    pub(crate) far_end: StreamsEpoch,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) names: Names,
    pub(crate) goes_on: bool,
    client: StreamsOffer,
}

impl Terms {
    pub(crate) fn offer(&self) -> StreamsOffer {
        StreamsOffer { epoch: self.names.far_end, takes_priorities: true, takes_early: true }
    }
}

#[derive(Debug)]
pub(crate) struct StreamsOver;

#[derive(Debug)]
struct OfClient {
    names: Names,
    owner: StreamsOwner,
    streams: Streams,
    peer: Arc<Peer>,
    away_since: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct StreamsTable<K> {
    config: StreamsConfig,
    next_epoch: u64,
    next_owner: u64,
    by_key: HashMap<K, OfClient>,
    owners: BTreeMap<StreamsOwner, K>,
    eventful: BTreeSet<StreamsOwner>,
    pub(crate) over: VecDeque<StreamsOwner>,
    away: BTreeSet<(Instant, StreamsOwner)>,
    pub(crate) away_bytes: usize,
    next_look: Instant,
}

impl<K: Copy + Eq + Hash> StreamsTable<K> {
    pub(crate) fn new(config: StreamsConfig, first: u64) -> Self {
        Self {
            config,
            next_epoch: first,
            next_owner: 0,
            by_key: HashMap::new(),
            owners: BTreeMap::new(),
            eventful: BTreeSet::new(),
            over: VecDeque::new(),
            away: BTreeSet::new(),
            away_bytes: 0,
            next_look: Instant::ZERO,
        }
    }

    pub(crate) fn config(&self) -> &StreamsConfig {
        &self.config
    }

    pub(crate) fn agree(&mut self, key: &K, client: StreamsOffer) -> Terms {
        let is_sound = |of: &&OfClient| of.streams.violation().is_none();
        let known = self.by_key.get(key).filter(|of| of.names.client == client.epoch);
        match known.filter(is_sound) {
            Some(of) => Terms { names: of.names, goes_on: true, client },
            None => {
                self.next_epoch = self.next_epoch.wrapping_add(1);
                let far_end = StreamsEpoch(self.next_epoch);
                let names = Names { client: client.epoch, far_end };
                Terms { names, goes_on: false, client }
            }
        }
    }

    /// A client has a session, with `terms` if it may open streams. Fails if lasting ones are over.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        key: K,
        terms: Option<Terms>,
        peer: &Arc<Peer>,
    ) -> Result<(), StreamsOver> {
        let of_client = self.by_key.get_mut(&key);
        let known = of_client.filter(|of| terms.is_some_and(|terms| terms.names == of.names));
        match (terms, known) {
            (Some(terms), Some(of)) if of.peer.is_where(peer) => {
                of.peer = peer.clone();
                of.streams.set_peer_takes(Some(terms.client));
                of.streams.on_new_session(now);
                if let Some(since) = of.away_since.take() {
                    self.away.remove(&(since, of.owner));
                }
            }
            (Some(Terms { names, goes_on: false, client }), None) => {
                self.end(&key);
                self.next_owner += 1;
                let owner = StreamsOwner(self.next_owner);
                let mut streams = Streams::new(self.config.bounds(Side::Server));
                streams.set_peer_takes(Some(client));
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

    pub(crate) fn on_away(&mut self, now: Instant, key: &K, stays: bool) {
        match self.by_key.get_mut(key) {
            Some(of) if stays => {
                self.away.insert((*of.away_since.get_or_insert(now), of.owner));
            }
            _ => self.end(key),
        }
    }

    pub(crate) fn end(&mut self, key: &K) {
        let Some(of) = self.by_key.remove(key) else { return };
        self.owners.remove(&of.owner);
        self.eventful.remove(&of.owner);
        of.away_since.iter().for_each(|since| _ = self.away.remove(&(*since, of.owner)));
        self.over.push_back(of.owner);
    }

    pub(crate) fn peer(&self, key: &K) -> Option<&Arc<Peer>> {
        self.by_key.get(key).map(|of| &of.peer)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut Streams> {
        self.by_key.get_mut(key).map(|of| &mut of.streams)
    }

    pub(crate) fn of(&mut self, owner: StreamsOwner) -> Option<(K, &mut Streams)> {
        let key = *self.owners.get(&owner)?;
        self.by_key.get_mut(&key).map(|of| (key, &mut of.streams))
    }

    pub(crate) fn address(&self, owner: StreamsOwner, ipv4: bool) -> Option<IpAddr> {
        let of = self.by_key.get(self.owners.get(&owner)?)?;
        let is_own =
            |net: &&IpNet| net.prefix_len() == net.max_prefix_len() && net.addr().is_ipv4() == ipv4;
        of.peer.addresses.iter().find(is_own).map(IpNet::addr)
    }

    pub(crate) fn violation(&self, key: &K) -> Option<Violation> {
        self.by_key.get(key)?.streams.violation()
    }

    pub(crate) fn on_turned(&mut self, key: &K) {
        if let Some(of) = self.by_key.get(key).filter(|of| of.streams.has_events()) {
            self.eventful.insert(of.owner);
        }
    }

    pub(crate) fn poll_event(&mut self, now: Instant) -> Option<(StreamsOwner, Event)> {
        while let Some(owner) = self.eventful.first().copied() {
            let key = self.owners.get(&owner);
            if let Some(of) = key.and_then(|key| self.by_key.get_mut(key))
                && let Some(event) = of.streams.poll_event(now)
            {
                return Some((owner, event));
            }
            self.eventful.remove(&owner);
        }
        None
    }

    pub(crate) fn memory(&self, key: &K) -> u64 {
        self.by_key.get(key).map_or(0, |of| of.streams.memory() as u64)
    }

    pub(crate) fn shed(&mut self, now: Instant, key: &K, bytes: u64) {
        if let Some(of) = self.by_key.get_mut(key) {
            of.streams.shed(now, usize::try_from(bytes).unwrap_or(usize::MAX));
        }
    }

    /// Ends streams of long absent clients, and the oldest ones while all hold over `most` bytes.
    pub(crate) fn handle_timeout(&mut self, now: Instant, most: usize) {
        while let Some((since, owner)) = self.away.first().copied()
            && since + KEPT_FOR <= now
        {
            match self.owners.get(&owner).copied() {
                Some(key) => self.end(&key),
                None => _ = self.away.pop_first(),
            }
        }
        self.keep_away_to(now, most);
    }

    fn keep_away_to(&mut self, now: Instant, most: usize) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK;
        let key = |(_, owner): &(Instant, StreamsOwner)| self.owners.get(owner).copied();
        let away: Vec<K> = self.away.iter().filter_map(key).collect();
        let held = |all: &Self, key: &K| all.memory(key) as usize;
        self.away_bytes = away.iter().map(|key| held(self, key)).sum();
        for key in away {
            if self.away_bytes <= most {
                return;
            }
            self.away_bytes -= held(self, &key);
            self.end(&key);
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.away.first().map(|(since, _)| (*since + KEPT_FOR).min(self.next_look))
    }
}
