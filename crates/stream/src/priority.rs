//! The order in which streams send (RFC 9218 section 10).
//!
//! ```text
//! heads     ─► the first bytes of streams, by urgency as the others
//! urgency 0 ─► not incremental: by id, one after the other
//!          └─► incremental: in turn, a segment each
//! urgency 1 ─► ...
//! ```
//!
//! At one urgency the RFC leaves the order of incremental and other streams open: here the others
//! go first, since they are worth nothing until they are whole. A stream's head, such as its first
//! video frame, goes before everything else (XLINK section 5.1).

use roadweave_proto::Urgency;
use roadweave_proto::wire::{StreamId, StreamPriority};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Streams with the same are equals.
    pub(crate) urgency: Urgency,
    turn: u64,
    pub(crate) id: StreamId,
}

impl Rank {
    /// `is_head`: the next byte is of the head. `turn`: the stream's last turn, counted over all.
    pub(crate) fn new(priority: StreamPriority, is_head: bool, turn: u64, id: StreamId) -> Self {
        let is_incremental = priority.is_incremental();
        // A stream that is not incremental has an urgency of its own.
        let own = if is_incremental { 0 } else { id.0 & OWN };
        let place = u64::from(!is_head) << 4
            | u64::from(priority.urgency()) << 1
            | u64::from(is_incremental);
        let urgency = Urgency(place << OWN.count_ones() | own);
        Self { urgency, turn: if is_incremental { turn } else { 0 }, id }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) priority: StreamPriority,
    pub(crate) change: u64,
    pub(crate) is_due: bool,
}

impl Asked {
    pub(crate) fn new(priority: StreamPriority) -> Self {
        Self { priority, ..Self::default() }
    }

    pub(crate) fn ask(&mut self, priority: StreamPriority, takes: bool) {
        (self.priority, self.change) = (priority, self.change + 1);
        self.is_due = takes;
    }

    pub(crate) fn send_again(&mut self, takes: bool) {
        self.is_due = takes && self.change > 0;
    }

    pub(crate) fn on_asked(&mut self, change: u64, priority: StreamPriority) -> bool {
        let is_newer = change > self.change;
        if is_newer {
            (self.priority, self.change) = (priority, change);
        }
        is_newer
    }
}

/// Bytes of a stream that may still go before others. Bytes sent in normal order earn some again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Favour {
    left: i64,
    most: i64,
}

impl Favour {
    pub(crate) fn new(most: u64) -> Self {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        Self { left: most, most }
    }

    pub(crate) fn is_left(&self) -> bool {
        self.left > 0
    }

    /// `is_favoured`: the bytes were asked to go before others.
    pub(crate) fn on_sent(&mut self, bytes: u64, is_favoured: bool) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if is_favoured && self.is_left() {
            self.left = self.left.saturating_sub(bytes);
        } else {
            self.left = self.left.saturating_add(bytes / EARNED).min(self.most);
        }
    }
}

/// Bytes in normal order that earn one byte of favour.
const EARNED: i64 = 4;

/// The bits of an id that distinguish streams; no session opens more.
const OWN: u64 = (1 << 59) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn favour_is_spent_and_earned_again() {
        let mut favour = Favour::new(3_000);
        let share = |favour: &mut Favour| {
            let sent = (0..1_000).filter(|_| {
                let goes_before = favour.is_left();
                favour.on_sent(1_000, true);
                goes_before
            });
            sent.count()
        };
        assert_eq!(share(&mut favour), 3 + 200, "and then one of five");
        favour.on_sent(1 << 40, false);
        assert_eq!(favour.left, 3_000);
        favour.on_sent(u64::MAX, true);
        favour.on_sent(u64::MAX, true);
        assert!(!favour.is_left());
    }

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
