use proptest::prelude::*;

use super::*;

fn log_of(samples: &[(f64, f64)]) -> Log {
    let mut log = Log::default();
    for &(at, rtt) in samples {
        assert!(log.add(at, rtt), "the samples are far enough apart");
    }
    log
}

/// A prediction as the paper writes it, from the samples before `place` that are `omitted` s older.
fn by_definition(samples: &[(f64, f64)], place: usize, lambda: f64, omitted: f64) -> Option<f64> {
    let now = samples[place].0;
    let used = || samples[..place].iter().filter(|(at, _)| at + omitted <= now);
    let newest = used().map(|(at, _)| *at).fold(f64::NEG_INFINITY, f64::max);
    // Relative to the newest, so that no weight is lost for want of digits.
    let weight = |at: f64| (-(newest - at) / lambda).exp();
    let weights: f64 = used().map(|(at, _)| weight(*at)).sum();
    (weights > 0.0).then(|| used().map(|(at, rtt)| weight(*at) * rtt).sum::<f64>() / weights)
}

fn samples() -> impl Strategy<Value = Vec<(f64, f64)>> {
    prop::collection::vec((0.11..2.0_f64, 0.02..0.5_f64), 130..200).prop_map(|steps| {
        let mut at = 0.0;
        let sample = |(step, rtt)| {
            at += step;
            (at, rtt)
        };
        steps.into_iter().map(sample).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_is_learned_is_what_the_definitions_say(samples in samples()) {
        let tables = Tables::learn(&[&log_of(&samples)]).expect("enough samples");
        let rmse = |lambda: f64| {
            let square = |place| {
                let predicted = by_definition(&samples, place, lambda, 0.0)?;
                Some((samples[place].1 - predicted).powi(2))
            };
            let squares: Vec<f64> = (0..samples.len()).filter_map(square).collect();
            (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
        };
        for other in LAMBDAS {
            prop_assert!(rmse(tables.lambda) <= rmse(other) + 1e-9, "{} not {other}", tables.lambda);
        }

        let relative = |place: usize| {
            Some(samples[place].1 / by_definition(&samples, place, tables.lambda, 0.0)?)
        };
        let mut errors: Vec<f64> = (0..samples.len()).filter_map(relative).collect();
        errors.sort_unstable_by(f64::total_cmp);
        prop_assert!((tables.errors[0] - errors[0]).abs() < 1e-4);
        prop_assert!((tables.errors[100] - errors[errors.len() - 1]).abs() < 1e-4);
        // Several may lie within the rounding of the percentile.
        let share_below = |bound: f64| {
            errors.iter().filter(|error| **error < bound).count() as f64 / errors.len() as f64
        };
        let [below, up_to] = [-1e-4, 1e-4].map(|slack| share_below(tables.errors[5] + slack));
        prop_assert!(below < 0.062 && up_to > 0.038, "{below} {up_to}");

        let mut highest = 1.0_f64;
        for &(age, factor) in &tables.ages {
            let (mut stale, mut fresh) = (0.0, 0.0);
            for place in 0..samples.len() {
                let Some(old) = by_definition(&samples, place, tables.lambda, age) else {
                    continue;
                };
                let new = by_definition(&samples, place, tables.lambda, 0.0);
                stale += (samples[place].1 - old).powi(2);
                fresh += (samples[place].1 - new.expect("older ones exist")).powi(2);
            }
            highest = highest.max((stale / fresh).sqrt());
            prop_assert!((factor - highest).abs() < 1e-4, "{age} s: {factor}, not {highest}");
        }
    }

    #[test]
    fn intervals_grow_with_confidence_and_age(
        samples in samples(), percent in 1_u8..99, age in 0.0..500.0_f64,
    ) {
        let learned = Tables::learn(&[&log_of(&samples)]).expect("enough samples");
        for tables in [learned, Tables::assumed()] {
            let interval = tables.interval(0.1, age, percent);
            prop_assert!(interval.low < 0.1 && 0.1 < interval.high);
            let is_held_by =
                |wider: Interval| wider.low <= interval.low && interval.high <= wider.high;
            prop_assert!(is_held_by(tables.interval(0.1, age, percent + 1)));
            prop_assert!(is_held_by(tables.interval(0.1, age * 1.5, percent)));
        }
    }
}

#[test]
fn a_network_whose_round_trips_wander_forgets_sooner_than_one_that_only_shivers() {
    // Wanders: a level that moves each 3 s. Shivers: the same levels, another one each time.
    let wandering: Vec<(f64, f64)> =
        (0..400).map(|n| (f64::from(n) * 0.2, 0.05 + 0.03 * f64::from(n / 15 % 4))).collect();
    let shivering: Vec<(f64, f64)> =
        (0..400).map(|n| (f64::from(n) * 0.2, 0.05 + 0.03 * f64::from(n * 7 % 4))).collect();
    let lambda =
        |samples: &[(f64, f64)]| Tables::learn(&[&log_of(samples)]).expect("enough samples").lambda;
    assert!(lambda(&wandering) <= 0.4, "{}", lambda(&wandering));
    assert!(lambda(&shivering) >= 3.2, "{}", lambda(&shivering));
}

#[test]
fn runs_are_not_predicted_from_one_another() {
    let mut log = Log::default();
    for rtt in [0.05, 0.5].into_iter().cycle().take(60) {
        log.end_run();
        (0..5).for_each(|at| _ = log.add(f64::from(at), rtt));
    }
    let tables = Tables::learn(&[&log]).expect("240 predictions");
    let bounds = [tables.errors[0], tables.errors[100]];
    assert!(bounds.iter().all(|error| (error - 1.0).abs() < 1e-9), "{bounds:?}");
}

#[test]
fn little_is_not_learned_from() {
    let samples: Vec<(f64, f64)> = (0..100).map(|at| (f64::from(at), 0.05)).collect();
    assert_eq!(Tables::learn(&[&log_of(&samples)]), None);
}

#[test]
fn what_is_assumed_has_the_percentiles_of_a_normal_distribution() {
    let errors = Tables::assumed().errors;
    for (percent, deviations) in [(5, -1.645), (25, -0.674), (50, 0.0), (75, 0.674), (95, 1.645)] {
        let error: f64 = errors[percent];
        assert!((error.ln() / FIRST_DEVIATION - deviations).abs() < 0.01, "{percent} %: {error}");
    }
}
