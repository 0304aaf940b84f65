//! Statistics of recordings, as published in studies of driving.
//!
//! ```text
//! capacity ──> half seconds ─┬─> quantiles, autocorrelation after 0.5, 5 and 10 s
//!          │                 └─> dips below 1 Mbit/s: how often, how long
//!          └─> times in which nothing leaves: gaps
//! delay ─────> a probe each 200 ms ─> quantiles; of the round trip, and its spikes
//! loss  ─────> a probe each 200 ms ─> share lost, and how much of it comes in bursts
//! ```
//!
//! Several recordings are pooled: half seconds and probes together, events per minute of all of
//! them. Autocorrelation is computed within each recording and averaged.

use std::time::Duration;

use serde::Serialize;

use crate::capacity::Capacity;
use crate::timeline::nanos;
use crate::trace::Trace;

mod runs;

pub use runs::Quantiles;
use runs::{correlation, run_lengths};

/// Statistics of one direction of one link, or of many.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceStatistics {
    /// Length of all recordings together.
    pub seconds: f64,
    /// The capacity over half seconds, bit/s.
    pub capacity_bps: CapacityQuantiles,
    pub autocorrelation: Autocorrelation,
    /// Times below 1 Mbit/s, in half seconds.
    pub dips: Dips,
    /// Times without capacity.
    pub gaps: DeliveryGaps,
    /// One-way propagation delay, ms.
    pub delay_ms: DelayQuantiles,
    /// Packets lost on the way.
    pub loss: LossStatistics,
}

/// Capacity over half seconds, bit/s.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CapacityQuantiles {
    pub mean: f64,
    pub p5: f64,
    pub p25: f64,
    pub p50: f64,
    pub p75: f64,
    pub p95: f64,
}

/// Correlation of the capacity with itself after a delay, -1..=1; `None` if too short or constant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Autocorrelation {
    pub after_500_ms: Option<f64>,
    pub after_5_s: Option<f64>,
    pub after_10_s: Option<f64>,
}

/// Times in which the capacity is low.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Dips {
    pub below_bps: f64,
    /// The share of half seconds below it, 0..=1.
    pub share_of_time: f64,
    pub per_minute: f64,
    /// Their lengths; `None` without any.
    pub seconds: Option<Lengths>,
}

/// Times without capacity, however short.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeliveryGaps {
    pub of_50_ms_per_minute: f64,
    pub of_100_ms_per_minute: f64,
    pub of_200_ms_per_minute: f64,
    pub of_1_s_per_minute: f64,
    /// The longest gap, ms; 0 without any.
    pub longest_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DelayQuantiles {
    pub min: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lengths {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

/// Loss as seen by a probe each 200 ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LossStatistics {
    /// The share of probes lost, 0..=1.
    pub share: f64,
    /// The share lost among probes that follow a lost one; `None` without loss.
    pub after_a_loss: Option<f64>,
    /// Mean number of probes lost in a row; `None` without loss.
    pub burst_probes: Option<f64>,
    /// The longest time in which at least every other packet was lost.
    pub longest_seconds: f64,
}

/// Round trips on idle links, as seen by a probe each 200 ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundTripStatistics {
    pub rtt_ms: DelayQuantiles,
    /// Spikes per minute: rises by more than 100 ms above the median.
    pub spikes_per_minute: f64,
    /// Their lengths; `None` without any.
    pub spike_seconds: Option<Lengths>,
}

/// Dependence between two links of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PairStatistics {
    /// Correlation of their capacities over half seconds, -1..=1; `None` if one is constant.
    pub correlation: Option<f64>,
    /// The share of half seconds in which both are below 1 Mbit/s, 0..=1.
    pub both_low: f64,
}

impl TraceStatistics {
    /// Statistics of one pass of each trace, at most [`LENGTH_MAX`] of each; `None` without any.
    pub fn of<'a>(traces: impl IntoIterator<Item = &'a Trace>) -> Option<Self> {
        let mut pool = Pool::default();
        for trace in traces {
            pool.add(trace);
        }
        (pool.seconds > 0.0).then(|| pool.statistics())
    }
}

#[derive(Debug, Default)]
struct Pool {
    seconds: f64,
    rates: Vec<f64>,
    correlations: [Vec<f64>; LAGS.len()],
    dips: Vec<f64>,
    gaps_ms: Vec<f64>,
    delays_ms: Vec<f64>,
    /// Numbers of probes: all, lost, lost after a lost one, lost after a delivered one.
    probes: f64,
    lost: f64,
    lost_again: f64,
    bursts: f64,
    loss_seconds_max: f64,
}

impl Pool {
    fn add(&mut self, trace: &Trace) {
        let length = analysed(trace.length());
        self.seconds += length.as_secs_f64();
        let rates = trace.capacity().mean_rates(BIN, length);
        for (correlations, lag) in self.correlations.iter_mut().zip(LAGS) {
            let later = rates.get(lag..).unwrap_or_default();
            correlations.extend(correlation(&rates[..later.len()], later));
        }
        let low = rates.iter().map(|&rate| rate < LOW_BPS);
        self.dips.extend(run_lengths(low).map(|bins| bins as f64 * BIN.as_secs_f64()));
        self.rates.extend(rates);
        self.gaps_ms.extend(gaps(trace.capacity(), length));
        self.delays_ms.extend(probes(length).map(|at| millis(trace.delay().at(at))));

        let losses: Vec<f64> = probes(length).map(|at| trace.loss().at(at)).collect();
        let mut before = 0.0;
        for &loss in &losses {
            self.probes += 1.0;
            self.lost += loss;
            self.lost_again += before * loss;
            self.bursts += (1.0 - before) * loss;
            before = loss;
        }
        let longest = run_lengths(losses.iter().map(|&loss| loss >= 0.5)).max().unwrap_or(0);
        let longest = longest as f64 * PROBE.as_secs_f64();
        self.loss_seconds_max = self.loss_seconds_max.max(longest);
    }

    fn statistics(self) -> TraceStatistics {
        let minutes = self.seconds / 60.0;
        let rates = Quantiles::of(self.rates);
        let [p5, p25, p50, p75, p95] = [0.05, 0.25, 0.5, 0.75, 0.95].map(|share| rates.at(share));
        let mean_of = |values: &Vec<f64>| {
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let [after_500_ms, after_5_s, after_10_s] = self.correlations.each_ref().map(mean_of);
        let gaps_of =
            |ms: f64| self.gaps_ms.iter().filter(|&&gap| gap >= ms).count() as f64 / minutes;
        let lost = |part: f64| (self.lost > 0.0).then(|| part / self.lost);
        TraceStatistics {
            seconds: self.seconds,
            capacity_bps: CapacityQuantiles { mean: rates.mean(), p5, p25, p50, p75, p95 },
            autocorrelation: Autocorrelation { after_500_ms, after_5_s, after_10_s },
            dips: Dips {
                below_bps: LOW_BPS,
                share_of_time: rates.share_below(LOW_BPS),
                per_minute: self.dips.len() as f64 / minutes,
                seconds: Lengths::of(self.dips),
            },
            gaps: DeliveryGaps {
                of_50_ms_per_minute: gaps_of(50.0),
                of_100_ms_per_minute: gaps_of(100.0),
                of_200_ms_per_minute: gaps_of(200.0),
                of_1_s_per_minute: gaps_of(1_000.0),
                longest_ms: self.gaps_ms.iter().copied().fold(0.0, f64::max),
            },
            delay_ms: DelayQuantiles::of(self.delays_ms),
            loss: LossStatistics {
                share: self.lost / self.probes,
                after_a_loss: lost(self.lost_again),
                burst_probes: (self.bursts > 0.0).then(|| self.lost / self.bursts),
                longest_seconds: self.loss_seconds_max,
            },
        }
    }
}

impl RoundTripStatistics {
    /// Statistics of links, each up and down, at most [`LENGTH_MAX`] of each; `None` without any.
    pub fn of<'a>(links: impl IntoIterator<Item = (&'a Trace, &'a Trace)>) -> Option<Self> {
        let (mut all, mut spikes, mut seconds) = (Vec::new(), Vec::new(), 0.0);
        for (there, back) in links {
            let length = analysed(there.length().max(back.length()));
            seconds += length.as_secs_f64();
            let rtts: Vec<f64> = probes(length)
                .map(|at| millis(there.delay().at(at).saturating_add(back.delay().at(at))))
                .collect();
            let median = Quantiles::of(rtts.clone()).at(0.5);
            let high = rtts.iter().map(|&rtt| rtt > median + SPIKE_MS);
            spikes.extend(run_lengths(high).map(|run| run as f64 * PROBE.as_secs_f64()));
            all.extend(rtts);
        }
        (!all.is_empty()).then(|| Self {
            rtt_ms: DelayQuantiles::of(all),
            spikes_per_minute: spikes.len() as f64 / (seconds / 60.0),
            spike_seconds: Lengths::of(spikes),
        })
    }
}

impl PairStatistics {
    /// Statistics of simultaneous links, over a pass of the longer one, at most [`LENGTH_MAX`].
    pub fn of(one: &Trace, other: &Trace) -> Self {
        let length = analysed(one.length().max(other.length()));
        let [one, other] = [one, other].map(|trace| trace.capacity().mean_rates(BIN, length));
        let both_low = one.iter().zip(&other).filter(|(a, b)| a.max(**b) < LOW_BPS).count();
        Self {
            correlation: correlation(&one, &other),
            both_low: both_low as f64 / one.len() as f64,
        }
    }
}

impl DelayQuantiles {
    fn of(delays_ms: Vec<f64>) -> Self {
        let delays = Quantiles::of(delays_ms);
        let [min, p50, p95, p99, p999, max] =
            [0.0, 0.5, 0.95, 0.99, 0.999, 1.0].map(|share| delays.at(share));
        Self { min, p50, p95, p99, p999, max }
    }
}

impl Lengths {
    fn of(seconds: Vec<f64>) -> Option<Self> {
        if seconds.is_empty() {
            return None;
        }
        let lengths = Quantiles::of(seconds);
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|share| lengths.at(share));
        Some(Self { p50, p90, p99, max })
    }
}

fn gaps(capacity: &Capacity, length: Duration) -> Vec<f64> {
    let end = nanos(length);
    let mut gaps = Vec::new();
    let mut add = |begin: u64, until: u64| {
        if until > begin {
            gaps.push((until - begin) as f64 / 1e6);
        }
    };
    match capacity {
        Capacity::Rates(rates) => {
            let (mut at, mut begin) = (0, None);
            while at < end {
                let span = rates.span(at);
                match begin {
                    None if span.value.as_bps() == 0 => begin = Some(at),
                    Some(since) if span.value.as_bps() > 0 => {
                        add(since, at);
                        begin = None;
                    }
                    _ => {}
                }
                at = span.end.unwrap_or(end).min(end);
            }
            add(begin.unwrap_or(end), end);
        }
        Capacity::Opportunities(opportunities) => {
            let mut before = 0;
            for (at, _) in opportunities.until(length) {
                add(before, nanos(at));
                before = nanos(at);
            }
            add(before, end);
        }
    }
    gaps
}

fn probes(length: Duration) -> impl Iterator<Item = Duration> {
    let count = nanos(length).div_ceil(nanos(PROBE)).max(1);
    (0..count).map(|probe| Duration::from_nanos(probe * nanos(PROBE)))
}

fn analysed(length: Option<Duration>) -> Duration {
    length.unwrap_or(CONSTANT).clamp(Duration::from_nanos(1), LENGTH_MAX)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The evaluated part of a recording, at most.
pub const LENGTH_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The evaluated part of a constant trace.
const CONSTANT: Duration = Duration::from_secs(1);
const BIN: Duration = Duration::from_millis(500);
/// Lags of the autocorrelation, in [`BIN`]s.
const LAGS: [usize; 3] = [1, 10, 20];
const PROBE: Duration = Duration::from_millis(200);
const LOW_BPS: f64 = 1e6;
/// A round-trip time this far above the median is a spike, ms.
const SPIKE_MS: f64 = 100.0;

#[cfg(test)]
mod tests;
