//! One folded section per drive: figures, delays and time lines.

use super::charts::{self, Curve};
use super::page::{self, NOTHING, escape, link_class, millis, percent, times};
use super::pooled::{Limit, Packets};
use super::timeline::{Figure, Layer, Strip, highest};
use super::{Report, strategy, strips};
use crate::bound::Bound;
use crate::compare::{Compared, Entry, RunDetail};
use crate::figures::Timeline;
use crate::video::quality::Percentiles;

/// All drives by class; within a class, farthest from the bound first.
pub(super) fn render(report: &Report<'_>) -> String {
    let mut drives: Vec<&Compared> = report.comparison.drives.iter().collect();
    let judged = judged(report);
    drives.sort_by(|a, b| {
        let farther = distance(b, judged).total_cmp(&distance(a, judged));
        a.class.cmp(&b.class).then(farther).then_with(|| a.name.cmp(&b.name))
    });
    let shown: Vec<&str> =
        report.names.iter().copied().filter(|name| report.has_timeline(name)).collect();
    let figures: usize = drives.len() * shown.len();
    let columns = (COLUMNS_IN_ALL / figures.max(1)).clamp(COLUMNS_MIN, COLUMNS_MAX);
    let mut html = format!(
        "<h2>Drives</h2>\n<p class=\"muted\">By class; within a class, first those on which {} stalls most \
         beyond the bound. Stall ratio and p99 delay; a drive unfolds to its time lines.</p>\n\
         <div style=\"--columns:{}\">\n",
        escape(judged),
        shown.len() + 2,
    );
    html += &row("head", ["drive", "class", "bound"].into_iter().chain(shown.iter().copied()));
    for (index, drive) in drives.iter().enumerate() {
        html += &Section { report, drive, shown: &shown, columns }.render(index);
    }
    html + "</div>\n"
}

/// The strategy by which drives are sorted: `xnc`, or else the last one.
fn judged<'a>(report: &Report<'a>) -> &'a str {
    let xnc = report.names.iter().find(|name| **name == "xnc");
    xnc.or(report.names.last()).copied().unwrap_or("")
}

/// Stall time beyond the bound; without stalls, the ratio of tail delays.
fn distance(drive: &Compared, name: &str) -> f64 {
    let Some(entry) = drive.strategies.iter().find(|entry| strategy(entry) == name) else {
        return f64::NEG_INFINITY;
    };
    let stall = entry.measured.figures.stall_ratio - drive.bound.stall_ratio;
    stall * STALL_WEIGHT + entry.delay_p99_over_bound.unwrap_or(0.0)
}

fn row<'a>(class: &str, cells: impl Iterator<Item = &'a str>) -> String {
    let cells: String = cells.map(|cell| format!("<span>{}</span> ", escape(cell))).collect();
    format!("<div class=\"{class}\"><span class=\"row\">{cells}</span></div>\n")
}

struct Section<'a> {
    report: &'a Report<'a>,
    drive: &'a Compared,
    shown: &'a [&'a str],
    columns: usize,
}

impl Section<'_> {
    fn render(&self, index: usize) -> String {
        let drive = self.drive;
        let short = |stall: f64, p99: f64| format!("{} \u{b7} {}", percent(stall), millis(p99));
        let mut cells = vec![
            drive.name.clone(),
            drive.class.to_string(),
            short(drive.bound.stall_ratio, drive.bound.delay_ms.p99),
        ];
        cells.extend(self.shown.iter().map(|name| match self.entry(name) {
            Some(Entry { measured, .. }) => {
                short(measured.figures.stall_ratio, measured.figures.delay_ms.p99)
            }
            None => NOTHING.to_owned(),
        }));
        let cells: String =
            cells.iter().map(|cell| format!("<span>{}</span> ", escape(cell))).collect();
        let mut html = format!(
            "<details id=\"drive-{index}\"><summary><span class=\"row\">{cells}</span></summary>\n"
        );
        html += &self.table();
        html += &self.delays();
        html += &self.timelines();
        html + "</details>\n"
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.drive.strategies.iter().find(|entry| strategy(entry) == name)
    }

    fn table(&self) -> String {
        let of_entry = |entry: &Entry| {
            let figures = &entry.measured.figures;
            let swatch = page::swatch(&self.report.class(strategy(entry)));
            let link = entry.link.as_ref().map_or(String::new(), |link| format!(" ({link})"));
            let mut row = vec![
                format!("{swatch}{}", escape(&format!("{}{link}", figures.strategy))),
                format!("{:.2}", figures.fps),
                percent(figures.stall_ratio),
                figures.ssim.map_or(NOTHING.to_owned(), |ssim| format!("{ssim:.3}")),
            ];
            row.extend(delays(&figures.delay_ms));
            row.extend([
                times(entry.delay_p99_over_bound),
                times(entry.delay_p99_over_first),
                percent(figures.residual_loss),
                percent(figures.redundancy),
            ]);
            row
        };
        let mut rows: Vec<Vec<String>> = self.drive.strategies.iter().map(of_entry).collect();
        let Bound { reachable, .. } = &self.drive.bound;
        let of_bound = |name: &str, fps: f64, stall: f64, delay: &Percentiles, loss: f64| {
            let nothing = || NOTHING.to_owned();
            let mut row = vec![name.to_owned(), format!("{fps:.2}"), percent(stall), nothing()];
            row.extend(delays(delay));
            row.extend([nothing(), nothing(), percent(loss), nothing()]);
            row
        };
        rows.push(of_bound(
            "reachable",
            reachable.fps,
            reachable.stall_ratio,
            &reachable.delay_ms,
            reachable.residual_loss,
        ));
        let bound = &self.drive.bound;
        let name = format!("{}bound", page::swatch(page::BOUND_CLASS));
        let (fps, stall) = (bound.fps, bound.stall_ratio);
        rows.push(of_bound(&name, fps, stall, &bound.delay_ms, bound.residual_loss));
        page::table(&COLUMNS, &rows)
    }

    fn delays(&self) -> String {
        let strategies = self.drive.strategies.iter().map(strategy);
        let curves: Vec<Curve> = strategies
            .map(|name| Packets::of(name, &[self.drive]).curve(name, self.report.class(name)))
            .chain([Limit::of(&[self.drive]).as_curve()])
            .filter(|curve| !curve.points.is_empty())
            .collect();
        if curves.is_empty() {
            return String::new();
        }
        let legend = curves.iter().map(|curve| (curve.class.clone(), curve.name.as_str()));
        page::legend(legend) + &page::drawing(&charts::delays(&curves))
    }

    fn timelines(&self) -> String {
        let details: Vec<(&Entry, &RunDetail)> = self
            .shown
            .iter()
            .filter_map(|name| self.entry(name))
            .filter_map(|entry| Some((entry, entry.measured.detail.as_deref()?)))
            .collect();
        let Some((_, first)) = details.first() else { return String::new() };
        let links: Vec<&str> =
            first.timeline.capacities.iter().map(|(name, _)| name.as_str()).collect();
        let link = |(index, name): (usize, &&str)| (link_class(index), name.to_string());
        let legend: Vec<(String, String)> = links.iter().enumerate().map(link).collect();
        let legend = legend.iter().map(|(class, name)| (class.clone(), name.as_str()));
        let mut html = "<h3>Capacity of the links</h3>\n".to_owned();
        html += &page::legend(
            legend.chain(strips::MARKS.map(|(class, name)| (class.to_owned(), name))),
        );
        html += &page::drawing(&self.capacities(&first.timeline).draw());
        let mut strips: Vec<[Strip; 3]> =
            details.iter().map(|(_, detail)| self.strips(&detail.timeline)).collect();
        share_axes(&mut strips);
        for ((entry, detail), strips) in details.iter().zip(strips) {
            html += &format!("<h3>{}</h3>\n", escape(strategy(entry)));
            html += &page::drawing(&self.figure(entry, detail, strips).draw());
        }
        html
    }

    fn capacities(&self, timeline: &Timeline) -> Figure {
        let mbps = self.report.comparison.setting.bitrate_bps as f64 / 1e6;
        let group = self.group(timeline);
        Figure {
            label: format!("What the links of {} carry over time", self.drive.name),
            steps: strips::steps(timeline),
            group,
            strips: strips::capacities(&timeline.capacities, mbps, group),
            stalls: Vec::new(),
        }
    }

    fn strips(&self, timeline: &Timeline) -> [Strip; 3] {
        let group = self.group(timeline);
        let title = "sent over each link, Mbit/s, stacked";
        [
            strips::rates(title, &timeline.uplinks, group),
            strips::packets(timeline, group),
            strips::queues(timeline, group),
        ]
    }

    fn figure(&self, entry: &Entry, detail: &RunDetail, strips: [Strip; 3]) -> Figure {
        let figures = &entry.measured.figures;
        let label = format!(
            "{} on {} over time: rates per link, repaired and lost packets, queues; {} stalls, {} of \
             the time",
            figures.strategy,
            self.drive.name,
            detail.stalls_ms.len(),
            percent(figures.stall_ratio)
        );
        Figure {
            label,
            steps: strips::steps(&detail.timeline),
            group: self.group(&detail.timeline),
            strips: strips.into(),
            stalls: detail.stalls_ms.iter().map(|(from, to)| (from / 1e3, to / 1e3)).collect(),
        }
    }

    fn group(&self, timeline: &Timeline) -> usize {
        strips::group(strips::steps(timeline), self.columns)
    }
}

fn delays(delay: &Percentiles) -> [String; 4] {
    [delay.p50, delay.p95, delay.p99, delay.p999].map(millis)
}

fn share_axes(figures: &mut [[Strip; 3]]) {
    for strip in 0..3 {
        let highest_of = |layers: fn(&Strip) -> &Vec<Layer>| {
            figures.iter().map(|strips| highest(layers(&strips[strip]))).fold(0.0, f64::max)
        };
        let (top, bottom) = (highest_of(|strip| &strip.above), highest_of(|strip| &strip.below));
        for strips in figures.iter_mut() {
            (strips[strip].top, strips[strip].bottom) = (Some(top), Some(bottom));
        }
    }
}

const COLUMNS: [&str; 12] = [
    "strategy",
    "fps",
    "stall",
    "SSIM",
    "delay p50",
    "p95",
    "p99",
    "p99.9",
    "p99 of bound",
    "p99 of first",
    "residual loss",
    "redun\u{ad}dancy",
];
const STALL_WEIGHT: f64 = 1e6;
/// Limit over all drives, at about 40 bytes a column, so that browsers can display the page.
const COLUMNS_IN_ALL: usize = 200_000;
const COLUMNS_MIN: usize = 150;
const COLUMNS_MAX: usize = 450;
