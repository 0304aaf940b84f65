//! CUBIC: the window is a cubic function of the time since its last reduction.
//!
//! ```text
//! window   W_max ┄┄┄┄┄╭───── plateau ─────╮┄┄ then faster and faster
//!               ╱ concave                  ╲ convex
//!  0.7 W_max ──╯ cut        K seconds after
//! ```
//!
//! Source: RFC 9438, sections by function. As in Linux, the target is recomputed at most 32 times a
//! second while the window is constant.

use std::time::Duration;

use roadweave_proto::Instant;

use super::congestion::{Acked, Congestion, CongestionPhase, Window};
use super::hystart::HyStart;

#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    hystart: HyStart,
    /// The window before the last reduction, segments; 0 before the first.
    window_max: f64,
    epoch: Option<Epoch>,
    counted: u32,
}

#[derive(Clone, Debug)]
struct Epoch {
    begin: Instant,
    /// The inflection point: its time since `begin`, and its window.
    k: Duration,
    origin: f64,
    /// The Reno window, and the segments acknowledged since its last growth.
    reno: f64,
    reno_counted: f64,
    at: Instant,
    for_cwnd: u32,
    per_segment: f64,
}

impl Cubic {
    /// Acknowledged segments per segment of growth (sections 4.2 to 4.5).
    fn per_segment(&mut self, acked: &Acked, cwnd: u32) -> f64 {
        let now = acked.now;
        let window = f64::from(cwnd);
        let window_max = self.window_max;
        let epoch = self.epoch.get_or_insert_with(|| {
            let missing = (window_max - window).max(0.0);
            Epoch {
                begin: now,
                k: Duration::from_secs_f64((missing / C).cbrt()),
                origin: window_max.max(window),
                reno: window,
                reno_counted: 0.0,
                at: Instant::ZERO,
                for_cwnd: 0,
                per_segment: 0.0,
            }
        });
        epoch.reno_counted += f64::from(acked.delivered);
        if epoch.for_cwnd == cwnd && now.since(epoch.at) <= LOOK {
            return epoch.per_segment;
        }
        (epoch.at, epoch.for_cwnd) = (now, cwnd);
        let ahead = self.hystart.least.unwrap_or_default();
        let since = (now.since(epoch.begin) + ahead).as_secs_f64() - epoch.k.as_secs_f64();
        // Truncated as in Linux; this matters for small windows.
        let target = epoch.origin + (C * since.powi(3)).trunc();
        let mut per_segment =
            if target > window { window / (target - window) } else { 100.0 * window };
        if window_max == 0.0 {
            per_segment = per_segment.min(FIRST_EPOCH);
        }
        // The Reno-friendly region: alpha_cubic of section 4.3.
        let for_reno = window * (1.0 + BETA) / (3.0 * (1.0 - BETA));
        let steps = (epoch.reno_counted / for_reno).floor();
        epoch.reno_counted -= steps * for_reno;
        epoch.reno += steps;
        if epoch.reno > window {
            per_segment = per_segment.min(window / (epoch.reno - window));
        }
        epoch.per_segment = per_segment.max(FASTEST);
        epoch.per_segment
    }
}

impl Congestion for Cubic {
    fn on_ack(&mut self, acked: &Acked, window: &mut Window) {
        if let Some(round_trip) = acked.round_trip {
            self.hystart.on_round_trip(round_trip);
            let is_slow_start = window.cwnd < window.ssthresh;
            if is_slow_start
                && acked.phase == CongestionPhase::Open
                && self.hystart.is_over(acked.now, (acked.una, acked.nxt), round_trip, window.cwnd)
            {
                window.ssthresh = window.cwnd;
            }
        }
        if !acked.is_cwnd_limited
            || acked.phase == CongestionPhase::Recovery
            || acked.delivered == 0
        {
            return;
        }
        let mut rest = acked.delivered;
        if window.cwnd < window.ssthresh {
            let grown = (window.cwnd + rest).min(window.ssthresh);
            rest -= grown - window.cwnd;
            window.cwnd = grown;
            if rest == 0 {
                return;
            }
        }
        let per_segment = (self.per_segment(acked, window.cwnd) as u32).max(1);
        if self.counted >= per_segment {
            self.counted = 0;
            window.cwnd += 1;
        }
        self.counted += rest;
        let steps = self.counted / per_segment;
        self.counted -= steps * per_segment;
        window.cwnd += steps;
    }

    /// Sections 4.6 and 4.7.
    fn on_congestion(&mut self, _: Instant, _: CongestionPhase, window: &Window) -> u32 {
        let cwnd = f64::from(window.cwnd);
        self.epoch = None;
        let converges = cwnd < self.window_max;
        self.window_max = if converges { cwnd * (1.0 + BETA) / 2.0 } else { cwnd };
        ((cwnd * BETA) as u32).max(2)
    }

    fn on_timeout(&mut self) {
        let least = self.hystart.least;
        *self = Self::default();
        self.hystart.least = least;
    }
}

/// Section 5.
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// Before the first reduction the window grows by at least a twentieth per round trip.
const FIRST_EPOCH: f64 = 20.0;
/// The window grows by at most a half per round trip (section 4.2).
const FASTEST: f64 = 2.0;
const LOOK: Duration = Duration::from_nanos(1_000_000_000 / 32);

#[cfg(test)]
mod tests {
    use super::super::congestion::tests_support::acked;
    use super::*;

    fn after_cut(round_trip: Duration, seconds: f64) -> f64 {
        let mut cubic = Cubic::default();
        let mut window = Window { cwnd: 1_000, ssthresh: u32::MAX };
        window.ssthresh = cubic.on_congestion(Instant::ZERO, CongestionPhase::Open, &window);
        window.cwnd = window.ssthresh;
        assert_eq!(window.cwnd, 700);
        let mut now = Instant::ZERO;
        while now.as_secs_f64() < seconds {
            let step = round_trip / window.cwnd * 2;
            now += step;
            cubic.on_ack(&acked(now, 2, round_trip), &mut window);
        }
        window.cwnd.into()
    }

    #[test]
    fn the_window_follows_the_curve_of_rfc_9438() {
        let round_trip = Duration::from_millis(100);
        for seconds in [1.0, 3.0, 6.0, 9.0, 12.0, 15.0] {
            // Figure 1 and 2: W_cubic(t) = C (t - K)^3 + W_max, and K = cbrt(W_max (1 - beta) / C).
            let k = (1_000.0 * 0.3 / 0.4_f64).cbrt();
            let curve = 0.4 * (seconds - k).powi(3) + 1_000.0;
            let window = after_cut(round_trip, seconds);
            assert!((window / curve - 1.0).abs() < 0.02, "{window} by {curve} at {seconds} s");
        }
    }

    #[test]
    fn on_short_round_trips_it_grows_no_less_than_reno() {
        // Reno with beta 0.7 has 0.53 segments more in each round trip of 5 ms (figure 4).
        let reno = 700.0 + 3.0 * 0.3 / 1.7 * 2_000.0 / 5.0;
        let window = after_cut(Duration::from_millis(5), 2.0);
        assert!((window / reno - 1.0).abs() < 0.02, "{window} by {reno}");
    }

    #[test]
    fn a_second_cut_below_the_first_leaves_room_for_others() {
        let mut cubic = Cubic::default();
        let mut cut = |cwnd| {
            let window = Window { cwnd, ssthresh: 0 };
            (cubic.on_congestion(Instant::ZERO, CongestionPhase::Open, &window), cubic.window_max)
        };
        assert_eq!(cut(100), (70, 100.0));
        assert_eq!(cut(80), (56, 68.0), "80 (1 + 0.7) / 2");
        assert_eq!(cut(90), (62, 90.0));
        assert_eq!(cut(2), (2, 1.7));
    }
}
