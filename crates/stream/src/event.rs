//! Events for the user of streams.

use roadweave_proto::wire::{Destination, ResetCode, StreamId, StreamPriority};

/// A change of a stream. Each is reported once, in the order below for one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer opened it: accept it when the destination is connected, or reset it.
    Opened {
        /// The stream.
        id: StreamId,
        /// Where to connect.
        destination: Destination,
        /// What its opener asks for.
        priority: StreamPriority,
    },
    /// The far end has connected.
    Connected(StreamId),
    /// There are bytes to read, after the last read found no more.
    Readable(StreamId),
    /// There is room again after a short write.
    Writable(StreamId),
    /// The peer wants no more: unsent bytes are dropped, the stream is finished.
    Stopped {
        /// The stream.
        id: StreamId,
        /// Why.
        code: ResetCode,
    },
    /// The peer has all that was written, up to the end.
    Acknowledged(StreamId),
    /// All that the peer wrote was read.
    Finished(StreamId),
    /// It is over, in both directions; what was not read is dropped.
    Reset {
        /// The stream.
        id: StreamId,
        /// Why.
        code: ResetCode,
        /// Whether the peer reset it.
        by_peer: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Opened = 1,
    Connected = 2,
    Readable = 4,
    Writable = 8,
    Stopped = 16,
    Acknowledged = 32,
    Finished = 64,
    Reset = 128,
}

const ALL: [EventKind; 8] = [
    EventKind::Opened,
    EventKind::Connected,
    EventKind::Readable,
    EventKind::Writable,
    EventKind::Stopped,
    EventKind::Acknowledged,
    EventKind::Finished,
    EventKind::Reset,
];

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pending(u8);

impl Pending {
    pub(crate) fn add(&mut self, kind: EventKind) {
        self.0 |= kind as u8;
    }

    pub(crate) fn has(self, kind: EventKind) -> bool {
        self.0 & kind as u8 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn clear(&mut self) {
        self.0 = 0;
    }

    pub(crate) fn take(&mut self) -> Option<EventKind> {
        let kind = ALL.into_iter().find(|kind| self.has(*kind))?;
        self.0 &= !(kind as u8);
        Some(kind)
    }
}
