//! Streams that are over.
//!
//! What a peer repeats of them, since our last answer was lost, is answered from what is kept here:
//! a few words of each of the last streams. Which streams of the peer ever were is kept of all, as
//! ranges, so that a late frame begins none anew.

use std::collections::{BTreeMap, VecDeque};

use roadweave_proto::wire::{ResetCode, StreamId};

use crate::ranges::Ranges;

/// The streams that are remembered.
pub(crate) const CLOSED_MAX: usize = 1024;
/// The ranges of numbers of the peer's streams: one more than a peer may have open, all of which
/// may be under way on a path slower than that of their successors. Of more the lowest gap is
/// closed: such a peer keeps to no rules.
pub(crate) const SEEN_MAX: usize = 4_097;

/// Streams that are over.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    streams: BTreeMap<StreamId, Tombstone>,
    oldest_first: VecDeque<StreamId>,
    seen: Ranges,
}

/// What is kept of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tombstone {
    /// Why it was reset, if it was.
    pub(crate) code: Option<ResetCode>,
    /// The bytes that were sent.
    pub(crate) sent: u64,
    /// The bytes of the peer that count as received.
    pub(crate) received: u64,
    /// Whether these are all that it sent.
    pub(crate) is_final: bool,
}

impl Closed {
    /// Whether the peer's stream `id` is known, open or over.
    pub(crate) fn has_seen(&self, id: StreamId) -> bool {
        self.seen.contains(id.0 >> 1)
    }

    /// The peer's stream `id` is known from now on.
    pub(crate) fn on_seen(&mut self, id: StreamId) {
        let index = id.0 >> 1;
        self.seen.insert(index..index + 1);
        while self.seen.len() > SEEN_MAX {
            let lowest: Vec<_> = self.seen.iter().take(2).collect();
            self.seen.insert(lowest[0].end..lowest[1].start);
        }
    }

    /// A stream is over.
    pub(crate) fn insert(&mut self, id: StreamId, tombstone: Tombstone) {
        if self.streams.insert(id, tombstone).is_none() {
            self.oldest_first.push_back(id);
        }
        while self.oldest_first.len() > CLOSED_MAX {
            let oldest = self.oldest_first.pop_front().expect("more than none");
            self.streams.remove(&oldest);
        }
    }

    pub(crate) fn get_mut(&mut self, id: StreamId) -> Option<&mut Tombstone> {
        self.streams.get_mut(&id)
    }

    /// Bytes of memory, about.
    pub(crate) fn memory(&self) -> usize {
        let each = size_of::<(StreamId, Tombstone)>() + size_of::<StreamId>();
        2 * self.streams.len() * each + 2 * self.seen.len() * SEEN
    }
}

/// Bytes of a range.
pub(crate) const SEEN: usize = size_of::<(u64, u64)>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_whatever_numbers_a_peer_draws() {
        let mut closed = Closed::default();
        let tombstone = Tombstone { code: None, sent: 0, received: 0, is_final: true };
        for index in 0..10_000 {
            let id = StreamId(8 * index);
            closed.on_seen(id);
            closed.insert(id, tombstone);
        }
        assert_eq!((closed.streams.len(), closed.oldest_first.len()), (CLOSED_MAX, CLOSED_MAX));
        assert_eq!(closed.seen.len(), SEEN_MAX);
        assert!(closed.has_seen(StreamId(2)), "a gap that was closed");
        assert!(!closed.has_seen(StreamId(8 * 9999 - 2)), "a gap that was not");
        assert!(closed.get_mut(StreamId(0)).is_none());
        assert!(closed.get_mut(StreamId(8 * 9999)).is_some());
    }
}
