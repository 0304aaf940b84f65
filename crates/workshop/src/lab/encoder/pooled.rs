//! What one way brought on the drives of one class, with intervals, and its tables.
//!
//! ```text
//! runs of a drive ─► pool of its frames ─► drives drawn again and again ─► 95 % interval
//! ```
//!
//! Frames of one drive have its links in common, so that whole drives are drawn (bootstrap by
//! cluster), the same ones for each way.

use roadweave_lab::class::Class;
use roadweave_lab::closed_loop::Seen;
use roadweave_types::SplitMix64;
use serde::Serialize;

use crate::table;

/// What one way brought on the drives of one class.
#[derive(Debug, Default, Serialize)]
pub(super) struct Pooled {
    /// `all`: on the drives of all classes.
    class: String,
    way: String,
    runs: usize,
    /// Means over the runs.
    ssim_db: f64,
    in_time_db: f64,
    undamaged: f64,
    stall_ratio: f64,
    /// The most of a run.
    stall_ratio_max: f64,
    /// Runs without a stall.
    without_stall: usize,
    sent_mbps: f64,
    redundancy: f64,
    /// Of all frames of all runs.
    frame_delay_ms: Distribution,
    /// Of all frames of all runs that were shown undamaged.
    shown_ssim_db: Distribution,
    /// Of the mean SSIM of what was shown.
    ssim_db_interval: Option<Interval>,
    /// Of the p95 of frame delays, to half a millisecond.
    frame_delay_p95_ms_interval: Option<Interval>,
}

#[derive(Debug, Default, Serialize)]
struct Distribution {
    mean: f64,
    p5: f64,
    p25: f64,
    p50: f64,
    p75: f64,
    p95: f64,
    p99: f64,
}

/// Where a figure is in 95 of 100 draws of the drives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Interval {
    low: f64,
    high: f64,
}

impl Pooled {
    /// `drives`: the runs of each drive, one a seed.
    pub(super) fn new(class: Option<Class>, way: &str, drives: &[Vec<Seen>]) -> Self {
        let runs: Vec<&Seen> = drives.iter().flatten().collect();
        let mean =
            |of: fn(&Seen) -> f64| runs.iter().map(|it| of(it)).sum::<f64>() / runs.len() as f64;
        Self {
            class: class.map_or_else(|| "all".to_owned(), |class| class.to_string()),
            way: way.to_owned(),
            runs: runs.len(),
            ssim_db: mean(|seen| seen.ssim_db),
            in_time_db: mean(|seen| seen.in_time_db),
            undamaged: mean(|seen| seen.undamaged),
            stall_ratio: mean(|seen| seen.stall_ratio),
            stall_ratio_max: runs.iter().map(|seen| seen.stall_ratio).fold(0.0, f64::max),
            without_stall: runs.iter().filter(|seen| seen.stalls == 0).count(),
            sent_mbps: mean(|seen| seen.sent_mbps),
            redundancy: mean(|seen| seen.redundancy),
            frame_delay_ms: Distribution::of(runs.iter().flat_map(|seen| &seen.frame_delays_ms)),
            shown_ssim_db: Distribution::of(runs.iter().flat_map(|seen| &seen.ssims_db)),
            ssim_db_interval: ssim_interval(drives),
            frame_delay_p95_ms_interval: delay_interval(drives),
        }
    }
}

impl Distribution {
    fn of<'a>(values: impl Iterator<Item = &'a f64>) -> Self {
        let mut values: Vec<f64> = values.copied().collect();
        values.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (values.len() as f64 * share).ceil() as usize;
            values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self {
            mean: values.iter().sum::<f64>() / values.len().max(1) as f64,
            p5: at(0.05),
            p25: at(0.25),
            p50: at(0.5),
            p75: at(0.75),
            p95: at(0.95),
            p99: at(0.99),
        }
    }
}

fn ssim_interval(drives: &[Vec<Seen>]) -> Option<Interval> {
    let sums: Vec<f64> =
        drives.iter().map(|runs| runs.iter().map(|seen| seen.ssim_db).sum()).collect();
    interval(drives.len(), |times| {
        let weighed = |of: &dyn Fn(usize) -> f64| -> f64 {
            times.iter().enumerate().map(|(drive, count)| f64::from(*count) * of(drive)).sum()
        };
        weighed(&|drive| sums[drive]) / weighed(&|drive| drives[drive].len() as f64).max(1.0)
    })
}

fn delay_interval(drives: &[Vec<Seen>]) -> Option<Interval> {
    let bins: Vec<Vec<u32>> = drives.iter().map(|runs| binned(runs)).collect();
    let longest = bins.iter().map(Vec::len).max().unwrap_or_default();
    interval(drives.len(), |times| {
        let mut sums = vec![0_u64; longest];
        for (bins, count) in bins.iter().zip(times) {
            bins.iter().zip(&mut sums).for_each(|(bin, sum)| *sum += u64::from(bin * count));
        }
        let wanted = (sums.iter().sum::<u64>() as f64 * 0.95).ceil() as u64;
        let mut seen = 0;
        let reached = |sum: &u64| {
            seen += sum;
            seen >= wanted
        };
        sums.iter().position(reached).unwrap_or_default() as f64 * BIN_MS
    })
}

/// How many frame delays are in each [`BIN_MS`].
fn binned(runs: &[Seen]) -> Vec<u32> {
    let mut bins = Vec::new();
    for delay in runs.iter().flat_map(|seen| &seen.frame_delays_ms) {
        let bin = (delay / BIN_MS).round() as usize;
        if bins.len() <= bin {
            bins.resize(bin + 1, 0);
        }
        bins[bin] += 1;
    }
    bins
}

/// Of draws of the drives, with how often each is drawn; none of a single drive.
fn interval(drives: usize, of: impl Fn(&[u32]) -> f64) -> Option<Interval> {
    if drives < 2 {
        return None;
    }
    let mut random = SplitMix64::new(DRAWS_SEED);
    let mut draw = |_| {
        let mut times = vec![0; drives];
        (0..drives).for_each(|_| times[random.below(drives)] += 1);
        of(&times)
    };
    let mut values: Vec<f64> = (0..DRAWS).map(&mut draw).collect();
    values.sort_unstable_by(f64::total_cmp);
    let at = |per_mille: usize| values[(DRAWS * per_mille).div_ceil(1_000) - 1];
    Some(Interval { low: at(25), high: at(975) })
}

/// The figures as two tables: how a viewer fared, and the distributions of SSIM and delay.
pub(super) fn in_words(pooled: &[Pooled]) -> String {
    let mut viewer = table::bare();
    viewer.set_header(VIEWER);
    let mut spread = table::bare();
    spread.set_header(SPREAD);
    for it in pooled {
        let names = [it.class.clone(), it.way.clone()];
        let delay = &it.frame_delay_ms;
        viewer.add_row(names.iter().cloned().chain([
            format!("{:.2}", it.ssim_db),
            format!("{:.2}", it.in_time_db),
            format!("{:.2} %", it.undamaged * 100.0),
            format!("{:.2} %", it.stall_ratio * 100.0),
            format!("{} of {}", it.without_stall, it.runs),
            format!("{:.0}", delay.p50),
            format!("{:.0}", delay.p95),
            format!("{:.0}", delay.p99),
            format!("{:.1}", it.sent_mbps),
            format!("{:.1} %", it.redundancy * 100.0),
        ]));
        let Distribution { mean, p5, p25, p50, p75, p95, .. } = it.shown_ssim_db;
        let ssim = [p5, p25, p50, p75, p95].map(|value| format!("{value:.1}"));
        let delays = [delay.p5, delay.p25, delay.p50, delay.p75, delay.p95];
        let delays = delays.map(|value| format!("{value:.0}"));
        spread.add_row(
            (names.into_iter().chain([format!("{mean:.2}"), between(it.ssim_db_interval, 2)]))
                .chain(ssim)
                .chain([format!("{:.0}", delay.mean)])
                .chain(delays)
                .chain([between(it.frame_delay_p95_ms_interval, 0)]),
        );
    }
    table::right_aligned(viewer, 2) + "\n" + &table::right_aligned(spread, 2) + "\n"
}

fn between(interval: Option<Interval>, decimals: usize) -> String {
    interval.map_or_else(
        || "-".to_owned(),
        |Interval { low, high }| format!("{low:.decimals$} to {high:.decimals$}"),
    )
}

const VIEWER: [&str; 12] = [
    "class",
    "way",
    "SSIM dB",
    "in time dB",
    "undamaged",
    "stalls",
    "no stall",
    "frame p50 ms",
    "p95",
    "p99",
    "Mbit/s",
    "copies",
];
const SPREAD: [&str; 16] = [
    "class",
    "way",
    "SSIM dB mean",
    "95 %",
    "p5",
    "p25",
    "p50",
    "p75",
    "p95",
    "delay ms mean",
    "p5",
    "p25",
    "p50",
    "p75",
    "p95",
    "95 %",
];
/// The resolution of drawn delays.
const BIN_MS: f64 = 0.5;
/// Draws of the drives.
const DRAWS: usize = 400;
const DRAWS_SEED: u64 = 17;

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(ssim_db: f64, delay_ms: f64) -> Seen {
        let (ssims_db, frame_delays_ms) = (vec![ssim_db; 10], vec![delay_ms; 10]);
        Seen { ssim_db, ssims_db, frame_delays_ms, ..Seen::default() }
    }

    #[test]
    fn drives_that_are_alike_have_a_narrow_interval_and_others_a_wide_one() {
        let alike = vec![vec![seen(20.0, 50.0)]; 20];
        let pooled = Pooled::new(None, "lola", &alike);
        assert_eq!(pooled.ssim_db_interval, Some(Interval { low: 20.0, high: 20.0 }));
        assert_eq!(pooled.frame_delay_p95_ms_interval, Some(Interval { low: 50.0, high: 50.0 }));
        let mut one_is_late = alike.clone();
        one_is_late[0] = vec![seen(10.0, 90.0)];
        let pooled = Pooled::new(None, "lola", &one_is_late);
        let ssim = pooled.ssim_db_interval.expect("there are several drives");
        assert!(ssim.low < 19.0 && ssim.high == 20.0, "{ssim:?}");
        // One drive of twenty is the twentieth that may be later.
        let delay = pooled.frame_delay_p95_ms_interval.expect("there are several drives");
        assert_eq!((delay.low, delay.high), (50.0, 90.0));
        assert_eq!(pooled.frame_delay_ms.p95, 50.0);
        assert!(Pooled::new(None, "lola", &alike[..1]).ssim_db_interval.is_none());
    }
}
