//! Confidence of a mean over drives: the bootstrap.
//!
//! As many drives as were run are drawn with replacement, many times; the middle 95 % of the means
//! are the interval. All seeds of a drive are drawn together.
//!
//! Source: Efron, "Bootstrap methods: another look at the jackknife" (1979), with percentiles.

use roadweave_emulate::Random;

/// The least and the greatest value.
pub type Interval = [f64; 2];

#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) part: f64,
    /// For a mean, the number of values.
    pub(super) whole: f64,
}

impl Share {
    pub(super) fn and(self, other: Self) -> Self {
        Self { part: self.part + other.part, whole: self.whole + other.whole }
    }
}

const ROUNDS: usize = 2_000;

/// Interval of the sum of parts divided by the sum of wholes over `drives`; `None` for fewer than
/// two drives or a divisor of zero.
pub(super) fn interval(drives: &[Share]) -> Option<Interval> {
    if drives.len() < 2 {
        return None;
    }
    let mut random = Random::new(0);
    let mut round = |_| {
        let mut draw = |_| drives[random.below(drives.len())];
        let Share { part, whole } = (0..drives.len()).map(&mut draw).reduce(Share::and)?;
        (whole > 0.0).then(|| part / whole)
    };
    let mut ratios: Vec<f64> = (0..ROUNDS).filter_map(&mut round).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let rank = |per_mille: usize| ratios.get(ratios.len() * per_mille / 1_000).copied();
    Some([rank(25)?, rank(975)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(values: &[f64]) -> Vec<Share> {
        values.iter().map(|value| Share { part: *value, whole: 1.0 }).collect()
    }

    #[test]
    fn the_interval_of_a_mean_is_about_four_of_its_standard_errors() {
        let values: Vec<f64> = (0..100).map(f64::from).collect();
        let [low, high] = interval(&means(&values)).unwrap();
        // The standard error of the mean of these is 2.89.
        assert!((low - 43.8).abs() < 0.6 && (high - 55.2).abs() < 0.6, "{low} {high}");
    }

    #[test]
    fn equal_drives_are_sure_and_one_says_nothing() {
        assert_eq!(interval(&means(&[3.0; 5])), Some([3.0, 3.0]));
        assert_eq!(interval(&means(&[3.0])), None);
        let nothing = Share { part: 0.0, whole: 0.0 };
        assert_eq!(interval(&[nothing, nothing]), None);
    }

    #[test]
    fn of_a_ratio_both_means_are_of_the_drives_that_were_drawn() {
        let shares = [1.0, 5.0, 90.0].map(|whole| Share { part: whole * 0.4, whole });
        let [low, high] = interval(&shares).unwrap();
        assert!((low - 0.4).abs() < 1e-12 && (high - 0.4).abs() < 1e-12, "{low} {high}");
    }
}
