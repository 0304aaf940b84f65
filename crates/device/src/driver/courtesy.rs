//! Yields the core to the sender behind the device, so that a turn takes a whole burst.
//!
//! ```text
//! application ─► packet ─► wakes the loop on the application's core ─► turn, send
//!                  the other packets of its burst wait until the loop sleeps: a turn for each
//! with a yield:    packet ─► loop yields ─► the rest of the burst ─► one turn, one run to send
//! ```
//!
//! On an idle core a yield costs a system call and no time. On a busy core, for example with an
//! encoder, it may cost a scheduler slice of some milliseconds; yields then pause for a while.

use std::time::Duration;

use roadweave_proto::Instant;

/// A longer yield did not only wait for the rest of a burst.
const LONG: Duration = Duration::from_micros(150);
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub(super) struct Courtesy {
    due: Instant,
    rest: Duration,
}

impl Default for Courtesy {
    fn default() -> Self {
        Self { due: Instant::ZERO, rest: REST_MIN }
    }
}

impl Courtesy {
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

    const START: Instant = Instant::from_millis(1_000);

    /// Yields each millisecond of a minute, when due, for `long`; returns the share of time in
    /// yields.
    fn share_of(long: Duration) -> f64 {
        let (mut courtesy, mut now) = (Courtesy::default(), START);
        let mut yielded = Duration::ZERO;
        while now < START + Duration::from_secs(60) {
            if courtesy.is_due(now) {
                courtesy.on_yielded(now, now + long);
                yielded += long;
                now += long;
            }
            now += Duration::from_millis(1);
        }
        yielded.as_secs_f64() / 60.0
    }

    #[test]
    fn short_yields_go_on_and_long_ones_cost_hardly_any_time() {
        assert!(share_of(Duration::from_micros(50)) > 0.04, "one each turn");
        assert!(share_of(Duration::from_millis(4)) < 0.002);
    }

    #[test]
    fn a_core_that_is_free_again_is_found_out() {
        let mut courtesy = Courtesy::default();
        let mut now = START;
        for _ in 0..20 {
            courtesy.on_yielded(now, now + Duration::from_millis(3));
            now += Duration::from_millis(3);
            assert!(!courtesy.is_due(now) && courtesy.is_due(now + REST_MAX));
            now += REST_MAX;
        }
        courtesy.on_yielded(now, now);
        assert!(courtesy.is_due(now));
        courtesy.on_yielded(now, now + Duration::from_millis(3));
        assert!(courtesy.is_due(now + Duration::from_millis(3) + REST_MIN));
    }
}
