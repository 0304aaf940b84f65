//! A minimal SVG writer, with colours from the style sheet and a text alternative.
//!
//! Marks carry classes, so one drawing serves light pages, dark ones and paper. Coordinates are
//! rounded to tenths and paths are relative: a time line of 450 columns takes 2 kB.

use std::fmt::{self, Write as _};

use super::page::escape;

#[derive(Clone, Debug)]
pub struct Svg {
    text: String,
}

pub type Point = (f64, f64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// A drawing of a size in the page's pixels; `label` is its text alternative.
    pub fn new((width, height): Point, label: &str) -> Self {
        let text = format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
            Tenths::of(width),
            Tenths::of(height),
            escape(label)
        );
        Self { text }
    }

    pub fn line(&mut self, class: &str, from: Point, to: Point) {
        let mut path = Path::from(from);
        path.line_to(to);
        self.path(class, &path);
    }

    pub fn path(&mut self, class: &str, path: &Path) {
        self.put(format_args!("<path class=\"{class}\" d=\"{}\"/>", path.text));
    }

    pub fn rect(&mut self, class: &str, (x, y): Point, (width, height): Point, title: &str) {
        let (x, y, width, height) =
            (Tenths::of(x), Tenths::of(y), Tenths::of(width), Tenths::of(height));
        let title = escape(title);
        self.put(format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\">\
             <title>{title}</title></rect>"
        ));
    }

    pub fn text(&mut self, (x, y): Point, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let (x, y) = (Tenths::of(x), Tenths::of(y));
        self.put(format_args!("<text x=\"{x}\" y=\"{y}\"{anchor}>{}</text>", escape(text)));
    }

    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    fn put(&mut self, content: fmt::Arguments<'_>) {
        self.text.write_fmt(content).expect("a string takes everything");
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    text: String,
    at: (Tenths, Tenths),
}

impl Path {
    pub fn from((x, y): Point) -> Self {
        let at = (Tenths::of(x), Tenths::of(y));
        Self { text: format!("M{} {}", at.0, at.1), at }
    }

    /// Draws a line to a point, if it differs from the present one.
    pub fn line_to(&mut self, (x, y): Point) {
        let to = (Tenths::of(x), Tenths::of(y));
        let (right, down) = (Tenths(to.0.0 - self.at.0.0), Tenths(to.1.0 - self.at.1.0));
        let step = match (right.0, down.0) {
            (0, 0) => return,
            (_, 0) => format!("h{right}"),
            (0, _) => format!("v{down}"),
            (_, 1..) => format!("l{right} {down}"),
            (_, _) => format!("l{right}{down}"),
        };
        self.text.push_str(&step);
        self.at = to;
    }

    pub fn close(&mut self) {
        self.text.push('z');
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tenths(i64);

impl Tenths {
    fn of(number: f64) -> Self {
        Self((number * 10.0).round() as i64)
    }
}

impl fmt::Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        match (self.0.unsigned_abs() / 10, self.0.unsigned_abs() % 10) {
            (whole, 0) => write!(f, "{sign}{whole}"),
            (0, tenths) => write!(f, "{sign}.{tenths}"),
            (whole, tenths) => write!(f, "{sign}{whole}.{tenths}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub values: (f64, f64),
    pub places: (f64, f64),
}

impl Scale {
    /// The position of a value, clamped to the range.
    pub fn at(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let share = if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.0 };
        self.places.0 + share * (self.places.1 - self.places.0)
    }

    /// About `count` round values for labels, ascending.
    pub fn ticks(&self, count: usize) -> Vec<f64> {
        let (low, high) = self.values;
        let rough = (high - low) / count.max(1) as f64;
        if rough.is_nan() || rough <= 0.0 || rough.is_infinite() {
            return vec![low];
        }
        let decade = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
        let step = steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(rough);
        let (first, last) =
            ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
        (first..=last).map(|tick| tick as f64 * step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_ticks(low: f64, high: f64, expected: &[f64]) {
        let ticks = Scale { values: (low, high), places: (0.0, 1.0) }.ticks(4);
        assert_eq!(ticks.len(), expected.len(), "{low} to {high}: {ticks:?}");
        for (tick, expected) in ticks.iter().zip(expected) {
            assert!((tick - expected).abs() < 1e-9, "{low} to {high}: {ticks:?}");
        }
    }

    #[test]
    fn ticks_are_round_and_within_the_range() {
        check_ticks(0.0, 90.0, &[0.0, 50.0]);
        check_ticks(0.0, 100.0, &[0.0, 50.0, 100.0]);
        check_ticks(0.0, 0.8, &[0.0, 0.2, 0.4, 0.6, 0.8]);
        check_ticks(-30.0, 50.0, &[-20.0, 0.0, 20.0, 40.0]);
        check_ticks(7.0, 7.0, &[7.0]);
    }

    #[test]
    fn values_outside_a_scale_stand_at_its_ends() {
        let scale = Scale { values: (10.0, 20.0), places: (100.0, 0.0) };
        assert_eq!([5.0, 10.0, 15.0, 99.0].map(|value| scale.at(value)), [100.0, 100.0, 50.0, 0.0]);
    }
}
