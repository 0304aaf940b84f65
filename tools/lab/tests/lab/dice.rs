//! Random numbers of a seed, and the seeds of a run.

use std::ops::Range;
use std::time::Duration;

use roadweave_emulate::Random;

pub struct Dice(Random);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.0.bits() % (range.end - range.start)
    }

    pub fn once_in(&mut self, times: u64) -> bool {
        self.within(0..times) == 0
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.within(0..all.len() as u64) as usize]
    }

    pub fn ms(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }
}

pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// `ROADWEAVE_SEED` alone, or `ROADWEAVE_SEEDS` (default: `usual`) seeds from `ROADWEAVE_FIRST` on.
pub fn seeds(usual: u64) -> Range<u64> {
    if let Some(seed) = number("ROADWEAVE_SEED") {
        return seed..seed + 1;
    }
    let first = number("ROADWEAVE_FIRST").unwrap_or(0);
    first..first + number("ROADWEAVE_SEEDS").unwrap_or(usual)
}
