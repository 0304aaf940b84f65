//! The part of the report about live encoders.

use roadweave_lab::report::charts::Curve;
use roadweave_lab::report::page::{self, escape, strategy_class, swatch};
use roadweave_lab::report::strips;
use roadweave_lab::report::timeline::{Figure, Layer, Merge, Strip};

use super::{COLUMNS_MAX, drawn};
use crate::demo::live::{LiveRun, Rates};
use crate::demo::table::LIVE_COLUMNS;
use crate::demo::ways::LeftOut;
use crate::table;

/// The figures, and the ways left out. `before`: number of strategies with colours so far.
pub fn table(runs: &[LiveRun], left_out: &[LeftOut], before: usize) -> String {
    if runs.is_empty() && left_out.is_empty() {
        return String::new();
    }
    let mut html = "<h2>Live encoder</h2>\n".to_owned();
    let why = |it: &LeftOut| format!("<p>{} is left out: {}</p>\n", it.strategy, escape(&it.why));
    html += &left_out.iter().map(why).collect::<String>();
    if runs.is_empty() {
        return html;
    }
    html += "<p class=\"muted\">640x360p30 by roadweave-video, compared with the camera's \
             pictures: what the encoder leaves out counts too, so this SSIM is not comparable with \
             the one above.</p>\n";
    let mark = |index| swatch(&strategy_class(before + index));
    html + &table::html(LIVE_COLUMNS, runs.iter().map(|run| &run.figures), mark)
}

pub fn delays(runs: &[LiveRun], before: usize) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let curve = |(index, run): (usize, &LiveRun)| {
        let all = run.figures.frames.max(1) as f64;
        let points = run.delays.iter().enumerate();
        Curve {
            name: run.figures.strategy.clone(),
            class: strategy_class(before + index),
            points: points
                .map(|(rank, delay)| (delay.as_secs_f64() * 1e3, (rank + 1) as f64 / all))
                .collect(),
        }
    };
    let curves: Vec<Curve> = runs.iter().enumerate().map(curve).collect();
    format!(
        "<h2>Frame delay of live encoders</h2>\n<p class=\"muted\">Share of the camera's frames \
         that were on the screen within a delay. Frames missing from a curve were not shown.</p>\n\
         {}",
        drawn(&curves)
    )
}

pub fn time_lines(runs: &[LiveRun], before: usize) -> String {
    let one = |(index, run): (usize, &LiveRun)| {
        let class = strategy_class(before + index);
        let legend = [("lane".to_owned(), "told"), (class.clone(), "encoded")];
        format!(
            "<h2>{}</h2>\n{}{}",
            escape(&run.figures.strategy),
            page::legend(legend),
            page::drawing(&time_line(run, &class).draw())
        )
    };
    runs.iter().enumerate().map(one).collect()
}

fn time_line(run: &LiveRun, class: &str) -> Figure {
    let steps = strips::steps(&run.timeline).max(run.rates.encoded.len());
    let group = strips::group(steps, COLUMNS_MAX);
    Figure {
        label: format!(
            "{} over time: rates per link, allowed and actual frame sizes; {} stalls",
            run.figures.strategy,
            run.stalls.len()
        ),
        steps,
        group,
        strips: vec![
            strips::rates("sent over each link, Mbit/s, stacked", &run.timeline.uplinks, group),
            rates(&run.rates, class, group),
        ],
        stalls: run.stalls.iter().map(|(a, b)| (a.as_secs_f64(), b.as_secs_f64())).collect(),
    }
}

fn rates(rates: &Rates, class: &str, group: usize) -> Strip {
    let layer = |class: &str, values: &[f64]| Layer {
        class: class.to_owned(),
        values: Merge::Mean.columns(values.iter().copied(), group),
    };
    Strip {
        title: "encoder target, with headers, and output, without; Mbit/s".to_owned(),
        height: 90.0,
        // Links may carry far more than pictures of this size can use.
        top: Some(1.5 * rates.encoded.iter().copied().fold(0.0, f64::max)).filter(|top| *top > 0.0),
        above: vec![layer("lane", &rates.target), layer(class, &rates.encoded)],
        ..Strip::default()
    }
}

pub const MEANINGS: [(&str, &str); 5] = [
    (
        "live encoder: SSIM",
        "similarity of each frame of the camera to the picture seen in its place; a frame that was not \
         shown leaves the last picture standing",
    ),
    ("shown, dB", "mean of -10 log10(1 - SSIM) of the pictures that were shown"),
    (
        "in time, dB",
        "the same over all frames of the camera, 0 for one that was not shown within 100 ms",
    ),
    (
        "frame",
        "delay from the camera to the screen, of all frames of the camera; one that was not shown, or \
         after 700 ms, counts as 700 ms",
    ),
    ("encoder", "CPU time of the sender with its encoder, percent of one core"),
];
