//! How many paths of idle connections an endpoint probes.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use roadweave_proto::Instant;

/// Each probe of an idle connection has its turn, so that thousands of suspect paths cost little.
#[derive(Debug, Default)]
pub(crate) struct IdleProbes {
    whole_at: Mutex<Instant>,
}

impl IdleProbes {
    pub(crate) fn turn(&self, now: Instant) -> Instant {
        let mut whole_at = self.whole_at.lock().unwrap_or_else(PoisonError::into_inner);
        *whole_at = (*whole_at).max(now) + INTERVAL;
        now + whole_at.since(now).saturating_sub(BURST)
    }
}

const INTERVAL: Duration = Duration::from_millis(1);
const BURST: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_questions_are_asked_in_turn_and_few_at_once() {
        let (probes, now) = (IdleProbes::default(), Instant::from_millis(5_000));
        let turns: Vec<u64> =
            (0..4_000).map(|_| probes.turn(now).since(now).as_millis() as u64).collect();
        assert!(turns[..200].iter().all(|turn| *turn == 0));
        assert!(turns.is_sorted() && turns[3_999] == 3_800, "{}", turns[3_999]);
        let later = now + Duration::from_secs(10);
        assert_eq!(probes.turn(later), later);
    }
}
