//! Strategies on a group of drives: all drives, or one class.

use super::charts::{self, Bar, Curve, Panel, Row};
use super::page::{self, NOTHING, escape, millis, percent, times};
use super::pooled::{Limit, Packets, causes, mean, stall_at};
use super::trade::{Mark, trade};
use super::{Report, name, strategy};
use crate::bound::Bound;
use crate::compare::{Compared, Entry, Pooled};
use crate::run::Causes;
use crate::video::quality::Percentiles;

pub(super) fn render(
    report: &Report<'_>,
    title: &str,
    drives: &[&Compared],
    pooled: &[Pooled],
) -> String {
    let limit = Limit::of(drives);
    let mut html = format!("<h2>{}</h2>\n", escape(title));
    html += &table(report, drives, pooled, &limit);
    html += &quality(report, drives, pooled);
    html += &costs(report, drives, pooled);
    html += &bargain(report, pooled);
    if report.is_detailed() {
        html += &delays(report, drives, pooled, &limit);
    }
    html += &lateness(drives, pooled, &limit);
    html
}

fn table(report: &Report<'_>, drives: &[&Compared], pooled: &[Pooled], limit: &Limit) -> String {
    let headings: Vec<&str> = COLUMNS.iter().map(|(heading, _)| *heading).collect();
    let mut rows: Vec<Vec<String>> = pooled
        .iter()
        .map(|pooled| {
            let swatch = page::swatch(&report.class(name(&pooled.figures)));
            let cells = COLUMNS.iter().map(|(_, cell)| escape(&cell(pooled)));
            let mut cells: Vec<String> = cells.collect();
            cells[0].insert_str(0, &swatch);
            cells
        })
        .collect();
    let reachable = |bound: &Bound| {
        (bound.reachable.fps, bound.reachable.stall_ratio, bound.reachable.residual_loss)
    };
    rows.push(limit_row(drives, "reachable".to_owned(), reachable, None));
    let own = |bound: &Bound| (bound.fps, bound.stall_ratio, bound.residual_loss);
    let bound = format!("{}bound", page::swatch(page::BOUND_CLASS));
    rows.push(limit_row(drives, bound, own, limit.percentiles()));
    let first = pooled.first().map_or("", |first| name(&first.figures));
    format!(
        "{}<p class=\"muted\">Means over the drives; delays are those of all packets of all drives. \
         \u{201c}p95\u{201d} of the stall ratio: 95 of 100 drives stall at most so much. Ratios to the \
         bound and to the first strategy, {}: of the mean stall ratios, and the mean of the ratios of \
         p99 delays.</p>\n",
        page::table(&headings, &rows),
        escape(first)
    )
}

type Column = (&'static str, fn(&Pooled) -> String);

const COLUMNS: [Column; 17] = [
    ("strategy", |p| p.figures.strategy.clone()),
    ("drives", |p| p.drives.to_string()),
    ("fps", |p| format!("{:.2}", p.figures.fps)),
    ("stall", |p| percent(p.stall_ratio_mean)),
    ("p95", |p| percent(p.stall_ratio_p95)),
    ("p99", |p| percent(p.stall_ratio_p99)),
    ("of bound", |p| times(p.stall_ratio_over_bound)),
    ("of first", |p| times(p.stall_ratio_over_first)),
    ("SSIM", |p| p.figures.ssim.map_or(NOTHING.into(), |ssim| format!("{ssim:.3}"))),
    ("delay p50", |p| millis(p.figures.delay_ms.p50)),
    ("p95", |p| millis(p.figures.delay_ms.p95)),
    ("p99", |p| millis(p.figures.delay_ms.p99)),
    ("p99.9", |p| millis(p.figures.delay_ms.p999)),
    ("p99 of bound", |p| times(p.delay_p99_over_bound)),
    ("p99 of first", |p| times(p.delay_p99_over_first)),
    ("residual loss", |p| percent(p.figures.residual_loss)),
    ("redun\u{ad}dancy", |p| percent(p.figures.redundancy)),
];

/// The row of a limit; `of` returns frames per second, stall ratio and residual loss of a drive.
fn limit_row(
    drives: &[&Compared],
    name: String,
    of: fn(&Bound) -> (f64, f64, f64),
    delays: Option<Percentiles>,
) -> Vec<String> {
    let stall = |bound: &Bound| of(bound).1;
    let mut row = vec![
        name,
        drives.len().to_string(),
        format!("{:.2}", mean(drives, |bound| of(bound).0)),
        percent(mean(drives, stall)),
        percent(stall_at(drives, 95, stall)),
        percent(stall_at(drives, 99, stall)),
    ];
    row.resize_with(DELAYS_FROM, || NOTHING.to_owned());
    if let Some(Percentiles { p50, p95, p99, p999 }) = delays {
        row.extend([p50, p95, p99, p999].map(millis));
    }
    row.resize_with(COLUMNS.len(), || NOTHING.to_owned());
    row[COLUMNS.len() - 2] = percent(mean(drives, |bound| of(bound).2));
    row
}

const DELAYS_FROM: usize = 9;

fn delays(report: &Report<'_>, drives: &[&Compared], pooled: &[Pooled], limit: &Limit) -> String {
    let strategies = pooled.iter().map(|pooled| name(&pooled.figures));
    let curves = strategies
        .map(|name| Packets::of(name, drives).curve(name, report.class(name)))
        .chain([limit.as_curve()])
        .filter(|curve| !curve.points.is_empty());
    let curves: Vec<Curve> = curves.collect();
    let legend = curves.iter().map(|curve| (curve.class.clone(), curve.name.as_str()));
    format!(
        "<h3>Packet delay</h3>\n<p class=\"muted\">Share of all packets that arrived within a delay; \
         each line of the grid is a tenth of the packets that the one below left. Packets that never \
         arrived count as the deadline, where curves end. No curve can be left of the bound.</p>\n{}{}",
        page::legend(legend),
        page::drawing(&charts::delays(&curves))
    )
}

fn quality(report: &Report<'_>, drives: &[&Compared], pooled: &[Pooled]) -> String {
    let plot = Plot { report, drives, pooled };
    let mut panels = vec![
        plot.panel(
            ("fps", 1.0, ""),
            |entry| Some(entry.measured.figures.fps),
            |bound| Some(bound.fps),
        ),
        plot.panel(
            ("stall ratio", 100.0, " %"),
            |entry| Some(entry.measured.figures.stall_ratio),
            |bound| Some(bound.stall_ratio),
        ),
    ];
    let has_pictures = pooled.iter().any(|pooled| pooled.figures.ssim.is_some());
    if has_pictures {
        panels.push(plot.panel(
            ("SSIM", 1.0, ""),
            |entry| entry.measured.figures.ssim,
            |_| Some(1.0),
        ));
    }
    let pictures = if has_pictures { "" } else { " SSIM was not measured (--ssim)." };
    format!(
        "<h3>What a viewer sees</h3>\n<p class=\"muted\">One value per drive: quartiles with the median, \
         a diamond at the mean, whiskers to the last drive within one and a half times the box, a dot \
         for each drive beyond.{pictures}</p>\n{}",
        page::drawing(&charts::boxes(&plot.rows(), &panels))
    )
}

fn costs(report: &Report<'_>, drives: &[&Compared], pooled: &[Pooled]) -> String {
    let plot = Plot { report, drives, pooled };
    let panels = [
        plot.panel(
            ("redundancy", 100.0, " %"),
            |entry| Some(entry.measured.figures.redundancy),
            |_| None,
        ),
        plot.panel(
            ("residual loss", 100.0, " %"),
            |entry| Some(entry.measured.figures.residual_loss),
            |bound| Some(bound.residual_loss),
        ),
        plot.panel(
            ("p99 delay by the bound's", 1.0, "\u{d7}"),
            |e| e.delay_p99_over_bound,
            |_| Some(1.0),
        ),
    ];
    format!(
        "<h3>Redundancy, residual loss, tail of delays</h3>\n{}",
        page::drawing(&charts::boxes(&plot.rows(), &panels))
    )
}

fn bargain(report: &Report<'_>, pooled: &[Pooled]) -> String {
    let mark = |pooled: &Pooled| Mark {
        name: name(&pooled.figures).to_owned(),
        class: report.class(name(&pooled.figures)),
        redundancy: pooled.figures.redundancy,
        p99_by_bound: pooled.delay_p99_over_bound,
        stalls: pooled.stall_ratio_mean,
    };
    let marks: Vec<Mark> = pooled.iter().map(mark).collect();
    format!(
        "<h3>What redundancy brings</h3>\n<p class=\"muted\">Means over the drives; to the left and \
         down is better.</p>\n{}",
        page::drawing(&trade(&marks))
    )
}

struct Plot<'a> {
    report: &'a Report<'a>,
    drives: &'a [&'a Compared],
    pooled: &'a [Pooled],
}

impl Plot<'_> {
    fn rows(&self) -> Vec<Row> {
        let row = |pooled: &Pooled| Row {
            name: name(&pooled.figures).to_owned(),
            class: self.report.class(name(&pooled.figures)),
        };
        let bound = Row { name: "bound".to_owned(), class: page::BOUND_CLASS.to_owned() };
        self.pooled.iter().map(row).chain([bound]).collect()
    }

    fn panel(
        &self,
        (title, factor, unit): (&str, f64, &'static str),
        figure: impl Fn(&Entry) -> Option<f64>,
        bound: impl Fn(&Bound) -> Option<f64>,
    ) -> Panel {
        let of_strategy = |pooled: &Pooled| {
            let entries = self.drives.iter().flat_map(|drive| {
                drive.strategies.iter().map(|entry| (drive.name.as_str(), entry))
            });
            let own = entries.filter(|(_, entry)| strategy(entry) == name(&pooled.figures));
            own.filter_map(|(on, entry)| Some((figure(entry)?, on.to_owned()))).collect()
        };
        let mut samples: Vec<Vec<(f64, String)>> = self.pooled.iter().map(of_strategy).collect();
        let of_bound = |drive: &&Compared| Some((bound(&drive.bound)?, drive.name.clone()));
        samples.push(self.drives.iter().filter_map(of_bound).collect());
        Panel { title: title.to_owned(), factor, unit, samples }
    }
}

fn lateness(drives: &[&Compared], pooled: &[Pooled], limit: &Limit) -> String {
    let mut bars = Vec::new();
    let mut rows = Vec::new();
    for pooled in pooled {
        let packets = Packets::of(name(&pooled.figures), drives);
        let sent = packets.delays.count() as f64;
        rows.push(cause_row(pooled, &packets));
        if sent > 0.0 {
            let parts =
                causes(&pooled.causes).map(|(_, class, cause)| (class, cause.packets as f64));
            let parts = parts.into_iter().chain([(LOST_CLASS, packets.lost)]);
            let parts = parts.map(|(class, count)| (class.to_owned(), count / sent)).collect();
            bars.push(Bar { name: name(&pooled.figures).to_owned(), parts });
        }
    }
    if let Some(beyond) = limit.beyond(Causes::LATE_MS as f64) {
        let parts = vec![(page::BOUND_CLASS.to_owned(), beyond)];
        bars.push(Bar { name: "bound".to_owned(), parts });
    }
    let mut html = format!(
        "<h3>Where time is lost</h3>\n<p class=\"muted\">Packets later than {} ms, in percent of all that \
         were sent, by what took the largest part of their delay. What the bound has is not to be \
         avoided.</p>\n",
        Causes::LATE_MS
    );
    if !bars.is_empty() {
        let none = Causes::default();
        let legend = causes(&none).map(|(name, class, _)| (class.to_owned(), name));
        html += &page::legend(legend.into_iter().chain([(LOST_CLASS.to_owned(), "never arrived")]));
        html += &page::drawing(&charts::bars(
            "Late packets by cause, in percent; the table has more",
            &bars,
        ));
    }
    html += "<p class=\"muted\">Packets, and what each late one spends on average:</p>\n";
    html + &page::table(&CAUSE_COLUMNS, &rows)
}

const CAUSE_COLUMNS: [&str; 9] = [
    "strategy",
    "late packets",
    "of them repaired",
    "never arrived",
    "waiting for window",
    "detection",
    "recovery",
    "link queue",
    "propagation",
];

fn cause_row(pooled: &Pooled, packets: &Packets) -> Vec<String> {
    let late = pooled.causes.late;
    let has_details = packets.delays.count() > 0;
    let lost = if has_details { format!("{:.0}", packets.lost) } else { NOTHING.to_owned() };
    let mut row = vec![
        escape(name(&pooled.figures)),
        late.to_string(),
        pooled.causes.repaired.to_string(),
        lost,
    ];
    row.extend(causes(&pooled.causes).map(|(_, _, cause)| match late {
        0 => NOTHING.to_owned(),
        late => millis(cause.seconds * 1e3 / late as f64),
    }));
    row
}

const LOST_CLASS: &str = "c5";
