//! Lets whoever feeds the device go on before a turn is made of the first packet alone.
//!
//! ```text
//! application ─► packet ─► wakes the loop on the application's core ─► turn, send
//!                  the other packets of its burst wait until the loop sleeps: a turn for each
//! with a yield:    packet ─► loop yields ─► the rest of the burst ─► one turn, one run to send
//! ```
//!
//! Where nobody else wants the core a yield costs a system call and no time. Where somebody does
//! who has much to do, such as an encoder, it may cost a slice of the scheduler, some milliseconds:
//! then there is none for a while. Nor is there one in most turns where packets come one by one.

use std::time::Duration;

use roadweave_types::Instant;

/// A yield that took longer was not the rest of a burst.
const LONG: Duration = Duration::from_micros(150);
/// For so long there is no yield after a long one, at first.
const REST_MIN: Duration = Duration::from_millis(100);
/// And at most, when one after the other is long.
const REST_MAX: Duration = Duration::from_secs(10);
/// So many turns go by without a yield at most, when those before brought nothing.
const PASSES_MAX: u32 = 15;

/// When the loop yields its core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Courtesy {
    due: Instant,
    rest: Duration,
    /// Turns that go by without a yield after one that brought nothing.
    passes: u32,
    /// How many of these are left.
    left: u32,
}

impl Default for Courtesy {
    fn default() -> Self {
        Self { due: Instant::ZERO, rest: REST_MIN, passes: 0, left: 0 }
    }
}

impl Courtesy {
    /// A turn at `now` has read packets: whether it may yield.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        if self.due > now {
            return false;
        }
        let is_due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_due
    }

    /// The loop yielded at `began`, has the core again at `now`, and has read so many `packets`
    /// more.
    pub(super) fn on_yielded(&mut self, began: Instant, now: Instant, packets: usize) {
        self.passes = if packets > 0 { 0 } else { (2 * self.passes + 1).min(PASSES_MAX) };
        self.left = self.passes;
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

    /// Yields when it may, each millisecond of a minute, where each takes `long` and brings so many
    /// `packets`; returns the share of the time that went by in yields, and that of turns with one.
    fn shares_of(long: Duration, packets: usize) -> (f64, f64) {
        let (mut courtesy, mut now) = (Courtesy::default(), START);
        let (mut yields, mut turns) = (0, 0);
        while now < START + Duration::from_secs(60) {
            turns += 1;
            if courtesy.is_due(now) {
                courtesy.on_yielded(now, now + long, packets);
                yields += 1;
                now += long;
            }
            now += Duration::from_millis(1);
        }
        (f64::from(yields) * long.as_secs_f64() / 60.0, f64::from(yields) / f64::from(turns))
    }

    #[test]
    fn short_yields_go_on_and_long_ones_cost_hardly_any_time() {
        assert_eq!(shares_of(Duration::from_micros(50), 2).1, 1.0, "one each turn");
        assert!(shares_of(Duration::from_millis(4), 2).0 < 0.002);
    }

    #[test]
    fn yields_that_bring_nothing_become_rare_until_one_brings_something() {
        let share = shares_of(Duration::from_micros(1), 0).1;
        assert!((0.05..0.07).contains(&share), "{share}");
        let mut courtesy = Courtesy::default();
        for _ in 0..100 {
            if courtesy.is_due(START) {
                courtesy.on_yielded(START, START, 0);
            }
        }
        assert!((0..=PASSES_MAX).any(|_| courtesy.is_due(START)));
        courtesy.on_yielded(START, START, 1);
        assert!(courtesy.is_due(START) && courtesy.is_due(START));
    }

    #[test]
    fn a_core_that_is_free_again_is_found_out() {
        let mut courtesy = Courtesy::default();
        let mut now = START;
        for _ in 0..20 {
            courtesy.on_yielded(now, now + Duration::from_millis(3), 1);
            now += Duration::from_millis(3);
            assert!(!courtesy.is_due(now) && courtesy.is_due(now + REST_MAX));
            now += REST_MAX;
        }
        courtesy.on_yielded(now, now, 1);
        assert!(courtesy.is_due(now));
        courtesy.on_yielded(now, now + Duration::from_millis(3), 1);
        assert!(courtesy.is_due(now + Duration::from_millis(3) + REST_MIN));
    }
}
