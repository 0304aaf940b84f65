//! Charts that compare strategies: delay distributions, box plots, shares by cause.

use super::page::{percent, strategy_class};
use super::svg::{Anchor, Path, Point, Scale, Svg};

/// A distribution of delays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Class of its colour.
    pub class: String,
    /// Delays in ms, ascending, each with the share of packets within it, 0..1. The share is
    /// constant up to the next delay.
    pub points: Vec<(f64, f64)>,
}

/// A row of box plots.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Class of its colour.
    pub class: String,
}

/// A column of box plots.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// The figure's name.
    pub title: String,
    /// Factor for display: 100 for percent.
    pub factor: f64,
    /// Unit for labels.
    pub unit: &'static str,
    /// Per row: values, each with a label of its origin.
    pub samples: Vec<Vec<(f64, String)>>,
}

/// A stacked bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Class and size of each part, 0..1.
    pub parts: Vec<(String, f64)>,
}

/// Delay distributions on two logarithmic axes: each grid line leaves a tenth of the packets of the
/// line below. A curve that ends below the top has lost the rest of its packets.
pub fn delays(curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let visible = points().filter(|point| point.1 >= VISIBLE).map(|point| point.0);
    let low = visible.fold(100.0, f64::min).max(1.0);
    let high = points().map(|point| point.0).fold(200.0, f64::max).min(60e3);
    let label =
        format!("Delay distributions of {}; the table has their percentiles", names(curves));
    let mut svg = Svg::new((WIDTH, 380.0), &label);
    let x = Scale { values: (low.log10(), high.log10()), places: (LEFT, WIDTH - RIGHT) };
    let y = Scale { values: (0.0, NINES), places: (340.0, 12.0) };
    for (share, name) in SHARES {
        let place = y.at(nines(share));
        svg.line("grid", (LEFT, place), (WIDTH - RIGHT, place));
        svg.text((LEFT - 8.0, place + 4.5), Anchor::End, name);
    }
    for ms in TICKS_MS.into_iter().filter(|ms| (low..=high).contains(ms)) {
        let place = x.at(ms.log10());
        svg.line("grid", (place, y.places.1), (place, y.places.0));
        svg.text((place, 358.0), Anchor::Middle, &format!("{ms}"));
    }
    svg.text((WIDTH - RIGHT, 376.0), Anchor::End, "delay, ms");
    for curve in curves {
        if let Some(path) = curve_path(&curve.points, x, y) {
            svg.path(&format!("line {}", curve.class), &path);
        }
    }
    svg.finish()
}

fn curve_path(points: &[(f64, f64)], x: Scale, y: Scale) -> Option<Path> {
    let mut places = points.iter().map(|&(ms, share)| (x.at(ms.log10()), y.at(nines(share))));
    let (mut last, top) = (places.next()?, y.places.1);
    let mut path = Path::from((last.0, y.places.0));
    path.line_to(last);
    for place in places {
        // Skips points that are closer than a pixel or outside of the chart.
        let moved = (place.0 - last.0).abs() + (place.1 - last.1).abs();
        if last.1 > top && (moved >= 1.0 || place.1 <= top) {
            path.line_to((place.0, last.1));
            path.line_to(place);
            last = place;
        }
    }
    Some(path)
}

/// Number of nines of a share: 1 for 90 %, 2 for 99 %.
fn nines(share: f64) -> f64 {
    -(1.0 - share.min(1.0)).max(1e-9).log10()
}

/// Box plots side by side, one row per strategy: a box from quartile to quartile with the median, a
/// diamond at the mean, whiskers to the last value within 1.5 times the box, dots beyond. Each
/// panel has one entry of `samples` per row.
pub fn boxes(rows: &[Row], panels: &[Panel]) -> String {
    let height = ROW * rows.len() as f64 + 64.0;
    let titles: Vec<&str> = panels.iter().map(|panel| panel.title.as_str()).collect();
    let label = format!("Box plots of {}, one row per strategy", titles.join(", "));
    let mut svg = Svg::new((WIDTH, height), &label);
    for (index, row) in rows.iter().enumerate() {
        let (middle, text) = (row_middle(index), shortened(&row.name));
        svg.rect(&format!("area {}", row.class), (0.0, middle - 5.0), (10.0, 10.0), "");
        svg.text((16.0, middle + 4.5), Anchor::Start, &text);
    }
    let wide = (WIDTH - NAMES) / panels.len().max(1) as f64;
    for (index, panel) in panels.iter().enumerate() {
        let left = NAMES + wide * index as f64;
        draw_panel(&mut svg, rows, panel, (left + 14.0, left + wide - 14.0));
    }
    svg.finish()
}

fn draw_panel(svg: &mut Svg, rows: &[Row], panel: &Panel, places: Point) {
    let values = || panel.samples.iter().flatten().map(|sample| sample.0 * panel.factor);
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(f64::NEG_INFINITY, f64::max);
    svg.text((places.0, 16.0), Anchor::Start, &panel.title);
    if low > high {
        svg.text((places.0, row_middle(0) + 4.5), Anchor::Start, "nothing measured");
        return;
    }
    // An empty range would put every label at the same position.
    let room = (high - low).max(high.abs() * 1e-3).max(1e-6);
    let low = if low >= 0.0 && low < room { 0.0 } else { low - room * 0.05 };
    let scale = Scale { values: (low, high + room * 0.05), places };
    let bottom = row_middle(rows.len()) - ROW / 2.0;
    for tick in scale.ticks(4) {
        let place = scale.at(tick);
        svg.line("grid", (place, 26.0), (place, bottom));
        let text = format!("{}{}", decimals(tick, room), panel.unit);
        svg.text((place, bottom + 18.0), Anchor::Middle, &text);
    }
    for (index, (row, samples)) in rows.iter().zip(&panel.samples).enumerate() {
        let shown = |value: f64| format!("{}{}", decimals(value, room / 100.0), panel.unit);
        let samples: Vec<(f64, String)> = samples
            .iter()
            .map(|(value, on)| {
                (value * panel.factor, format!("{on}: {}", shown(value * panel.factor)))
            })
            .collect();
        draw_box(svg, row, &samples, scale, row_middle(index));
    }
}

fn draw_box(svg: &mut Svg, row: &Row, samples: &[(f64, String)], scale: Scale, middle: f64) {
    let mut sorted: Vec<f64> = samples.iter().map(|sample| sample.0).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let Some(summary) = Summary::of_sorted(&sorted) else { return };
    let class = |kind: &str| format!("{kind} {}", row.class);
    let [low, first, median, third, high] =
        [summary.low, summary.first, summary.median, summary.third, summary.high]
            .map(|v| scale.at(v));
    for (from, to, half) in
        [(low, first, 0.0), (third, high, 0.0), (low, low, 4.0), (high, high, 4.0)]
    {
        svg.line(&class("whisker"), (from, middle - half), (to, middle + half));
    }
    let words = format!(
        "{}: median {:.3}, quartiles {:.3} and {:.3}, mean {:.3}",
        row.name, summary.median, summary.first, summary.third, summary.mean
    );
    let corner = (first, middle - ROW * 0.3);
    svg.rect(&class("box"), corner, ((third - first).max(0.5), ROW * 0.6), &words);
    svg.line(&class("median"), (median, middle - ROW * 0.3), (median, middle + ROW * 0.3));
    for (value, title) in samples.iter().filter(|(value, _)| !summary.is_near(*value)) {
        svg.dot(&class("area"), (scale.at(*value), middle), 2.2, title);
    }
    let mean = scale.at(summary.mean);
    let mut diamond = Path::from((mean - 4.0, middle));
    for corner in [(mean, middle - 4.0), (mean + 4.0, middle), (mean, middle + 4.0)] {
        diamond.line_to(corner);
    }
    diamond.close();
    svg.path(&class("mean"), &diamond);
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Summary {
    low: f64,
    first: f64,
    median: f64,
    third: f64,
    high: f64,
    mean: f64,
}

impl Summary {
    fn of_sorted(sorted: &[f64]) -> Option<Self> {
        let count = sorted.len();
        let last = count.checked_sub(1)?;
        let at = |share: f64| {
            let rank = share * last as f64;
            let (below, above) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
            below + (above - below) * rank.fract()
        };
        let (first, third) = (at(0.25), at(0.75));
        let reach = 1.5 * (third - first);
        let near =
            || sorted.iter().filter(|value| (first - reach..=third + reach).contains(*value));
        Some(Self {
            low: near().next().copied().unwrap_or(first).min(first),
            first,
            median: at(0.5),
            third,
            high: near().next_back().copied().unwrap_or(third).max(third),
            mean: sorted.iter().sum::<f64>() / count as f64,
        })
    }

    fn is_near(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// Horizontal bars, with their sum at the end.
pub fn bars(label: &str, bars: &[Bar]) -> String {
    let sum = |bar: &Bar| bar.parts.iter().map(|part| part.1).sum::<f64>();
    let longest = bars.iter().map(sum).fold(0.0, f64::max);
    let mut svg = Svg::new((WIDTH, ROW * bars.len() as f64 + 44.0), label);
    let scale = Scale { values: (0.0, longest.max(1e-6) * 1.02), places: (NAMES, WIDTH - 70.0) };
    let bottom = ROW * bars.len() as f64 + 8.0;
    for tick in scale.ticks(6) {
        let place = scale.at(tick);
        svg.line("grid", (place, 4.0), (place, bottom));
        let text = format!("{} %", decimals(tick * 100.0, longest * 100.0));
        svg.text((place, bottom + 18.0), Anchor::Middle, &text);
    }
    for (index, bar) in bars.iter().enumerate() {
        let middle = ROW * (index as f64 + 0.5) + 6.0;
        svg.text((0.0, middle + 4.5), Anchor::Start, &shortened(&bar.name));
        let mut before = 0.0;
        for (class, part) in &bar.parts {
            let (from, to) = (scale.at(before), scale.at(before + part));
            if to - from >= 0.05 {
                let corner = (from, middle - ROW * 0.32);
                svg.rect(
                    &format!("area {class}"),
                    corner,
                    (to - from, ROW * 0.64),
                    &percent(*part),
                );
            }
            before += part;
        }
        svg.text((scale.at(before) + 6.0, middle + 4.5), Anchor::Start, &percent(before));
    }
    svg.finish()
}

/// Rows in the order of `names`, with the strategies' colours.
pub fn rows<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Row> {
    let row =
        |(index, name): (usize, &str)| Row { name: name.to_owned(), class: strategy_class(index) };
    names.into_iter().enumerate().map(row).collect()
}

fn names(curves: &[Curve]) -> String {
    curves.iter().map(|curve| curve.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME_CHARS) {
        Some((end, _)) => format!("{}\u{2026}", &name[..end]),
        None => name.to_owned(),
    }
}

fn decimals(number: f64, range: f64) -> String {
    let digits = (1.0 - range.max(1e-6).log10().floor()).clamp(0.0, 5.0) as usize;
    format!("{number:.digits$}")
}

fn row_middle(index: usize) -> f64 {
    26.0 + ROW * (index as f64 + 0.5)
}

const WIDTH: f64 = 1_000.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const NAMES: f64 = 150.0;
const NAME_CHARS: usize = 18;
const ROW: f64 = 24.0;
const VISIBLE: f64 = 0.005;
const NINES: f64 = 4.0;
const SHARES: [(f64, &str); 6] = [
    (0.0, "0 %"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.999_9, "99.99 %"),
];
const TICKS_MS: [f64; 21] = [
    1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 30.0, 50.0, 70.0, 100.0, 200.0, 300.0, 500.0, 700.0, 1e3,
    2e3, 5e3, 10e3, 20e3, 50e3,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_plot_has_quartiles_and_whiskers_that_leave_out_what_is_far() {
        let mut values: Vec<f64> = (1..=9).map(f64::from).collect();
        values.push(100.0);
        let summary = Summary::of_sorted(&values).unwrap();
        assert_eq!((summary.first, summary.median, summary.third), (3.25, 5.5, 7.75));
        assert_eq!((summary.low, summary.high, summary.mean), (1.0, 9.0, 14.5));
        assert!(!summary.is_near(100.0) && summary.is_near(1.0));
        assert_eq!(Summary::of_sorted(&[]), None);
        let one = Summary::of_sorted(&[2.0]).unwrap();
        assert_eq!((one.low, one.median, one.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn each_nine_of_a_share_takes_the_same_room() {
        for (share, expected) in [(0.0, 0.0), (0.9, 1.0), (0.99, 2.0), (0.999, 3.0)] {
            assert!((nines(share) - expected).abs() < 1e-9, "{share}");
        }
        assert!(nines(1.0) > NINES && nines(1.5) > NINES);
    }

    #[test]
    fn a_curve_rises_in_steps() {
        let x = Scale { values: (0.0, 1.0), places: (0.0, 100.0) };
        let y = Scale { values: (0.0, 1.0), places: (100.0, 0.0) };
        let points = [(1.0, 0.0), (10.0, 0.9)];
        let mut expected = Path::from((0.0, 100.0));
        expected.line_to((100.0, 100.0));
        expected.line_to((100.0, 0.0));
        assert_eq!(curve_path(&points, x, y), Some(expected));
    }
}
