//! Streams that are over.
//!
//! Frames that a peer repeats, since our last answer was lost, are answered from a few words kept
//! of the last streams. All numbers are kept as ranges: a late frame begins no stream again.

use std::collections::{BTreeMap, VecDeque};

use roadweave_proto::wire::{ResetCode, StreamFrame, StreamId};

use crate::credit::ReceiveCredit;
use crate::error::Violation;
use crate::ranges::Ranges;
use crate::stream::RECORD;

const CLOSED_MAX: usize = 1024;
/// Ranges of numbers of the peer's streams: one more than a peer may have open, which may all be in
/// flight on a path slower than their successors'. Beyond that the lowest gap is closed.
const SEEN_MAX: usize = 4_097;
/// The most pending answers; the peer asks again for more.
const ANSWERS_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Closed {
    streams: BTreeMap<StreamId, Tombstone>,
    pub(crate) answers: BTreeMap<StreamId, StreamReply>,
    oldest_first: VecDeque<StreamId>,
    seen: Ranges,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tombstone {
    pub(crate) code: Option<ResetCode>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) is_final: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamReply {
    /// All of it was received: its bytes.
    Whole(u64),
    /// It was reset, or is unknown.
    Reset { code: ResetCode, final_size: u64 },
}

impl Closed {
    pub(crate) fn has_seen(&self, id: StreamId) -> bool {
        self.seen.contains(id.0 >> 1)
    }

    pub(crate) fn on_seen(&mut self, id: StreamId) {
        let index = id.0 >> 1;
        self.seen.insert(index..index + 1);
        while self.seen.len() > SEEN_MAX {
            let lowest: Vec<_> = self.seen.iter().take(2).collect();
            self.seen.insert(lowest[0].end..lowest[1].start);
        }
    }

    pub(crate) fn insert(&mut self, id: StreamId, tombstone: Tombstone) {
        if self.streams.insert(id, tombstone).is_none() {
            self.oldest_first.push_back(id);
        }
        while self.oldest_first.len() > CLOSED_MAX {
            let oldest = self.oldest_first.pop_front().expect("more than none");
            self.streams.remove(&oldest);
        }
    }

    /// Takes a frame of a stream that is over. Returns whether it is answered.
    pub(crate) fn handle_frame(
        &mut self,
        id: StreamId,
        frame: &StreamFrame,
        credit: &mut ReceiveCredit,
    ) -> Result<bool, Violation> {
        let (end, asks) = match frame {
            StreamFrame::Open(open) => (open.data.len() as u64, true),
            StreamFrame::Data(data) => (data.offset + data.data.len() as u64, true),
            StreamFrame::Reset { final_size, is_answer, .. } => (*final_size, !is_answer),
            StreamFrame::Acknowledged(_) | StreamFrame::Priority { .. } => (0, false),
            _ => (0, true),
        };
        let is_reset = matches!(frame, StreamFrame::Reset { .. });
        let answer = match self.streams.get_mut(&id) {
            Some(tombstone) => {
                // Data of a refused stream takes session credit.
                let growth = end.saturating_sub(tombstone.received);
                if !tombstone.is_final && growth > 0 {
                    if !credit.allows(growth) {
                        return Err(Violation::SessionCredit);
                    }
                    tombstone.received += growth;
                    credit.on_received(growth);
                    credit.on_consumed(growth);
                }
                tombstone.is_final |= is_reset;
                let reset = |code| StreamReply::Reset { code, final_size: tombstone.sent };
                match tombstone.code {
                    None if is_reset => reset(ResetCode::Other),
                    None => StreamReply::Whole(tombstone.received),
                    Some(code) => reset(code),
                }
            }
            None => StreamReply::Reset { code: ResetCode::Unknown, final_size: 0 },
        };
        let is_answered = asks && self.answers.len() < ANSWERS_MAX;
        if is_answered {
            self.answers.insert(id, answer);
        }
        Ok(is_answered)
    }

    pub(crate) fn memory(&self) -> usize {
        let each = size_of::<(StreamId, Tombstone)>() + size_of::<StreamId>();
        2 * self.streams.len() * each + 2 * self.seen.len() * SEEN + self.answers.len() * RECORD
    }
}

const SEEN: usize = size_of::<(u64, u64)>();
pub(crate) const CLOSED_MEMORY_MAX: usize =
    2 * (CLOSED_MAX * 64 + SEEN_MAX * SEEN) + ANSWERS_MAX * RECORD;

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
        assert!(!closed.streams.contains_key(&StreamId(0)));
        assert!(closed.streams.contains_key(&StreamId(8 * 9999)));
    }
}
