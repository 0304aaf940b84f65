//! Cost of strategies in bytes against their benefit: one dot per strategy, in two panels.
//!
//! ```text
//!  p99 by the bound's │  ○ one            stalls │
//!                     │        ○ another         │ ○      ○
//!                     └──────────── redundancy   └──────────── redundancy
//! ```
//!
//! Redundancy is logarithmic: strategies differ by a factor of a hundred.

use super::page::percent;
use super::svg::{Anchor, Point, Scale, Svg};

/// A strategy's cost and benefit.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Name of the strategy.
    pub name: String,
    /// Class of its colour.
    pub class: String,
    /// Bytes beyond the inner packets, as a share of the inner packets.
    pub redundancy: f64,
    /// p99 delay relative to the bound's, if known.
    pub p99_by_bound: Option<f64>,
    /// Share of the time in stalls, 0..1.
    pub stalls: f64,
}

/// Both panels as SVG.
pub fn trade(marks: &[Mark]) -> String {
    let mut svg = Svg::new((WIDTH, HEIGHT), "Tail and stalls of each strategy by its redundancy");
    let tails: Vec<(&Mark, f64)> =
        marks.iter().filter_map(|mark| Some((mark, mark.p99_by_bound?))).collect();
    panel(&mut svg, 0.0, "p99 delay by the bound's", &tails, |times| format!("{times} \u{d7}"));
    let stalls: Vec<(&Mark, f64)> = marks.iter().map(|mark| (mark, 100.0 * mark.stalls)).collect();
    panel(&mut svg, WIDTH / 2.0, "stalls", &stalls, |share| format!("{share} %"));
    svg.finish()
}

fn panel(
    svg: &mut Svg,
    left: f64,
    title: &str,
    dots: &[(&Mark, f64)],
    label: impl Fn(f64) -> String,
) {
    let highest = dots.iter().map(|(_, height)| *height).fold(0.0, f64::max).max(1e-6);
    let x = Scale {
        values: (REDUNDANCY.0.log10(), REDUNDANCY.1.log10()),
        places: (left + LEFT, left + WIDTH / 2.0 - RIGHT),
    };
    let y = Scale { values: (0.0, highest * 1.1), places: (BOTTOM, TOP) };
    svg.text((left + LEFT, TOP - 12.0), Anchor::Start, title);
    for tick in y.ticks(5) {
        svg.line("grid", (x.places.0, y.at(tick)), (x.places.1, y.at(tick)));
        // Removes binary rounding errors of decimal steps.
        let text = label((tick * 1e6).round() / 1e6);
        svg.text((x.places.0 - 8.0, y.at(tick) + 4.5), Anchor::End, &text);
    }
    for share in TICKS {
        let place = x.at(share.log10());
        svg.line("grid", (place, TOP), (place, BOTTOM));
        svg.text((place, BOTTOM + 18.0), Anchor::Middle, &format!("{} %", share * 100.0));
    }
    svg.text((x.places.1, BOTTOM + 36.0), Anchor::End, "redundancy");
    let mut names = Names::default();
    for (mark, height) in dots {
        let at = (x.at(mark.redundancy.max(REDUNDANCY.0).log10()), y.at(*height));
        let told = format!("{}: {}, {height:.2}", mark.name, percent(mark.redundancy));
        svg.dot(&format!("area {}", mark.class), at, 5.0, &told);
        svg.text(names.place(at, &mark.name, x.places.1), Anchor::Start, &mark.name);
    }
}

#[derive(Debug, Default)]
struct Names {
    /// Left end, width, baseline.
    taken: Vec<(f64, f64, f64)>,
}

impl Names {
    fn place(&mut self, at: Point, name: &str, end: f64) -> Point {
        let width = name.chars().count() as f64 * CHAR;
        let left = if at.0 + BESIDE + width <= end { at.0 + BESIDE } else { at.0 - BESIDE - width };
        let covers = |line: f64| {
            self.taken.iter().any(|(other, wide, height)| {
                left < other + wide && *other < left + width && (line - height).abs() < LINE
            })
        };
        let lines = [0.0, -1.0, 1.0, -2.0, 2.0, -3.0, 3.0].map(|line| at.1 + 4.5 + line * LINE);
        let line = lines.into_iter().find(|line| !covers(*line)).unwrap_or(lines[0]);
        self.taken.push((left, width, line));
        (left, line)
    }
}

/// Upper bound of a character's width, and the height of a line.
const CHAR: f64 = 8.5;
const LINE: f64 = 13.0;
const BESIDE: f64 = 9.0;

const WIDTH: f64 = 1_000.0;
const HEIGHT: f64 = 340.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 290.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
/// Range of the axis, as shares; smaller values are drawn at its end.
const REDUNDANCY: (f64, f64) = (0.005, 2.0);
const TICKS: [f64; 8] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(name: &str, redundancy: f64, p99_by_bound: Option<f64>) -> Mark {
        let (name, class) = (name.to_owned(), "s1".to_owned());
        Mark { name, class, redundancy, p99_by_bound, stalls: 0.01 }
    }

    #[test]
    fn whoever_pays_more_stands_further_right_and_names_do_not_cover_each_other() {
        let svg = trade(&[mark("cheap", 0.01, Some(2.0)), mark("dear", 1.0, Some(2.0))]);
        let place = |name: &str| {
            let dot = svg.split("<circle").find(|dot| dot.contains(&format!(">{name}:")));
            let (_, rest) = dot.unwrap().split_once("cx=\"").unwrap();
            rest.split_once('"').unwrap().0.parse::<f64>().unwrap()
        };
        assert!(place("cheap") + 200.0 < place("dear"), "{svg}");
        let svg = trade(&[mark("one", 0.05, Some(2.0)), mark("other", 0.05, Some(2.0))]);
        let heights: Vec<&str> = ["one", "other"]
            .map(|name| svg.split_once(&format!(">{name}<")).unwrap().0)
            .map(|before| before.rsplit_once("y=\"").unwrap().1)
            .to_vec();
        assert_ne!(heights[0], heights[1]);
    }
}
