//! How much one client or tenant may send and receive, if it has a limit.

use std::time::Duration;

use roadweave_proto::{Instant, Rate};

/// So much of a limit may be taken at once: transfers send in bursts, and are held back by losses.
const BURST: Duration = Duration::from_millis(100);
/// So many bytes may be taken at once, however small the limit is.
const BURST_BYTES_MIN: u64 = 64 << 10;

/// Lets inner packets through up to a rate (the generic cell rate algorithm, a token bucket that
/// keeps no more than a moment).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    rate: Rate,
    burst: Duration,
    /// When the bucket will be full again.
    full_at: Instant,
}

impl Limit {
    /// A limit of `rate`, of which nothing is used.
    pub(crate) fn new(rate: Rate) -> Self {
        let burst = BURST.max(rate.time_for(BURST_BYTES_MIN));
        Self { rate, burst, full_at: Instant::ZERO }
    }

    /// The rate that it keeps to.
    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// When a packet of `bytes` bytes passes; at a rate of zero none does.
    pub(crate) fn passes_at(&self, bytes: usize) -> Option<Instant> {
        if self.rate == Rate::default() {
            return None;
        }
        let full_at = self.full_at + self.rate.time_for(bytes as u64);
        let burst = self.burst.min(full_at.since(Instant::ZERO));
        Some(full_at - burst)
    }

    /// Whether a packet of `bytes` bytes passes now; at a rate of zero none does.
    pub(crate) fn allows(&mut self, now: Instant, bytes: usize) -> bool {
        if self.rate == Rate::default() {
            return false;
        }
        let full_at = self.full_at.max(now) + self.rate.time_for(bytes as u64);
        let passes = full_at.since(now) <= self.burst;
        if passes {
            self.full_at = full_at;
        }
        passes
    }
}

/// The direction of an inner packet, by its place in an array of two limits.
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
