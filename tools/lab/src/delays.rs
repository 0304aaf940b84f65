//! How long the propagation delay of a link stays constant, and whether applications that pause
//! notice its changes in a replay.
//!
//! ```text
//! idle round trips, half of each ─► the least of each second: bins ─┬─► differences of neighbours
//!                                                                   └─► change points ─► how long
//! ```
//!
//! Change points are those of the most probable segmentation: each segment has normal values with
//! unknown mean and variance (conjugate prior), and each second has the same chance of a change. It
//! is computed by dynamic programming (Fearnhead, Exact and efficient Bayesian inference for
//! multiple changepoint problems, 2006). Segments whose means differ by less than 2 ms are one.
//!
//! Source: LoLa sections 4.1 and 4.2, figures 3, 4 and 6.

use std::time::Duration;

use roadweave_emulate::{AtEnd, Capacity, Link, LinkSettings, Opportunities, Timeline, Trace};
use roadweave_proto::{Instant, Rate};
use serde::Serialize;

/// The least one-way delay of each second of `trace`, ms; `None` if every probe is lost.
pub fn bins(trace: &Trace) -> Vec<Option<f64>> {
    let seconds = trace.length().unwrap_or(Duration::from_secs(1)).as_secs() as u32;
    let least = |second: u32| {
        let probes = (0..PROBES).map(|probe| BIN * second + BIN / PROBES * probe);
        let answered = probes.filter(|at| trace.loss().at(*at) < 1.0);
        answered.map(|at| trace.delay().at(at).as_secs_f64() * 1e3).min_by(f64::total_cmp)
    };
    (0..seconds).map(least).collect()
}

/// Differences of neighbouring bins, ms.
pub fn differences(bins: &[Option<f64>]) -> Vec<f64> {
    let known = |pair: &[Option<f64>]| Some((pair[1]? - pair[0]?).abs());
    bins.windows(2).filter_map(known).collect()
}

/// Durations of constant delay, seconds. A second without an answer counts as the previous one.
pub fn persistence(bins: &[Option<f64>]) -> Vec<usize> {
    let mut last = bins.iter().flatten().next().copied().unwrap_or_default();
    let filled = bins.iter().map(|bin| {
        last = bin.unwrap_or(last);
        last
    });
    let values: Vec<f64> = filled.collect();
    let mut segments: Vec<(usize, f64)> = Vec::new();
    let mut begin = 0;
    for end in change_points(&values) {
        let mean = values[begin..end].iter().sum::<f64>() / (end - begin) as f64;
        match segments.last_mut() {
            Some((count, before)) if (mean - *before).abs() < SIGNIFICANT_MS => {
                let all = (*count + end - begin) as f64;
                *before += (mean - *before) * (end - begin) as f64 / all;
                *count += end - begin;
            }
            _ => segments.push((end - begin, mean)),
        }
        begin = end;
    }
    segments.into_iter().map(|(count, _)| count).collect()
}

/// Ends of the most probable segments, ascending; the last is the end of `values`.
fn change_points(values: &[f64]) -> Vec<usize> {
    let model = Model::of(values);
    let mut best = vec![(0.0, 0)];
    for end in 1..=values.len() {
        let of = |begin: usize| {
            let change = if begin > 0 { CHANGE.ln() } else { 0.0 };
            let stays = (end - begin - 1) as f64 * (1.0 - CHANGE).ln();
            (best[begin].0 + change + stays + model.likelihood(begin, end), begin)
        };
        best.push((0..end).map(of).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, 0)));
    }
    let mut ends = Vec::new();
    let mut end = values.len();
    while end > 0 {
        ends.push(end);
        end = best[end].1;
    }
    ends.reverse();
    ends
}

struct Model {
    sums: Vec<(f64, f64)>,
    /// The logarithm of the gamma function of 1, 1.5, 2, ...
    ln_gamma: Vec<f64>,
}

impl Model {
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let around = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        let mut sums = vec![(0.0, 0.0)];
        for value in values.iter().map(|value| value - around) {
            let (sum, squares) = sums[sums.len() - 1];
            sums.push((sum + value, squares + value * value));
        }
        let mut ln_gamma = vec![0.0, (std::f64::consts::PI.sqrt() / 2.0).ln()];
        for twice in 2..=values.len() {
            // gamma(x + 1) = x * gamma(x)
            ln_gamma.push(ln_gamma[twice - 2] + (twice as f64 / 2.0).ln());
        }
        Self { sums, ln_gamma }
    }

    fn likelihood(&self, begin: usize, end: usize) -> f64 {
        let count = (end - begin) as f64;
        let sum = self.sums[end].0 - self.sums[begin].0;
        let squares = self.sums[end].1 - self.sums[begin].1;
        let mean = sum / count;
        let spread = (squares - sum * mean).max(0.0);
        let weight = PRIOR_WEIGHT + count;
        let scale =
            PRIOR_VARIANCE + spread / 2.0 + PRIOR_WEIGHT * count * mean * mean / (2.0 * weight);
        let shape = 1.0 + count / 2.0;
        self.ln_gamma[end - begin] + PRIOR_VARIANCE.ln() - shape * scale.ln()
            + (PRIOR_WEIGHT.ln() - weight.ln()) / 2.0
            - count / 2.0 * (2.0 * std::f64::consts::PI).ln()
    }
}

/// One sender over one replay of a rising delay (figure 4).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rise {
    /// The replay has delays, not only delivery opportunities.
    pub has_delays: bool,
    /// The sender sends without pauses.
    pub full_throttle: bool,
    /// Median one-way delay of the second before the change, ms.
    pub before_ms: f64,
    /// Highest delay of the first 100 ms after the change, ms.
    pub peak_ms: f64,
    /// Median delay of packets sent at least a second after the change, ms.
    pub after_ms: f64,
}

/// A link of 6 Mbit/s whose round trip rises from 20 to 60 ms after 5 s, replayed with and without
/// its delays, to a sender at full rate and to one that sends three packets each 100 ms.
pub fn rises() -> Vec<Rise> {
    let each = [(true, true), (true, false), (false, true), (false, false)];
    each.map(|(has_delays, full_throttle)| rise(has_delays, full_throttle)).into()
}

fn rise(has_delays: bool, full_throttle: bool) -> Rise {
    let interval = RATE.time_for(PACKET);
    let (burst, pause) =
        if full_throttle { (1, interval) } else { (3, Duration::from_millis(100)) };
    let mut link = Link::new(LinkSettings::new(replay(has_delays), 1));
    let mut delays: Vec<(Duration, f64)> = Vec::new();
    let mut now = Instant::ZERO;
    while now.since(Instant::ZERO) < LENGTH - Duration::from_millis(300) {
        // A packet dropped by the full queue has no delay.
        (0..burst).for_each(|_| _ = link.push(now, PACKET as usize, now));
        now += pause;
        while let Some(at) = link.poll_timeout().filter(|at| *at <= now) {
            if let Some(sent) = link.poll(at) {
                delays.push((sent.since(Instant::ZERO), at.since(sent).as_secs_f64() * 1e3));
            }
        }
    }
    let within = |from: Duration, to: Duration| {
        let sent = delays.iter().filter(|(sent, _)| (from..to).contains(sent));
        let mut values: Vec<f64> = sent.map(|(_, delay)| *delay).collect();
        values.sort_unstable_by(f64::total_cmp);
        values
    };
    let median = |values: Vec<f64>| values.get(values.len() / 2).copied().unwrap_or_default();
    let second = Duration::from_secs(1);
    let peak = within(RISES.saturating_sub(BEFORE), RISES + Duration::from_millis(100));
    Rise {
        has_delays,
        full_throttle,
        before_ms: median(within(RISES - second, RISES - BEFORE)),
        peak_ms: peak.last().copied().unwrap_or_default(),
        after_ms: median(within(RISES + second, LENGTH)),
    }
}

/// A recording of the link: opportunities, and delays or, as in Cellsim, a gap at the rise.
fn replay(has_delays: bool) -> Trace {
    let interval = RATE.time_for(PACKET);
    let count = LENGTH.as_nanos().div_ceil(interval.as_nanos()) as u32 - 1;
    let at = |index: u32| {
        let at = interval * index;
        let longer = if has_delays || at < RISES { Duration::ZERO } else { AFTER - BEFORE };
        (at + longer, PACKET)
    };
    let arrivals = (0..count).map(at).filter(|(at, _)| *at < LENGTH);
    let opportunities = Opportunities::with_bytes(arrivals, LENGTH).expect("they ascend");
    let link = Trace::constant(RATE, BEFORE).with_capacity(Capacity::Opportunities(opportunities));
    if !has_delays {
        return link;
    }
    let steps = [(Duration::ZERO, BEFORE), (RISES, AFTER)];
    link.with_delay(Timeline::new(steps, LENGTH, AtEnd::Repeat).expect("they ascend"))
}

const BIN: Duration = Duration::from_secs(1);
const PROBES: u32 = 5;
/// Smaller changes do not count, ms (LoLa section 4.2).
const SIGNIFICANT_MS: f64 = 2.0;
const CHANGE: f64 = 0.05;
/// Weight of the prior's mean, in values, and scale of the prior's variance, square ms.
const PRIOR_WEIGHT: f64 = 0.01;
const PRIOR_VARIANCE: f64 = 1.0;
const RATE: Rate = Rate::from_kbps(6_000);
const PACKET: u64 = 1_500;
const BEFORE: Duration = Duration::from_millis(10);
const AFTER: Duration = Duration::from_millis(30);
const RISES: Duration = Duration::from_secs(5);
const LENGTH: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn known(values: &[f64]) -> Vec<Option<f64>> {
        values.iter().copied().map(Some).collect()
    }

    #[test]
    fn a_bin_is_the_least_that_was_answered() {
        let ms = Duration::from_millis;
        let delays = [(ms(0), ms(40)), (ms(1_000), ms(30)), (ms(1_200), ms(50))];
        let delays = Timeline::new(delays, ms(3_000), AtEnd::Repeat).unwrap();
        let losses = [(ms(0), 0.0), (ms(1_000), 1.0), (ms(1_100), 0.0), (ms(2_000), 1.0)];
        let losses = Timeline::new(losses, ms(3_000), AtEnd::Repeat).unwrap();
        let trace = Trace::constant(RATE, BEFORE).with_delay(delays).with_loss(losses);
        assert_eq!(bins(&trace), [Some(40.0), Some(50.0), None]);
        assert_eq!(differences(&bins(&trace)), [10.0]);
    }

    #[test]
    fn a_change_is_found_where_it_is_and_noise_is_none() {
        let noise = |at: usize| [0.0, 0.4, -0.3, 0.2, -0.4, 0.1][at % 6];
        let steady: Vec<f64> = (0..60).map(|at| 30.0 + noise(at)).collect();
        assert_eq!(persistence(&known(&steady)), [60]);
        let step = |at: usize| if (20..45).contains(&at) { 12.0 } else { 0.0 };
        let stepped: Vec<f64> = (0..60).map(|at| 30.0 + step(at) + noise(at)).collect();
        assert_eq!(persistence(&known(&stepped)), [20, 25, 15]);
        let small: Vec<f64> = (0..60).map(|at| 30.0 + step(at) / 8.0 + noise(at) / 10.0).collect();
        assert_eq!(persistence(&known(&small)), [60], "1.5 ms are no change");
        assert_eq!(persistence(&[None, Some(30.0), None, Some(30.0)]), [4]);
        assert!(persistence(&[]).is_empty());
    }

    #[test]
    fn only_a_replay_with_delays_shows_a_change_to_a_sender_that_pauses() {
        for rise in rises() {
            let stays = rise.has_delays || rise.full_throttle;
            let risen = rise.after_ms - rise.before_ms;
            let expected = if stays { 20.0 } else { 0.0 };
            assert!((risen - expected).abs() < 2.5, "{rise:?}");
            assert!(rise.peak_ms - rise.before_ms > 15.0, "the gap is felt: {rise:?}");
        }
    }
}
