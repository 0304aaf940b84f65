//! The one place where time enters: the clock that a machine's sleep does not stop, as a
//! [`roadweave_proto::Instant`].
//!
//! `CLOCK_BOOTTIME` goes on while the machine is suspended, and `CLOCK_MONOTONIC` stands. By the
//! first all timers are over that would be over without the sleep: a session that the peer has
//! given up is given up here as well, and a packet that waited for hours is as old as that. A
//! program that was stopped, or whose virtual machine was, finds the same.

use std::time::Duration;

use roadweave_proto::Instant;
use rustix::time::{ClockId, clock_gettime};

/// A clock that counts from the moment of its making.
///
/// Copies share the epoch, so that moments of different threads compare.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: std::time::Instant,
    began: Duration,
}

impl Clock {
    /// A clock that reads zero now.
    pub fn start() -> Self {
        Self { epoch: std::time::Instant::now(), began: since_boot() }
    }

    /// The moment at which it read zero, in the words of the standard library, whose clock stands
    /// while the machine sleeps.
    pub fn epoch(&self) -> std::time::Instant {
        self.epoch
    }

    /// The time since [`Clock::start`], as `CLOCK_BOOTTIME` sees it.
    pub fn now(&self) -> Instant {
        self.at(since_boot())
    }

    /// The moment `since_boot` after the machine was started, as `CLOCK_BOOTTIME` sees it; zero for
    /// what was before [`Clock::start`].
    pub fn at(&self, since_boot: Duration) -> Instant {
        Instant::ZERO + since_boot.saturating_sub(self.began)
    }

    /// How long to wait from `now` until `deadline`: zero when it has passed, `None` for never.
    pub fn until(now: Instant, deadline: Instant) -> Option<Duration> {
        (deadline != Instant::FAR_FUTURE).then(|| deadline.since(now))
    }
}

/// The time since the machine was started, its sleep included.
pub(crate) fn since_boot() -> Duration {
    read(ClockId::Boottime)
}

/// The time since the machine was started, its sleep left out.
pub(crate) fn awake_since_boot() -> Duration {
    read(ClockId::Monotonic)
}

fn read(clock: ClockId) -> Duration {
    // Neither is ever negative.
    clock_gettime(clock).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_clock_never_disagree_about_the_order() {
        let clock = Clock::start();
        let copy = clock;
        let first = clock.now();
        let second = copy.now();
        assert!(first <= second);
        assert!(second.since(first) < Duration::from_secs(5));
    }

    #[test]
    fn a_deadline_that_has_passed_waits_for_nothing() {
        let now = Instant::from_millis(5);
        assert_eq!(Clock::until(now, Instant::from_millis(3)), Some(Duration::ZERO));
        assert_eq!(Clock::until(now, Instant::from_millis(7)), Some(Duration::from_millis(2)));
        assert_eq!(Clock::until(now, Instant::FAR_FUTURE), None);
    }
}
