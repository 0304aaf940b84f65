//! Detects that the machine slept, or that this program stood still.
//!
//! Each turn of a loop reads two clocks, one of which stops in sleep: if only the other advanced,
//! the machine slept; if both advanced by more than a turn takes, the program stood still.

use std::fmt;
use std::time::Duration;

use rustix::time::ClockId;

use crate::clock::{self, since_boot};

/// The longest wait of a loop that wants to notice sleep.
pub const TURN_MAX: Duration = Duration::from_secs(1);
const SLEPT_MIN: Duration = Duration::from_secs(1);
const STOOD_STILL_MIN: Duration = Duration::from_secs(3);

/// A reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readings {
    /// `CLOCK_MONOTONIC`, without sleep.
    awake: Duration,
    /// `CLOCK_BOOTTIME`, with sleep.
    all: Duration,
}

impl Readings {
    /// Reads the clocks.
    pub fn take() -> Self {
        Self { awake: clock::read(ClockId::Monotonic), all: since_boot() }
    }
}

/// Finds pauses between readings.
#[derive(Debug)]
pub struct Pauses {
    last: Readings,
}

/// A pause of the program or the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Its length.
    pub lasted: Duration,
    slept: bool,
}

impl Pauses {
    /// Begins with a reading.
    pub fn new(now: Readings) -> Self {
        Self { last: now }
    }

    /// The pause since the last reading, if there was one.
    pub fn on_turn(&mut self, now: Readings) -> Option<Pause> {
        let last = std::mem::replace(&mut self.last, now);
        let all = now.all.saturating_sub(last.all);
        let awake = now.awake.saturating_sub(last.awake);
        let asleep = all.saturating_sub(awake);
        let is_pause = asleep >= SLEPT_MIN || all >= STOOD_STILL_MIN;
        is_pause.then_some(Pause { lasted: all, slept: asleep > awake })
    }
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = Coarse(self.lasted);
        match self.slept {
            true => write!(f, "the machine slept {time}"),
            false => write!(f, "this program did not run for {time}"),
        }
    }
}

struct Coarse(Duration);

impl fmt::Display for Coarse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            secs @ 0..60 => write!(f, "{secs} s"),
            secs @ 60..3_600 => write!(f, "{} min {} s", secs / 60, secs % 60),
            secs => write!(f, "{} h {} min", secs / 3_600, secs / 60 % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(turns: &[(u64, u64)], expected: &[&str]) {
        let millis = Duration::from_millis;
        let mut now = Readings { awake: millis(70_000), all: millis(90_000_000) };
        let mut pauses = Pauses::new(now);
        let mut found = Vec::new();
        for (awake, asleep) in turns {
            now.awake += millis(*awake);
            now.all += millis(awake + asleep);
            found.extend(pauses.on_turn(now).map(|pause| pause.to_string()));
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn a_sleep_is_distinguished_from_a_stop_and_both_from_a_busy_machine() {
        check(&[(0, 0), (1_000, 0), (2_999, 0), (1_000, 0)], &[]);
        check(&[(300, 11_520_000), (1_000, 0)], &["the machine slept 3 h 12 min"]);
        check(&[(12_400, 0), (1_000, 0)], &["this program did not run for 12 s"]);
        check(&[(10, 1_000), (10, 700), (10, 700)], &["the machine slept 1 s"]);
        check(&[(1_000, 62_000)], &["the machine slept 1 min 3 s"]);
        check(&[(20_000, 2_000)], &["this program did not run for 22 s"]);
    }
}
