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

/// Stacked bytes waiting in the lanes and in each link.
pub fn queues(timeline: &Timeline, group: usize) -> Strip {
    let kilobytes = |class: String, bytes: &[u64]| Layer {
        class,
        values: Merge::Max.columns(bytes.iter().map(|bytes| *bytes as f64 / 1e3), group),
    };
    let lane = kilobytes("lane".to_owned(), &timeline.lane_queue);
    let links = timeline.link_queues.iter().enumerate();
    let links = links.map(|(index, (_, bytes))| kilobytes(link_class(index), bytes));
    Strip {
        title: "waiting in the lane and in each link, kB, stacked".to_owned(),
        height: 90.0,
        above: stack(std::iter::once(lane).chain(links)),
        ..Strip::default()
    }
}

/// Capacities of the links: stacked up to a multiple of the video's rate, and individually up to
/// that rate. `series` has the name and Mbit/s per step of each link; `video` is in Mbit/s.
pub fn capacities(series: &[(String, Vec<f64>)], video: f64, group: usize) -> Vec<Strip> {
    let cut = video * CAPACITY_SHOWN;
    let title =
        format!("all together, Mbit/s, stacked; dashed: the video's {video}; cut off at {cut}");
    let mut together = rates(&title, series, group);
    together.top = Some(super::timeline::highest(&together.above).max(video * 1.1).min(cut));
    together.mark = Some(video);
    let alone = |(index, (name, rates)): (usize, &(String, Vec<f64>))| Strip {
        title: format!("{name} alone, cut off at the video's rate"),
        height: 26.0,
        above: vec![Layer {
            class: link_class(index),
            values: Merge::Mean.columns(rates.iter().copied(), group),
        }],
        top: Some(video),
        ..Strip::default()
    };
    std::iter::once(together).chain(series.iter().enumerate().map(alone)).collect()
}

/// Class and name of the colours in [`packets`] and [`queues`] that are not of links.
pub const MARKS: [(&str, &str); 6] = [
    ("lane", "lane's queue"),
    ("sent", "repairs sent"),
    ("recovered", "brought by a repair"),
    ("missing", "missing"),
    ("late", "of these late"),
    ("stalled", "stall"),
];

const CAPACITY_SHOWN: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_has_no_more_columns_than_a_short_one() {
        for (steps, columns, expected) in [(900, 450, 2), (901, 450, 3), (10, 450, 1), (0, 0, 1)] {
            assert_eq!(group(steps, columns), expected);
        }
    }

    #[test]
    fn capacities_are_cut_off_but_always_reach_the_videos_rate() {
        let series = |rate: f64| [("a".to_owned(), vec![rate, 0.0])];
        let tops = |rate: f64| -> Vec<Option<f64>> {
            capacities(&series(rate), 30.0, 1).iter().map(|strip| strip.top).collect()
        };
        assert_eq!(tops(500.0), [Some(90.0), Some(30.0)]);
        assert_eq!(tops(40.0), [Some(40.0), Some(30.0)]);
        assert_eq!(tops(1.0), [Some(33.0), Some(30.0)]);
    }
}
