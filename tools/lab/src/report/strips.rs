//! Strips of a run's time line.

use super::page::link_class;
use super::timeline::{Layer, Merge, Strip, stack};
use crate::figures::Timeline;

/// Steps of a time line.
pub fn steps(timeline: &Timeline) -> usize {
    let rates = timeline.uplinks.iter().chain(&timeline.capacities).map(|(_, rates)| rates.len());
    rates.max().unwrap_or(0).max(timeline.repairs.len())
}

/// Steps per column, for at most `columns` columns.
pub fn group(steps: usize, columns: usize) -> usize {
    steps.div_ceil(columns.max(1)).max(1)
}

/// Stacked link rates in Mbit/s. `series`: name and rate per step of each link.
pub fn rates(title: &str, series: &[(String, Vec<f64>)], group: usize) -> Strip {
    let layer = |(index, (_, rates)): (usize, &(String, Vec<f64>))| Layer {
        class: link_class(index),
        values: Merge::Mean.columns(rates.iter().copied(), group),
    };
    Strip {
        title: title.to_owned(),
        height: 90.0,
        above: stack(series.iter().enumerate().map(layer)),
        ..Strip::default()
    }
}

/// Repairs upwards, missing packets downwards.
pub fn packets(timeline: &Timeline, group: usize) -> Strip {
    let counts = |class: &str, counts: &[u32]| Layer {
        class: class.to_owned(),
        values: Merge::Sum.columns(counts.iter().map(|count| f64::from(*count)), group),
    };
    Strip {
        title: format!(
            "packets per {} ms; up: repairs sent, brought by a repair; down: missing, of these late",
            group as u128 * Timeline::STEP.as_millis()
        ),
        height: 80.0,
        above: vec![counts("sent", &timeline.repairs), counts("recovered", &timeline.recovered)],
        below: vec![counts("missing", &timeline.missing), counts("late", &timeline.late)],
        ..Strip::default()
    }
}

/// Class and name of the colours in [`packets`] and of stalls.
pub const MARKS: [(&str, &str); 5] = [
    ("sent", "repairs sent"),
    ("recovered", "brought by a repair"),
    ("missing", "missing"),
    ("late", "of these late"),
    ("stalled", "stall"),
];
