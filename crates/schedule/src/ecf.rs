//! `ecf`: earliest completion first, which would rather wait for a fast path than use a slow one.
//!
//! Source: Lim, Nahum, Towsley, Gibbens: "ECF: An MPTCP Path Scheduler to Manage Heterogeneous
//! Paths" (CoNEXT 2017). One of the yardsticks of CellFusion section 8.3.
//!
//! ```text
//! x_f, the fastest path, has window ─► x_f                 (one with a rate limit: and its pacer room)
//! it has none; x_s, the next with window:
//!   k bytes wait, n = 1 + k/cwnd_f rounds on x_f, delta = max(sigma_f, sigma_s)
//!   n·rtt_f < (1 + waiting·beta)·(rtt_s + delta)   x_f would be done before x_s answers,
//!   and k/cwnd_s·rtt_s ≥ 2·rtt_f + delta           and x_s would be slower than that
//!     ─► wait, and lean towards waiting from now on (hysteresis)
//!   otherwise ─► x_s; the first condition not holding ends the leaning
//! ```

use std::time::Duration;

use roadweave_proto::{Instant, PathOffer, PathSnapshot};

use crate::{Decision, PacketInfo, PathSet, Scheduler, best_status};

/// beta of the paper: how much a sender that waits prefers to go on waiting.
const BETA: f64 = 0.25;

/// The ECF scheduler.
#[derive(Debug, Default)]
pub struct Ecf {
    waiting: bool,
}

impl Scheduler for Ecf {
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        let Some(status) = best_status(paths) else { return Decision::Wait };
        let bytes = packet.bytes as u64;
        let candidates = || {
            let of_status = paths.iter().enumerate().filter(|(_, path)| path.has_status(status));
            of_status.map(|(at, path)| (at, path.snapshot))
        };
        let speed = |(_, path): &(usize, &PathSnapshot)| (path.smoothed_rtt, path.id);
        let Some((fastest, fast)) = candidates().min_by_key(speed) else {
            return Decision::Wait;
        };
        let send_on = |position: usize| match paths[position].snapshot.room() >= bytes {
            true => Decision::Send(PathSet::one(position)),
            false => Decision::Wait,
        };
        if !fast.is_full(bytes) {
            return send_on(fastest);
        }
        let with_window = candidates().filter(|(_, path)| !path.is_full(bytes));
        match with_window.min_by_key(speed) {
            Some((next, slow)) if !self.waits(packet.backlog_bytes, fast, slow) => send_on(next),
            _ => Decision::Wait,
        }
    }
}

impl Ecf {
    fn waits(&mut self, backlog: u64, fast: &PathSnapshot, slow: &PathSnapshot) -> bool {
        let seconds = |time: Duration| time.as_secs_f64();
        let rounds = |path: &PathSnapshot| backlog as f64 / path.congestion_window.max(1) as f64;
        let (rtt_fast, rtt_slow) = (seconds(fast.smoothed_rtt), seconds(slow.smoothed_rtt));
        let delta = seconds(fast.rtt_deviation.max(slow.rtt_deviation));
        let lean = if self.waiting { 1.0 + BETA } else { 1.0 };
        if (1.0 + rounds(fast)) * rtt_fast >= lean * (rtt_slow + delta) {
            self.waiting = false;
            return false;
        }
        let worth_it = rounds(slow) * rtt_slow >= 2.0 * rtt_fast + delta;
        self.waiting |= worth_it;
        worth_it
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Among, packet_of, path, to};

    /// Decides for `backlog` bytes while the fast path (20 ms, 12,000 bytes) is full.
    fn check(ecf: &mut Ecf, backlog: u64, slow: PathSnapshot, waits: bool) {
        let fast = PathSnapshot { bytes_in_flight: 12_000, ..path(0, 20, 12_000) };
        let decision = ecf.select_among(Instant::ZERO, &packet_of(backlog), &[fast, slow]);
        assert_eq!(decision, if waits { Decision::Wait } else { to(1) }, "{backlog}");
    }

    #[test]
    fn the_pacer_of_the_fastest_path_is_waited_for() {
        let mut paths = [path(0, 60, 9000), path(1, 20, 9000)];
        assert_eq!(Ecf::default().choose(&paths), to(1));
        paths[1].pacing_budget = 0;
        assert_eq!(Ecf::default().choose(&paths), Decision::Wait);
    }

    #[test]
    fn it_waits_for_the_fast_path_exactly_when_the_slow_one_would_finish_later() {
        check(&mut Ecf::default(), 12_000, path(1, 100, 12_000), true);
        // 5 rounds of 20 ms are not less than 100 ms.
        check(&mut Ecf::default(), 48_000, path(1, 100, 12_000), false);
        // 0.3 rounds of 100 ms on the wide slow path, less than 2 · 20 ms.
        check(&mut Ecf::default(), 12_000, path(1, 100, 40_000), false);
        check(&mut Ecf::default(), 12_000, path(1, 39, 12_000), false);
    }

    #[test]
    fn a_sender_that_waits_leans_towards_waiting() {
        let mut ecf = Ecf::default();
        let slow = || path(1, 100, 12_000);
        check(&mut ecf, 54_000, slow(), false); // 5.5 rounds of 20 ms, against 100 ms
        check(&mut ecf, 12_000, slow(), true);
        check(&mut ecf, 54_000, slow(), true); // against 125 ms
        check(&mut ecf, 66_000, slow(), false); // 6.5 rounds
        check(&mut ecf, 54_000, slow(), false);
    }

    #[test]
    fn an_uncertain_round_trip_counts_as_a_longer_one() {
        let mut slow = path(1, 100, 12_000);
        check(&mut Ecf::default(), 54_000, slow.clone(), false);
        slow.rtt_deviation = Duration::from_millis(20);
        check(&mut Ecf::default(), 54_000, slow, true); // 110 ms against 120 ms
    }
}
