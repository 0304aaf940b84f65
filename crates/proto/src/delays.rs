//! Histograms of delays.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A histogram of delays, of constant size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delays {
    /// By bucket: at most its bound in [`Delays::BOUNDS_MS`]; the last one beyond all bounds.
    counts: [u64; BUCKETS],
    /// Their sum.
    sum_us: u64,
}

const BUCKETS: usize = Delays::BOUNDS_MS.len() + 1;

impl Delays {
    /// The longest delay of each bucket, milliseconds; close together near deadlines of video.
    pub const BOUNDS_MS: [u64; 13] = [5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1_000, 2_000];

    /// Counts a delay.
    #[inline]
    pub fn add(&mut self, delay: Duration) {
        let us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.counts[Self::BOUNDS_MS.partition_point(|bound| bound * 1_000 < us)] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// Adds the counts of another one.
    pub fn merge(&mut self, other: &Self) {
        let counts = self.counts.iter_mut().zip(other.counts);
        counts.for_each(|(count, more)| *count += more);
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all delays, seconds.
    pub fn sum_seconds(&self) -> f64 {
        self.sum_us as f64 / 1e6
    }

    /// The buckets, shortest first: the bound in seconds, and the delays in this bucket alone.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = Self::BOUNDS_MS.iter().map(|ms| *ms as f64 / 1e3);
        bounds.chain([f64::INFINITY]).zip(self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_in_the_bucket_of_the_least_bound_that_is_not_below_it() {
        let bucket = |us: u64| {
            let mut delays = Delays::default();
            delays.add(Duration::from_micros(us));
            assert_eq!((delays.count(), delays.sum_seconds()), (1, us as f64 / 1e6));
            let found = delays.buckets().find(|(_, count)| *count == 1);
            found.expect("it was counted").0
        };
        let buckets = [0, 5_000, 5_001, 150_000, 2_000_000, 2_000_001].map(bucket);
        assert_eq!(buckets, [0.005, 0.005, 0.01, 0.15, 2.0, f64::INFINITY]);
    }

    #[test]
    fn two_are_added_and_the_longest_of_all_does_not_overflow() {
        let (mut some, mut others) = (Delays::default(), Delays::default());
        assert!(some.is_empty());
        some.add(Duration::from_millis(40));
        others.add(Duration::from_millis(40));
        others.add(Duration::MAX);
        some.merge(&others);
        let counts: Vec<_> = some.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [(0.05, 2), (f64::INFINITY, 1)]);
        assert_eq!((some.count(), some.sum_us), (3, u64::MAX));
    }
}
