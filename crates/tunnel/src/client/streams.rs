//! The client's streams: they outlive a session, and end with what the server knows of them.

use std::collections::BTreeMap;

use roadweave_identity::PublicKey;
use roadweave_quic::Connection;
use roadweave_stream::{Side, Streams};
use roadweave_types::Instant;
use roadweave_wire::{StreamsEpoch, Welcome};

use super::race::After;
use super::{Client, Current};
use crate::lane::LaneConfig;
use crate::session::StreamTurn;
use crate::streams::{KEPT_FOR, StreamsConfig, StreamsOwner};

/// The streams of a client that may open some.
#[derive(Debug)]
pub(super) struct ClientStreams {
    config: StreamsConfig,
    streams: Streams,
    owner: StreamsOwner,
    /// Whom they are with, and what that server calls them.
    with: Option<(PublicKey, StreamsEpoch)>,
    /// What they are called towards each server.
    epochs: BTreeMap<PublicKey, StreamsEpoch>,
    next_epoch: u64,
    /// Since when there is no session, if so.
    away_since: Option<Instant>,
}

impl ClientStreams {
    /// No streams yet; names count from `first`.
    pub(super) fn new(config: StreamsConfig, first: u64) -> Self {
        Self {
            streams: Streams::new(config.bounds(Side::Client)),
            config,
            owner: StreamsOwner(0),
            with: None,
            epochs: BTreeMap::new(),
            next_epoch: first,
            away_since: None,
        }
    }

    /// What the streams with the server of `key` are called: it has heard of no others by that
    /// name.
    pub(super) fn epoch(&mut self, key: PublicKey) -> StreamsEpoch {
        *self.epochs.entry(key).or_insert_with(|| {
            self.next_epoch = self.next_epoch.wrapping_add(1);
            StreamsEpoch(self.next_epoch)
        })
    }

    /// The server of `key` has welcomed the client, and calls the streams so, if it takes any.
    fn on_session(&mut self, now: Instant, key: PublicKey, welcome: &Welcome) {
        let with = welcome.streams.map(|epoch| (key, epoch));
        self.away_since = None;
        if with == self.with && self.streams.violation().is_none() {
            self.streams.set_peer_takes_priorities(welcome.stream_priorities);
            return self.streams.on_new_session(now);
        }
        if let Some((before, _)) = self.with.filter(|(before, _)| *before != key) {
            self.epochs.remove(&before);
        }
        self.begin_anew(with);
        self.streams.set_peer_takes_priorities(welcome.stream_priorities);
    }

    fn begin_anew(&mut self, with: Option<(PublicKey, StreamsEpoch)>) {
        self.with = with;
        self.owner = StreamsOwner(self.owner.0 + 1);
        self.streams = Streams::new(self.config.bounds(Side::Client));
    }

    /// There is a session, or none: streams wait for one as long as the server's do.
    pub(super) fn tend(&mut self, now: Instant, has_session: bool) {
        let Some((key, _)) = self.with.filter(|_| !has_session) else { return };
        if now.since(*self.away_since.get_or_insert(now)) >= KEPT_FOR {
            self.away_since = None;
            // The server may have those of this name still.
            self.epochs.remove(&key);
            self.begin_anew(None);
        }
    }

    /// When [`ClientStreams::tend`] ends them.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.away_since.map(|since| since + KEPT_FOR)
    }

    /// Whether the server has broken the rules of all streams, which can go on no more then; their
    /// name is given up.
    pub(super) fn is_violated(&mut self) -> bool {
        let is_violated = self.streams.violation().is_some();
        if let Some((key, _)) = self.with.filter(|_| is_violated) {
            self.epochs.remove(&key);
        }
        is_violated
    }

    /// The streams, for a turn of a session that carries them.
    pub(super) fn turn(&mut self) -> Option<StreamTurn<'_>> {
        self.with.map(|_| StreamTurn::new(&mut self.streams, None))
    }

    /// The streams, if they are those of a session that another one has followed.
    pub(super) fn turn_of(&mut self, key: PublicKey, welcome: &Welcome) -> Option<StreamTurn<'_>> {
        let is_theirs = self.with.is_some() && self.with == welcome.streams.map(|it| (key, it));
        is_theirs.then(|| StreamTurn::new(&mut self.streams, None))
    }
}

impl Client {
    /// The streams, if the server takes any, with all that has come for them; those before are over
    /// when their owner is another.
    ///
    /// They live on while there is no session, and wait. [`Node::handle_timeout`] sends what was
    /// written.
    ///
    /// [`Node::handle_timeout`]: crate::Node::handle_timeout
    pub fn streams(&mut self, now: Instant) -> Option<(StreamsOwner, &mut Streams)> {
        let carried = self.streams.as_mut().filter(|carried| carried.with.is_some())?;
        if let Some(current) = &mut self.current {
            let mut turn = StreamTurn::new(&mut carried.streams, None);
            current.session.hand_over_symbols(now, &mut turn);
        }
        Some((carried.owner, &mut carried.streams))
    }

    /// Ends streams that have waited too long for a session, and a session whose server has broken
    /// the rules of all its streams: others begin with the next one.
    pub(super) fn tend_streams(&mut self, now: Instant) {
        let has_session = self.current.is_some();
        let Some(carried) = &mut self.streams else { return };
        carried.tend(now, has_session);
        if has_session && carried.is_violated() {
            self.leave(now, "the server broke the rules of streams", After::Backoff);
        }
    }

    /// The lane for streams of a session with a server that takes them.
    pub(super) fn stream_lane(&self, welcome: &Welcome) -> Option<LaneConfig> {
        let carried = self.streams.as_ref().filter(|_| welcome.streams.is_some());
        carried.map(|carried| carried.config.lane())
    }

    /// There is another session.
    pub(super) fn begin_streams(&mut self, now: Instant) {
        let Some(Current { id, welcome, .. }) = &self.current else { return };
        let key = self.endpoint.connection(*id).and_then(Connection::peer);
        if let (Some(carried), Some(key)) = (&mut self.streams, key) {
            carried.on_session(now, key, welcome);
        }
    }
}
