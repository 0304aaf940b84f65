//! Whether the round-trip time under a sender that leaves room is the route's.
//!
//! A sender that leaves room never has less in flight, so that a longer route cannot be told by
//! that (`delay`). But its own queue grows or drains by what the link lacks or has beyond the
//! sender's rate. A round-trip time that stays, or creeps up, belongs to the route, or to a queue
//! of others, which waiting here would not shorten.
//!
//! ```text
//! round trip   pause|\_  queue drains     ___----  creeps: the route      .-- full queue: flat, but it loses
//!             ______|  \__          _----                          __..--'
//! ```

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::rounds::Round;

/// Looks at stretches of rounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Drift {
    /// When the present stretch began, and with which round-trip time, seconds.
    began: Option<(Instant, f64)>,
    /// Rounds without loss or marks, up to now.
    clean_rounds: u32,
}

impl Drift {
    /// Whether the round, of round-trip time `rtt` in seconds, ends a stretch in which that of a
    /// sender with room stayed or crept.
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

/// Round-trip time that comes or goes, as a share of the time. What falls faster is a queue that
/// drains; what grows faster one on a link that pauses, or carries less than is sent. If it lacks
/// less than 6 % the queue passes for a route, until it holds the sender back or drops packets, or
/// is longer than `delay` believes.
const SLOPE: RangeInclusive<f64> = -0.01..=0.06;
/// The least time over which the slope is measured: in less, jitter looks like one.
const SPAN: Duration = Duration::from_millis(250);
/// The longest time over which the slope means anything: a path with little to carry has longer
/// stretches.
const SPAN_MAX: Duration = Duration::from_secs(1);
/// The fewest rounds since the last loss: a full queue does not grow either.
const CLEAN_ROUNDS: u32 = 4;
