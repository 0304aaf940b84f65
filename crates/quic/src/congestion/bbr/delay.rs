//! The round-trip time: how much of it belongs to the route, and whether the rest is our queue.
//!
//! ```text
//!               |<- base ->|<- allowance ->|
//! rounds  ......o...o.o....|.......o.......|......o......o  queue
//! ```
//!
//! The draft's least round-trip time (section 5.5.7) is that of the luckiest packet of ten seconds.
//! Where packets jitter and overtake each other it lies far below the usual one, and a window made
//! of it starves the path. The base here is the least *mean of a round*: jitter cancels out, a
//! queue does not. Errors of the mean, and losses of the latest packets, are added first.
//!
//! A longer route looks like a queue that never empties. Sending less shortens only a queue:
//!
//! ```text
//! in flight   ####  ##          in flight   ####  ##
//! round trip  ====  ==  queue   round trip  ====  ====  a longer route: the base goes up
//! ```
//!
//! For a sender that leaves room, which never has less in flight, there is `drift`.

use std::time::{Duration, Instant};

use super::drift::Drift;
use super::filters::Best;
use super::rounds::Round;

#[derive(Clone, Debug)]
pub(super) struct Delay {
    base: Best,
    window_began: Option<Instant>,
    near_base: Option<Instant>,
    peak: Option<Peak>,
    drift: Drift,
}

#[derive(Clone, Copy, Debug)]
struct Peak {
    /// Bytes.
    in_flight: f64,
    /// Seconds.
    rtt: f64,
    /// Bytes per second.
    rate: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum QueueState {
    Clear,
    Queue,
    /// A longer route that looked like a queue, with its rate, bytes per second.
    LongerRoute(f64),
}

impl Delay {
    pub(super) fn new() -> Self {
        let drift = Drift::default();
        Self { base: Best::least(), window_began: None, near_base: None, peak: None, drift }
    }

    /// Without a queue, seconds; `None` before the first round.
    pub(super) fn base(&self) -> Option<f64> {
        self.base.get()
    }

    /// Time since a round near the base; zero before the first.
    pub(super) fn since_base(&self, now: Instant) -> Duration {
        self.near_base.map_or(Duration::ZERO, |at| now.saturating_duration_since(at))
    }

    pub(super) fn probed(&mut self, now: Instant) {
        self.near_base = Some(now);
    }

    pub(super) fn on_round(&mut self, now: Instant, round: &Round) -> QueueState {
        let lucky = match round.overtaken {
            true => round.rtt_error * BASE_ERRORS + round.rtt_spread * round.loss * BASE_CENSORED,
            false => 0.0,
        };
        let rtt = round.rtt + lucky;
        let mut base = self.update_base(now, rtt);
        let route = rtt.min(BASE_RAISED_MAX);
        if self.drift.on_round(now, rtt, round) && route > base {
            self.base.reset(route);
            base = route;
        }
        let allowance = (base * QUEUE_SHARE).max(QUEUE_MIN) + round.rtt_error * QUEUE_ERRORS;
        if round.rtt <= base + allowance {
            self.peak = None;
            return QueueState::Clear;
        }
        let in_flight = round.rate * round.rtt;
        let here = Peak { in_flight, rtt: round.rtt, rate: round.rate };
        let peak = self.peak.get_or_insert(here);
        if in_flight >= peak.in_flight {
            *peak = here;
        } else if in_flight <= peak.in_flight * LESS && round.rtt >= peak.rtt * AS_LONG {
            // A link that slows down just then looks the same. Therefore the base goes up in steps
            // and not beyond a bound; if it was a queue, the next shorter one lowers the base.
            let rate = peak.rate;
            self.base.reset(round.rtt.min(base * BASE_STEP).min(BASE_RAISED_MAX.max(base)));
            self.peak = None;
            return QueueState::LongerRoute(rate);
        }
        QueueState::Queue
    }

    fn update_base(&mut self, now: Instant, rtt: f64) -> f64 {
        let began = *self.window_began.get_or_insert(now);
        if now.saturating_duration_since(began) >= BASE_WINDOW {
            self.base.rotate();
            self.window_began = Some(now);
        }
        self.base.update(rtt);
        let base = self.base.get().unwrap_or(rtt);
        if rtt <= base * NEAR_SHARE + NEAR_MIN {
            self.near_base = Some(now);
        }
        base
    }
}

/// The base is the least of 5 to 10 s: half of the draft's 10 s (section 2.13), as vehicles move.
const BASE_WINDOW: Duration = Duration::from_secs(5);
/// Standard errors added to a round's mean: the least of many scattered means is too low.
const BASE_ERRORS: f64 = 2.0;
/// Standard deviations added, times the lost share: if the latest are lost, others look fast.
const BASE_CENSORED: f64 = 4.0;
/// Share of the base by which a round's mean exceeds it when there is a queue.
const QUEUE_SHARE: f64 = 0.5;
/// Least excess of a queue, seconds: acknowledgements may take 2 ms, frames leave in bursts.
const QUEUE_MIN: f64 = 0.005;
const QUEUE_ERRORS: f64 = 2.0;
/// A mean within this share of the base, plus `NEAR_MIN`, is near it.
const NEAR_SHARE: f64 = 1.05;
/// Seconds.
const NEAR_MIN: f64 = 0.002;
/// Share of the peak in flight at which a queue would be shorter by as much.
const LESS: f64 = 0.5;
/// Share of the peak's round-trip time that remains on a longer route.
const AS_LONG: f64 = 0.75;
const BASE_STEP: f64 = 1.5;
/// The base is not raised beyond this, seconds: beyond it a longer queue is never worth it.
const BASE_RAISED_MAX: f64 = 0.25;

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
mod tests {
    use super::*;

    /// The state after rounds of 50 ms, each with its round-trip time in milliseconds and Mbit/s.
    fn judge(delay: &mut Delay, roomy: bool, rounds: &[(f64, f64)]) -> QueueState {
        let start = Instant::now();
        let mut verdict = QueueState::Clear;
        for (number, (rtt, mbps)) in (0..).zip(rounds) {
            let plain = Round::plain(mbps * 125_000.0, rtt * 1e-3);
            let round = Round { app_limited: roomy, roomy, ..plain };
            verdict = delay.on_round(start + round.elapsed * number, &round);
        }
        verdict
    }

    #[test]
    fn queues_are_distinguished_from_longer_routes() {
        use QueueState::{Clear, LongerRoute, Queue};
        let longer = LongerRoute(20.0 * 125_000.0);
        let creeping: Vec<_> = (0..=40).map(|round| (40.0 + 2.0 * f64::from(round), 5.0)).collect();
        let jump = [vec![(40.0, 5.0)], vec![(600.0, 5.0); 20]].concat();
        let eleven_seconds = [vec![(40.0, 20.0)], vec![(45.0, 20.0); 210]].concat();
        for (roomy, rounds, expected, base) in [
            (false, vec![(40.0, 10.0), (59.0, 10.0)], Clear, 0.04),
            (false, vec![(40.0, 10.0), (59.0, 10.0), (61.0, 10.0)], Queue, 0.04),
            // It shrinks with what is in flight.
            (false, vec![(40.0, 20.0), (160.0, 10.0), (100.0, 10.0), (70.0, 10.0)], Queue, 0.04),
            // It stays with half in flight; the base goes up in steps, and not beyond 0.25 s.
            (false, vec![(40.0, 20.0), (80.0, 20.0), (80.0, 12.0), (80.0, 9.0)], longer, 0.06),
            (false, vec![(200.0, 20.0), (900.0, 20.0), (900.0, 2.0)], longer, 0.25),
            (true, creeping.clone(), Clear, 0.12),
            (false, creeping, Queue, 0.04),
            (true, jump, Queue, 0.25),
            // A queue under a sender with room drains after a pause, or grows on a slow link.
            (
                true,
                vec![(40.0, 5.0), (240.0, 1.0), (220.0, 8.0), (180.0, 8.0), (140.0, 8.0)],
                Queue,
                0.04,
            ),
            (true, vec![(40.0, 5.0), (50.0, 4.0), (60.0, 4.0), (70.0, 4.0)], Queue, 0.04),
            // The first base is forgotten.
            (false, eleven_seconds, Clear, 0.045),
        ] {
            let mut delay = Delay::new();
            assert_eq!(judge(&mut delay, roomy, &rounds), expected, "{rounds:?}");
            let found = delay.base().expect("rounds");
            assert!((found - base).abs() < 1e-9, "{found}: {rounds:?}");
        }
    }

    #[test]
    fn lucky_rounds_do_not_lower_the_base() {
        let spread = Round { rtt_error: 0.002, rtt_spread: 0.02, ..Round::plain(1e6, 0.04) };
        let round = |rtt, loss| Round { rtt, loss, overtaken: true, ..spread };
        let mut delay = Delay::new();
        let start = Instant::now();
        delay.on_round(start, &round(0.04, 0.0));
        assert!((delay.base().expect("a round") - 0.044).abs() < 1e-9, "two standard errors");
        // The latest fifth was lost, so that the others look fast.
        delay.on_round(start + Duration::from_millis(50), &round(0.03, 0.2));
        assert!((delay.base().expect("rounds") - 0.044).abs() < 1e-9, "{:?}", delay.base());
    }
}
