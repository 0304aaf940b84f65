//! Keeps what all sessions hold together within the server's memory.
//!
//! The sum of the sessions' shares may exceed the memory. If all together hold too much, the
//! largest drop their oldest data, down to an equal part of the memory. A turn asks a bounded
//! number, and the next turn goes on from there.
//!
//! Connections without a session count as well and take half at most; standbys another quarter.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use roadweave_quic::ConnectionId;

/// The estimated cost of a connection beside its session, bytes: 90 KiB were measured at rest.
pub(super) const CONNECTION_BYTES: u64 = 192 << 10;

#[derive(Debug, Default)]
pub(super) struct Budget {
    max: u64,
    held: BTreeMap<ConnectionId, u64>,
    order: BTreeSet<(u64, ConnectionId)>,
    total: u64,
    others: u64,
    asked: Option<(u64, ConnectionId)>,
    questions: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ceilings {
    pub(super) half_open: usize,
    pub(super) waiting: usize,
    pub(super) standbys: usize,
}

impl Ceilings {
    /// Those that do not stay get half of `memory_max` bytes, standbys another quarter.
    pub(super) fn of(memory_max: usize, half_open_max: usize) -> Self {
        let all = (memory_max / 2 / CONNECTION_BYTES as usize).max(2);
        let half_open = half_open_max.min(all / 2);
        let standbys = (memory_max / 4 / CONNECTION_BYTES as usize).max(1);
        Self { half_open, waiting: WAITING_MAX.min(all - half_open), standbys }
    }
}

impl Budget {
    pub(super) fn new(max: usize) -> Self {
        Self { max: max as u64, ..Self::default() }
    }

    pub(super) fn set(&mut self, id: ConnectionId, bytes: u64) {
        let bytes = bytes + CONNECTION_BYTES;
        if let Some(before) = self.held.insert(id, bytes) {
            self.total -= before;
            if before == bytes {
                self.total += bytes;
                return;
            }
            self.order.remove(&(before, id));
        }
        self.order.insert((bytes, id));
        self.total += bytes;
    }

    pub(super) fn remove(&mut self, id: ConnectionId) {
        if let Some(bytes) = self.held.remove(&id) {
            self.order.remove(&(bytes, id));
            self.total -= bytes;
        }
    }

    pub(super) fn begin_turn(&mut self, connections: usize, waiting_bytes: usize) {
        self.others = connections as u64 * CONNECTION_BYTES + waiting_bytes as u64;
        self.questions = QUESTIONS_MAX;
    }

    pub(super) fn total(&self) -> u64 {
        self.total + self.others
    }

    /// The largest session not asked yet and what it may keep. Next turn starts from the largest.
    pub(super) fn next_excess(&mut self) -> Option<(ConnectionId, u64)> {
        if self.total() <= self.max {
            self.asked = None;
            return None;
        }
        self.questions = self.questions.checked_sub(1)?;
        let equal = self.max.saturating_sub(self.others) / self.held.len().max(1) as u64;
        // The cost of the connection itself cannot be reduced.
        let least = equal.max(CONNECTION_BYTES);
        let before = self.asked.map_or(Bound::Unbounded, Bound::Excluded);
        let largest = self.order.range((Bound::Unbounded, before)).next_back();
        self.asked = largest.copied().filter(|(held, _)| *held > least);
        self.questions *= usize::from(self.asked.is_some());
        self.asked.map(|(_, largest)| (largest, least - CONNECTION_BYTES))
    }
}

/// The most connections that wait: a thousand boxes after a restart.
const WAITING_MAX: usize = 4096;
/// The most sessions asked per turn: each takes some microseconds, and packets come in between.
const QUESTIONS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_without_a_session_count_and_take_half_at_most() {
        for mebibytes in [64, 256, 1024, 65_536] {
            let max = mebibytes << 20;
            let Ceilings { half_open, waiting, standbys } = Ceilings::of(max, 1024);
            assert!((half_open + waiting) * CONNECTION_BYTES as usize <= max / 2, "{mebibytes}");
            assert!(standbys * CONNECTION_BYTES as usize <= max / 4, "{mebibytes}");
            assert!(standbys >= 85, "{standbys}");
            assert!(half_open >= 85 && waiting >= 85, "{half_open}, {waiting}");
            assert!(half_open <= 1024 && waiting <= WAITING_MAX, "{half_open}, {waiting}");
        }
        let each = CONNECTION_BYTES + 100_000;
        let mut budget = Budget::new(4 * each as usize);
        (1..=2).for_each(|id| budget.set(ConnectionId(id), 100_000));
        assert_eq!(first(&mut budget), None);
        budget.begin_turn(2, 200_001);
        assert_eq!(budget.total(), 4 * each + 1);
        let (_, target) = budget.next_excess().expect("a byte too much");
        assert!((99_000..100_000).contains(&target), "{target}");
        assert_eq!(first(&mut budget), None);
    }

    fn first(budget: &mut Budget) -> Option<(ConnectionId, u64)> {
        budget.begin_turn(0, 0);
        budget.next_excess()
    }

    fn asked(budget: &mut Budget) -> Vec<(ConnectionId, u64)> {
        budget.begin_turn(0, 0);
        std::iter::from_fn(|| budget.next_excess()).collect()
    }

    #[test]
    fn the_largest_gives_way_and_those_below_the_mean_do_not() {
        let each = CONNECTION_BYTES + 100_000;
        let mut budget = Budget::new(3 * each as usize);
        let id = ConnectionId;
        budget.set(id(1), 100_000);
        budget.set(id(2), 20_000);
        assert_eq!(first(&mut budget), None);
        budget.set(id(3), 250_000);
        assert_eq!(first(&mut budget), Some((id(3), 100_000)));
        budget.set(id(3), 100_000);
        assert_eq!((first(&mut budget), budget.total()), (None, 3 * each - 80_000));
        budget.set(id(2), 900_000);
        budget.remove(id(2));
        assert_eq!((first(&mut budget), budget.total()), (None, 2 * each));
        budget.set(id(1), 100_000);
        assert_eq!((budget.total(), budget.order.len()), (2 * each, 2));
    }

    #[test]
    fn who_cannot_give_way_does_not_keep_the_next_from_it() {
        let each = CONNECTION_BYTES + 100_000;
        let mut budget = Budget::new(3 * each as usize);
        let id = ConnectionId;
        for (number, bytes) in [(1, 300_000), (2, 250_000), (3, 50_000)] {
            budget.set(id(number), bytes);
        }
        let all = asked(&mut budget);
        assert_eq!(all, [(id(1), 100_000), (id(2), 100_000)], "the third has less than its part");
        assert_eq!(asked(&mut budget), all, "and again");
        budget.set(id(2), 0);
        assert_eq!(first(&mut budget), Some((id(1), 100_000)));
    }

    #[test]
    fn thousands_that_hold_too_much_are_asked_some_at_a_time_and_each_in_its_turn() {
        let clients = 6_000;
        let mut budget = Budget::new(5_461 * CONNECTION_BYTES as usize);
        (0..clients).for_each(|number| budget.set(ConnectionId(number), number % 1_000));
        let mut everybody = BTreeSet::new();
        let holders = (clients - clients / 1_000) as usize;
        for _ in 0..holders.div_ceil(QUESTIONS_MAX) {
            let all = asked(&mut budget);
            assert!((1..=QUESTIONS_MAX).contains(&all.len()), "{} in one turn", all.len());
            assert!(all.iter().all(|(_, bytes)| *bytes == 0));
            everybody.extend(all.into_iter().map(|(id, _)| id));
        }
        assert_eq!(everybody.len(), holders);
        assert!(everybody.iter().all(|id| id.0 % 1_000 > 0));
    }
}
