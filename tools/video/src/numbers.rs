//! The sequence numbers of one sender (RFC 3550 section 5.1), made continuous across leaps.
//!
//! ```text
//! 7 8 9 | 30000 30001 30002   as received
//! 7 8 9 |   ✗      11    12   as passed on: two in order must confirm the leap
//! ```
//!
//! A jitter buffer creates an event for each missing number, and considers each packet behind a
//! leap back late until the numbers reach that point again, which takes minutes.

use std::time::Duration;

use crate::budget::Budget;

#[derive(Debug)]
pub struct Numbers {
    newest: u16,
    shift: u16,
    /// The number that would confirm a leap.
    awaited: Option<u16>,
    gaps: Budget,
}

impl Numbers {
    pub fn new(first: u16) -> Self {
        let gaps = Budget::of_gaps();
        Self { newest: first.wrapping_sub(1), shift: 0, awaited: None, gaps }
    }

    pub fn take(&mut self, now: Duration, number: u16) -> Option<u16> {
        let ahead = number.wrapping_sub(self.newest).cast_signed();
        let awaited = self.awaited.take();
        if ahead.unsigned_abs() > LEAP {
            if awaited != Some(number) {
                self.awaited = Some(number.wrapping_add(1));
                return None;
            }
            // One number stays missing, so that a key frame is requested.
            self.shift = self.newest.wrapping_add(self.shift).wrapping_add(2).wrapping_sub(number);
            self.newest = number;
        } else if ahead > GAP && !self.gaps.take(now) {
            return None;
        }
        if ahead > 0 {
            self.newest = number;
        }
        Some(number.wrapping_add(self.shift))
    }
}

/// A second at 30 Mbit/s: reordering is always shorter.
const LEAP: u16 = 3_000;
/// Longer gaps cost work and have a budget.
const GAP: i16 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(numbers: &[(u16, Option<u16>)]) {
        let mut all = Numbers::new(numbers[0].0);
        for (number, expected) in numbers {
            assert_eq!(all.take(Duration::ZERO, *number), *expected, "{number} of {numbers:?}");
        }
    }

    #[test]
    fn gaps_overtaking_and_the_wrap_are_left_as_they_are() {
        let same = |numbers: &[u16]| {
            check(&numbers.iter().map(|it| (*it, Some(*it))).collect::<Vec<_>>());
        };
        same(&[7, 8, 9, 2_000, 10, 11, 2_001]);
        same(&[65_534, 65_535, 0, 1, 65_533, 2]);
    }

    #[test]
    fn behind_a_leap_numbers_go_on() {
        check(&[(9, Some(9)), (30_000, None), (30_001, Some(11)), (29_999, Some(9))]);
        check(&[(9_000, Some(9_000)), (1, None), (2, Some(9_002)), (3, Some(9_003))]);
        check(&[(9, Some(9)), (30_000, None), (40_000, None), (10, Some(10)), (40_001, None)]);
    }

    #[test]
    fn whatever_comes_the_gaps_that_are_passed_on_are_few() {
        let mut numbers = Numbers::new(0);
        let (mut seed, mut last, mut missing) = (1_u32, 0_u16, 0_u64);
        for i in 0..100_000_u64 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let random = (seed >> 16) as u16;
            let number = if i % 2 == 0 { random } else { numbers.newest.wrapping_add(2_900) };
            if let Some(taken) = numbers.take(Duration::from_micros(i * 100), number) {
                let gap = taken.wrapping_sub(last).cast_signed();
                missing += u64::try_from(gap.max(0)).unwrap();
                last = if gap > 0 { taken } else { last };
            }
        }
        assert!(missing < 10 * 3_000 * 3, "{missing}");
    }
}
