//! A limit of how often something happens.

use std::time::Duration;

use crate::Instant;

/// A token bucket, initially full (generic cell rate algorithm). The caller gives the time after
/// which what is taken is there again (`cost`), and after which an empty bucket is full (`burst`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenBucket {
    full_at: Instant,
}

impl TokenBucket {
    /// Takes from the bucket; returns false, and takes nothing, if it holds less.
    pub fn take(&mut self, now: Instant, cost: Duration, burst: Duration) -> bool {
        let full_at = self.full_at.max(now) + cost;
        let holds = full_at.since(now) <= burst;
        if holds {
            self.full_at = full_at;
        }
        holds
    }

    /// When it is full if nothing more is taken.
    pub fn full_at(&self) -> Instant {
        self.full_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_one_in_each_interval() {
        let mut bucket = TokenBucket::default();
        let second = Duration::from_secs(1);
        let mut taken = |ms| {
            let now = Instant::from_millis(ms);
            (0..9).filter(|_| bucket.take(now, second, second * 3)).count()
        };
        assert_eq!([5_000, 5_999, 6_000, 8_500, 60_000].map(&mut taken), [3, 0, 1, 2, 3]);
        assert_eq!(bucket.full_at(), Instant::from_millis(63_000));
    }
}
