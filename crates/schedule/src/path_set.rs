//! A set of paths, as positions in the slice of snapshots that a decision was made from.

/// A set of positions below [`PathSet::CAPACITY`], without an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSet(u32);

impl PathSet {
    /// Positions that a set can hold: a session has far fewer paths.
    pub const CAPACITY: usize = 32;
    /// No path.
    pub const EMPTY: Self = Self(0);

    /// The set of one position.
    pub fn one(position: usize) -> Self {
        let mut set = Self::EMPTY;
        set.insert(position);
        set
    }

    /// Adds a position; one beyond the capacity is left out.
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
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let set: PathSet = [3, 0, 31, 32, 400].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3, 31]);
        assert_eq!(set.len(), 3);
        assert!(!set.is_empty() && PathSet::EMPTY.is_empty());
    }
}
