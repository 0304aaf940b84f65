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
use roadweave_proto::wire::{Control, StreamsEpoch, StreamsOffer, Welcome};
use roadweave_proto::{DropReason, Instant};
use roadweave_quic::Connection;
use roadweave_stream::{Side, Streams};

use super::race::After;
use super::{Client, Current};
use crate::lane::LaneConfig;
use crate::session::StreamTurn;
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
    pub(super) fn new(config: StreamsConfig, first: u64) -> Self {
        Self {
            streams: Streams::new(config.bounds(Side::Client)),
            config,
            owner: StreamsOwner(0),
            with: None,
            is_carried: false,
            epochs: BTreeMap::new(),
            next_epoch: first,
            away_since: None,
        }
    }

    /// What to offer to the far end of `key`: it knows no other streams by this epoch.
    pub(super) fn offer(&mut self, key: PublicKey) -> StreamsOffer {
        let epoch = *self.epochs.entry(key).or_insert_with(|| {
            self.next_epoch = self.next_epoch.wrapping_add(1);
            StreamsEpoch(self.next_epoch)
        });
        StreamsOffer { epoch, takes_priorities: true, takes_early: true }
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

    /// Streams wait without a session while the far end keeps its own. Returns whether they end.
    pub(super) fn tend(&mut self, now: Instant, has_session: bool) -> bool {
        self.is_carried &= has_session;
        let Some((key, _)) = self.with.filter(|_| !self.is_carried) else { return false };
        let is_over = now.since(*self.away_since.get_or_insert(now)) >= KEPT_FOR;
        if is_over {
            self.away_since = None;
            // The far end may still have streams of this epoch.
            self.epochs.remove(&key);
            self.reset_streams(None);
        }
        is_over
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.away_since.map(|since| since + KEPT_FOR)
    }

    pub(super) fn is_violated(&mut self) -> bool {
        let is_violated = self.streams.violation().is_some();
        if let Some((key, _)) = self.with.filter(|_| is_violated) {
            self.epochs.remove(&key);
        }
        is_violated
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

impl Client {
    /// The streams with everything that came for them, if the server takes any. When the owner
    /// changes, the former streams are over. Without a session streams wait.
    /// [`Node::handle_timeout`] sends what was written.
    ///
    /// [`Node::handle_timeout`]: crate::Node::handle_timeout
    pub fn streams(&mut self, now: Instant) -> Option<(StreamsOwner, &mut Streams)> {
        let carried = self.streams.as_mut().filter(|carried| carried.with.is_some())?;
        if let Some(current) = &mut self.current
            && let Some(mut turn) = carried.turn()
        {
            current.session.hand_over_symbols(now, &mut turn);
        }
        Some((carried.owner, &mut carried.streams))
    }

    pub(super) fn tend_streams(&mut self, now: Instant) {
        let has_session = self.current.is_some();
        let Some(carried) = &mut self.streams else { return };
        let is_over = carried.tend(now, has_session);
        if has_session && is_over {
            // Frames of the ended streams may be under way in it.
            self.leave(now, "the anchor says nothing of streams", After::Backoff);
        } else if has_session && carried.is_violated() {
            self.leave(now, "the far end broke the rules of streams", After::Backoff);
        }
    }

    pub(super) fn stream_lane(&self, welcome: &Welcome) -> Option<LaneConfig> {
        let is_used = welcome.streams.is_some() || welcome.relays;
        let carried = self.streams.as_ref().filter(|_| is_used);
        carried.map(|carried| carried.config.lane())
    }

    pub(super) fn begin_streams(&mut self, now: Instant) {
        let Some(Current { id, welcome, far_end, .. }) = &mut self.current else { return };
        let (id, key) = (*id, self.endpoint.connection(*id).and_then(Connection::peer));
        let (Some(carried), Some(key)) = (&mut self.streams, key) else { return };
        match &welcome.anchor {
            None => {
                *far_end = welcome.streams.map(|offer| (key, offer.epoch));
                carried.on_session(now, key, welcome.streams);
            }
            Some(anchor) if welcome.relays => {
                carried.is_carried = false;
                let offer = carried.offer(PublicKey::from_bytes(anchor.key));
                self.send_control(id, &Control::Streams(Some(offer)));
            }
            Some(anchor) => carried.on_session(now, PublicKey::from_bytes(anchor.key), None),
        }
    }

    /// A proxy passes the anchor's offer on, and repeats it over a new leg.
    pub(super) fn on_far_end(&mut self, now: Instant, named: Option<StreamsOffer>) {
        let Some(Current { welcome, far_end, .. }) = &mut self.current else { return };
        let anchor = welcome.anchor.as_ref().filter(|_| welcome.relays);
        let (Some(carried), Some(anchor)) = (&mut self.streams, anchor) else {
            return self.drops.count(DropReason::UnknownMessage);
        };
        let key = PublicKey::from_bytes(anchor.key);
        let with = named.map(|offer| (key, offer.epoch));
        if far_end.is_some() && *far_end != with {
            return self.drops.count(DropReason::MalformedMessage);
        }
        *far_end = with;
        carried.on_session(now, key, named);
    }
}
