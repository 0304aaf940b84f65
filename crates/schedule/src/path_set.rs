//! A set of paths, as positions in the slice of snapshots that a decision was made from.

use roadweave_proto::PathOffer;

/// A set of positions below [`PathSet::CAPACITY`], without allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSet(u32);

impl PathSet {
    /// The capacity: more than the paths of a session.
    pub const CAPACITY: usize = 32;
    /// No path.
    pub const EMPTY: Self = Self(0);

    /// The set of one position.
    pub fn one(position: usize) -> Self {
        let mut set = Self::EMPTY;
        set.insert(position);
        set
    }

    /// Adds a position; ignores one beyond the capacity.
    pub fn insert(&mut self, position: usize) {
        if position < Self::CAPACITY {
            self.0 |= 1 << position;
        }
    }

    /// Whether it holds `position`.
    pub fn contains(self, position: usize) -> bool {
        position < Self::CAPACITY && self.0 >> position & 1 == 1
    }

    /// Whether it holds none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many it holds.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The position of the path that carries the packet itself, of `bytes` bytes; the others carry
    /// copies. It is the fastest path that answers and has room.
    pub fn first_choice(self, bytes: u64, paths: &[PathOffer<'_>]) -> Option<usize> {
        let rank = |at: usize| {
            let PathOffer { snapshot, queued_bytes, .. } = paths.get(at)?;
            let is_full = snapshot.is_full(queued_bytes.saturating_add(bytes));
            Some((!snapshot.is_usable(), is_full, snapshot.expected_rtt, at))
        };
        self.iter().filter_map(rank).min().map(|(.., at)| at)
    }

    /// The positions, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let position = (left != 0).then(|| left.trailing_zeros() as usize);
            left &= left.wrapping_sub(1);
            position
        })
    }
}

impl FromIterator<usize> for PathSet {
    fn from_iter<I: IntoIterator<Item = usize>>(positions: I) -> Self {
        let mut set = Self::EMPTY;
        positions.into_iter().for_each(|position| set.insert(position));
        set
    }
}

#[cfg(test)]
mod tests {
    use roadweave_proto::{PathSnapshot, PathStatus};

    use super::*;
    use crate::testing::{free, path};

    #[test]
    fn a_packet_leaves_first_on_the_fastest_path_that_answers_and_has_room() {
        let silent = PathSnapshot { status: PathStatus::Suspect, ..path(0, 10, 9000) };
        let paths = [silent, path(1, 20, 1199), path(2, 40, 9000), path(3, 30, 9000)];
        let first = |chosen: &[usize]| {
            chosen.iter().copied().collect::<PathSet>().first_choice(1200, &free(&paths))
        };
        assert_eq!(first(&[0, 1, 2, 3]), Some(3));
        assert_eq!(first(&[0, 1, 2]), Some(2));
        assert_eq!(first(&[0, 1]), Some(1), "it answers");
        assert_eq!((first(&[0]), first(&[9]), first(&[])), (Some(0), None, None));
    }

    #[test]
    fn a_set_holds_what_was_put_in() {
        let set: PathSet = [3, 0, 31, 32, 400].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3, 31]);
        assert_eq!(set.len(), 3);
        assert!(!set.is_empty() && PathSet::EMPTY.is_empty());
    }
}
