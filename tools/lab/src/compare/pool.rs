//! Results of one strategy over many drives.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::interval::{Interval, Share, interval};
use super::{Compared, ComparedStrategy, ratio};
use crate::figures::Figures;
use crate::histogram::Histogram;
use crate::run::Causes;
use crate::video::quality::{Percentiles, Player};

/// Results of one strategy over many drives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pooled {
    /// Means over the drives. `delay_ms`: of all packets together, to half a percent.
    #[serde(flatten)]
    pub figures: Figures,
    pub drives: usize,
    #[serde(default)]
    pub intervals: Intervals,
    /// Where late packets lost their time, over all drives.
    pub causes: Causes,
    pub stall_ratio_mean: f64,
    pub stall_ratio_p95: f64,
    pub stall_ratio_p99: f64,
    pub delay_p99_over_bound: Option<f64>,
    pub delay_p99_over_first: Option<f64>,
    pub stall_ratio_over_first: Option<f64>,
    pub stall_ratio_over_bound: Option<f64>,
}

/// 95 % confidence intervals of means over drives; absent for a single drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Intervals {
    pub stall_ratio_mean: Option<Interval>,
    pub delay_p99_over_bound: Option<Interval>,
    pub delay_p99_over_first: Option<Interval>,
    pub stall_ratio_over_first: Option<Interval>,
}

impl Pooled {
    pub(super) fn of_drives(drives: &[&Compared]) -> Vec<Self> {
        let entries =
            || drives.iter().flat_map(|drive| drive.strategies.iter().map(|entry| (*drive, entry)));
        let mut names: Vec<&str> = Vec::new();
        for (_, entry) in entries() {
            if !names.contains(&name(entry)) {
                names.push(name(entry));
            }
        }
        let of_name = |wanted: &&str| -> Self {
            Self::new(&entries().filter(|(_, entry)| name(entry) == *wanted).collect::<Vec<_>>())
        };
        let mut pooled: Vec<Self> = names.iter().map(of_name).collect();
        let first = pooled.first().map_or(0.0, |first| first.stall_ratio_mean);
        for pooled in &mut pooled {
            pooled.stall_ratio_over_first = ratio(pooled.stall_ratio_mean, first);
            let of_drive = |drive: &Compared| stalls_by_first(drive, &pooled.figures.strategy);
            pooled.intervals.stall_ratio_over_first = interval(&by_drive(drives, of_drive));
        }
        pooled
    }

    fn new(entries: &[(&Compared, &ComparedStrategy)]) -> Self {
        let mean_of = |value: &dyn Fn(&Figures) -> f64| {
            mean(entries.iter().map(|(_, entry)| value(&entry.measured.figures))).unwrap_or(0.0)
        };
        let mean_ratio = |ratio_of: fn(&ComparedStrategy) -> Option<f64>| {
            mean(entries.iter().filter_map(|(_, entry)| ratio_of(entry)))
        };
        let mut stalls: Vec<f64> =
            entries.iter().map(|(_, entry)| entry.measured.figures.stall_ratio).collect();
        stalls.sort_unstable_by(f64::total_cmp);
        let stall_at =
            |percent: usize| stalls[(stalls.len() * percent).div_ceil(100).saturating_sub(1)];
        let stall_ratio_mean = mean_of(&|figures| figures.stall_ratio);
        let bound = mean(entries.iter().map(|(drive, _)| drive.bound.stall_ratio));
        let strategy = entries.first().map_or("", |(_, entry)| name(entry));
        let drives: Vec<&Compared> = entries.iter().map(|(drive, _)| *drive).collect();
        let interval_of = |value: &dyn Fn(&ComparedStrategy) -> Option<f64>| {
            interval(&by_drive(&drives, |drive| {
                Some(Share { part: value(find(drive, strategy)?)?, whole: 1.0 })
            }))
        };
        Self {
            figures: Figures {
                strategy: strategy.to_owned(),
                fps: mean_of(&|figures| figures.fps),
                stall_ratio: stall_ratio_mean,
                ssim: mean(entries.iter().filter_map(|(_, entry)| entry.measured.figures.ssim)),
                delay_ms: delays(entries),
                delay_arrived_ms: None,
                residual_loss: mean_of(&|figures| figures.residual_loss),
                late: mean_of(&|figures| figures.late),
                redundancy: mean_of(&|figures| figures.redundancy),
                cpu_percent: None,
            },
            drives: names(&drives).len(),
            intervals: Intervals {
                stall_ratio_mean: interval_of(&|entry| Some(entry.measured.figures.stall_ratio)),
                delay_p99_over_bound: interval_of(&|entry| entry.delay_p99_over_bound),
                delay_p99_over_first: interval_of(&|entry| entry.delay_p99_over_first),
                stall_ratio_over_first: None,
            },
            causes: causes(entries),
            stall_ratio_mean,
            stall_ratio_p95: stall_at(95),
            stall_ratio_p99: stall_at(99),
            delay_p99_over_bound: mean_ratio(|entry| entry.delay_p99_over_bound),
            delay_p99_over_first: mean_ratio(|entry| entry.delay_p99_over_first),
            stall_ratio_over_first: None,
            stall_ratio_over_bound: ratio(stall_ratio_mean, bound.unwrap_or(0.0)),
        }
    }
}

pub(super) fn names<'a>(drives: &[&'a Compared]) -> BTreeSet<&'a str> {
    drives.iter().map(|drive| drive.name.as_str()).collect()
}

fn by_drive(drives: &[&Compared], share: impl Fn(&Compared) -> Option<Share>) -> Vec<Share> {
    let of_name = |name: &str| {
        let own = drives.iter().filter(|drive| drive.name == name);
        own.filter_map(|drive| share(drive)).reduce(Share::and)
    };
    names(drives).into_iter().filter_map(of_name).collect()
}

fn stalls_by_first(drive: &Compared, strategy: &str) -> Option<Share> {
    let stalls = |entry: &ComparedStrategy| entry.measured.figures.stall_ratio;
    let part = stalls(find(drive, strategy)?);
    Some(Share { part, whole: stalls(drive.strategies.first()?) })
}

fn find<'a>(drive: &'a Compared, strategy: &str) -> Option<&'a ComparedStrategy> {
    drive.strategies.iter().find(|entry| name(entry) == strategy)
}

fn name(entry: &ComparedStrategy) -> &str {
    &entry.measured.figures.strategy
}

fn delays(entries: &[(&Compared, &ComparedStrategy)]) -> Percentiles {
    let mut all = Histogram::default();
    for detail in entries.iter().filter_map(|(_, entry)| entry.measured.detail.as_ref()) {
        all.merge(&detail.delays);
    }
    let deadline = Player::default().deadline.as_secs_f64() * 1e3;
    let Percentiles { p50, p95, p99, p999 } = all.percentiles();
    let [p50, p95, p99, p999] = [p50, p95, p99, p999].map(|delay| delay.min(deadline));
    Percentiles { p50, p95, p99, p999 }
}

fn causes(entries: &[(&Compared, &ComparedStrategy)]) -> Causes {
    let mut all = Causes::default();
    entries.iter().for_each(|(_, entry)| all.merge(&entry.measured.causes));
    all
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}
