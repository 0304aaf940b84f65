//! Comparisons as tables for the terminal.

use roadweave_lab::bound::{Bound, Informed, Reachable};
use roadweave_lab::compare::{
    self, ClassPool, Compared, Comparison, Interval, Measured, Pooled, Setting,
};
use roadweave_lab::video::quality::Percentiles;

use crate::demo::table::{millis, percent};
use crate::table::{self, Column, bare, right_aligned};

pub const COLUMNS: &[Column<Pooled>] = &[
    ("strategy", |p| p.figures.strategy.clone()),
    ("drives", |p| p.drives.to_string()),
    ("fps", |p| format!("{:.2}", p.figures.fps)),
    ("stall", |p| percent(p.stall_ratio_mean)),
    ("95 %", |p| between(p.intervals.stall_ratio_mean, 1e2)),
    ("p95", |p| percent(p.stall_ratio_p95)),
    ("p99", |p| percent(p.stall_ratio_p99)),
    ("of first", |p| times(p.stall_ratio_over_first)),
    ("SSIM", |p| p.figures.ssim.map_or("-".into(), |ssim| format!("{ssim:.3}"))),
    ("delay p50", |p| millis(p.figures.delay_ms.p50)),
    ("p95", |p| millis(p.figures.delay_ms.p95)),
    ("p99", |p| millis(p.figures.delay_ms.p99)),
    ("p99.9", |p| millis(p.figures.delay_ms.p999)),
    ("p99 of bound", |p| times(p.delay_p99_over_bound)),
    ("95 %", |p| between(p.intervals.delay_p99_over_bound, 1.0)),
    ("residual loss", |p| percent(p.figures.residual_loss)),
    ("redundancy", |p| percent(p.figures.redundancy)),
];

pub fn render(comparison: &Comparison) -> String {
    let of_group = |Group { heading, drives, pooled }: Group<'_>| {
        format!("{heading}\n{}\n{}\n", table::of(COLUMNS, pooled, 1), bound(&drives))
    };
    groups(comparison).map(of_group).collect::<Vec<_>>().join("\n")
}

pub struct Group<'a> {
    pub heading: String,
    pub drives: Vec<&'a Compared>,
    pub pooled: &'a [Pooled],
}

/// All drives, then those of each class.
pub fn groups<'a>(comparison: &'a Comparison) -> impl Iterator<Item = Group<'a>> {
    let all: Vec<&Compared> = comparison.drives.iter().collect();
    let Setting { seconds, bitrate_bps, .. } = comparison.setting;
    let mbps = bitrate_bps as f64 / 1e6;
    let heading =
        format!("{}, {seconds} s of {mbps} Mbit/s, {}", count(compare::count(&all)), seeds(&all));
    let of_class = |pool: &'a ClassPool| Group {
        heading: format!("{}, {}", pool.class, count(pool.drives)),
        drives: comparison.drives.iter().filter(|drive| drive.class == pool.class).collect(),
        pooled: &pool.pooled,
    };
    let group = Group { heading, drives: all, pooled: &comparison.pooled };
    std::iter::once(group).chain(comparison.classes.iter().map(of_class))
}

/// A run and its bound. `is_video`: whether there are frames and stalls.
pub fn of_run(measured: &Measured, bound: Option<&Bound>, is_video: bool) -> String {
    let mut table = bare();
    table.set_header(RUN_COLUMNS);
    let mut row = |name: &str, fps: f64, stall: f64, delay: &Percentiles, ends: [String; 2]| {
        let of_video = [format!("{fps:.2}"), percent(stall)];
        let of_video = of_video.map(|figure| if is_video { figure } else { "-".to_owned() });
        let delays = [delay.p50, delay.p95, delay.p99, delay.p999].map(millis);
        table.add_row([name.to_owned()].into_iter().chain(of_video).chain(delays).chain(ends));
    };
    let it = &measured.figures;
    let ends = [percent(it.residual_loss), percent(it.redundancy)];
    row(&it.strategy, it.fps, it.stall_ratio, &it.delay_ms, ends);
    if let Some(bound) = bound {
        let it = &bound.reachable;
        let ends = [percent(it.residual_loss), "-".to_owned()];
        row("(reachable)", it.fps, it.stall_ratio, &it.delay_ms, ends);
        let ends = [percent(bound.residual_loss), "-".to_owned()];
        row("(bound)", bound.fps, bound.stall_ratio, &bound.delay_ms, ends);
    }
    right_aligned(table, 1)
}

const RUN_COLUMNS: [&str; 9] =
    ["strategy", "fps", "stall", "delay p50", "p95", "p99", "p99.9", "residual loss", "redundancy"];

/// The means of the bound and of the schedulers that know the links.
pub fn bound(drives: &[&Compared]) -> String {
    let mean = |value: fn(&Compared) -> f64| {
        drives.iter().map(|drive| value(drive)).sum::<f64>() / drives.len().max(1) as f64
    };
    let informed = |name, of: fn(&Informed) -> &Reachable| {
        let of_drives = |value: fn(&Reachable) -> f64| {
            let all = drives.iter().map(|drive| value(of(&drive.bound.informed)));
            all.sum::<f64>() / drives.len().max(1) as f64
        };
        let (stall, p99) =
            (of_drives(|reached| reached.stall_ratio), of_drives(|reached| reached.delay_ms.p99));
        format!("{name}: stall {}, delay p99 {}", percent(stall), millis(p99))
    };
    format!(
        "bound: stall {}, delay p99 {}; reachable if the future is known: stall {}, delay p99 {}\n\
         without it, but with known links {}; {}; {}; {}; {} (means over the drives)",
        percent(mean(|drive| drive.bound.stall_ratio)),
        millis(mean(|drive| drive.bound.delay_ms.p99)),
        percent(mean(|drive| drive.bound.reachable.stall_ratio)),
        millis(mean(|drive| drive.bound.reachable.delay_ms.p99)),
        informed("at once", |informed| &informed.at_once),
        informed("a round trip later", |informed| &informed.late),
        informed("with 30 % of copies in free room", |informed| &informed.insured),
        informed("with all copies that fit", |informed| &informed.doubled),
        informed("with copies that cost nothing", |informed| &informed.copies),
    )
}

fn seeds(drives: &[&Compared]) -> String {
    let seeds = || drives.iter().map(|drive| drive.seed);
    match (seeds().min(), seeds().max()) {
        (Some(first), Some(last)) if first < last => format!("seeds {first} to {last}"),
        (first, _) => format!("seed {}", first.unwrap_or_default()),
    }
}

fn between(interval: Option<Interval>, scale: f64) -> String {
    interval.map_or("-".into(), |[low, high]| format!("{:.2}-{:.2}", low * scale, high * scale))
}

fn count(drives: usize) -> String {
    if drives == 1 { "1 drive".into() } else { format!("{drives} drives") }
}

pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |ratio| format!("{ratio:.2} x"))
}
