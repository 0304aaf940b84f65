//! Makes the attempts of a client rarer while there is no answer.
//!
//! ```text
//! sign of life ─► all uplinks and addresses, one shortly after the other ─► after that: a pause,
//!      ▲          by chance from half of the silence so far to one and a half ─► .. ─► 2 to 6 s
//!      └─ a new uplink or address, a session that answers again or is over, the end of a pause
//! ```
//!
//! The pauses are the client's and not each uplink's: four uplinks do not count as four clients. A
//! client cannot distinguish a server that thousands have lost from its own drive into a tunnel. So
//! its loss by waiting is bounded, and the load of thousands falls until the server has recovered.
//!
//! A server that restarted was just heard over a working uplink: all others wait from the start.

use std::time::Duration;

use roadweave_proto::Instant;

use super::pairs::Pairs;

/// No pauses for this long after the first attempt: losses are retried, and each uplink is tried.
const HASTE: Duration = Duration::from_secs(1);
const PAUSE_RESTARTED: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(4);

#[derive(Debug, Default)]
pub(super) struct AttemptBackoff {
    since: Option<Instant>,
    pub(super) due: Instant,
    restarted: bool,
}

impl AttemptBackoff {
    pub(super) fn on_attempt(&mut self, now: Instant, round: Duration, pairs: &mut Pairs) {
        let silence = now.since(*self.since.get_or_insert(now));
        let mean = match self.restarted {
            true => silence.max(PAUSE_RESTARTED),
            false if silence < round.max(HASTE) => return,
            false => silence,
        };
        let mean = mean.min(PAUSE_MAX);
        self.due = now + mean / 2 + pairs.jitter(mean);
    }

    pub(super) fn on_sign_of_life(&mut self) {
        *self = Self::default();
    }

    pub(super) fn on_restart(&mut self) {
        *self = Self { restarted: true, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begins(backoff: &mut AttemptBackoff, seed: u64, seconds: u64) -> Vec<u64> {
        let mut pairs = Pairs::new(seed);
        let mut begin = |at: &u64| {
            let now = Instant::from_millis(*at);
            let begins = backoff.due <= now;
            if begins {
                backoff.on_attempt(now, Duration::ZERO, &mut pairs);
            }
            begins
        };
        (0..seconds * 10).map(|tick| tick * 100).filter(|at| begin(at)).collect()
    }

    #[test]
    fn pauses_grow_with_the_silence_to_a_bound_and_reset() {
        for seed in 0..50 {
            let mut backoff = AttemptBackoff::default();
            let begun = begins(&mut backoff, seed, 120);
            let within =
                |from: u64, to: u64| begun.iter().filter(|at| (from..to).contains(*at)).count();
            assert_eq!(within(0, 1_000), 10, "a client does not wait at first");
            assert!((2..=8).contains(&within(1_000, 8_000)), "{begun:?}");
            assert!((12..=36).contains(&within(48_000, 120_000)), "{begun:?}");
            let longest = begun.windows(2).map(|pair| pair[1] - pair[0]).max();
            assert!(longest.is_some_and(|it| (4_000..=6_100).contains(&it)), "{begun:?}");
            backoff.on_sign_of_life();
            assert_eq!(begins(&mut backoff, seed, 1).len(), 10);
        }
    }

    #[test]
    fn after_a_restart_there_is_one_attempt_for_a_second_at_least() {
        let second = |seed: u64| {
            let mut backoff = AttemptBackoff::default();
            backoff.on_restart();
            let begun = begins(&mut backoff, seed, 4);
            assert_eq!(begun[0], 0);
            begun[1]
        };
        let seconds: Vec<u64> = (0..1_000).map(second).collect();
        assert!(seconds.iter().all(|at| (1_000..=3_100).contains(at)));
        // Thousands that were reset at the same moment return at different moments.
        for from in (1_100..3_100).step_by(200) {
            let together = seconds.iter().filter(|at| (from..from + 200).contains(*at)).count();
            assert!((50..=150).contains(&together), "{together} of 1,000 from {from} ms on");
        }
    }
}
