//! Finds out that the machine slept, or that this program stood still.
//!
//! ```text
//! every turn of a loop ─► two clocks, one of which stands in sleep ─► how far each went since the last turn
//!                              the other alone: slept        both, for longer than a turn takes: stood still
//! ```
//!
//! A loop that waits for no longer than [`TURN_MAX`] comes round within that after the machine
//! woke: what the kernel waits by stands in sleep as well.

use std::fmt;
use std::time::Duration;

use crate::clock::{awake_since_boot, since_boot};

/// How long a loop may wait for something to happen.
pub(crate) const TURN_MAX: Duration = Duration::from_secs(1);
/// Less sleep is no news.
const SLEPT_MIN: Duration = Duration::from_secs(1);
/// A turn that took so long was stopped: a busy machine lets nobody wait as long.
const STOOD_STILL_MIN: Duration = Duration::from_secs(3);

/// Two clocks of the machine, read at about the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Readings {
    /// `CLOCK_MONOTONIC`, which stands while the machine sleeps.
    awake: Duration,
    /// `CLOCK_BOOTTIME`, which goes on.
    all: Duration,
}

impl Readings {
    /// The clocks now.
    pub(crate) fn take() -> Self {
        Self { awake: awake_since_boot(), all: since_boot() }
    }
}

/// The turns of one loop.
#[derive(Debug)]
pub(crate) struct Pauses {
    last: Readings,
}

/// A time in which this program did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    /// How long it was.
    pub(crate) lasted: Duration,
    /// Whether the machine slept, for the most part of it; else something stopped this program.
    slept: bool,
}

impl Pauses {
    /// The first turn begins now.
    pub(crate) fn new(now: Readings) -> Self {
        Self { last: now }
    }

    /// A turn ends; returns the pause that was in it, if any.
    pub(crate) fn on_turn(&mut self, now: Readings) -> Option<Pause> {
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
            false => write!(f, "this program stood still for {time}"),
        }
    }
}

/// A time, as exact as a person wants it.
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

    /// What is found after turns in which the clocks went on by so many milliseconds: (awake,
    /// asleep).
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
    fn a_sleep_is_told_from_a_stop_and_both_from_a_busy_machine() {
        check(&[(0, 0), (1_000, 0), (2_999, 0), (1_000, 0)], &[]);
        check(&[(300, 11_520_000), (1_000, 0)], &["the machine slept 3 h 12 min"]);
        check(&[(12_400, 0), (1_000, 0)], &["this program stood still for 12 s"]);
        check(&[(10, 1_000), (10, 700), (10, 700)], &["the machine slept 1 s"]);
        check(&[(1_000, 62_000)], &["the machine slept 1 min 3 s"]);
        // Stopped by the user, and then the lid was closed for a moment.
        check(&[(20_000, 2_000)], &["this program stood still for 22 s"]);
    }

    #[test]
    fn the_clocks_of_this_machine_tell_of_no_pause_where_there_is_none() {
        let mut pauses = Pauses::new(Readings::take());
        assert_eq!(pauses.on_turn(Readings::take()), None);
    }
}
