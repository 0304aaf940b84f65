//! How long missing packets of a lane take to come, and so how long to wait for one.
//!
//! ```text
//! gap opens ─── 12 ms ───► filled ─► histogram, two spans of time: the present and the one before
//!                                     wait = quantile of both and some slack
//! ```
//!
//! Most gaps come from slower paths and last for the difference of delays; some are losses, which
//! take repair. The quantile covers both. Where almost nothing comes there is no wait.

use std::time::Duration;

use roadweave_proto::Instant;

/// Missing packets per mille to come within half of the wait: giving one up halves a window.
const PER_MILLE: u64 = 999;
const SLACK: Duration = Duration::from_millis(3);
const SPAN: Duration = Duration::from_secs(10);
/// Missing packets that must have come before the wait is shortened: a transfer that starts doubles
/// its rate each round trip, and its first gaps say little. A span also lasts for at least as many.
const FILLED_MIN: u64 = 1000;
/// Waiting pays if one in this many missing packets comes.
const HOPELESS: u64 = 32;
const STEPS: u32 = 8;
const BINS: usize = (STEPS * 22) as usize;

#[derive(Debug)]
pub(super) struct FillTimes {
    max_buffer: Duration,
    present: FillCounts,
    before: FillCounts,
    pub(super) wait: Duration,
}

#[derive(Debug)]
struct FillCounts {
    since: Option<Instant>,
    filled: [u32; BINS],
    filled_total: u64,
    never: u64,
}

impl FillTimes {
    pub(super) fn new(max_buffer: Duration) -> Self {
        Self { max_buffer, present: FillCounts::new(), before: FillCounts::new(), wait: max_buffer }
    }

    pub(super) fn set_max_buffer(&mut self, max_buffer: Duration) {
        self.max_buffer = max_buffer;
        self.wait = self.learned();
    }

    pub(super) fn on_filled(&mut self, now: Instant, after: Duration) {
        self.turn(now);
        self.present.filled[bin(after)] += 1;
        self.present.filled_total += 1;
        self.wait = self.learned();
    }

    pub(super) fn on_never_filled(&mut self, now: Instant, packets: u64) {
        self.turn(now);
        self.present.never = self.present.never.saturating_add(packets);
        self.wait = self.learned();
    }

    fn turn(&mut self, now: Instant) {
        let since = *self.present.since.get_or_insert(now);
        if now.since(since) > SPAN && self.present.outcomes() >= FILLED_MIN {
            self.before = std::mem::replace(&mut self.present, FillCounts::new());
            self.present.since = Some(now);
        }
    }

    fn learned(&self) -> Duration {
        let filled = self.present.filled_total + self.before.filled_total;
        let outcomes = self.present.outcomes().saturating_add(self.before.outcomes());
        if outcomes > filled.max(1).saturating_mul(HOPELESS) {
            return SLACK.min(self.max_buffer);
        }
        if filled < FILLED_MIN {
            return self.max_buffer;
        }
        let wanted = (filled * PER_MILLE).div_ceil(1000);
        let mut seen = 0;
        let bins = self.present.filled.iter().zip(&self.before.filled);
        let quantile =
            bins.map(|(now, before)| u64::from(*now) + u64::from(*before)).position(|in_bin| {
                seen += in_bin;
                seen >= wanted
            });
        let quantile = edge(quantile.unwrap_or(BINS));
        (quantile * 2 + SLACK).min(self.max_buffer)
    }
}

impl FillCounts {
    fn new() -> Self {
        Self { since: None, filled: [0; BINS], filled_total: 0, never: 0 }
    }

    fn outcomes(&self) -> u64 {
        self.filled_total.saturating_add(self.never)
    }
}

/// The bin of a time: eight for each doubling, from 8 µs on.
fn bin(time: Duration) -> usize {
    let micros = (time.as_micros() as u64).max(u64::from(STEPS));
    let doubling = micros.ilog2() - STEPS.ilog2();
    let step = (micros >> doubling) as u32 - STEPS;
    ((doubling * STEPS + step) as usize).min(BINS - 1)
}

fn edge(bin: usize) -> Duration {
    let (doubling, step) = (bin as u32 / STEPS, bin as u32 % STEPS);
    Duration::from_micros(u64::from(STEPS + step + 1) << doubling)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_millis(300);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn fill(times: &mut FillTimes, now: u64, after_ms: u64, count: u32) {
        (0..count).for_each(|_| times.on_filled(Instant::from_millis(now), ms(after_ms)));
    }

    #[test]
    fn a_bin_ends_behind_its_times_and_not_an_eighth_further() {
        for micros in [0, 7, 8, 9, 15, 16, 1000, 12_345, 300_000, 15_999_999] {
            let time = Duration::from_micros(micros);
            let edge = edge(bin(time));
            assert!(time < edge && edge <= time.max(Duration::from_micros(8)) * 9 / 8 + ms(1));
        }
    }

    #[test]
    fn the_wait_is_all_there_is_until_something_is_known() {
        let mut times = FillTimes::new(MAX);
        fill(&mut times, 0, 10, FILLED_MIN as u32 - 1);
        assert_eq!(times.wait, MAX);
        fill(&mut times, 0, 10, 1);
        assert!((ms(20)..ms(30)).contains(&times.wait), "{:?}", times.wait);
    }

    #[test]
    fn repairs_count_though_most_gaps_are_of_slower_paths() {
        let mut times = FillTimes::new(MAX);
        fill(&mut times, 0, 10, 990);
        fill(&mut times, 0, 90, 10);
        assert!((ms(180)..ms(220)).contains(&times.wait), "{:?}", times.wait);
    }

    #[test]
    fn gaps_that_never_fill_do_not_stretch_the_wait() {
        let mut times = FillTimes::new(MAX);
        fill(&mut times, 0, 10, 1000);
        let before = times.wait;
        times.on_never_filled(Instant::ZERO, 1000);
        assert_eq!(times.wait, before);
    }

    #[test]
    fn gaps_that_are_never_filled_cost_no_wait() {
        let mut times = FillTimes::new(MAX);
        times.on_never_filled(Instant::ZERO, HOPELESS);
        assert_eq!(times.wait, MAX);
        times.on_never_filled(Instant::ZERO, 1);
        assert_eq!(times.wait, SLACK);
        fill(&mut times, 1, 50, 2);
        assert_eq!(times.wait, MAX, "some do come");
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut times = FillTimes::new(MAX);
        fill(&mut times, 0, 140, 100);
        for second in 1..40 {
            fill(&mut times, second * 1000, 10, 100);
        }
        assert!(times.wait < ms(30), "{:?}", times.wait);
        let mut short = FillTimes::new(ms(20));
        fill(&mut short, 0, 15, 1000);
        assert_eq!(short.wait, ms(20), "never longer than allowed");
    }
}
