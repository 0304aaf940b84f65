//! Figures of several drives together: the delays of all their packets, and their bounds.

use std::collections::BTreeMap;

use super::charts::Curve;
use super::{page, strategy};
use crate::bound::Bound;
use crate::compare::Compared;
use crate::histogram::Histogram;
use crate::run::Causes;
use crate::video::quality::Percentiles;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Packets {
    pub delays: Histogram,
    pub lost: f64,
}

impl Packets {
    pub fn of(name: &str, drives: &[&Compared]) -> Self {
        let mut packets = Self::default();
        let entries = drives.iter().flat_map(|drive| &drive.strategies);
        for entry in entries.filter(|entry| strategy(entry) == name) {
            if let Some(detail) = &entry.measured.detail {
                let figures = &entry.measured.figures;
                let lost = (figures.residual_loss - figures.late).max(0.0);
                packets.lost += lost * detail.delays.count() as f64;
                packets.delays.merge(&detail.delays);
            }
        }
        packets
    }

    pub fn curve(&self, name: &str, class: String) -> Curve {
        let count = self.delays.count().max(1) as f64;
        let points = self.delays.cumulative().map(|(ms, below)| (ms, below as f64 / count));
        Curve { name: name.to_owned(), class, points: points.collect() }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Limit {
    /// Share of all packets that can arrive within a delay in ms, 0..1; empty without details.
    pub curve: Vec<(f64, f64)>,
    /// The lowest percentiles of any drive: a lower bound of the pooled percentiles.
    pub least: Percentiles,
}

impl Limit {
    /// The bound of `drives`, weighted by their packets.
    pub fn of(drives: &[&Compared]) -> Self {
        let packets = |drive: &Compared| {
            let mut details = drive.strategies.iter().filter_map(|e| e.measured.detail.as_ref());
            details.next().map_or(0, |detail| detail.delays.count()) as f64
        };
        let all: f64 = drives.iter().map(|drive| packets(drive)).sum();
        if all == 0.0 || drives.iter().any(|drive| drive.bound_within.is_empty()) {
            return Self::default();
        }
        // Delays in microseconds, as an ordered key.
        let mut shares: BTreeMap<u64, f64> = BTreeMap::new();
        for (ms, _) in drives.iter().flat_map(|drive| &drive.bound_within) {
            shares.entry((ms * 1e3).floor() as u64).or_default();
        }
        for drive in drives {
            let weight = packets(drive) / all;
            for (us, share) in &mut shares {
                *share += weight * share_within(&drive.bound_within, *us as f64 / 1e3);
            }
        }
        let least = |of: fn(&Percentiles) -> f64| {
            drives.iter().map(|drive| of(&drive.bound.delay_ms)).fold(f64::INFINITY, f64::min)
        };
        Self {
            curve: shares.into_iter().map(|(us, share)| (us as f64 / 1e3, share)).collect(),
            least: Percentiles {
                p50: least(|delay| delay.p50),
                p95: least(|delay| delay.p95),
                p99: least(|delay| delay.p99),
                p999: least(|delay| delay.p999),
            },
        }
    }

    /// The share of packets that cannot arrive within a delay.
    pub fn beyond(&self, ms: f64) -> Option<f64> {
        (!self.curve.is_empty()).then(|| 1.0 - share_within(&self.curve, ms))
    }

    /// Lower bounds of the percentiles, ms.
    pub fn percentiles(&self) -> Option<Percentiles> {
        let Percentiles { p50, p95, p99, p999 } = self.least;
        Some(Percentiles {
            p50: self.delay_at(0.5)?.max(p50),
            p95: self.delay_at(0.95)?.max(p95),
            p99: self.delay_at(0.99)?.max(p99),
            p999: self.delay_at(0.999)?.max(p999),
        })
    }

    /// The largest delay of the curve at which this share is not reached, ms; the deadline if the
    /// curve ends below the share.
    fn delay_at(&self, share: f64) -> Option<f64> {
        let (last, _) = self.curve.last()?;
        Some(match self.curve.iter().position(|point| point.1 >= share) {
            None => *last,
            Some(0) => 0.0,
            Some(reached) => self.curve[reached - 1].0,
        })
    }

    /// The bound as a curve, which rises to each share right behind the previous delay.
    pub fn as_curve(&self) -> Curve {
        let delays = self.curve.first().into_iter().chain(&self.curve).map(|point| point.0);
        Curve {
            name: "bound".to_owned(),
            class: page::BOUND_CLASS.to_owned(),
            points: delays.zip(self.curve.iter().map(|point| point.1)).collect(),
        }
    }
}

/// The share of the first delay not below `ms`; rounds in favour of the bound.
fn share_within(curve: &[(f64, f64)], ms: f64) -> f64 {
    let at = curve.partition_point(|point| point.0 < ms - 1e-3);
    curve.get(at).or(curve.last()).map_or(0.0, |point| point.1)
}

pub(super) fn mean(drives: &[&Compared], figure: impl Fn(&Bound) -> f64) -> f64 {
    drives.iter().map(|drive| figure(&drive.bound)).sum::<f64>() / drives.len().max(1) as f64
}

pub(super) fn stall_at(drives: &[&Compared], percent: usize, of: impl Fn(&Bound) -> f64) -> f64 {
    let mut stalls: Vec<f64> = drives.iter().map(|drive| of(&drive.bound)).collect();
    stalls.sort_unstable_by(f64::total_cmp);
    let rank = (stalls.len() * percent).div_ceil(100);
    stalls.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

pub(super) fn causes(causes: &Causes) -> [(&'static str, &'static str, &crate::run::Cause); 5] {
    [
        ("waiting for window", "c0", &causes.window_wait),
        ("detection", "c1", &causes.detection),
        ("recovery", "c2", &causes.recovery),
        ("link queue", "c3", &causes.link_queue),
        ("propagation", "c4", &causes.propagation),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_delays_the_bound_errs_to_its_own_side() {
        let of_curve = |curve: &[(f64, f64)]| Limit { curve: curve.into(), ..Limit::default() };
        let limit = of_curve(&[(1.0, 0.0), (2.0, 0.5), (4.0, 1.0)]);
        assert_eq!(limit.beyond(3.0), Some(0.0));
        assert_eq!(limit.beyond(2.0), Some(0.5));
        assert_eq!(limit.beyond(9.0), Some(0.0));
        assert_eq!(Limit::default().beyond(1.0), None);
        assert_eq!((limit.delay_at(0.5), limit.delay_at(0.51)), (Some(1.0), Some(2.0)));
        assert_eq!(limit.as_curve().points, [(1.0, 0.0), (1.0, 0.5), (2.0, 1.0)]);
        let quick = of_curve(&[(1.0, 0.9), (2.0, 1.0)]);
        assert_eq!(quick.delay_at(0.5), Some(0.0));
        let lossy = of_curve(&[(1.0, 0.0), (700.0, 0.9)]);
        assert_eq!(lossy.delay_at(0.99), Some(700.0), "the deadline");
    }

    #[test]
    fn what_no_single_drive_can_do_all_together_cannot_either() {
        let least = Percentiles { p50: 1.25, ..Percentiles::default() };
        let limit = Limit { curve: vec![(1.0, 0.0), (2.0, 1.0)], least };
        let percentiles = limit.percentiles().unwrap();
        assert_eq!((percentiles.p50, percentiles.p95), (1.25, 1.0));
        assert_eq!(Limit::default().percentiles(), None);
    }
}
