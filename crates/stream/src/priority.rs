//! Whose bytes leave first (RFC 9218 section 10).
//!
//! ```text
//! heads     ─► the first bytes of streams, by urgency as the others
//! urgency 0 ─► not incremental: by id, one after the other
//!          └─► incremental: in turn, a segment each
//! urgency 1 ─► ...
//! ```
//!
//! The RFC leaves open who goes first of those that are incremental and those that are not, at one
//! urgency: here the latter, which are worth nothing until they are whole. A stream's head, its
//! first video frame or whatever an application waits for first, goes before everything else
//! (XLINK section 5.1).

use roadweave_types::Urgency;
use roadweave_wire::{StreamId, StreamPriority};

/// The place of a stream among all: the lowest leaves first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Streams of the same are equals.
    pub(crate) urgency: Urgency,
    /// When it had its turn, if it takes turns.
    turn: u64,
    pub(crate) id: StreamId,
}

impl Rank {
    /// `is_head`: whether what leaves next is of its first bytes. `turn`: counts the turns of all
    /// streams; of the last one that this stream had.
    pub(crate) fn new(priority: StreamPriority, is_head: bool, turn: u64, id: StreamId) -> Self {
        let is_incremental = priority.is_incremental();
        // One that is not incremental has an urgency for itself.
        let own = if is_incremental { 0 } else { id.0 & OWN };
        let place = u64::from(!is_head) << 4
            | u64::from(priority.urgency()) << 1
            | u64::from(is_incremental);
        let urgency = Urgency(place << OWN.count_ones() | own);
        Self { urgency, turn: if is_incremental { turn } else { 0 }, id }
    }
}

/// The bits of an id that tell streams apart; no session opens more.
const OWN: u64 = (1 << 59) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_by_head_then_urgency_then_id_then_turn() {
        let rank = |is_head, urgency, incremental, turn, id| {
            let priority = StreamPriority::new(urgency, incremental);
            Rank::new(priority, is_head, turn, StreamId(id))
        };
        let ascending = [
            rank(true, 7, true, 9, 9),
            rank(false, 0, true, 9, 9),
            rank(false, 3, false, 7, 2),
            rank(false, 3, false, 0, 4),
            rank(false, 3, true, 1, 8),
            rank(false, 3, true, 2, 6),
            rank(false, 7, false, 0, 0),
        ];
        assert!(ascending.is_sorted());
        assert!(ascending[2].urgency < ascending[3].urgency);
        assert_eq!(ascending[4].urgency, ascending[5].urgency);
        assert!(ascending.iter().all(|rank| rank.urgency < Urgency::LAST));
    }
}
