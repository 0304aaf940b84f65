//! Figures of all viewings of one way with intervals, and their gain over the best link alone.
//!
//! ```text
//! viewings of all pairs together ─► Figures
//! pairs drawn again and again ────► the same figures of each draw ─► 95 % interval
//! ```
//!
//! Viewings of one pair share links, so that whole pairs are drawn (bootstrap by cluster). A
//! comparison uses the same draws for both ways.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::SplitMix64;
use serde::Serialize;

use super::{ServerTraffic, Viewing};

/// A figure with its 95 % interval over draws of the pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    /// Over all pairs; absent without data.
    pub value: Option<f64>,
    /// 2.5th percentile of the draws; absent for a single pair.
    pub low: Option<f64>,
    /// 97.5th percentile of the draws.
    pub high: Option<f64>,
}

roadweave_proto::named! {
    /// A figure of a way.
    Figure {
        /// Median time from the request of a chunk to its last byte, ms.
        RequestP50 = "request_p50",
        RequestP95 = "request_p95",
        RequestP99 = "request_p99",
        /// Median time from the request of a video to its first frame, ms.
        FirstFrameP50 = "first_frame_p50",
        FirstFrameP99 = "first_frame_p99",
        /// Stalled time as a share of the time played.
        Rebuffering = "rebuffering",
        /// 1st percentile of the play-time left, ms.
        BufferP1 = "buffer_p1",
        /// Share of samples with less than [`DANGER`] left.
        BufferDanger = "buffer_danger",
        /// Bytes sent again, repairs and copies, as a share of bytes sent for the first time.
        Copies = "copies",
        /// The same without one retransmission for each packet declared lost.
        Reinjected = "reinjected",
    }
}

const FIGURES: usize = Figure::ALL.len();
/// In the order of [`Figure::ALL`].
type Values = [Option<f64>; FIGURES];
/// The figures of one way, or their improvement over another way's.
pub type Figures = BTreeMap<Figure, Interval>;

/// All viewings of one way, by pair.
#[derive(Debug)]
pub struct Viewings {
    requests: Samples,
    first_frames: Samples,
    levels: Samples,
    sums: Vec<Sums>,
}

/// Dividends and divisors of the ratios: stalled time and time played; samples in danger and all;
/// further bytes and bytes of first copies; datagrams sent again needlessly and all.
type Sums = [(f64, f64); 4];

/// Durations of all pairs together, ascending: ms, and the pair.
#[derive(Debug, Default)]
struct Samples(Vec<(f64, usize)>);

impl Samples {
    fn sorted(mut samples: Vec<(f64, usize)>) -> Self {
        samples.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        Self(samples)
    }

    /// By nearest rank, with pair `i` counted `times[i]` times.
    fn at(&self, share: f64, times: &[u32]) -> Option<f64> {
        let total: u64 = self.0.iter().map(|(_, pair)| u64::from(times[*pair])).sum();
        let rank = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.0.iter().find(|(_, pair)| {
            seen += u64::from(times[*pair]);
            seen >= rank
        });
        found.map(|(ms, _)| *ms)
    }
}

impl Viewings {
    /// The viewings of each pair, with pairs in the same order for each way.
    pub fn new(pairs: &[Vec<(Viewing, ServerTraffic)>]) -> Self {
        let samples = |of: fn(&Viewing) -> &[Duration]| {
            let of_pair =
                |(pair, all): (usize, &Vec<(Viewing, ServerTraffic)>)| -> Vec<(f64, usize)> {
                    let durations = all.iter().flat_map(|(seen, _)| of(seen));
                    durations.map(|took| (took.as_secs_f64() * 1e3, pair)).collect()
                };
            Samples::sorted(pairs.iter().enumerate().flat_map(of_pair).collect())
        };
        Self {
            requests: samples(|seen| &seen.requests),
            first_frames: samples(|seen| &seen.first_frames),
            levels: samples(|seen| &seen.levels),
            sums: pairs.iter().map(|all| sums_of(all)).collect(),
        }
    }

    pub fn figures(&self) -> Figures {
        intervals(self.sums.len(), |times| self.of(times))
    }

    /// How far each figure is below that of `other`, which has the same pairs: 0.2 is 20 % below.
    pub fn below(&self, other: &Self) -> Figures {
        intervals(self.sums.len(), |times| {
            let (own, other) = (self.of(times), other.of(times));
            std::array::from_fn(|at| {
                let other = other[at].filter(|other| *other > 0.0)?;
                Some(1.0 - own[at]? / other)
            })
        })
    }

    fn of(&self, times: &[u32]) -> Values {
        let mut sums = Sums::default();
        self.sums.iter().zip(times).for_each(|(own, times)| add(&mut sums, own, (*times).into()));
        let [rebuffering, danger, copies, reinjected] =
            sums.map(|(part, whole)| (whole > 0.0).then(|| part / whole));
        Figure::ALL.map(|figure| match figure {
            Figure::RequestP50 => self.requests.at(0.50, times),
            Figure::RequestP95 => self.requests.at(0.95, times),
            Figure::RequestP99 => self.requests.at(0.99, times),
            Figure::FirstFrameP50 => self.first_frames.at(0.50, times),
            Figure::FirstFrameP99 => self.first_frames.at(0.99, times),
            Figure::Rebuffering => rebuffering,
            Figure::BufferP1 => self.levels.at(0.01, times),
            Figure::BufferDanger => danger,
            Figure::Copies => copies,
            Figure::Reinjected => reinjected,
        })
    }
}

fn sums_of(all: &[(Viewing, ServerTraffic)]) -> Sums {
    let mut sums = Sums::default();
    for (seen, sent) in all {
        let danger = seen.levels.iter().filter(|left| **left < DANGER).count();
        let first = sent.source.saturating_sub(sent.again);
        let reinjected = sent.further_datagrams.saturating_sub(sent.lost);
        let own = [
            (seen.stalled.as_secs_f64(), seen.played.as_secs_f64()),
            (danger as f64, seen.levels.len() as f64),
            ((sent.further + sent.again) as f64, first as f64),
            (reinjected as f64, sent.datagrams as f64),
        ];
        add(&mut sums, &own, 1.0);
    }
    sums
}

fn add(sums: &mut Sums, other: &Sums, times: f64) {
    for ((part, whole), other) in sums.iter_mut().zip(other) {
        *part += other.0 * times;
        *whole += other.1 * times;
    }
}

fn intervals(pairs: usize, of: impl Fn(&[u32]) -> Values) -> Figures {
    let mut random = SplitMix64::new(DRAWS_SEED);
    let mut draw = |_| {
        let mut times = vec![0; pairs];
        (0..pairs).for_each(|_| times[random.below(pairs)] += 1);
        of(&times)
    };
    let count = if pairs > 1 { DRAWS } else { 0 };
    let draws: Vec<Values> = (0..count).map(&mut draw).collect();
    let all = of(&vec![1; pairs]);
    let interval = |(at, figure)| {
        let mut values: Vec<f64> = draws.iter().filter_map(|values| values[at]).collect();
        values.sort_by(f64::total_cmp);
        let rank = |per_mille: usize| (values.len() * per_mille).div_ceil(1_000).max(1) - 1;
        let ends = [25, 975].map(|per_mille| values.get(rank(per_mille)).copied());
        (figure, Interval { value: all[at], low: ends[0], high: ends[1] })
    };
    Figure::ALL.into_iter().enumerate().map(interval).collect()
}

/// Less play-time left is a danger (XLINK section 7.1).
pub const DANGER: Duration = Duration::from_millis(50);
const DRAWS: usize = 400;
const DRAWS_SEED: u64 = 17;

#[cfg(test)]
mod tests;
