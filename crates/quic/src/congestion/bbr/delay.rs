//! The round-trip time: what of it belongs to the route, and whether the rest is a queue of ours.
//!
//! ```text
//!               |<- base ->|<- allowance ->|
//! rounds  ......o...o.o....|.......o.......|......o......o  queue
//! ```
//!
//! The draft's least round-trip time (section 5.5.7) is that of the luckiest packet of ten seconds.
//! Where packets jitter and overtake each other it lies far below the usual one, and a window made
//! of it starves the path. The base here is the least *mean of a round*: jitter cancels out in it,
//! a queue does not. What of it does not cancel out, since there are few packets or the latest are
//! lost, is added before.
//!
//! A vehicle's route may also become longer, which looks like a queue that never goes away. A
//! sender with less in flight shortens its queue, but not its route:
//!
//! ```text
//! in flight   ####  ##          in flight   ####  ##
//! round trip  ====  ==  queue   round trip  ====  ====  a longer route: the base goes up
//! ```
//!
//! A sender that leaves room never has less in flight; for it there is `drift`.

use std::time::{Duration, Instant};

use super::drift::Drift;
use super::filters::Best;
use super::rounds::Round;

/// What is known of the round-trip time.
#[derive(Clone, Debug)]
pub(super) struct Delay {
    base: Best,
    window_began: Option<Instant>,
    /// When a round was last near the base.
    near_base: Option<Instant>,
    /// The round of the present queue with the most in flight.
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

/// What a round says of the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum QueueState {
    /// There was none, at least at times.
    Clear,
    /// A queue did not empty in the whole round.
    Queue,
    /// What seemed to be one is a longer route, over which this rate came, bytes per second.
    LongerRoute(f64),
}

impl Delay {
    pub(super) fn new() -> Self {
        let drift = Drift::default();
        Self { base: Best::least(), window_began: None, near_base: None, peak: None, drift }
    }

    /// The round-trip time without a queue, seconds; `None` before the first round.
    pub(super) fn base(&self) -> Option<f64> {
        self.base.get()
    }

    /// How long no round has been near the base; zero before the first.
    pub(super) fn since_base(&self, now: Instant) -> Duration {
        self.near_base.map_or(Duration::ZERO, |at| now.saturating_duration_since(at))
    }

    /// Counts the present as a look at the base, whatever it showed.
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
        // By Little's law.
        let in_flight = round.rate * round.rtt;
        let here = Peak { in_flight, rtt: round.rtt, rate: round.rate };
        let peak = self.peak.get_or_insert(here);
        if in_flight >= peak.in_flight {
            *peak = here;
        } else if in_flight <= peak.in_flight * LESS && round.rtt >= peak.rtt * AS_LONG {
            // A link that slows down just then looks the same. Therefore the base goes up in steps
            // and not beyond a bound; if it was a queue, the first round with less of it brings the
            // base down.
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

/// The base is the least of the last 5 to 10 s: half of the draft's 10 s (section 2.13), as
/// vehicles move.
const BASE_WINDOW: Duration = Duration::from_secs(5);
/// Standard errors that are added to a round's mean before it may become the base: the least of
/// many means that scatter lies below what they scatter about.
const BASE_ERRORS: f64 = 2.0;
/// Standard deviations that are added, times the share that was lost: where packets overtake each
/// other, the latest of them are lost, and those that arrive look faster than the path is.
const BASE_CENSORED: f64 = 4.0;
/// The share of the base by which a round's mean exceeds it when there is a queue.
const QUEUE_SHARE: f64 = 0.5;
/// The least excess that counts as a queue, seconds: acknowledgements may take 2 ms, frames leave
/// in bursts.
const QUEUE_MIN: f64 = 0.005;
/// Standard errors that are allowed for beyond that excess.
const QUEUE_ERRORS: f64 = 2.0;
/// A round whose mean is within this share of the base, and `NEAR_MIN`, is a look at it.
const NEAR_SHARE: f64 = 1.05;
/// What is allowed for beyond `NEAR_SHARE`, seconds.
const NEAR_MIN: f64 = 0.002;
/// The share of the peak in flight at which a queue would have become shorter by as much, and its
/// round-trip time with it.
const LESS: f64 = 0.5;
/// The share of the peak's round-trip time that is left where it belongs to a longer route.
const AS_LONG: f64 = 0.75;
/// By how much the base goes up at one time.
const BASE_STEP: f64 = 1.5;
/// The base is not raised beyond this, seconds: whoever waits longer than that wants no longer
/// queue, whatever the route.
const BASE_RAISED_MAX: f64 = 0.25;

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
mod tests {
    use super::*;

    /// What the last of some rounds of 50 ms says, each with its round-trip time in milliseconds
    /// and Mbit/s.
    fn judge(delay: &mut Delay, rounds: &[(f64, f64)]) -> QueueState {
        judge_sender(delay, false, rounds)
    }

    /// What the last of some rounds of 50 ms says of a sender that left room, or did not.
    fn judge_sender(delay: &mut Delay, roomy: bool, rounds: &[(f64, f64)]) -> QueueState {
        let start = Instant::now();
        let mut verdict = QueueState::Clear;
        for (number, (rtt, mbps)) in (0..).zip(rounds) {
            let elapsed = Duration::from_millis(50);
            let round = Round {
                rate: mbps * 125_000.0,
                rtt: rtt * 1e-3,
                rtt_error: 0.0,
                rtt_spread: 0.0,
                overtaken: false,
                loss: 0.0,
                marked: false,
                app_limited: roomy,
                roomy,
                elapsed,
            };
            verdict = delay.on_round(start + elapsed * number, &round);
        }
        verdict
    }

    #[test]
    fn a_queue_shows_in_a_rounds_mean() {
        let mut delay = Delay::new();
        assert_eq!(judge(&mut delay, &[(40.0, 10.0), (59.0, 10.0)]), QueueState::Clear);
        assert_eq!(judge(&mut delay, &[(61.0, 10.0)]), QueueState::Queue);
        assert_eq!(delay.base(), Some(0.04));
    }

    #[test]
    fn a_queue_that_shrinks_with_what_is_in_flight_is_a_queue() {
        let mut delay = Delay::new();
        let draining = [(40.0, 20.0), (160.0, 10.0), (100.0, 10.0), (70.0, 10.0)];
        assert_eq!(judge(&mut delay, &draining), QueueState::Queue);
        assert_eq!(delay.base(), Some(0.04));
    }

    #[test]
    fn a_round_trip_time_that_stays_with_half_in_flight_is_a_longer_route() {
        let mut delay = Delay::new();
        let longer = [(40.0, 20.0), (80.0, 20.0), (80.0, 12.0), (80.0, 9.0)];
        assert_eq!(judge(&mut delay, &longer), QueueState::LongerRoute(20.0 * 125_000.0));
        assert_eq!(delay.base(), Some(0.06), "step by step");
        let mut far = Delay::new();
        judge(&mut far, &[(200.0, 20.0), (900.0, 20.0), (900.0, 2.0)]);
        assert_eq!(far.base(), Some(0.25));
    }

    #[test]
    fn the_base_follows_a_route_that_creeps_up_under_a_sender_with_room() {
        let creeping: Vec<_> = (0..=40).map(|round| (40.0 + 2.0 * f64::from(round), 5.0)).collect();
        let mut delay = Delay::new();
        assert_eq!(judge_sender(&mut delay, true, &creeping), QueueState::Clear);
        assert!((delay.base().expect("rounds") - 0.120).abs() < 1e-9, "{:?}", delay.base());
        let mut held = Delay::new();
        assert_eq!(judge_sender(&mut held, false, &creeping), QueueState::Queue);
        assert_eq!(held.base(), Some(0.04));
        let mut far = Delay::new();
        let jump = [vec![(40.0, 5.0)], vec![(600.0, 5.0); 20]].concat();
        assert_eq!(judge_sender(&mut far, true, &jump), QueueState::Queue);
        assert_eq!(far.base(), Some(0.25), "no route is believed to be longer");
    }

    #[test]
    fn a_queue_that_grows_or_drains_under_a_sender_with_room_is_a_queue() {
        let mut delay = Delay::new();
        let paused = [(40.0, 5.0), (240.0, 1.0), (220.0, 8.0), (180.0, 8.0), (140.0, 8.0)];
        assert_eq!(judge_sender(&mut delay, true, &paused), QueueState::Queue);
        assert_eq!(delay.base(), Some(0.04));
        let slow = [(40.0, 5.0), (50.0, 4.0), (60.0, 4.0), (70.0, 4.0)];
        assert_eq!(judge_sender(&mut delay, true, &slow), QueueState::Queue);
        assert_eq!(delay.base(), Some(0.04));
    }

    #[test]
    fn the_base_is_forgotten_after_ten_seconds() {
        let mut delay = Delay::new();
        judge(&mut delay, &[(40.0, 20.0)]);
        judge(&mut delay, &vec![(45.0, 20.0); 210]);
        assert_eq!(delay.base(), Some(0.045));
    }

    #[test]
    fn lucky_rounds_do_not_lower_the_base() {
        let round = |rtt: f64, loss: f64| Round {
            rate: 1e6,
            rtt,
            rtt_error: 0.002,
            rtt_spread: 0.02,
            overtaken: true,
            loss,
            marked: false,
            app_limited: false,
            roomy: false,
            elapsed: Duration::from_millis(50),
        };
        let mut delay = Delay::new();
        let start = Instant::now();
        delay.on_round(start, &round(0.04, 0.0));
        assert!((delay.base().expect("a round") - 0.044).abs() < 1e-9, "two standard errors");
        // The latest fifth was lost, so that the others look fast.
        delay.on_round(start + Duration::from_millis(50), &round(0.03, 0.2));
        assert!((delay.base().expect("rounds") - 0.044).abs() < 1e-9, "{:?}", delay.base());
    }
}
