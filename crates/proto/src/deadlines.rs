//! When each of many is to be looked at.

use std::collections::{BTreeMap, BTreeSet};

use crate::Instant;

/// A deadline for each of some keys, the earliest first.
#[derive(Clone, Debug)]
pub struct Deadlines<K> {
    by_key: BTreeMap<K, Instant>,
    queue: BTreeSet<(Instant, K)>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), queue: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> Deadlines<K> {
    /// Sets or removes the deadline of a key.
    pub fn set(&mut self, key: K, deadline: Option<Instant>) {
        let previous = match deadline {
            Some(deadline) => self.by_key.insert(key, deadline),
            None => self.by_key.remove(&key),
        };
        if previous == deadline {
            return;
        }
        if let Some(previous) = previous {
            self.queue.remove(&(previous, key));
        }
        self.queue.extend(deadline.map(|deadline| (deadline, key)));
    }

    /// Whether a key has a deadline.
    pub fn contains(&self, key: K) -> bool {
        self.by_key.contains_key(&key)
    }

    /// All deadlines, the earliest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Instant, K)> + '_ {
        self.queue.iter().copied()
    }

    /// The earliest deadline.
    pub fn earliest(&self) -> Option<Instant> {
        self.queue.first().map(|(deadline, _)| *deadline)
    }

    /// Removes the earliest deadline if it is due; returns its key.
    pub fn pop_due(&mut self, now: Instant) -> Option<K> {
        let (_, key) = self.queue.first().copied().filter(|(deadline, _)| *deadline <= now)?;
        self.set(key, None);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_deadline_of_a_key_counts() {
        let mut deadlines = Deadlines::default();
        let at = Instant::from_millis;
        for (key, ms) in [(1, 5), (2, 7), (1, 9)] {
            deadlines.set(key, Some(at(ms)));
        }
        assert_eq!((deadlines.earliest(), deadlines.contains(1)), (Some(at(7)), true));
        assert_eq!(deadlines.iter().collect::<Vec<_>>(), [(at(7), 2), (at(9), 1)]);
        assert_eq!((deadlines.pop_due(at(8)), deadlines.pop_due(at(8))), (Some(2), None));
        deadlines.set(1, None);
        assert_eq!((deadlines.earliest(), deadlines.by_key.len()), (None, 0));
    }
}
