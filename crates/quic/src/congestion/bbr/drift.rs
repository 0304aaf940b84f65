//! Whether the round-trip time under a sender that leaves room is the route's.
//!
//! A sender that leaves room never has less in flight, which would show a longer route (`delay`).
//! But its own queue grows or drains by the difference between the link's rate and its own. A
//! round-trip time that stays, or creeps up, belongs to the route, or to a queue of others.
//!
//! ```text
//! round trip   pause|\_  queue drains     ___----  creeps: the route      .-- full queue: flat, but it loses
//!             ______|  \__          _----                          __..--'
//! ```

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::rounds::Round;

#[derive(Clone, Debug, Default)]
pub(super) struct Drift {
    began: Option<(Instant, f64)>,
    clean_rounds: u32,
}

impl Drift {
    /// Whether the round, of round-trip time `rtt` in seconds, ends a stretch in which the
    /// round-trip time of a sender with room stayed or crept.
    pub(super) fn on_round(&mut self, now: Instant, rtt: f64, round: &Round) -> bool {
        let is_clean = round.loss == 0.0 && !round.marked;
        self.clean_rounds = if is_clean { self.clean_rounds.saturating_add(1) } else { 0 };
        let (began, before) = *self.began.get_or_insert((now, rtt));
        let elapsed = now.saturating_duration_since(began);
        if elapsed < SPAN {
            return false;
        }
        self.began = Some((now, rtt));
        round.roomy
            && self.clean_rounds >= CLEAN_ROUNDS
            && elapsed < SPAN_MAX
            && SLOPE.contains(&((rtt - before) / elapsed.as_secs_f64()))
    }
}

/// Change of the round-trip time as a share of the time. A faster fall is a queue that drains, a
/// faster growth a link that pauses or is too slow. A link that lacks less than 6 % passes for a
/// longer route until it holds the sender back, drops packets, or exceeds the bound of `delay`.
const SLOPE: RangeInclusive<f64> = -0.01..=0.06;
/// In less time, jitter looks like a slope.
const SPAN: Duration = Duration::from_millis(250);
/// Longer stretches, on a path with little traffic, say nothing.
const SPAN_MAX: Duration = Duration::from_secs(1);
/// Rounds since the last loss: a full queue does not grow either.
const CLEAN_ROUNDS: u32 = 4;
