//! The client's streams: they outlive a session, and end when their far end has forgotten them.
//!
//! ```text
//! server ─ welcome: its epoch ───────────────────────────────────────► they go on, or start again
//! proxy ─ welcome: it relays ─► this client's epoch ─► anchor's epoch ─┘
//! welcome without streams ─► none
//! ```
//!
//! With a proxy the far end is the tenant's anchor: until it answers, streams wait.

use std::collections::BTreeMap;

use roadweave_identity::PublicKey;
use roadweave_proto::wire::{StreamsEpoch, StreamsOffer, Welcome};
use roadweave_proto::{DropReason, Instant};
use roadweave_stream::{Side, Streams};

use super::Current;
use crate::lane::LaneConfig;
use crate::session::{Session, StreamTurn};
use crate::streams::{KEPT_FOR, StreamsConfig, StreamsOwner};

pub(super) type FarEnd = (PublicKey, StreamsEpoch);

#[derive(Debug)]
pub(super) struct ClientStreams {
    config: StreamsConfig,
    streams: Streams,
    owner: StreamsOwner,
    with: Option<FarEnd>,
    is_carried: bool,
    epochs: BTreeMap<PublicKey, StreamsEpoch>,
    next_epoch: u64,
    away_since: Option<Instant>,
}

impl ClientStreams {
    pub(super) fn new(config: StreamsConfig, next_epoch: u64) -> Self {
        let (streams, owner) = (Streams::new(config.bounds(Side::Client)), StreamsOwner(0));
        let (with, is_carried, epochs, away_since) = (None, false, BTreeMap::new(), None);
        Self { config, streams, owner, with, is_carried, epochs, next_epoch, away_since }
    }

    /// What to offer to the far end of `key`: it knows no other streams by this epoch.
    pub(super) fn offer(&mut self, key: PublicKey) -> StreamsOffer {
        let epoch = *self.epochs.entry(key).or_insert_with(|| {
            self.next_epoch = self.next_epoch.wrapping_add(1);
            StreamsEpoch(self.next_epoch)
        });
        StreamsOffer { epoch, takes_priorities: true, takes_early: true }
    }

    /// The streams with everything that came for them in the session; see
    /// [`Client::streams`](super::Client::streams).
    pub(super) fn poll(
        &mut self,
        now: Instant,
        session: Option<&mut Session>,
    ) -> Option<(StreamsOwner, &mut Streams)> {
        self.with?;
        if let (Some(session), Some(mut turn)) = (session, self.turn()) {
            session.hand_over_symbols(now, &mut turn);
        }
        Some((self.owner, &mut self.streams))
    }

    pub(super) fn lane(&self, welcome: &Welcome) -> Option<LaneConfig> {
        (welcome.streams.is_some() || welcome.relays).then(|| self.config.lane())
    }

    /// A session begins with the server of `key`. Returns an offer for it to relay.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        current: &mut Current,
        key: PublicKey,
    ) -> Option<StreamsOffer> {
        let welcome = &current.welcome;
        match &welcome.anchor {
            None => {
                current.far_end = welcome.streams.map(|offer| (key, offer.epoch));
                self.on_session(now, key, welcome.streams);
            }
            Some(anchor) if welcome.relays => {
                self.is_carried = false;
                return Some(self.offer(PublicKey::from_bytes(anchor.key)));
            }
            Some(anchor) => self.on_session(now, PublicKey::from_bytes(anchor.key), None),
        }
        None
    }

    /// A proxy passes the anchor's offer on, and repeats it over a new leg.
    pub(super) fn on_far_end(
        &mut self,
        now: Instant,
        current: &mut Current,
        named: Option<StreamsOffer>,
    ) -> Result<(), DropReason> {
        let Current { welcome, far_end, .. } = current;
        let anchor = welcome.anchor.as_ref().filter(|_| welcome.relays);
        let key = PublicKey::from_bytes(anchor.ok_or(DropReason::UnknownMessage)?.key);
        let with = named.map(|offer| (key, offer.epoch));
        if far_end.is_some() && *far_end != with {
            return Err(DropReason::MalformedMessage);
        }
        *far_end = with;
        self.on_session(now, key, named);
        Ok(())
    }

    fn on_session(&mut self, now: Instant, key: PublicKey, named: Option<StreamsOffer>) {
        let with = named.map(|offer| (key, offer.epoch));
        (self.away_since, self.is_carried) = (None, true);
        if with == self.with && self.streams.violation().is_none() {
            self.streams.set_peer_takes(named);
            return self.streams.on_new_session(now);
        }
        if let Some((before, _)) = self.with.filter(|(before, _)| *before != key) {
            self.epochs.remove(&before);
        }
        self.reset_streams(with);
        self.streams.set_peer_takes(named);
    }

    fn reset_streams(&mut self, with: Option<(PublicKey, StreamsEpoch)>) {
        self.with = with;
        self.owner = StreamsOwner(self.owner.0 + 1);
        self.streams = Streams::new(self.config.bounds(Side::Client));
    }

    /// Streams wait without a session while the far end keeps its own. Returns why the session
    /// must end, if so.
    pub(super) fn tend(&mut self, now: Instant, has_session: bool) -> Option<&'static str> {
        self.is_carried &= has_session;
        if let Some((key, _)) = self.with.filter(|_| !self.is_carried)
            && now.since(*self.away_since.get_or_insert(now)) >= KEPT_FOR
        {
            self.away_since = None;
            // The far end may still have streams of this epoch.
            self.epochs.remove(&key);
            self.reset_streams(None);
            // Frames of the ended streams may be under way in it.
            return has_session.then_some("the anchor says nothing of streams");
        }
        let is_violated = has_session && self.streams.violation().is_some();
        if let Some((key, _)) = self.with.filter(|_| is_violated) {
            self.epochs.remove(&key);
        }
        is_violated.then_some("the far end broke the rules of streams")
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.away_since.map(|since| since + KEPT_FOR)
    }

    pub(super) fn turn(&mut self) -> Option<StreamTurn<'_>> {
        let with = self.with.filter(|_| self.is_carried);
        with.map(|_| StreamTurn::new(&mut self.streams, None))
    }

    pub(super) fn turn_of(&mut self, with: Option<FarEnd>) -> Option<StreamTurn<'_>> {
        let is_theirs = with.is_some() && self.with == with;
        is_theirs.then(|| StreamTurn::new(&mut self.streams, None))
    }
}
