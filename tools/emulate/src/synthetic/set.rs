//! Sets of drives that differ from each other as much as recorded drives do.
//!
//! ```text
//! seed ─┬─> of a link on a drive: level, volatility, unrest, distance ─┐
//!       └─> chance within the drive ───────────────────────────────────┴─> Trace, a step per 100 ms
//! ```
//!
//! Within the 90 s of a drive a link is mostly good or mostly bad: half of the variance of the
//! capacity's normal score belongs to the drive, and spikes and losses concentrate on some drives.
//!
//! Source: the constants are fitted to 59 recorded drives of 90 s with four uplinks, from the
//! NUWiNS PAM 2025 and CoNEXT 2025 driving data; tools/experiments/synthetic-drives.md compares
//! their figures with the results.

use std::time::Duration;

use roadweave_proto::{Rate, SplitMix64};

use super::operator::{Gaps, Operator, RttQuantiles};
use super::{Character, Component, STEP, Wander, trace_of};
use crate::capacity::Capacity;
use crate::drive::{Drive, DriveLink};
use crate::random::Random;
use crate::timeline::{AtEnd, Timeline};
use crate::trace::Trace;

/// A set of drives with four uplinks each: att, lte, tmobile, verizon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveSet {
    pub seed: u64,
    pub length: Duration,
}

impl DriveSet {
    /// Number of drives in the recorded set, and in a set with the recorded shares of classes.
    pub const DRIVES: u32 = 59;

    /// The drive `index`, from 0; equal sets have equal drives.
    pub fn drive(&self, index: u32) -> Drive {
        let links = (0_u64..).zip(&KINDS).map(|(link, kind)| {
            let trace = self.trace(index, link, kind);
            DriveLink::from_uplink(kind.operator.name, trace)
        });
        Drive { links: links.collect() }
    }

    fn trace(&self, index: u32, link: u64, kind: &OperatorKind) -> Trace {
        let OperatorKind { paired, .. } = *kind;
        let own = |what: u64| self.score(index, link, what, 0.0);
        let level = self.score(index, link, LEVELS, if paired { LEVEL_SHARED } else { 0.0 });
        // Each has mean 1, the volatility a mean square of 1.
        let unrest = (kind.unrest * own(UNRESTS) - kind.unrest.powi(2) / 2.0).exp().min(UNREST_MAX);
        let outages = (-OUTAGES_BY_LEVEL * level - OUTAGES_BY_LEVEL.powi(2) / 2.0).exp();
        let volatility = (VOLATILITY * own(VOLATILITIES) - VOLATILITY.powi(2)).exp();
        let distance = (DISTANCE * own(DISTANCES)).exp();
        let mut operator = kind.operator.clone();
        operator.outages.per_minute *= outages;
        operator.loss = (operator.loss * unrest).min(LOSS_MAX);
        operator.rtt = operator.rtt.moved_to(operator.rtt.p50_ms * distance);
        let character = Character {
            level: LEVEL * level,
            components: &COMPONENTS,
            volatility,
            shared: if paired { 1.0 } else { 0.0 },
            flicker: FLICKER,
            in_steps: true,
            wander: WANDER,
            spikes: unrest,
        };
        let seed = SplitMix64::word(self.seed, index.into());
        let length = self.length.max(STEP);
        let trace = trace_of(seed, link, &operator, &character, length);
        let rates = trace.capacity().mean_rates(STEP, length);
        let rates =
            (0_u32..).zip(rates).map(|(step, bps)| (STEP * step, Rate::from_bps(bps as u64)));
        let rates = Timeline::new(rates, length, AtEnd::Repeat).expect("steps ascend from zero");
        trace.with_capacity(Capacity::Rates(rates))
    }

    /// The score of `link` in drive `index` for `what`; links have the part `shared` in common.
    ///
    /// Each [`DRIVES`](Self::DRIVES) consecutive drives have mean 0 and deviation 1, so that their
    /// classes do not depend on a few lucky draws.
    fn score(&self, index: u32, link: u64, what: u64, shared: f64) -> f64 {
        let block = u64::from(index / Self::DRIVES * Self::DRIVES);
        let scores: Vec<f64> = (block..block + u64::from(Self::DRIVES))
            .map(|drive| {
                let seed = SplitMix64::word(self.seed, drive);
                let draw = |part| Random::part(seed, part).normal();
                shared.sqrt() * draw(what) + (1.0 - shared).sqrt() * draw(what + 1 + link)
            })
            .collect();
        let mean = scores.iter().sum::<f64>() / f64::from(Self::DRIVES);
        let squares = scores.iter().map(|score| (score - mean).powi(2)).sum::<f64>();
        let deviation = (squares / f64::from(Self::DRIVES)).sqrt();
        (scores[(index % Self::DRIVES) as usize] - mean) / deviation
    }
}

struct OperatorKind {
    operator: Operator,
    /// Deviation of the logarithm of a drive's frequency of spikes and losses.
    unrest: f64,
    /// Whether it was recorded together with the other paired operator.
    paired: bool,
}

/// Capacities are the quantiles of half seconds. The median of round trips is recorded; their other
/// quantiles are chosen such that the time above the median + 100 ms is near the recorded one, and
/// p99.9 no higher. Loss is the recorded share, or more where [`UNREST_MAX`] reduces it.
const KINDS: [OperatorKind; 4] = [
    OperatorKind {
        operator: Operator {
            capacity: &quantiles([0.08, 0.75, 3.1, 15.1, 37.4, 71.7]),
            rtt: RttQuantiles { p50_ms: 71.0, p99_ms: 305.0, p999_ms: 905.0 },
            loss: 0.0044,
            loss_burst_probes: 2.4,
            gaps: GAPS,
            ..Operator::ATT
        },
        unrest: 0.8,
        paired: true,
    },
    OperatorKind {
        operator: Operator {
            capacity: &quantiles([0.05, 0.95, 4.0, 17.2, 33.8, 74.4]),
            rtt: RttQuantiles { p50_ms: 62.0, p99_ms: 477.0, p999_ms: 5_721.0 },
            loss: 0.0164,
            loss_burst_probes: 8.7,
            gaps: GAPS,
            ..Operator::LTE
        },
        unrest: 1.2,
        paired: false,
    },
    OperatorKind {
        operator: Operator {
            capacity: &quantiles([0.05, 1.5, 9.5, 47.2, 80.3, 133.0]),
            rtt: RttQuantiles { p50_ms: 62.0, p99_ms: 1_050.0, p999_ms: 9_940.0 },
            loss: 0.021,
            loss_burst_probes: 4.5,
            gaps: Gaps { per_minute: 1.7, ..GAPS },
            outages: Gaps {
                per_minute: 0.8,
                at_least: &[(500.0, 1.0), (1_000.0, 0.6), (3_000.0, 0.1), (7_000.0, 0.0)],
            },
            ..Operator::TMOBILE
        },
        unrest: 1.8,
        paired: false,
    },
    OperatorKind {
        operator: Operator {
            capacity: &quantiles([0.01, 0.33, 2.1, 14.1, 32.3, 65.8]),
            rtt: RttQuantiles { p50_ms: 60.0, p99_ms: 290.0, p999_ms: 2_284.0 },
            loss: 0.0029,
            loss_burst_probes: 3.0,
            gaps: GAPS,
            outages: Gaps {
                per_minute: 0.12,
                at_least: &[(500.0, 1.0), (1_000.0, 0.8), (11_000.0, 0.0)],
            },
            ..Operator::VERIZON
        },
        unrest: 1.0,
        paired: true,
    },
];

const fn quantiles([a, b, c, d, e, f]: [f64; 6]) -> [(f64, f64); 6] {
    [(-2.5, a), (-1.645, b), (-1.0, c), (0.0, d), (0.674, e), (2.0, f)]
}

/// Two per minute of 200 to 600 ms, in steps of 100 ms.
const GAPS: Gaps = Gaps { per_minute: 2.0, at_least: &[(150.0, 1.0), (650.0, 0.0)] };

/// The score apart from the level. Recorded scores correlate with themselves by 0.94 after 0.5 s,
/// 0.84 after 5 s, 0.78 after 10 s, 0.69 after 20 s and 0.52 after a minute; gaps reduce it
/// further.
const COMPONENTS: [Component; 2] = [
    Component { weight: 0.40, memory_seconds: 30.0, shared: 0.3 },
    Component { weight: 0.05, memory_seconds: 4.0, shared: 0.0 },
];
/// Deviation of the level, as a normal score: 0.78 to 0.84 with the components' rest over 90 s.
const LEVEL: f64 = 0.72;
/// Correlation of the levels of the paired links.
const LEVEL_SHARED: f64 = 0.33;
/// Deviation of the logarithm of a link's variation within a drive.
const VOLATILITY: f64 = 0.5;
/// The highest unrest: T-Mobile's worst drive has spikes 22 % of the time.
const UNREST_MAX: f64 = 4.0;
/// How the logarithm of the number of outages falls with the level: T-Mobile's worst fifth of
/// drives is without capacity for 9 % of the time, the best for 1.4 %, gaps included.
const OUTAGES_BY_LEVEL: f64 = 1.2;
/// Deviation of the logarithm of a link's median round-trip time.
const DISTANCE: f64 = 0.17;
/// Recorded round-trip times correlate with themselves by 0.4 after a probe, 0.25 after a second
/// and 0.15 after five; their logarithm deviates by 0.15 below the median.
const WANDER: Wander = Wander { deviation: 0.09, keep: 0.96, noise: 0.12 };
/// Recorded: 0.30 of the mean, gaps included.
const FLICKER: f64 = 0.33;
/// Bound of the share of time that a link's packets are lost.
const LOSS_MAX: f64 = 0.5;

// Seed parts for each link of a drive, ten links each.
const LEVELS: u64 = 200;
const VOLATILITIES: u64 = 210;
const UNRESTS: u64 = 220;
const DISTANCES: u64 = 230;

#[cfg(test)]
mod tests;
