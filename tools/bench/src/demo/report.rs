//! The report: one self-contained HTML file with the table, the delays and a time line per
//! strategy. Pure: data in, text out.

mod live;

use std::time::Duration;

use roadweave_lab::figures::{Figures, Results, Run, Scene, Timeline};
use roadweave_lab::report::charts::{self, Curve};
use roadweave_lab::report::page::{
    self, escape, link_class, millis, percent, strategy_class, swatch,
};
use roadweave_lab::report::strips;
use roadweave_lab::report::timeline::{Figure, Layer, Merge, Strip};

use super::Runs;
use super::table::COLUMNS;
use crate::table;

pub(super) fn render(results: &Results, scene: &Scene, runs: &Runs) -> String {
    let subtitle = format!(
        "{} s of video over {} emulated links, scenario {}, seed {}",
        results.seconds,
        scene.links.len(),
        results.scenario,
        results.seed
    );
    let mut html = page::begin("Roadweave demo", &subtitle);
    let Runs { clip, live, left_out } = runs;
    if !clip.is_empty() {
        html += &table(results);
    }
    html += &live::table(live, left_out, clip.len());
    if !clip.is_empty() {
        html += &delays(clip);
    }
    html += &live::delays(live, clip.len());
    html += &time_lines(scene, clip);
    html += &live::time_lines(live, clip.len());
    html += "<h2>The run</h2>\n";
    html +=
        &page::definitions(scene.facts.iter().map(|(word, text)| (word.as_str(), text.as_str())));
    html += "<h2>Meaning of the figures</h2>\n";
    html += &page::definitions(MEANINGS);
    if !live.is_empty() {
        html += &page::definitions(live::MEANINGS);
    }
    html + page::END
}

fn table(results: &Results) -> String {
    table::html(COLUMNS, &results.strategies, |index| swatch(&strategy_class(index)))
}

fn delays(runs: &[Run]) -> String {
    let curve = |(index, run): (usize, &Run)| Curve {
        name: run.figures.strategy.clone(),
        class: strategy_class(index),
        points: points(run),
    };
    let curves: Vec<Curve> = runs.iter().enumerate().map(curve).collect();
    format!(
        "<h2>Packet delay</h2>\n<p class=\"muted\">Share of all packets sent that arrived within a \
         delay; each line of the grid is a tenth of the packets that the one below left. Packets \
         missing from a curve were lost.</p>\n{}",
        drawn(&curves)
    )
}

pub fn drawn(curves: &[Curve]) -> String {
    let legend = curves.iter().map(|curve| (curve.class.clone(), curve.name.as_str()));
    page::legend(legend) + &page::drawing(&charts::delays(curves))
}

fn points(run: &Run) -> Vec<(f64, f64)> {
    let arrived = 1.0 - (run.figures.residual_loss - run.figures.late);
    let count = run.delays.len() as f64;
    let point = |(rank, delay): (usize, &Duration)| {
        (delay.as_secs_f64() * 1e3, arrived * (rank + 1) as f64 / count)
    };
    run.delays.iter().enumerate().map(point).collect()
}

fn time_lines(scene: &Scene, runs: &[Run]) -> String {
    let links = scene.links.iter().enumerate();
    let links = links.map(|(index, (name, _))| (link_class(index), name.as_str()));
    let marks = strips::MARKS.map(|(class, name)| (class.to_owned(), name));
    let marks = marks.into_iter().filter(|(class, _)| MARKS.contains(&class.as_str()));
    let mut html = format!(
        "<h2>Capacity of the links</h2>\n<p class=\"muted\">From the vehicle to the cloud, the same for \
         every strategy.</p>\n{}",
        page::legend(links.chain(marks))
    );
    let mut capacities = capacities(scene);
    capacities.label = "Capacity of the links over time".to_owned();
    html += &page::drawing(&capacities.draw());
    for run in runs {
        html += &format!("<h2>{}</h2>\n", escape(&run.figures.strategy));
        html +=
            &page::drawing(&time_line(&run.figures.strategy, &run.timeline, &run.stalls).draw());
    }
    html
}

fn capacities(scene: &Scene) -> Figure {
    let steps = scene.links.iter().map(|(_, rates)| rates.len()).max().unwrap_or(0);
    let group = strips::group(steps, COLUMNS_MAX);
    let strip = strips::rates("capacity of the links, Mbit/s, stacked", &scene.links, group);
    Figure { steps, group, strips: vec![strip], ..Figure::default() }
}

/// A drawing as its own file: the links' capacity, and for each strategy what it sent over each
/// link, with the stalls behind it.
pub(super) fn picture(scene: &Scene, runs: &[Run]) -> String {
    let mut figure = capacities(scene);
    figure.label = "Capacity of the links, and the rates and stalls of each strategy".to_owned();
    let names: Vec<&str> = scene.links.iter().map(|(name, _)| name.as_str()).collect();
    figure.strips[0].title += &format!(", from the bottom up: {}", names.join(", "));
    figure.strips.extend(runs.iter().map(|run| outcome(run, figure.group)));
    page::standalone(&figure.draw())
}

fn outcome(run: &Run, group: usize) -> Strip {
    let Figures { strategy, stall_ratio, delay_ms, .. } = &run.figures;
    let (stalled, p99) = (percent(*stall_ratio), millis(delay_ms.p99));
    let title = format!("{strategy}: stalled for {stalled} of the time, p99 of delay {p99}");
    let mut strip = strips::rates(&title, &run.timeline.uplinks, group);
    let top = strip.highest();
    let stalls_at = |step: usize| {
        let begin = Timeline::STEP * step as u32;
        run.stalls.iter().any(|(from, to)| *from < begin + Timeline::STEP && begin < *to)
    };
    let values = (0..strips::steps(&run.timeline)).map(|step| match stalls_at(step) {
        true => top,
        false => 0.0,
    });
    let values = Merge::Max.columns(values, group);
    strip.above.insert(0, Layer { class: "stalled".to_owned(), values });
    strip
}

pub fn time_line(name: &str, timeline: &Timeline, stalls: &[(Duration, Duration)]) -> Figure {
    let steps = strips::steps(timeline);
    let group = strips::group(steps, COLUMNS_MAX);
    Figure {
        label: format!(
            "{name} over time: rates per link, repairs and missing packets; {} stalls",
            stalls.len()
        ),
        steps,
        group,
        strips: vec![
            strips::rates("sent over each link, Mbit/s, stacked", &timeline.uplinks, group),
            strips::packets(timeline, group),
        ],
        stalls: stalls.iter().map(|(a, b)| (a.as_secs_f64(), b.as_secs_f64())).collect(),
    }
}

/// More columns do not make a time line more readable.
const COLUMNS_MAX: usize = 450;
/// The marks of [`strips::MARKS`] that the demo measures; only the lab has repaired packets.
const MARKS: [&str; 4] = ["sent", "missing", "late", "stalled"];

const MEANINGS: [(&str, &str); 7] = [
    (
        "fps",
        "frames shown per second whose packets all arrived, as did those of every frame back to the last \
         IDR frame",
    ),
    ("stall", "sum of the gaps between shown frames above 200 ms, by the stream time"),
    (
        "SSIM",
        "similarity of each frame sent to the picture seen in its place, at 640x360; a missing frame \
         leaves the last picture standing",
    ),
    (
        "delay",
        "from the camera's socket to the viewer's, of all packets; a packet that never arrived, or \
         arrived after the deadline of 700 ms, counts as 700 ms",
    ),
    (
        "residual loss",
        "packets that never arrived, or arrived after the deadline (\u{201c}of it late\u{201d})",
    ),
    (
        "redundancy",
        "bytes sent in the tunnel beyond those of the distinct packets, as a share of these",
    ),
    ("CPU", "CPU time of the vehicle's client, percent of one core"),
];

#[cfg(test)]
mod tests;
