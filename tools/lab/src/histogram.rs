//! A compact histogram of many delays.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::video::quality::Percentiles;

/// Number of delays of each size, to half a percent.
///
/// Bucket `b` holds the delays above `1.005^(b-1)` us and up to `1.005^b` us; bucket 0 those up to
/// 1 us. In JSON: an array of `[bucket, count]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u16, u64)>", into = "Vec<(u16, u64)>")]
pub struct Histogram {
    counts: BTreeMap<u16, u64>,
}

impl Histogram {
    pub fn new<'a>(delays: impl IntoIterator<Item = &'a Duration>) -> Self {
        let mut histogram = Self::default();
        for delay in delays {
            *histogram.counts.entry(bucket(*delay)).or_default() += 1;
        }
        histogram
    }

    pub fn merge(&mut self, other: &Self) {
        for (&bucket, &count) in &other.counts {
            *self.counts.entry(bucket).or_default() += count;
        }
    }

    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Percentiles by nearest rank, up to half a percent too high.
    pub fn percentiles(&self) -> Percentiles {
        let count = self.count();
        let at = |per_mille: u64| {
            let rank = (count * per_mille).div_ceil(1_000);
            self.cumulative().find(|&(_, below)| below >= rank).map_or(0.0, |(ms, _)| ms)
        };
        Percentiles { p50: at(500), p95: at(950), p99: at(990), p999: at(999) }
    }

    /// The upper end of each bucket in ms, ascending, and the number of delays up to it.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.counts.iter().scan(0, |below, (&bucket, &count)| {
            *below += count;
            Some((upper_ms(bucket), *below))
        })
    }
}

impl From<Vec<(u16, u64)>> for Histogram {
    fn from(counts: Vec<(u16, u64)>) -> Self {
        Self { counts: counts.into_iter().collect() }
    }
}

impl From<Histogram> for Vec<(u16, u64)> {
    fn from(histogram: Histogram) -> Self {
        histogram.counts.into_iter().collect()
    }
}

fn bucket(delay: Duration) -> u16 {
    let us = delay.as_nanos() as f64 / 1e3;
    if us <= 1.0 { 0 } else { (us.ln() / GROWTH.ln()).ceil().min(f64::from(u16::MAX)) as u16 }
}

fn upper_ms(bucket: u16) -> f64 {
    GROWTH.powi(i32::from(bucket)) / 1e3
}

const GROWTH: f64 = 1.005;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn percentiles_are_those_of_the_delays_to_half_a_percent(
            us in prop::collection::vec(1_u64..700_000, 1..300),
            cut in 0_usize..300,
        ) {
            let mut delays: Vec<_> = us.iter().map(|&us| Duration::from_micros(us)).collect();
            let (one, other) = delays.split_at(cut.min(delays.len()));
            let mut histogram = Histogram::new(one);
            histogram.merge(&Histogram::new(other));
            prop_assert_eq!(histogram.count(), delays.len() as u64);
            delays.sort_unstable();
            let exact = Percentiles::of_sorted(&delays);
            let found = histogram.percentiles();
            for (found, exact) in [(found.p50, exact.p50), (found.p99, exact.p99), (found.p999, exact.p999)] {
                prop_assert!(found >= exact * 0.999_999 && found <= exact * 1.005_001, "{found} {exact}");
            }
        }
    }

    #[test]
    fn nothing_and_the_extremes_have_a_place() {
        assert_eq!(Histogram::default().percentiles(), Percentiles::default());
        let histogram = Histogram::new(&[Duration::ZERO, Duration::MAX]);
        assert_eq!(histogram.count(), 2);
        let pairs: Vec<(u16, u64)> = histogram.clone().into();
        assert_eq!(Histogram::from(pairs), histogram);
    }
}
