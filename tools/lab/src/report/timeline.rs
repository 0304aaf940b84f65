//! Time lines: strips stacked on one axis of seconds, with stalls shaded through all of them.
//!
//! ```text
//!   Mbit/s   ▁▂▅▇▅▂  rates, stacked
//!   packets  ▂ ▁     what was done above,
//!               ▔▂   what went wrong below the line
//!            0      10      20 s
//! ```
//!
//! Values are drawn as steps: each holds for its column.

use super::svg::{Anchor, Path, Scale, Svg};
use crate::figures::Timeline;

/// Strips on one time axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// The text alternative.
    pub label: String,
    /// Number of steps of [`Timeline::STEP`].
    pub steps: usize,
    /// Steps per column.
    pub group: usize,
    /// From the top down.
    pub strips: Vec<Strip>,
    /// Begin and end of each stall, seconds.
    pub stalls: Vec<(f64, f64)>,
}

/// One kind of values over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strip {
    /// Title with the unit.
    pub title: String,
    /// In the page's pixels.
    pub height: f64,
    /// Areas above the line, the first at the back.
    pub above: Vec<Layer>,
    /// Areas below the line.
    pub below: Vec<Layer>,
    /// Top of the upper axis; default: the highest value.
    pub top: Option<f64>,
    /// A reference value.
    pub mark: Option<f64>,
}

/// An area from zero to one value per column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layer {
    /// Class of its colour.
    pub class: String,
    /// One value per column, not negative.
    pub values: Vec<f64>,
}

/// How steps merge into a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    Mean,
    Sum,
    Max,
}

impl Merge {
    /// Merges each `group` of `values` into a column.
    pub fn columns(self, values: impl IntoIterator<Item = f64>, group: usize) -> Vec<f64> {
        let values: Vec<f64> = values.into_iter().collect();
        let column = |steps: &[f64]| match self {
            Self::Mean => steps.iter().sum::<f64>() / steps.len() as f64,
            Self::Sum => steps.iter().sum(),
            Self::Max => steps.iter().copied().fold(0.0, f64::max),
        };
        values.chunks(group.max(1)).map(column).collect()
    }
}

/// Stacks layers, the first at the bottom.
pub fn stack(series: impl IntoIterator<Item = Layer>) -> Vec<Layer> {
    let mut below: Vec<f64> = Vec::new();
    let mut layers = Vec::new();
    for Layer { class, values } in series {
        below.resize(below.len().max(values.len()), 0.0);
        below.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
        layers.push(Layer { class, values: below.clone() });
    }
    // Each area covers the ones below, so the highest comes first.
    layers.reverse();
    layers
}

fn highest<'a>(layers: impl IntoIterator<Item = &'a Layer>) -> f64 {
    layers.into_iter().flat_map(|layer| &layer.values).copied().fold(0.0, f64::max)
}

impl Figure {
    /// The figure as SVG.
    pub fn draw(&self) -> String {
        let seconds = (self.steps as f64 * Timeline::STEP.as_secs_f64()).max(1e-3);
        let x = Scale { values: (0.0, seconds), places: (LEFT, WIDTH - RIGHT) };
        let bottom: f64 = self.strips.iter().map(|strip| TITLE + strip.height).sum();
        let mut svg = Svg::new((WIDTH, bottom + AXIS), &self.label);
        for tick in x.ticks(9) {
            let place = x.at(tick);
            svg.line("grid", (place, TITLE), (place, bottom));
            svg.text((place, bottom + 16.0), Anchor::Middle, &format!("{} s", tidy(tick)));
        }
        let mut top = 0.0;
        for strip in &self.strips {
            strip.draw(&mut svg, x, top + TITLE, self.group);
            top += TITLE + strip.height;
        }
        for &(from, to) in &self.stalls {
            let (left, right) = (x.at(from), x.at(to));
            let title = format!("stall of {:.2} s from {from:.1} s on", to - from);
            let size = ((right - left).max(1.0), bottom - TITLE);
            svg.rect("stall", (left, TITLE), size, &title);
        }
        svg.finish()
    }
}

impl Strip {
    /// The highest value above the line.
    pub fn highest(&self) -> f64 {
        highest(&self.above)
    }

    fn draw(&self, svg: &mut Svg, x: Scale, top: f64, group: usize) {
        svg.text((x.places.0, top - 7.0), Anchor::Start, &self.title);
        let above = self.top.unwrap_or_else(|| self.highest()).max(self.least());
        let below = match self.below.is_empty() {
            true => 0.0,
            false => highest(&self.below).max(self.least()),
        };
        let y = Scale { values: (-below, above), places: (top + self.height, top) };
        let ticks = y.ticks(if self.height < 80.0 { 2 } else { 5 });
        for tick in &ticks {
            let place = y.at(*tick);
            svg.line("grid", (x.places.0, place), (x.places.1, place));
            svg.text((x.places.0 - 8.0, place + 4.5), Anchor::End, &tidy(tick.abs()));
        }
        for (layers, sign) in [(&self.above, 1.0), (&self.below, -1.0)] {
            for layer in layers.iter().filter(|layer| highest([*layer]) > 0.0) {
                svg.path(&format!("area {}", layer.class), &layer.outline(x, y, sign, group));
            }
        }
        let base = y.at(0.0);
        svg.line("axis", (x.places.0, base), (x.places.1, base));
        if let Some(mark) = self.mark.filter(|mark| *mark <= above) {
            svg.line("mark", (x.places.0, y.at(mark)), (x.places.1, y.at(mark)));
        }
    }

    /// The least range of an axis, so that a single packet does not fill it.
    fn least(&self) -> f64 {
        if self.below.is_empty() { 1.0 } else { 5.0 }
    }
}

impl Layer {
    fn outline(&self, x: Scale, y: Scale, sign: f64, group: usize) -> Path {
        let column = group.max(1) as f64 * Timeline::STEP.as_secs_f64();
        let base = y.at(0.0).round();
        let mut path = Path::from((x.places.0, base));
        let mut at = base;
        for (index, value) in self.values.iter().enumerate() {
            let height = y.at(sign * value).round();
            if height != at {
                let left = x.at(column * index as f64);
                path.line_to((left, at));
                path.line_to((left, height));
                at = height;
            }
        }
        let right = x.at(column * self.values.len() as f64);
        path.line_to((right, at));
        path.line_to((right, base));
        path.close();
        path
    }
}

fn tidy(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

const WIDTH: f64 = 1_000.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 36.0;
const TITLE: f64 = 28.0;
const AXIS: f64 = 24.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(values: &[f64]) -> Layer {
        Layer { class: "k0".into(), values: values.to_vec() }
    }

    #[test]
    fn stacked_layers_stand_one_on_the_other() {
        let layers = stack([layer(&[1.0, 2.0]), layer(&[10.0]), layer(&[0.0, 5.0, 3.0])]);
        let values: Vec<_> = layers.iter().map(|layer| layer.values.as_slice()).collect();
        assert_eq!(values, [&[11.0, 7.0, 3.0][..], &[11.0, 2.0], &[1.0, 2.0]]);
        assert_eq!(highest(&layers), 11.0);
    }

    #[test]
    fn an_area_goes_in_steps_and_equal_neighbours_share_one() {
        let x = Scale { values: (0.0, 0.4), places: (0.0, 40.0) };
        let y = Scale { values: (0.0, 10.0), places: (10.0, 0.0) };
        let outline = layer(&[4.0, 4.0, 0.0, 2.0]).outline(x, y, 1.0, 1);
        let mut expected = Path::from((0.0, 10.0));
        for point in [(0.0, 6.0), (20.0, 6.0), (20.0, 10.0), (30.0, 10.0), (30.0, 8.0), (40.0, 8.0)]
        {
            expected.line_to(point);
        }
        expected.line_to((40.0, 10.0));
        expected.close();
        assert_eq!(outline, expected);
    }
}
