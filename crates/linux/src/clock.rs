//! The only source of time, as [`roadweave_proto::Instant`]. It reads `CLOCK_BOOTTIME`, with
//! suspended time: a session the peer gave up in a sleep ends here.

use std::time::Duration;

use roadweave_proto::Instant;
use rustix::time::{ClockId, clock_gettime};

/// A clock that starts at zero. Copies share the epoch, so their times compare across threads.
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

    /// The start, as a time of the standard library, whose clock stops while the machine sleeps.
    pub fn epoch(&self) -> std::time::Instant {
        self.epoch
    }

    /// The time since [`Clock::start`], suspended time included.
    pub fn now(&self) -> Instant {
        self.at(since_boot())
    }

    /// Converts a time since boot (`CLOCK_BOOTTIME`); zero for times before [`Clock::start`].
    pub fn at(&self, since_boot: Duration) -> Instant {
        Instant::ZERO + since_boot.saturating_sub(self.began)
    }

    /// How long to wait from `now` until `deadline`: zero when it has passed, `None` for never.
    pub fn until(now: Instant, deadline: Instant) -> Option<Duration> {
        (deadline != Instant::FAR_FUTURE).then(|| deadline.since(now))
    }
}

pub(crate) fn since_boot() -> Duration {
    read(ClockId::Boottime)
}

/// The processor time of this program.
pub fn processor_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

pub(crate) fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_has_passed_waits_for_nothing() {
        let now = Instant::from_millis(5);
        assert_eq!(Clock::until(now, Instant::from_millis(3)), Some(Duration::ZERO));
        assert_eq!(Clock::until(now, Instant::from_millis(7)), Some(Duration::from_millis(2)));
        assert_eq!(Clock::until(now, Instant::FAR_FUTURE), None);
    }
}
