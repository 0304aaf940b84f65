//! Round-trip times and the retransmission timeout: RFC 6298, with Linux's minimum of 200 ms
//! (`tcp_rto_min_us`) for the part added to the smoothed time.

use std::time::Duration;

use roadweave_proto::{Instant, RttEstimator};

#[derive(Clone, Debug)]
pub(super) struct RoundTrips {
    estimate: RttEstimator,
    least: Option<(Duration, Instant)>,
    /// Upper envelope of four times the variation.
    variation: Duration,
}

impl RoundTrips {
    pub(super) fn new() -> Self {
        let estimate = RttEstimator::new(INITIAL);
        Self { estimate, least: None, variation: Duration::ZERO }
    }

    /// Only for segments that were sent once.
    pub(super) fn on_sample(&mut self, now: Instant, sample: Duration) {
        self.estimate.update(sample);
        let variation = self.estimate.variation() * 4;
        // It rises at once and decays slowly.
        self.variation = variation.max(self.variation.saturating_sub(self.variation / 64));
        let is_least =
            |(least, at): (Duration, Instant)| sample <= least || now.since(at) > LEAST_OF;
        if self.least.is_none_or(is_least) {
            self.least = Some((sample, now));
        }
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.estimate.is_sampled().then(|| self.estimate.smoothed())
    }

    pub(super) fn least(&self) -> Option<Duration> {
        self.least.map(|(least, _)| least)
    }

    /// The retransmission timeout, doubled `backoffs` times (RFC 6298 sections 2 and 5.5).
    pub(super) fn timeout(&self, backoffs: u32) -> Duration {
        let once = match self.smoothed() {
            Some(smoothed) => smoothed + self.variation.max(TIMEOUT_MIN),
            None => INITIAL,
        };
        (once * 2_u32.pow(backoffs.min(10))).min(TIMEOUT_MAX)
    }
}

/// The timeout before the first sample (RFC 6298 section 2.1).
pub(super) const INITIAL: Duration = Duration::from_secs(1);
pub(super) const TIMEOUT_MIN: Duration = Duration::from_millis(200);
const TIMEOUT_MAX: Duration = Duration::from_secs(120);
/// Linux's `tcp_min_rtt_wlen`.
const LEAST_OF: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_timeout_is_a_second_at_first_and_never_less_than_200_ms_above_the_round_trip() {
        let mut rtt = RoundTrips::new();
        assert_eq!((rtt.timeout(0), rtt.timeout(2)), (MS * 1_000, MS * 4_000));
        (0..100).for_each(|at| rtt.on_sample(Instant::from_millis(at), MS * 50));
        assert_eq!((rtt.timeout(0), rtt.least()), (MS * 250, Some(MS * 50)));
        // RTTVAR * 4 of RFC 6298.
        (0..100).for_each(|at| {
            rtt.on_sample(Instant::from_millis(at), MS * (50 + 300 * (at as u32 % 2)))
        });
        assert!(rtt.timeout(0) > MS * 700, "{:?}", rtt.timeout(0));
        assert_eq!(rtt.timeout(30), TIMEOUT_MAX);
    }
}
