//! Seeded random numbers in the distributions needed by links and applications.

use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roadweave_proto::SplitMix64;

/// A seeded generator; equal seeds give equal draws.
#[derive(Clone, Debug)]
pub struct Random(Pcg64Mcg);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// The generator of part `index` of `seed`, independent of the other parts.
    pub fn part(seed: u64, index: u64) -> Self {
        Self::new(SplitMix64::word(seed, index))
    }

    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform below `end`, which is above 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.unit() < p
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// 1, 2, 3, ... with the given `mean` (at least 1); each step is equally likely to be the last.
    pub fn geometric(&mut self, mean: f64) -> u64 {
        if mean <= 1.0 {
            return 1;
        }
        1 + ((1.0 - self.unit()).ln() / (1.0 - 1.0 / mean).ln()) as u64
    }

    /// Normal with mean 0 and deviation 1.
    pub fn normal(&mut self) -> f64 {
        self.normal_around(0.0, 1.0)
    }

    /// Normal with the given mean and deviation (Box-Muller).
    pub fn normal_around(&mut self, mean: f64, deviation: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        mean + deviation * radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_draws_have_mean_zero_and_deviation_one() {
        let mut random = Random::new(1);
        let draws: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.03, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.05, "variance {variance}");
    }

    #[test]
    fn waiting_times_have_their_mean() {
        let mut random = Random::new(2);
        let exponential = (0..20_000).map(|_| random.exponential(3.0)).sum::<f64>() / 2e4;
        let geometric = (0..20_000).map(|_| random.geometric(3.0) as f64).sum::<f64>() / 2e4;
        assert!((exponential - 3.0).abs() < 0.1, "{exponential}");
        assert!((geometric - 3.0).abs() < 0.1, "{geometric}");
    }
}
