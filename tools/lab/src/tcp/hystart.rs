//! Hybrid slow start: it ends when a train of acknowledgements lasts half a round trip, or when
//! round trips grow. As in Linux both signs are used; RFC 9406 has only the second.
//!
//! Source: S. Ha, I. Rhee, "Taming the elephants: New TCP slow start", Computer Networks 55 (2011),
//! section 4; constants of Linux's `tcp_cubic`.

use std::time::Duration;

use roadweave_proto::Instant;

#[derive(Clone, Debug, Default)]
pub(super) struct HyStart {
    pub(super) least: Option<Duration>,
    round: Option<Round>,
}

#[derive(Clone, Debug)]
struct Round {
    begin: Instant,
    end: u64,
    last: Instant,
    samples: u32,
    least: Duration,
}

impl HyStart {
    pub(super) fn on_round_trip(&mut self, round_trip: Duration) {
        self.least = Some(self.least.map_or(round_trip, |least| least.min(round_trip)));
    }

    /// Handles an acknowledgement in slow start, with all bytes before `una` acknowledged and all
    /// before `nxt` sent; returns whether slow start ends.
    pub(super) fn is_over(
        &mut self,
        now: Instant,
        (una, nxt): (u64, u64),
        round_trip: Duration,
        cwnd: u32,
    ) -> bool {
        if cwnd < CWND_MIN {
            return false;
        }
        let least = self.least.unwrap_or(round_trip);
        if self.round.as_ref().is_none_or(|round| una > round.end) {
            let fresh = Round { begin: now, end: nxt, last: now, samples: 0, least: Duration::MAX };
            self.round = Some(fresh);
        }
        let Some(round) = &mut self.round else { return false };
        let is_train = now.since(round.last) <= SPACING_MAX;
        if is_train {
            round.last = now;
        }
        round.least = round.least.min(round_trip);
        round.samples += 1;
        let is_long = is_train && now.since(round.begin) > least / 2;
        let grown = (least / 8).clamp(GROWN_MIN, GROWN_MAX);
        is_long || round.samples > SAMPLES && round.least > least + grown
    }
}

/// Segments.
const CWND_MIN: u32 = 16;
const SPACING_MAX: Duration = Duration::from_millis(2);
const SAMPLES: u32 = 8;
/// Growth by an eighth counts, within these bounds.
const GROWN_MIN: Duration = Duration::from_millis(4);
const GROWN_MAX: Duration = Duration::from_millis(16);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn over_at(spacing: u64, round_trip: impl Fn(u64) -> u64) -> Option<u64> {
        let mut hystart = HyStart::default();
        hystart.on_round_trip(MS * 40);
        (0..30).find(|at| {
            let now = Instant::from_millis(at * spacing);
            hystart.is_over(now, (1, 100), MS * round_trip(*at) as u32, 100)
        })
    }

    #[test]
    fn it_ends_with_a_train_of_half_a_round_trip_or_with_growing_round_trips() {
        assert_eq!(over_at(2, |_| 40), Some(11), "22 ms after the first");
        assert_eq!(over_at(3, |_| 40), None, "that is no train");
        assert_eq!(over_at(3, |_| 46), Some(8), "all of nine are 6 ms longer, which is above 5");
        assert_eq!(over_at(3, |_| 45), None);
        assert_eq!(
            over_at(3, |at| if at == 3 { 40 } else { 80 }),
            None,
            "one was as short as ever"
        );
    }
}
