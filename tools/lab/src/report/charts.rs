//! Delay distributions.

use super::svg::{Anchor, Path, Scale, Svg};

/// A distribution of delays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    pub name: String,
    pub class: String,
    /// Delays in ms, ascending, and the share of packets within each, 0..1, constant in between.
    pub points: Vec<(f64, f64)>,
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

fn names(curves: &[Curve]) -> String {
    curves.iter().map(|curve| curve.name.as_str()).collect::<Vec<_>>().join(", ")
}

const WIDTH: f64 = 1_000.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
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
