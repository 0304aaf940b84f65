//! Sets against the recorded statistics, each within the tolerance beside it.

use super::*;
use crate::statistics::{PairStatistics, TraceStatistics};

/// Several sets, since the recorded set is a single draw as well.
const SEEDS: std::ops::Range<u64> = 1..5;
const LENGTH: Duration = Duration::from_secs(90);

fn drives() -> Vec<Drive> {
    let sets = SEEDS.map(|seed| DriveSet { seed, length: LENGTH });
    sets.flat_map(|set| (0..DriveSet::DRIVES).map(move |index| set.drive(index))).collect()
}

#[track_caller]
fn check(what: &str, value: f64, target: f64, bound: f64) {
    println!("{what}: {value:.3}, recorded {target:.3}");
    assert!((value - target).abs() <= bound, "{what}: {value} is not {target} +- {bound}");
}

/// Recorded values of a link: p10, median and p95 of half seconds, Mbit/s; their correlation with
/// the next; pauses of at least 200 ms per minute; loss; the median round trip, ms.
type Recorded = (&'static str, [f64; 3], f64, f64, f64, f64);

const RECORDED: [Recorded; 4] = [
    ("att", [1.65, 15.1, 63.5], 0.83, 2.07, 0.0044, 71.5),
    ("lte", [2.07, 17.2, 62.3], 0.89, 1.97, 0.0164, 62.3),
    ("tmobile", [5.07, 47.2, 121.0], 0.83, 2.80, 0.0131, 62.2),
    ("verizon", [0.97, 14.1, 57.6], 0.84, 2.34, 0.0029, 59.6),
];

#[test]
fn links_have_the_statistics_of_the_recorded_ones() {
    let drives = drives();
    for (index, (name, capacity, again, gaps, loss, rtt)) in RECORDED.into_iter().enumerate() {
        let links: Vec<&Trace> = drives.iter().map(|drive| &drive.links[index].up).collect();
        assert!(drives.iter().all(|drive| drive.links[index].name == name));
        let mut rates: Vec<f64> = links
            .iter()
            .flat_map(|link| link.capacity().mean_rates(Duration::from_millis(500), LENGTH))
            .collect();
        rates.sort_unstable_by(f64::total_cmp);
        for ((share, bound), target) in
            [(0.1, 0.6), (0.5, 0.2), (0.95, 0.15)].into_iter().zip(capacity)
        {
            let mbps = rates[(rates.len() as f64 * share) as usize] / 1e6;
            check(&format!("{name} capacity at {share}"), mbps, target, bound * target);
        }
        let it = TraceStatistics::of(links).unwrap();
        let resembles = it.autocorrelation.after_500_ms.unwrap();
        check(&format!("{name} resembles itself"), resembles, again, 0.05);
        check(&format!("{name} gaps"), it.gaps.of_200_ms_per_minute, gaps, 0.25 * gaps);
        check(&format!("{name} loss"), it.loss.share, loss, 0.6 * loss);
        check(&format!("{name} round trip"), it.delay_ms.p50 * 2.0, rtt, 0.1 * rtt);
    }
    // Only att and verizon were recorded together.
    let correlation = |one: usize, other: usize| {
        let pairs = drives.iter().filter_map(|drive| {
            PairStatistics::of(&drive.links[one].up, &drive.links[other].up).correlation
        });
        let correlations: Vec<f64> = pairs.collect();
        correlations.iter().sum::<f64>() / correlations.len() as f64
    };
    check("att and verizon", correlation(0, 3), 0.15, 0.07);
    check("att and tmobile", correlation(0, 2), -0.05, 0.1);
    check("lte and verizon", correlation(1, 3), -0.03, 0.1);
}

#[test]
fn drives_of_a_set_are_good_and_bad_in_equal_measure() {
    let set = DriveSet { seed: 9, length: LENGTH };
    for link in 0..4 {
        for block in [0, 59] {
            let levels: Vec<f64> =
                (block..block + 59).map(|index| set.score(index, link, LEVELS, 0.0)).collect();
            let mean = levels.iter().sum::<f64>() / 59.0;
            let variance = levels.iter().map(|level| (level - mean).powi(2)).sum::<f64>() / 59.0;
            check("mean", mean, 0.0, 1e-9);
            check("variance", variance, 1.0, 1e-9);
        }
    }
}

#[test]
fn equal_seeds_give_equal_drives_and_others_do_not() {
    let drive = |seed, index| DriveSet { seed, length: Duration::from_secs(20) }.drive(index);
    assert_eq!(drive(1, 3), drive(1, 3));
    assert_ne!(drive(1, 3), drive(1, 4));
    assert_ne!(drive(1, 3), drive(2, 3));
    let links = drive(1, 3).links;
    assert_ne!(links[0].up, links[1].up);
}

#[test]
fn any_length_and_number_works() {
    for millis in [0, 1, 99, 100, 101, 1_250] {
        let set = DriveSet { seed: u64::MAX, length: Duration::from_millis(millis) };
        for index in [0, 58, 59, 10_000, u32::MAX] {
            assert_eq!(set.drive(index).links.len(), 4);
        }
    }
}
