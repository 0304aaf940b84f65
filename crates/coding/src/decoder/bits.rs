//! Small sets of small numbers: the columns or the equations of a block, a bit each.

use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// The numbers are below this.
pub(super) const BITS: usize = 128;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits(u128);

impl Bits {
    pub(super) const EMPTY: Self = Self(0);

    /// `first` and the numbers after it, `count` in all.
    #[inline]
    pub(super) fn run(first: usize, count: usize) -> Self {
        debug_assert!(count > 0 && first + count <= BITS, "{count} from {first}");
        Self(u128::MAX >> (BITS - count) << first)
    }

    #[inline]
    pub(super) fn has(self, number: usize) -> bool {
        self.0 >> number & 1 != 0
    }

    #[inline]
    pub(super) fn insert(&mut self, number: usize) {
        self.0 |= 1 << number;
    }

    #[inline]
    pub(super) fn remove(&mut self, number: usize) {
        self.0 &= !(1 << number);
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(super) fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    #[inline]
    pub(super) fn last(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.ilog2() as usize)
    }

    #[inline]
    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self;
        std::iter::from_fn(move || {
            let first = left.first()?;
            left.remove(first);
            Some(first)
        })
    }

    /// Adds `by`, which may be negative, to every number; none may leave the bounds.
    #[inline]
    pub(super) fn shifted(self, by: isize) -> Self {
        let moved = match by {
            0.. => Self(self.0 << by),
            _ => Self(self.0 >> by.unsigned_abs()),
        };
        debug_assert_eq!(moved.0.count_ones(), self.0.count_ones(), "{self:?} shifted by {by}");
        moved
    }
}

impl From<u64> for Bits {
    #[inline]
    fn from(bits: u64) -> Self {
        Self(bits.into())
    }
}

impl BitAnd for Bits {
    type Output = Self;

    #[inline]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for Bits {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Bits {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl Not for Bits {
    type Output = Self;

    #[inline]
    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl FromIterator<usize> for Bits {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut bits = Self::EMPTY;
        numbers.into_iter().for_each(|number| bits.insert(number));
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(bits: Bits) -> Vec<usize> {
        bits.iter().collect()
    }

    #[test]
    fn a_run_reaches_both_ends() {
        assert_eq!(numbers(Bits::run(0, 3)), [0, 1, 2]);
        assert_eq!(numbers(Bits::run(126, 2)), [126, 127]);
        assert_eq!(numbers(Bits::run(0, BITS)), (0..BITS).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_come_and_go() {
        let mut bits: Bits = [7, 0, 127].into_iter().collect();
        assert_eq!((bits.first(), bits.last()), (Some(0), Some(127)));
        bits.remove(0);
        bits.remove(5);
        assert!(bits.has(7) && !bits.has(0) && !bits.is_empty());
        assert_eq!(numbers(bits.shifted(-7)), [0, 120]);
        assert_eq!((Bits::EMPTY.first(), Bits::EMPTY.last()), (None, None));
        assert_eq!(numbers(Bits::EMPTY), []);
    }
}
