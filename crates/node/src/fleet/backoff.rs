//! Exponential backoff with jitter for connections to the controller.

use std::time::Duration;

use roadweave_proto::SplitMix64;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Backoff {
    pub(super) failures: u32,
    random: SplitMix64,
}

impl Backoff {
    pub(super) fn new(seed: u64) -> Self {
        Self { failures: 0, random: SplitMix64::new(seed) }
    }

    /// Half of the wait is random, so that a fleet returns to its controller spread over time.
    pub(super) fn next(&mut self) -> Duration {
        let longest = FIRST.mul_f64(1.5_f64.powi(self.failures.min(20) as i32)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let half = longest / 2;
        half + half.mul_f64(self.random.unit())
    }

    pub(super) fn settle(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_minute_and_differ() {
        let mut waits = Backoff::new(7);
        let first = waits.next();
        assert!((Duration::from_millis(500)..=FIRST).contains(&first), "{first:?}");
        for _ in 0..20 {
            assert!(waits.next() <= LONGEST);
        }
        let (late, other) = (waits.next(), waits.next());
        assert!(late >= LONGEST / 2 && late != other);
        waits.settle();
        assert!(waits.next() <= FIRST);
    }

    #[test]
    fn a_fleet_comes_back_spread_over_the_wait() {
        let mut tenths = [0; 10];
        for seed in 0..1_000 {
            let wait = Backoff::new(SplitMix64::word(seed, 0)).next();
            tenths[(wait.as_millis() as usize - 500) / 51] += 1;
        }
        assert!(tenths.iter().all(|count| (60..140).contains(count)), "{tenths:?}");
    }
}
