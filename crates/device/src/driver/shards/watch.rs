//! Finds out which shards stand still: a loop without end, a system call that does not return.
//!
//! ```text
//! shard: each turn counts, one a second at least ─┐
//! front: each turn looks, and sees it grow ◄──────┘ ─► not for 4 s: it stands still
//!                                                      none of them grows: 20 s
//! ```
//!
//! A machine that sleeps, or is busy with others, stops whoever looks as well: a look that comes
//! late counts as a punctual one. Where all shards are late at once, that may be the machine yet.

use std::time::Duration;

use roadweave_types::Instant;

use crate::pauses::{STOOD_STILL_MIN, TURN_MAX};

/// Looks whether the shards of a server go on.
#[derive(Debug)]
pub(super) struct Watch {
    looked: Instant,
    shards: Vec<Watched>,
}

/// What was seen of a shard.
#[derive(Clone, Debug, Default)]
struct Watched {
    turns: u64,
    /// For how long it has not turned.
    still: Duration,
}

impl Watch {
    /// Looks after `count` shards from the first look on.
    pub(super) fn new(count: usize) -> Self {
        Self { looked: Instant::ZERO, shards: vec![Watched::default(); count] }
    }

    /// Looks at how often each shard has turned; returns the numbers of those that stand still.
    pub(super) fn look(&mut self, now: Instant, turns: impl Iterator<Item = u64>) -> Vec<usize> {
        let time = now.since(self.looked).min(TURN_MAX);
        self.looked = now;
        for (shard, turns) in self.shards.iter_mut().zip(turns) {
            let still = if turns == shard.turns { shard.still + time } else { Duration::ZERO };
            *shard = Watched { turns, still };
        }
        let all_are_late = self.shards.iter().all(|shard| shard.still >= TURN_MAX * 2);
        let patience = if all_are_late { ALL_STILL_AFTER } else { STILL_AFTER };
        let stands =
            |(number, shard): (usize, &Watched)| (shard.still >= patience).then_some(number);
        self.shards.iter().enumerate().filter_map(stands).collect()
    }

    /// A shard has begun anew, in another thread.
    pub(super) fn on_begun(&mut self, number: usize) {
        self.shards[number] = Watched::default();
    }

    /// The machine slept, or the program stood still: what was seen before says nothing.
    pub(super) fn on_pause(&mut self) {
        self.shards.iter_mut().for_each(|shard| shard.still = Duration::ZERO);
    }
}

/// A shard that has not turned for so long stands still: it waits for a turn at most, and no busy
/// machine lets it wait longer.
const STILL_AFTER: Duration = TURN_MAX.saturating_add(STOOD_STILL_MIN);
/// All of them at once may be kept from the cores by others.
const ALL_STILL_AFTER: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    /// When each of three shards is found, looked at every half second: `turns` says of a shard
    /// and a moment, in milliseconds, how often it has turned.
    fn found(turns: impl Fn(usize, u64) -> u64) -> Vec<(u64, Vec<usize>)> {
        let mut watch = Watch::new(3);
        let looks = (1..60).map(|look| look * 500);
        let look = |at| {
            let still = watch.look(Instant::from_millis(at), (0..3).map(|shard| turns(shard, at)));
            still.iter().for_each(|number| watch.on_begun(*number));
            (at, still)
        };
        looks.map(look).filter(|(_, still)| !still.is_empty()).collect()
    }

    #[test]
    fn a_shard_that_does_not_turn_for_four_seconds_stands_still_and_others_do_not() {
        let second = |at: u64| 1 + at / 1_000;
        assert_eq!(found(|_, at| second(at)), []);
        let stands = |shard, at: u64| if shard == 1 { second(at.min(5_000)) } else { second(at) };
        assert_eq!(found(stands)[0], (9_000, vec![1]));
        assert_eq!(found(stands)[1].0, 13_500, "the next thread has its time as well");
        let is_late = |shard, at| if shard == 1 { 1 + at / 3_500 } else { second(at) };
        assert_eq!(found(is_late), []);
    }

    #[test]
    fn all_of_them_at_once_may_be_the_machine() {
        assert_eq!(found(|_, at| 1 + at / 15_000), []);
        assert_eq!(found(|_, _| 1)[0], (20_500, vec![0, 1, 2]));
    }

    #[test]
    fn a_pause_of_whoever_looks_is_no_fault_of_a_shard() {
        let mut watch = Watch::new(2);
        let look = |watch: &mut Watch, at, turns: [u64; 2]| {
            watch.look(Instant::from_millis(at), turns.into_iter())
        };
        look(&mut watch, 1_000, [1, 1]);
        // Stopped, and woken before the shards are.
        assert!(look(&mut watch, 900_000, [1, 1]).is_empty());
        watch.on_pause();
        for at in 1..=6 {
            assert!(look(&mut watch, 900_000 + at * 500, [1, 1 + at]).is_empty());
        }
        // Looks that all come late count as punctual ones.
        assert_eq!(look(&mut watch, 990_000, [1, 8]), [0]);
    }
}
