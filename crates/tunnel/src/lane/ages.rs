//! How old packets are when they come, without knowing the sender's clock.
//!
//! ```text
//! came at      ──┬───────────┬─────────────┬──►   this side's clock
//!   the quickest recently    │             │
//! sent at      ──┴──┐        └───┐         └──────────┐     the peer's, from anywhere on
//!                   0 ms older   40 ms older          4 s older: it waited for a path, or on one
//! ```
//!
//! A packet's age is its delay minus that of the quickest recent one, whose own stays unknown.
//!
//! - Clocks drift: the quickest is sought again every ten seconds, and doubted more each second.
//! - Clocks leap (a machine slept). Packets that seem younger become the quickest. If all packets
//!   of a second seem older than any network makes them, the clock leapt. In between, a network may
//!   be the cause, and the quickest is forgotten after two periods.
//! - A late beginning counts as new until something quicker comes.
//! - A peer with wrong times harms only its own packets.

use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::Stamp;

#[derive(Debug, Default)]
pub(crate) struct Ages {
    previous: Option<Quickest>,
    current: Option<Period>,
    /// Since when all packets have seemed older than any network makes them, and their quickest.
    leap: Option<Period>,
}

#[derive(Clone, Copy, Debug)]
struct Quickest {
    came: Instant,
    sent: Stamp,
}

#[derive(Clone, Copy, Debug)]
struct Period {
    began: Instant,
    quickest: Quickest,
}

impl Ages {
    pub(crate) fn on_packet(&mut self, now: Instant, sent: Stamp) -> Duration {
        let this = Period { began: now, quickest: Quickest { came: now, sent } };
        if self.millis(now, sent) > LEAP_MS {
            let leap = self.leap.get_or_insert(this);
            leap.quickest = leap.quickest.or_quicker(now, sent);
            if now.since(leap.began) >= LEAP_TIME {
                *self = Self { current: Some(*leap), ..Self::default() };
            }
            return self.age(now, sent);
        }
        self.leap = None;
        match &mut self.current {
            Some(current) if now.since(current.began) < PERIOD => {
                current.quickest = current.quickest.or_quicker(now, sent);
            }
            current => self.previous = current.replace(this).map(|period| period.quickest),
        }
        self.age(now, sent)
    }

    pub(crate) fn age(&self, now: Instant, sent: Stamp) -> Duration {
        Duration::from_millis(self.millis(now, sent).max(0).unsigned_abs())
    }

    fn millis(&self, now: Instant, sent: Stamp) -> i64 {
        let current = self.current.map(|period| period.quickest);
        let known = current.into_iter().chain(self.previous);
        known.map(|quickest| quickest.millis_older(now, sent)).max().unwrap_or(0)
    }
}

impl Quickest {
    fn millis_older(&self, now: Instant, sent: Stamp) -> i64 {
        let since = now.since(self.came);
        let doubt = (since.as_millis() / DRIFT_SHARE) as i64;
        self.sent.plus(since).since(sent) - doubt
    }

    fn or_quicker(self, now: Instant, sent: Stamp) -> Self {
        if self.millis_older(now, sent) < 0 { Self { came: now, sent } } else { self }
    }
}

/// How long the quickest packet is valid: usually longer than an outage of all links.
const PERIOD: Duration = Duration::from_secs(10);
/// Clocks drift apart by at most 1 / DRIFT_SHARE: 250 ppm, where machines keep within 100 ppm each.
const DRIFT_SHARE: u128 = 4_000;
/// No packet takes longer: it waits ten seconds at its sender at most, and less in networks.
const LEAP_MS: i64 = 20_000;
const LEAP_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn comes(ages: &mut Ages, came: u64, sent: u64) -> u128 {
        ages.on_packet(at(came), Stamp::of(at(sent))).as_millis()
    }

    const AHEAD: u64 = 7_777_777;

    fn running() -> Ages {
        let mut ages = Ages::default();
        for number in 0..120 {
            let came = number * 100;
            let age = comes(&mut ages, came, came + AHEAD - 30 - 10 * (number % 4));
            assert!(age <= 30, "{number}: {age}");
        }
        ages
    }

    #[test]
    fn a_packet_is_as_much_older_as_it_took_longer_than_the_quickest() {
        let mut ages = running();
        assert_eq!(comes(&mut ages, 12_000, 12_000 + AHEAD - 30), 0);
        assert!((418..=420).contains(&comes(&mut ages, 12_000, 12_000 + AHEAD - 450)));
        let waited = ages.age(at(12_200), Stamp::of(at(12_000 + AHEAD - 450)));
        assert!((618..=620).contains(&waited.as_millis()), "{waited:?}");
    }

    #[test]
    fn an_outage_does_not_make_what_it_held_back_look_new() {
        for silence in [4_000, 15_000, 60_000, 600_000] {
            let mut ages = running();
            let end = 12_000 + silence;
            for number in 0..40 {
                let sent = end - 4_000 + number * 100;
                let age = comes(&mut ages, end + number, sent + AHEAD - 30);
                let expected = u128::from(4_000 - number * 99);
                assert!((expected.saturating_sub(160)..=expected + 1).contains(&age), "{age}");
            }
        }
    }

    #[test]
    fn a_beginning_that_was_held_back_is_new_until_something_quicker_comes() {
        let mut ages = Ages::default();
        assert_eq!(comes(&mut ages, 5_000, 1_000), 0, "there is nothing to compare it with");
        assert_eq!(comes(&mut ages, 5_001, 1_500), 0);
        assert_eq!(comes(&mut ages, 5_002, 4_990), 0);
        assert_eq!(comes(&mut ages, 5_003, 1_500), 3_491, "now there is");
    }

    #[test]
    fn clocks_that_drift_apart_make_nothing_old() {
        for ppm in [-200_i64, -100, 100, 200] {
            let mut ages = Ages::default();
            for number in 0..200_000_u64 {
                let came = number * 100 + if number > 100_000 { 3_600_000 } else { 0 };
                let drift = came as i64 * ppm / 1_000_000;
                let sent = (came + AHEAD).strict_add_signed(drift);
                let age = comes(&mut ages, came, sent);
                assert!(age <= 5, "{ppm} ppm, {number}: {age} ms");
            }
            let (came, late) = (30_000_000, 500);
            let drift = came as i64 * ppm / 1_000_000;
            let age = comes(&mut ages, came, (came + AHEAD - late).strict_add_signed(drift));
            assert!(age <= 500, "{age}");
        }
    }

    #[test]
    fn a_sender_that_slept_is_heard_again() {
        for (slept, heard_after) in [(3_600_000, 1_000), (30_000, 1_000), (8_000, 20_000)] {
            let mut ages = running();
            let mut first_new = None;
            for number in 0..400 {
                let came = 12_000 + slept + number * 100;
                let age = comes(&mut ages, came, came - slept + AHEAD - 30);
                if age <= 300 {
                    first_new.get_or_insert(number * 100);
                } else {
                    assert_eq!(first_new, None, "slept {slept} ms: new once, new for good");
                }
            }
            let first_new = first_new.expect("it is heard in the end");
            assert!(first_new <= heard_after, "slept {slept} ms: {first_new}");
        }
    }

    #[test]
    fn a_receiver_that_slept_and_a_clock_that_leapt_ahead_cost_nothing() {
        for leap in [100, 8_000, 3_600_000] {
            let mut ages = running();
            for number in 0..50 {
                let came = 12_000 + number * 100;
                assert!(comes(&mut ages, came, came + leap + AHEAD - 30) <= 1);
            }
        }
    }

    #[test]
    fn a_packet_held_back_for_long_is_old_while_others_arrive() {
        let mut ages = running();
        for number in 0..300 {
            let came = 42_000 + number * 10;
            assert!(comes(&mut ages, came, 12_000 + number * 10 + AHEAD) > 29_000);
            assert!(comes(&mut ages, came, came + AHEAD - 30) <= 10);
        }
    }
}
