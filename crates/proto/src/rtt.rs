//! The round-trip time of a path, estimated from samples.

use std::time::Duration;

/// The estimates of RFC 9002 section 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttEstimator {
    latest: Duration,
    min: Duration,
    smoothed: Duration,
    variation: Duration,
    is_sampled: bool,
}

impl RttEstimator {
    /// `initial` before the first sample, with half of it as variation (RFC 9002 section 5.3).
    pub fn new(initial: Duration) -> Self {
        Self {
            latest: initial,
            min: initial,
            smoothed: initial,
            variation: initial / 2,
            is_sampled: false,
        }
    }

    /// Takes a sample (RFC 9002 sections 5.2 and 5.3). The caller subtracts the peer's delay.
    pub fn update(&mut self, sample: Duration) {
        if !self.is_sampled {
            *self = Self { is_sampled: true, ..Self::new(sample) };
            return;
        }
        self.latest = sample;
        self.min = self.min.min(sample);
        self.variation = (self.variation * 3 + self.smoothed.abs_diff(sample)) / 4;
        self.smoothed = (self.smoothed * 7 + sample) / 8;
    }

    /// Whether there was a sample.
    pub fn is_sampled(&self) -> bool {
        self.is_sampled
    }

    /// The newest sample (`latest_rtt`).
    pub fn latest(&self) -> Duration {
        self.latest
    }

    /// The least of all samples (`min_rtt`).
    pub fn min(&self) -> Duration {
        self.min
    }

    /// The smoothed round-trip time (`smoothed_rtt`).
    pub fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// The mean deviation of the samples (`rttvar`).
    pub fn variation(&self) -> Duration {
        self.variation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn estimates(rtt: &RttEstimator) -> [Duration; 4] {
        [rtt.latest(), rtt.min(), rtt.smoothed(), rtt.variation()]
    }

    #[test]
    fn samples_are_averaged_as_rfc_9002_says() {
        let mut rtt = RttEstimator::new(MS * 333);
        assert!(!rtt.is_sampled());
        assert_eq!(estimates(&rtt), [MS * 333, MS * 333, MS * 333, MS * 333 / 2]);
        rtt.update(MS * 40);
        assert!(rtt.is_sampled());
        assert_eq!(estimates(&rtt), [MS * 40, MS * 40, MS * 40, MS * 20]);
        rtt.update(MS * 80);
        assert_eq!(estimates(&rtt), [MS * 80, MS * 40, MS * 45, MS * 25]);
        rtt.update(MS * 29);
        assert_eq!(estimates(&rtt), [MS * 29, MS * 29, MS * 43, MS * 91 / 4]);
    }
}
