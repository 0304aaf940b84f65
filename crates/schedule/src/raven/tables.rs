//! What was learned of a network: how samples age, and how far predictions err, also with age.
//!
//! ```text
//! log of round trips ─► lambda      minimises the mean square of past errors
//!                    ─► errors      actual / predicted, by percentile
//!                    ─► ages        mean square error without the newest n seconds, by that with them
//! ```
//!
//! Source: RAVEN sections 4.2 to 4.4.

use super::forecast::Forecast;
use super::log::Log;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tables {
    /// The aging factor of equation 2, seconds.
    pub(super) lambda: f64,
    /// Actual by predicted round trip, by percentile 0..=100; ascending.
    pub(super) errors: Vec<f64>,
    /// Age of the newest sample in seconds, and the factor of the interval; both ascending.
    pub(super) ages: Vec<(f64, f64)>,
}

/// The bounds of a round trip, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Interval {
    pub(super) const UNKNOWN: Self = Self { low: 0.0, high: f64::INFINITY };
}

impl Tables {
    /// Before anything was learned. A network stays the fastest for two seconds in the median
    /// (RAVEN section 3.2): so long a sample counts. Errors are log-normal with a deviation of
    /// [`FIRST_DEVIATION`], and grow with the square root of time, as of a random walk.
    pub(super) fn assumed() -> Self {
        let quantile = |percent: usize| {
            let share = (percent as f64 / 100.0).clamp(0.005, 0.995);
            (FIRST_DEVIATION * normal_quantile(share)).exp()
        };
        Self {
            lambda: FIRST_LAMBDA,
            errors: (0..PERCENTILES).map(quantile).collect(),
            ages: AGES.map(|age| (age, (1.0 + age / FIRST_LAMBDA).sqrt())).to_vec(),
        }
    }

    /// `None` when the logs hold fewer than [`SAMPLES_MIN`] predictions.
    pub(super) fn learn(logs: &[&Log]) -> Option<Self> {
        let runs: Vec<&[(f64, f64)]> = logs.iter().flat_map(|log| log.runs()).collect();
        let score = |lambda: f64| mean_square(&runs, lambda);
        let lambda = LAMBDAS.into_iter().min_by(|a, b| score(*a).total_cmp(&score(*b)))?;
        let mut errors = Vec::new();
        for run in &runs {
            predict(run, lambda, 0.0, |_, predicted, actual| errors.push(actual / predicted));
        }
        if errors.len() < SAMPLES_MIN {
            return None;
        }
        errors.sort_unstable_by(f64::total_cmp);
        let last = errors.len() - 1;
        let place = |percent: usize| (last * percent + PERCENTILES / 2) / (PERCENTILES - 1);
        let quantile = |percent: usize| rounded(errors[place(percent)]);
        let mut ages = learn_ages(&runs, lambda);
        if ages.is_empty() {
            ages = Self::assumed().ages;
        }
        Some(Self { lambda, errors: (0..PERCENTILES).map(quantile).collect(), ages })
    }

    /// The confidence interval of a prediction whose newest sample is `age` seconds old; `percent`:
    /// 1..=99. Source: RAVEN section 4.4, equation 3, read as in docs/deviations.md.
    pub(super) fn interval(&self, predicted: f64, age: f64, percent: u8) -> Interval {
        let tail = (100.0 - f64::from(percent)) / 2.0;
        let below = (1.0 - self.error(tail)).max(WIDTH_MIN);
        let above = (self.error(100.0 - tail) - 1.0).max(WIDTH_MIN);
        let factor = self.age_factor(age);
        Interval {
            low: (predicted * (1.0 - below * factor)).max(0.0),
            high: predicted * (1.0 + above * factor),
        }
    }

    fn error(&self, percent: f64) -> f64 {
        let at = percent.clamp(0.0, (PERCENTILES - 1) as f64);
        let below = self.errors[at.floor() as usize];
        let above = self.errors[at.ceil() as usize];
        below + (above - below) * at.fract()
    }

    /// Beyond what was learned it grows with time, so that in the end each path is probed.
    fn age_factor(&self, age: f64) -> f64 {
        let mut before = (0.0, 1.0);
        for &(at, factor) in &self.ages {
            if age < at {
                let share = (age - before.0) / (at - before.0);
                return before.1 + (factor - before.1) * share;
            }
            before = (at, factor);
        }
        if before.0 > 0.0 { before.1 * age / before.0 } else { 1.0 }
    }
}

/// Predicts each sample by those before it, without the newest `omitted` seconds; calls `each`.
fn predict(run: &[(f64, f64)], lambda: f64, omitted: f64, mut each: impl FnMut(usize, f64, f64)) {
    let mut forecast = Forecast::default();
    let mut taken = 0;
    for (place, &(at, actual)) in run.iter().enumerate() {
        while taken < place && run[taken].0 + omitted <= at {
            forecast.add(run[taken].0, run[taken].1, lambda);
            taken += 1;
        }
        if let Some(predicted) = forecast.rtt() {
            each(place, predicted, actual);
        }
    }
}

fn mean_square(runs: &[&[(f64, f64)]], lambda: f64) -> f64 {
    let (mut sum, mut count) = (0.0, 0_u32);
    for run in runs {
        predict(run, lambda, 0.0, |_, predicted, actual| {
            sum += (actual - predicted).powi(2);
            count += 1;
        });
    }
    sum / f64::from(count.max(1))
}

/// Both errors are of the same times at each age. Ends where too few are left, and never falls.
fn learn_ages(runs: &[&[(f64, f64)]], lambda: f64) -> Vec<(f64, f64)> {
    let fresh: Vec<Vec<f64>> = runs
        .iter()
        .map(|run| {
            let mut squares = vec![0.0; run.len()];
            predict(run, lambda, 0.0, |place, predicted, actual| {
                squares[place] = (actual - predicted).powi(2);
            });
            squares
        })
        .collect();
    let (mut ages, mut highest) = (Vec::new(), 1.0_f64);
    for age in AGES {
        let (mut stale_sum, mut fresh_sum, mut count) = (0.0, 0.0, 0);
        for (run, fresh) in runs.iter().zip(&fresh) {
            predict(run, lambda, age, |place, predicted, actual| {
                stale_sum += (actual - predicted).powi(2);
                fresh_sum += fresh[place];
                count += 1;
            });
        }
        if count < SAMPLES_MIN {
            break;
        }
        if fresh_sum > 0.0 {
            highest = highest.max((stale_sum / fresh_sum).sqrt()).min(FACTOR_MAX);
        }
        ages.push((age, rounded(highest)));
    }
    ages
}

/// To the digits that a file keeps, so that a restart changes nothing.
fn rounded(ratio: f64) -> f64 {
    (ratio * 1e4).round() / 1e4
}

/// At `share`, 0.5 %..99.5 %, to three digits, by Tukey's lambda distribution.
fn normal_quantile(share: f64) -> f64 {
    (share.powf(0.1349) - (1.0 - share).powf(0.1349)) / 0.1975
}

pub(super) const PERCENTILES: usize = 101;
pub(super) const SAMPLES_MIN: usize = 100;
/// Wider than any network needs; bounds the values of a file.
pub(super) const FACTOR_MAX: f64 = 1e6;
pub(super) const LAMBDAS: [f64; 12] =
    [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8];
const AGES: [f64; 9] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
const FIRST_LAMBDA: f64 = 2.0;
/// The assumed deviation of predictions: that of cellular links.
const FIRST_DEVIATION: f64 = 0.25;
/// To either side, by the prediction: a log is no more certain than this.
const WIDTH_MIN: f64 = 0.02;

#[cfg(test)]
mod tests;
