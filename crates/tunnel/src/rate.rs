//! Rate limits of clients and tenants.

use std::time::Duration;

use roadweave_proto::{Instant, Rate, TokenBucket};

/// The share of a limit that may be used at once: transfers send in bursts.
const BURST: Duration = Duration::from_millis(100);
/// The bytes that may be used at once even with a small limit.
const BURST_BYTES_MIN: u64 = 64 << 10;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    rate: Rate,
    burst: Duration,
    bucket: TokenBucket,
}

impl Limit {
    pub(crate) fn new(rate: Rate) -> Self {
        let burst = BURST.max(rate.time_for(BURST_BYTES_MIN));
        Self { rate, burst, bucket: TokenBucket::default() }
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// When a packet of `bytes` bytes passes: in the far future at a rate of zero.
    pub(crate) fn passes_at(&self, bytes: usize) -> Instant {
        if self.rate == Rate::default() {
            return Instant::FAR_FUTURE;
        }
        let full_at = self.bucket.full_at() + self.rate.time_for(bytes as u64);
        let burst = self.burst.min(full_at.since(Instant::ZERO));
        full_at - burst
    }

    /// Whether a packet of `bytes` bytes passes now, and is counted; none does at a rate of zero.
    pub(crate) fn allows(&mut self, now: Instant, bytes: usize) -> bool {
        self.rate != Rate::default()
            && self.bucket.take(now, self.rate.time_for(bytes as u64), self.burst)
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Direction {
    Down,
    Up,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(limit: &mut Limit, from: u64, until: u64) -> u64 {
        let packets = (from..until).flat_map(|millis| [Instant::from_millis(millis); 10]);
        packets.filter(|now| limit.allows(*now, 1_000)).count() as u64 * 1_000
    }

    #[test]
    fn a_limit_holds_in_the_long_run_and_lets_bursts_pass() {
        let mut limit = Limit::new(Rate::from_kbps(8_000));
        let first = passed(&mut limit, 1_000, 2_000);
        assert!((1_090_000..1_110_000).contains(&first), "100 kB and 1 MB a second: {first}");
        let second = passed(&mut limit, 2_000, 3_000);
        assert!((990_000..1_010_000).contains(&second), "{second}");
        let rested = passed(&mut limit, 9_000, 9_001);
        assert_eq!(rested, 10_000);
    }

    #[test]
    fn a_small_limit_lets_a_few_packets_pass_at_once() {
        let mut limit = Limit::new(Rate::from_kbps(64));
        let burst = (0..1_000).filter(|_| limit.allows(Instant::from_millis(5), 1_300)).count();
        assert_eq!(burst, 50);
    }
}
