//! Yields the core to the sender behind the device, so that a turn takes a whole burst. The first
//! packet of a burst wakes the loop on the application's core, and the others wait until the loop
//! sleeps. On an idle core a yield costs a system call and no time. On a busy core (an encoder) it
//! may cost a scheduler slice of some milliseconds; yields then pause for a while.

use std::time::Duration;

use roadweave_proto::Instant;

/// A longer yield did not only wait for the rest of a burst.
const LONG: Duration = Duration::from_micros(150);
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub(super) struct YieldPolicy {
    due: Instant,
    rest: Duration,
}

impl Default for YieldPolicy {
    fn default() -> Self {
        Self { due: Instant::ZERO, rest: REST_MIN }
    }
}

impl YieldPolicy {
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due <= now
    }

    pub(super) fn on_yielded(&mut self, began: Instant, now: Instant) {
        if now.since(began) <= LONG {
            self.rest = REST_MIN;
        } else {
            self.due = now + self.rest;
            self.rest = (self.rest * 2).min(REST_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_yields_pause_ever_longer_until_a_short_one() {
        let (mut yield_policy, mut now) = (YieldPolicy::default(), Instant::from_millis(1_000));
        assert!(yield_policy.is_due(now));
        for rest in [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] {
            let end = now + Duration::from_millis(3);
            yield_policy.on_yielded(now, end);
            now = end + Duration::from_millis(rest);
            assert!(!yield_policy.is_due(now - Duration::from_nanos(1)), "{rest}");
            assert!(yield_policy.is_due(now), "{rest}");
        }
        yield_policy.on_yielded(now, now + LONG);
        assert!(yield_policy.is_due(now));
        yield_policy.on_yielded(now, now + LONG * 2);
        assert!(yield_policy.is_due(now + LONG * 2 + REST_MIN));
    }
}
