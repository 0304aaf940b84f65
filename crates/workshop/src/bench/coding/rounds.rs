//! Pieces of work timed against each other: in turns, so that what disturbs the machine disturbs
//! all.
//!
//! Time is that of the processor, so that other programs on the same core do not count.
//!
//! ```text
//! round 1    a a a a | b b | c c c c c c ...     a slice of equal time for each
//! round 2    a a a a | b b | c c c c c c ...
//! ...        median  | median | median
//! ```

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time that each piece of work gets in a round, if one repetition takes no longer.
const SLICE: Duration = Duration::from_millis(1);
/// Fewer rounds have no median worth the name.
const ROUNDS_MIN: u32 = 3;

/// Does the work so many times.
type Work<'a> = Box<dyn FnMut(u32) + 'a>;

/// Stands for a piece of work in [`Rounds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(usize);

/// The pieces of work, and how long one repetition took in each round.
#[derive(Default)]
pub struct Rounds<'a> {
    entries: Vec<Timed<'a>>,
}

struct Timed<'a> {
    work: Work<'a>,
    /// Repetitions that fill a slice.
    repetitions: u32,
    /// Nanoseconds per repetition, one figure per round.
    times: Vec<f64>,
}

impl<'a> Rounds<'a> {
    /// Adds a piece of work, which is done here often enough to warm caches and to tell its speed.
    ///
    /// `work`: repeats it as often as its argument says.
    pub fn add(&mut self, work: impl FnMut(u32) + 'a) -> Entry {
        let mut timed = Timed { work: Box::new(work), repetitions: 1, times: Vec::new() };
        (timed.work)(1);
        while timed.time_slice() < SLICE.as_secs_f64() / 2.0 && timed.repetitions < u32::MAX / 2 {
            timed.repetitions *= 2;
        }
        self.entries.push(timed);
        Entry(self.entries.len() - 1)
    }

    /// Runs rounds for about `time`, and tells `progress` after each how many of how many are done.
    pub fn run(&mut self, time: Duration, mut progress: impl FnMut(u32, u32)) {
        let round = SLICE.as_secs_f64() * self.entries.len() as f64;
        let rounds = ((time.as_secs_f64() / round) as u32).max(ROUNDS_MIN);
        for done in 1..=rounds {
            for timed in &mut self.entries {
                let nanos = timed.time_slice() * 1e9 / f64::from(timed.repetitions);
                timed.times.push(nanos);
            }
            progress(done, rounds);
        }
    }

    /// The median time of one repetition, nanoseconds; none before the first round.
    pub fn median_ns(&self, entry: Entry) -> Option<f64> {
        let mut times = self.entries[entry.0].times.clone();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    }
}

impl Timed<'_> {
    /// Seconds that one slice takes.
    fn time_slice(&mut self) -> f64 {
        let begin = processor_time();
        (self.work)(self.repetitions);
        (processor_time() - begin).as_secs_f64()
    }
}

/// The time that this thread has spent on a processor.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work_for(time: Duration) {
        let end = processor_time() + time;
        while processor_time() < end {}
    }

    #[test]
    fn everyone_has_a_turn_in_each_round() {
        let (mut quick, mut slow) = (0, 0);
        let mut told = Vec::new();
        let mut rounds = Rounds::default();
        let entries = [
            rounds.add(|times| {
                quick += times;
                (0..times).for_each(|_| work_for(Duration::from_micros(10)));
            }),
            rounds.add(|times| {
                slow += times;
                (0..times).for_each(|_| work_for(Duration::from_millis(3)));
            }),
        ];
        assert_eq!(rounds.median_ns(entries[0]), None);
        rounds.run(Duration::ZERO, |done, of| told.push((done, of)));
        let medians = entries.map(|entry| rounds.median_ns(entry).expect("there were rounds"));
        assert!((10e3..1e6).contains(&medians[0]) && medians[1] >= 3e6, "{medians:?}");
        drop(rounds);
        assert_eq!(told, [(1, 3), (2, 3), (3, 3)]);
        assert_eq!(slow, 1 + 1 + 3, "once to warm up, once for its speed, once a round");
        assert!(quick > 50, "{quick}");
    }

    #[test]
    fn a_pause_does_not_count() {
        let mut rounds = Rounds::default();
        let entry = rounds.add(|times| {
            std::thread::sleep(Duration::from_millis(20));
            (0..times).for_each(|_| work_for(Duration::from_millis(1)));
        });
        rounds.run(Duration::ZERO, |_, _| {});
        let median = rounds.median_ns(entry).expect("there were rounds");
        assert!((1e6..10e6).contains(&median), "{median}");
    }
}
