//! The results of one way on the drives of one class, and their tables.

use roadweave_lab::class::Class;
use roadweave_lab::closed_loop::ViewerFigures;
use serde::Serialize;

use crate::lab::spread::Spread;
use crate::table::{self, Column};

#[derive(Debug, Default, Serialize)]
pub(super) struct Pooled {
    class: String,
    way: String,
    runs: usize,
    /// Means over the runs.
    ssim_db: f64,
    in_time_db: f64,
    undamaged: f64,
    stall_ratio: f64,
    stall_ratio_max: f64,
    without_stall: usize,
    sent_mbps: f64,
    redundancy: f64,
    frame_delay_ms: Spread,
    shown_ssim_db: Spread,
}

impl Pooled {
    pub(super) fn new(class: Option<Class>, way: &str, runs: &[ViewerFigures]) -> Self {
        let mean =
            |of: fn(&ViewerFigures) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
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
            frame_delay_ms: Spread::of(
                runs.iter().flat_map(|seen| seen.frame_delays_ms.iter().copied()),
            ),
            shown_ssim_db: Spread::of(runs.iter().flat_map(|seen| seen.ssims_db.iter().copied())),
        }
    }
}

pub(super) fn in_words(pooled: &[Pooled]) -> String {
    table::of(VIEWER, pooled, 2) + "\n" + &table::of(SPREADS, pooled, 2) + "\n"
}

const VIEWER: &[Column<Pooled>] = &[
    ("class", |it| it.class.clone()),
    ("way", |it| it.way.clone()),
    ("SSIM dB", |it| format!("{:.2}", it.ssim_db)),
    ("in time dB", |it| format!("{:.2}", it.in_time_db)),
    ("undamaged", |it| format!("{:.2} %", it.undamaged * 100.0)),
    ("stalls", |it| format!("{:.2} %", it.stall_ratio * 100.0)),
    ("no stall", |it| format!("{} of {}", it.without_stall, it.runs)),
    ("frame p50 ms", |it| format!("{:.0}", it.frame_delay_ms.p50)),
    ("p95", |it| format!("{:.0}", it.frame_delay_ms.p95)),
    ("p99", |it| format!("{:.0}", it.frame_delay_ms.p99)),
    ("Mbit/s", |it| format!("{:.1}", it.sent_mbps)),
    ("copies", |it| format!("{:.1} %", it.redundancy * 100.0)),
];
const SPREADS: &[Column<Pooled>] = &[
    ("class", |it| it.class.clone()),
    ("way", |it| it.way.clone()),
    ("SSIM dB mean", |it| format!("{:.2}", it.shown_ssim_db.mean)),
    ("p5", |it| format!("{:.1}", it.shown_ssim_db.p5)),
    ("p25", |it| format!("{:.1}", it.shown_ssim_db.p25)),
    ("p50", |it| format!("{:.1}", it.shown_ssim_db.p50)),
    ("p75", |it| format!("{:.1}", it.shown_ssim_db.p75)),
    ("p95", |it| format!("{:.1}", it.shown_ssim_db.p95)),
    ("delay ms mean", |it| format!("{:.0}", it.frame_delay_ms.mean)),
    ("p5", |it| format!("{:.0}", it.frame_delay_ms.p5)),
    ("p25", |it| format!("{:.0}", it.frame_delay_ms.p25)),
    ("p50", |it| format!("{:.0}", it.frame_delay_ms.p50)),
    ("p75", |it| format!("{:.0}", it.frame_delay_ms.p75)),
    ("p95", |it| format!("{:.0}", it.frame_delay_ms.p95)),
];
