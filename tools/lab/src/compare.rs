//! Many drives under many strategies: figures of each drive, and of all together.
//!
//! ```text
//!   drive x strategy ──Job──> Scenario ─run─> RunOutcome ─> Measured ─┐
//!   drive ───────────────────────────────────────────────> Bound ─────┼─> Compared (per drive)
//!                                                                     └─> Pooled (all, per class)
//! ```
//!
//! A [`Measured`] depends on the drive, the strategy and the [`Setting`] alone, so that jobs may
//! run in any order, and results may be stored. Equal settings give equal bytes of JSON.
//!
//! Delays cover *all* packets sent: lost and late packets count as the deadline. Otherwise a
//! strategy could improve its percentiles by dropping packets.

use std::collections::BTreeSet;
use std::time::Duration;

use roadweave_emulate::{AddedLoss, Drive, Trace};
use roadweave_proto::{Order, Rate};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{Strategy, UnknownStrategy};
use serde::{Deserialize, Serialize};

use crate::bound::{Bound, Curve, delays_of_all};
use crate::class::Class;
use crate::figures::{Figures, Timeline};
use crate::histogram::Histogram;
use crate::run::{Causes, LinkReport, RunOutcome};
use crate::scenario::Scenario;
use crate::strategies;
use crate::traffic::{Detail, TrafficReport, TrafficSpec};
use crate::video::quality::{Percentiles, Player};
use crate::world::Machine;

mod interval;
mod pool;

pub use interval::Interval;
pub use pool::{Intervals, Pooled};

/// Stands for each link of a drive alone.
pub const EVERY_SINGLE: &str = "single:*";
/// Stands for the best link of a drive alone.
pub const BEST_SINGLE: &str = "best-single";

/// Settings of all runs of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    pub bitrate_bps: u64,
    pub seconds: u32,
    /// Seed of all randomness; with several seeds, the first.
    pub seed: u64,
    pub congestion: CongestionControl,
    #[serde(default, skip_serializing_if = "Machine::is_punctual")]
    pub machine: Machine,
    /// Loss of every link beside its recording's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<AddedLoss>,
    /// Whether strategies that resend until a packet arrives deliver in order, as a QUIC stream
    /// does: the rivals of CellFusion section 8.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rivals_in_order: bool,
}

/// A strategy as the user names it, or a name that stands for several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contestant {
    Strategy(Strategy),
    EverySingle,
    BestSingle,
}

/// Results of one strategy on one drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    #[serde(flatten)]
    pub figures: Figures,
    /// Time from the capture of a frame to its last packet, of complete frames, ms.
    pub frame_delay_ms: Percentiles,
    /// Where late packets lost their time.
    pub causes: Causes,
    /// Details for a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<RunDetail>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunDetail {
    /// Delays of all packets sent, up to the deadline.
    pub delays: Histogram,
    /// Begin and end of every stall, ms since the start of the stream.
    pub stalls_ms: Vec<(f64, f64)>,
    pub links: Vec<LinkReport>,
    pub timeline: Timeline,
}

/// One strategy on one drive, compared with the bound and with the first strategy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ComparedStrategy {
    #[serde(flatten)]
    pub measured: Measured,
    /// The best link, for [`BEST_SINGLE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    pub delay_p99_over_bound: Option<f64>,
    /// Its stall ratio relative to the bound's; absent if the bound's is zero.
    pub stall_ratio_over_bound: Option<f64>,
    pub delay_p99_over_first: Option<f64>,
    /// Its stall ratio relative to the first strategy's; absent if that is zero.
    pub stall_ratio_over_first: Option<f64>,
}

/// All strategies on one drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    pub name: String,
    #[serde(default)]
    pub seed: u64,
    /// How hard it is for this stream.
    pub class: Class,
    pub bound: Bound,
    /// The least possible delays, if there are details.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bound_within: Curve,
    /// In the order of the contestants; links of [`EVERY_SINGLE`] in the order of the drive.
    pub strategies: Vec<ComparedStrategy>,
}

/// The drives of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassPool {
    pub class: Class,
    pub drives: usize,
    pub pooled: Vec<Pooled>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub version: String,
    #[serde(flatten)]
    pub setting: Setting,
    /// Ascending by name; one entry per drive and seed.
    pub drives: Vec<Compared>,
    /// Each strategy over all drives, in order.
    pub pooled: Vec<Pooled>,
    /// Each strategy over the drives of each class, the easiest class first, without empty classes.
    pub classes: Vec<ClassPool>,
}

impl Setting {
    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    pub fn bitrate(&self) -> Rate {
        Rate::from_bps(self.bitrate_bps)
    }

    /// The synthetic video stream.
    pub fn video(&self) -> TrafficSpec {
        TrafficSpec::video(self.bitrate(), self.duration())
    }

    /// The scenario of one job with the stream of `video`.
    pub fn scenario(
        &self,
        name: &str,
        drive: &Drive,
        strategy: Strategy,
        video: &TrafficSpec,
    ) -> Scenario {
        let mut scenario =
            Scenario::of_drive(name, drive, strategy, self.bitrate(), self.seconds, self.seed);
        if let Some(loss) = self.loss {
            let links = scenario.links.into_iter();
            scenario.links = links.map(|link| link.with_loss(loss)).collect();
        }
        for lane in scenario.lanes.iter_mut().filter(|_| self.rivals_in_order) {
            if lane.keeps_for() >= Order::MAX_BUFFER {
                lane.order = Order::Reorder { max_buffer: Order::MAX_BUFFER };
            }
        }
        let (congestion, machine) = (self.congestion, self.machine);
        Scenario { traffic: vec![video.clone()], congestion, machine, ..scenario }
    }

    /// How hard `drive` is for the stream.
    pub fn class(&self, drive: &Drive) -> Class {
        let links: Vec<&Trace> = drive.links.iter().map(|link| &link.up).collect();
        Class::of(&links, self.bitrate(), self.duration())
    }
}

impl Contestant {
    /// The contestants of a list of names; fails with the first unknown name.
    pub fn parse_all<'a>(
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<Self>, UnknownStrategy> {
        let parse = |name: &str| {
            Ok(match name {
                EVERY_SINGLE => Self::EverySingle,
                BEST_SINGLE => Self::BestSingle,
                other => Self::Strategy(strategies::strategy(other)?),
            })
        };
        names.into_iter().map(parse).collect()
    }

    /// Strategies to run on `drive` for these contestants, in order and without repetition.
    pub fn strategies(contestants: &[Self], drive: &Drive) -> Vec<Strategy> {
        let mut seen = BTreeSet::new();
        let all = contestants.iter().flat_map(|contestant| contestant.strategies_on(drive));
        all.filter(|strategy| seen.insert(strategy.as_str().to_owned())).collect()
    }

    fn strategies_on(&self, drive: &Drive) -> Vec<Strategy> {
        match self {
            Self::Strategy(strategy) => vec![strategy.clone()],
            Self::EverySingle | Self::BestSingle => {
                let name = |link: &roadweave_emulate::DriveLink| format!("single:{}", link.name);
                drive.links.iter().filter_map(|link| name(link).parse().ok()).collect()
            }
        }
    }
}

impl Measured {
    pub fn new(outcome: &RunOutcome) -> Self {
        let mut figures = outcome.run.figures.clone();
        figures.delay_arrived_ms = Some(figures.delay_ms.clone());
        let mut delays = outcome.run.delays.clone();
        // As in `Scenario::judged`.
        let is_video = |report: &&TrafficReport| matches!(report.detail, Detail::Video(_));
        let judged = outcome.traffic.iter().find(is_video).or(outcome.traffic.first());
        if let Some((report, stream)) = judged.and_then(|report| Some((report, report.stream()?))) {
            let deadline = match &report.detail {
                Detail::Video(video) => video.player.deadline,
                _ => Player::default().deadline,
            };
            delays = delays_of_all(&stream.log, &stream.arrivals, deadline);
            figures.delay_ms = Percentiles::of_sorted(&delays);
        }
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        Self {
            figures,
            frame_delay_ms: outcome.frame_delay_ms.clone(),
            causes: outcome.causes.clone(),
            detail: Some(Box::new(RunDetail {
                delays: Histogram::new(&delays),
                stalls_ms: outcome.run.stalls.iter().map(|(from, to)| (ms(from), ms(to))).collect(),
                links: outcome.links.clone(),
                timeline: outcome.run.timeline.clone(),
            })),
        }
    }

    /// Sort key, lower is better: stalls first, then the tail of delays.
    fn badness(&self) -> [f64; 5] {
        let delay = &self.figures.delay_ms;
        [self.figures.stall_ratio, delay.p99, delay.p95, delay.p50, self.figures.residual_loss]
    }
}

impl Compared {
    /// Combines the results of `contestants` on one drive. `measured` has one entry per strategy of
    /// [`Contestant::strategies`], in its order.
    pub fn new(
        name: &str,
        class: Class,
        bound: (Bound, Curve),
        contestants: &[Contestant],
        drive: &Drive,
        measured: &[Measured],
    ) -> Self {
        let find = |strategy: &Strategy| {
            measured.iter().find(|measured| measured.figures.strategy == strategy.as_str())
        };
        let mut strategies: Vec<ComparedStrategy> = Vec::new();
        for contestant in contestants {
            let own = contestant.strategies_on(drive);
            let own = own.iter().filter_map(find).map(|measured| ComparedStrategy {
                measured: measured.clone(),
                ..ComparedStrategy::default()
            });
            match contestant {
                Contestant::BestSingle => strategies.extend(best_single(own)),
                _ => strategies.extend(own),
            }
        }
        let (bound, bound_within) = bound;
        let first = strategies.first().map(|first| first.measured.figures.clone());
        for entry in &mut strategies {
            let figures = &entry.measured.figures;
            let (stall, p99) = (figures.stall_ratio, figures.delay_ms.p99);
            entry.delay_p99_over_bound = ratio(p99, bound.delay_ms.p99);
            entry.stall_ratio_over_bound = ratio(stall, bound.stall_ratio);
            if let Some(first) = &first {
                entry.delay_p99_over_first = ratio(p99, first.delay_ms.p99);
                entry.stall_ratio_over_first = ratio(stall, first.stall_ratio);
            }
        }
        Self { name: name.to_owned(), seed: 0, class, bound, bound_within, strategies }
    }
}

impl Comparison {
    /// Combines the results of all drives, sorted by name.
    pub fn new(version: &str, setting: Setting, mut drives: Vec<Compared>) -> Self {
        drives.sort_by(|a, b| a.name.cmp(&b.name).then(a.seed.cmp(&b.seed)));
        let all: Vec<&Compared> = drives.iter().collect();
        let of_class = |class: Class| -> Vec<&Compared> {
            drives.iter().filter(|drive| drive.class == class).collect()
        };
        let classes = Class::ALL.map(|class| (class, of_class(class)));
        let classes =
            classes.into_iter().filter(|(_, drives)| !drives.is_empty()).map(|(class, drives)| {
                ClassPool { class, drives: count(&drives), pooled: Pooled::of_drives(&drives) }
            });
        Self {
            version: version.to_owned(),
            setting,
            classes: classes.collect(),
            pooled: Pooled::of_drives(&all),
            drives,
        }
    }

    #[must_use]
    pub fn without_details(mut self) -> Self {
        for drive in &mut self.drives {
            drive.bound_within.clear();
            drive.strategies.iter_mut().for_each(|entry| entry.measured.detail = None);
        }
        self
    }
}

/// Number of different drives, regardless of seeds.
pub fn count(drives: &[&Compared]) -> usize {
    pool::names(drives).len()
}

fn best_single(singles: impl Iterator<Item = ComparedStrategy>) -> Option<ComparedStrategy> {
    let worse = |a: &ComparedStrategy, b: &ComparedStrategy| {
        let (a, b) = (a.measured.badness(), b.measured.badness());
        a.iter().zip(&b).map(|(a, b)| a.total_cmp(b)).find(|order| order.is_ne())
    };
    let mut best = singles.min_by(|a, b| worse(a, b).unwrap_or(std::cmp::Ordering::Equal))?;
    let name = std::mem::replace(&mut best.measured.figures.strategy, BEST_SINGLE.to_owned());
    best.link = name.strip_prefix("single:").map(str::to_owned);
    Some(best)
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
mod tests;
