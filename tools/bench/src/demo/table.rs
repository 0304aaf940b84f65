//! The results as a table for the terminal.

use roadweave_lab::figures::{Figures, Results};
pub use roadweave_lab::report::page::millis;

use super::live::LiveFigures;
use crate::table::{self, Column};

/// Also the columns of the report.
pub const COLUMNS: &[Column<Figures>] = &[
    ("strategy", |f| f.strategy.clone()),
    ("fps", |f| format!("{:.1}", f.fps)),
    ("stall", |f| percent(f.stall_ratio)),
    ("SSIM", |f| known(f.ssim, |ssim| format!("{ssim:.3}"))),
    ("delay p50", |f| millis(f.delay_ms.p50)),
    ("p95", |f| millis(f.delay_ms.p95)),
    ("p99", |f| millis(f.delay_ms.p99)),
    ("p99.9", |f| millis(f.delay_ms.p999)),
    ("residual loss", |f| percent(f.residual_loss)),
    ("of it late", |f| percent(f.late)),
    ("redundancy", |f| percent(f.redundancy)),
    ("CPU", |f| known(f.cpu_percent, |cpu| percent(cpu / 100.0))),
];

pub const LIVE_COLUMNS: &[Column<LiveFigures>] = &[
    ("strategy", |f| f.strategy.clone()),
    ("fps", |f| format!("{:.1}", f.fps)),
    ("stall", |f| percent(f.stall_ratio)),
    ("SSIM", |f| known(f.ssim, |ssim| format!("{ssim:.3}"))),
    ("shown, dB", |f| known(f.ssim_shown_db, |db| format!("{db:.1}"))),
    ("in time, dB", |f| known(f.ssim_in_time_db, |db| format!("{db:.1}"))),
    ("frame p50", |f| millis(f.frame_delay_ms.p50)),
    ("p95", |f| millis(f.frame_delay_ms.p95)),
    ("p99", |f| millis(f.frame_delay_ms.p99)),
    ("Mbit/s", |f| format!("{:.1}", f.bitrate_bps / 1e6)),
    ("redundancy", |f| percent(f.redundancy)),
    ("CPU", |f| percent(f.cpu_percent / 100.0)),
    ("encoder", |f| percent(f.encoder_cpu_percent / 100.0)),
];

pub fn render_live(live: &[&LiveFigures]) -> String {
    table::of(LIVE_COLUMNS, live.iter().copied(), 1)
}

pub fn render(results: &Results) -> String {
    table::of(COLUMNS, &results.strategies, 1)
}

pub fn known(figure: Option<f64>, show: impl Fn(f64) -> String) -> String {
    figure.map_or_else(|| "\u{2013}".to_owned(), show)
}

pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 1.0 {
        format!("{percent:.2} %")
    } else {
        format!("{percent:.1} %")
    }
}
