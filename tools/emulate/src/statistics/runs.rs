//! Quantiles, runs and correlations of plain numbers.

/// Sorted values.
#[derive(Debug)]
pub struct Quantiles(Vec<f64>);

impl Quantiles {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        Self(values)
    }

    /// The smallest value that at least the share `share` (0..=1) of values does not exceed, or 0.
    pub fn at(&self, share: f64) -> f64 {
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.max(1) - 1).copied().unwrap_or_default()
    }

    /// The mean; 0 without values.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    pub(super) fn share_below(&self, limit: f64) -> f64 {
        self.0.partition_point(|&value| value < limit) as f64 / self.0.len() as f64
    }
}

/// Pearson's correlation of two series of equal length; `None` if either is constant.
pub(super) fn correlation(one: &[f64], other: &[f64]) -> Option<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let (mean_one, mean_other) = (mean(one), mean(other));
    let (mut both, mut of_one, mut of_other) = (0.0, 0.0, 0.0);
    for (a, b) in one.iter().zip(other) {
        let (a, b) = (a - mean_one, b - mean_other);
        both += a * b;
        of_one += a * a;
        of_other += b * b;
    }
    // Rounding alone may leave a tiny variance in equal values.
    let varies = |sum: f64, mean: f64| sum > (mean * mean).max(f64::MIN_POSITIVE) * 1e-18;
    let known = varies(of_one, mean_one) && varies(of_other, mean_other);
    known.then(|| (both / (of_one * of_other).sqrt()).clamp(-1.0, 1.0))
}

pub(super) fn run_lengths(values: impl IntoIterator<Item = bool>) -> impl Iterator<Item = usize> {
    let mut length = 0;
    values.into_iter().chain([false]).filter_map(move |value| {
        if value {
            length += 1;
            return None;
        }
        Some(std::mem::take(&mut length)).filter(|&run| run > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occur() {
        let quantiles = Quantiles::of(vec![4.0, 1.0, 3.0, 2.0]);
        let at = [0.0, 0.25, 0.26, 0.5, 0.99, 1.0].map(|share| quantiles.at(share));
        assert_eq!(at, [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]);
        assert_eq!((quantiles.mean(), quantiles.share_below(3.0)), (2.5, 0.5));
    }

    #[test]
    fn correlation_is_known_where_both_change() {
        let up = [1.0, 2.0, 3.0, 4.0];
        let down = [8.0, 6.0, 4.0, 2.0];
        assert_eq!(correlation(&up, &up), Some(1.0));
        assert_eq!(correlation(&up, &down), Some(-1.0));
        assert_eq!(correlation(&up, &[0.1; 4]), None);
        assert_eq!(correlation(&[], &[]), None);
    }

    #[test]
    fn runs_are_counted_to_the_end() {
        let runs = |text: &str| run_lengths(text.chars().map(|c| c == 'x')).collect::<Vec<_>>();
        assert_eq!(runs("xx.x..xxx"), [2, 1, 3]);
        assert_eq!(runs(".."), Vec::<usize>::new());
        assert_eq!(runs(""), Vec::<usize>::new());
    }
}
