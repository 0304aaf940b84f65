//! The one place where time enters: the monotonic clock as a [`roadweave_types::Instant`].

use std::time::Duration;

use roadweave_types::Instant;

/// A monotonic clock that counts from the moment of its making.
///
/// Copies share the epoch, so that moments of different threads compare.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: std::time::Instant,
}

impl Clock {
    /// A clock that reads zero now.
    pub fn start() -> Self {
        Self { epoch: std::time::Instant::now() }
    }

    /// The moment at which it read zero.
    pub fn epoch(&self) -> std::time::Instant {
        self.epoch
    }

    /// The time since [`Clock::start`], as `CLOCK_MONOTONIC` sees it (it stands while suspended).
    pub fn now(&self) -> Instant {
        Instant::ZERO + self.epoch.elapsed()
    }

    /// How long to wait from `now` until `deadline`: zero when it has passed, `None` for never.
    pub fn until(now: Instant, deadline: Instant) -> Option<Duration> {
        (deadline != Instant::FAR_FUTURE).then(|| deadline.since(now))
    }
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
