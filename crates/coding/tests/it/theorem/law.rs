//! Theorem 4.1 of CellFusion, and when an experiment contradicts it.
//!
//! The theorem: n + k coded packets over n packets decode with a probability of at least
//! 1 - 1/(255^k * 254). With A the (n + k) x n matrix of coefficients, independent and uniform over
//! the 255 non-zero values, decoding fails when the columns of A are dependent. (That the first
//! coefficient of each row is 1 changes nothing: it divides a row by a constant.)
//!
//! - At most so often: given that j columns are independent, the next one depends on them if it is
//!   one of the vectors without zeros in their span. There are at most 255^j of these, since j
//!   suitable coordinates determine a vector of the span, so this happens with a probability of at
//!   most 255^j / 255^(n+k); the sum over j = 1 .. n-1 is below 1/(255^k * 254). Appendix B counts
//!   exactly 255^j ("T2"), which is the bound and not the number; the theorem holds all the same.
//! - At least so often: n - 1 rows lie in some hyperplane. Its normal vector has two non-zero
//!   entries or more, because a row has no zeros. A row of w random non-zero terms sums up to zero
//!   with the probability (1 - (-1/255)^(w-1)) / 256, which is least for w = 3. Decoding fails when
//!   the other k + 1 rows lie in the hyperplane too.
//!
//! So the true probability is known to 1 % for k = 0, and an experiment that is off to either side
//! shows that something is wrong: the coefficients, the decoder, or the experiment.

/// The largest k of the experiments.
pub const EXTRA_MAX: usize = 4;

pub const COUNTS: std::ops::RangeInclusive<usize> = 2..=32;

/// How likely an experiment may be to fail although all is right, over all of its cells together.
pub const FALSE_ALARM: f64 = 1e-6;

/// The theorem's bound on the probability that n + `extra` packets do not decode.
pub fn failure_max(extra: usize) -> f64 {
    1.0 / (255f64.powi(extra as i32) * 254.0)
}

/// A lower bound on the same.
pub fn failure_min(extra: usize) -> f64 {
    ((1.0 - 255f64.powi(-2)) / 256.0).powi(extra as i32 + 1)
}

/// The exact probability if the coefficients were uniform over all 256 values, for comparison.
pub fn failure_with_zeros(count: usize, extra: usize) -> f64 {
    let dependent = (extra + 1..=extra + count).map(|i| 256f64.powi(-(i as i32)));
    -dependent.map(|p| (-p).ln_1p()).sum::<f64>().exp_m1()
}

/// How often n packets could not be decoded from n + k, for each k.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub trials: u64,
    pub failures: [u64; EXTRA_MAX + 1],
}

impl Tally {
    /// Counts a trial: the packets beyond n that it took; `None` if [`EXTRA_MAX`] were too few.
    pub fn count(&mut self, extra: Option<usize>) {
        self.trials += 1;
        for failures in &mut self.failures[..extra.unwrap_or(EXTRA_MAX + 1)] {
            *failures += 1;
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.trials += other.trials;
        for (sum, failures) in self.failures.iter_mut().zip(other.failures) {
            *sum += failures;
        }
    }

    /// What contradicts the law, when each of `cells` cells may give a false alarm.
    pub fn deviations(&self, cells: usize) -> Vec<String> {
        let alarm = FALSE_ALARM / (2 * cells) as f64;
        let mut deviations = Vec::new();
        for (extra, failures) in self.failures.into_iter().enumerate() {
            let share = failures as f64 / self.trials as f64;
            let (least, most) = (failure_min(extra), failure_max(extra));
            let (word, limit) = if share > most { ("more", most) } else { ("less", least) };
            let is_beyond = !(least..=most).contains(&share);
            if is_beyond && likelihood_max(self.trials, share, limit) < alarm {
                deviations.push(format!(
                    "k = {extra}: {failures} of {} failed, which is {word} than {limit:.3e}",
                    self.trials
                ));
            }
        }
        deviations
    }
}

/// A bound on the probability that the share of failures is `share` or further away from `p`.
/// Chernoff's: exp(-trials * D), D the relative entropy of `share` and `p`. It is never too low.
fn likelihood_max(trials: u64, share: f64, p: f64) -> f64 {
    let term = |a: f64, b: f64| if a == 0.0 { 0.0 } else { a * (a / b).ln() };
    let divergence = term(share, p) + term(1.0 - share, 1.0 - p);
    (-(trials as f64) * divergence).exp()
}
