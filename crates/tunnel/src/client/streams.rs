//! The client's streams: they outlive a session, and end with what the server knows of them.

use std::collections::BTreeMap;

use roadweave_identity::PublicKey;
use roadweave_quic::Connection;
use roadweave_stream::{Side, Streams};
use roadweave_types::Instant;
use roadweave_wire::{StreamsEpoch, Welcome};

use super::{Client, Current};
use crate::lane::LaneConfig;
use crate::session::StreamTurn;
use crate::streams::{StreamsConfig, StreamsOwner};

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
    fn on_session(&mut self, now: Instant, key: PublicKey, named: Option<StreamsEpoch>) {
        let with = named.map(|epoch| (key, epoch));
        if with == self.with {
            return self.streams.on_new_session(now);
        }
        if let Some((before, _)) = self.with.filter(|(before, _)| *before != key) {
            self.epochs.remove(&before);
        }
        self.with = with;
        self.owner = StreamsOwner(self.owner.0 + 1);
        self.streams = Streams::new(self.config.bounds(Side::Client));
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
            carried.on_session(now, key, welcome.streams);
        }
    }
}
