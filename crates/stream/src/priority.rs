//! Whose bytes leave first (RFC 9218 section 10).
//!
//! ```text
//! urgency 0 ─► not incremental: by id, one after the other
//!          └─► incremental: in turn, a segment each
//! urgency 1 ─► ...
//! ```
//!
//! The RFC leaves open who goes first of those that are incremental and those that are not, at one
//! urgency: here the latter, which are worth nothing until they are whole.

use roadweave_wire::{StreamId, StreamPriority};

/// The place of a stream among all: the lowest leaves first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) class: Class,
    /// When it had its turn, if it takes turns.
    turn: u64,
    pub(crate) id: StreamId,
}

/// Streams of a class are equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class {
    urgency: u8,
    is_incremental: bool,
    /// Of one that is not incremental, which has a class for itself.
    id: Option<StreamId>,
}

impl Rank {
    /// `turn`: counts the turns of all streams; of the last one that this stream had.
    pub(crate) fn new(priority: StreamPriority, turn: u64, id: StreamId) -> Self {
        let is_incremental = priority.is_incremental();
        let own = (!is_incremental).then_some(id);
        let class = Class { urgency: priority.urgency(), is_incremental, id: own };
        Self { class, turn: if is_incremental { turn } else { 0 }, id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_by_urgency_then_id_then_turn() {
        let rank = |urgency, incremental, turn, id| {
            Rank::new(StreamPriority::new(urgency, incremental), turn, StreamId(id))
        };
        let ascending = [
            rank(0, true, 9, 9),
            rank(3, false, 7, 2),
            rank(3, false, 0, 4),
            rank(3, true, 1, 8),
            rank(3, true, 2, 6),
            rank(7, false, 0, 0),
        ];
        assert!(ascending.is_sorted());
        assert!(ascending[1].class < ascending[2].class);
        assert_eq!(ascending[3].class, ascending[4].class);
    }
}
