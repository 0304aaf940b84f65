//! Percentiles of the delay from glass to glass, in bounded memory.
//!
//! One end cannot know whether both clocks agree. A delay below zero or above [`PLAUSIBLE_MAX_US`]
//! shows that they do not; reports are then relative to the least delay.

use serde::Serialize;

#[derive(Clone, Debug)]
pub struct FrameDelays {
    first_us: Option<i64>,
    counts: Vec<u32>,
    least_us: i64,
    most_us: i64,
    total: u64,
}

/// The reported percentiles, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// How the clocks of sender and receiver relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Clocks {
    /// They agree: delays are absolute.
    Shared,
    /// They differ: delays are relative to the least delay.
    Relative,
}

impl Default for FrameDelays {
    fn default() -> Self {
        Self { first_us: None, counts: Vec::new(), least_us: i64::MAX, most_us: i64::MIN, total: 0 }
    }
}

impl FrameDelays {
    pub fn add(&mut self, delay_us: i64) {
        if self.counts.is_empty() {
            self.counts = vec![0; STEPS];
        }
        let first = *self.first_us.get_or_insert(delay_us);
        let step = delay_us.saturating_sub(first) / STEP_US + ORIGIN;
        let step = usize::try_from(step).unwrap_or(0).min(STEPS - 1);
        self.counts[step] = self.counts[step].saturating_add(1);
        self.least_us = self.least_us.min(delay_us);
        self.most_us = self.most_us.max(delay_us);
        self.total += 1;
    }

    pub fn least_us(&self) -> Option<i64> {
        (self.total > 0).then_some(self.least_us)
    }

    pub fn clocks(&self) -> Clocks {
        match self.total > 0 && (self.least_us < 0 || self.most_us > PLAUSIBLE_MAX_US) {
            true => Clocks::Relative,
            false => Clocks::Shared,
        }
    }

    pub fn percentiles(&self, base_us: i64) -> Option<Percentiles> {
        self.first_us?;
        let ms = |us: i64| super::rounded(us.saturating_sub(base_us) as f64 / 1000.0);
        let at = |share: f64| ms(self.quantile(share));
        Some(Percentiles { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: ms(self.most_us) })
    }

    /// The delay below which `share` of all delays are, in steps.
    fn quantile(&self, share: f64) -> i64 {
        let wanted = (self.total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (step, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted {
                let step = i64::try_from(step).unwrap_or(0) - ORIGIN;
                let us = self.first_us.unwrap_or(0).saturating_add(step * STEP_US);
                return us.clamp(self.least_us, self.most_us);
            }
        }
        self.most_us
    }
}

/// Longer than on any link suitable for remote driving.
const PLAUSIBLE_MAX_US: i64 = 5_000_000;
const STEP_US: i64 = 500;
/// Twenty seconds: longer delays count as the last step.
const STEPS: usize = 40_000;
/// The step of the first delay: up to five seconds below it are distinguished.
const ORIGIN: i64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(delays: impl IntoIterator<Item = i64>) -> FrameDelays {
        let mut all = FrameDelays::default();
        delays.into_iter().for_each(|us| all.add(us));
        all
    }

    #[test]
    fn percentiles_are_those_of_the_delays() {
        let all = of((1..=1000).map(|ms| ms * 1000));
        let found = all.percentiles(0).unwrap();
        assert_eq!(found, Percentiles { p50: 500.0, p95: 950.0, p99: 990.0, max: 1000.0 });
        assert_eq!(all.clocks(), Clocks::Shared);
        let one = of([42_300]).percentiles(0).unwrap();
        assert_eq!(one, Percentiles { p50: 42.3, p95: 42.3, p99: 42.3, max: 42.3 });
        assert_eq!(FrameDelays::default().percentiles(0), None);
        assert_eq!(FrameDelays::default().clocks(), Clocks::Shared);
    }

    #[test]
    fn clocks_that_differ_are_found_out() {
        let behind = of([-70_000, -40_000, -65_000]);
        assert_eq!(behind.clocks(), Clocks::Relative);
        let found = behind.percentiles(behind.least_us().unwrap()).unwrap();
        assert_eq!((found.p50, found.max), (5.0, 30.0));
        assert_eq!(of([3_600_000_000]).clocks(), Clocks::Relative);
    }

    #[test]
    fn delays_beyond_all_bounds_are_counted() {
        let all = of([0, i64::MAX, i64::MIN, 1]);
        assert!(all.percentiles(0).is_some());
        assert_eq!(all.total, 4);
    }
}
