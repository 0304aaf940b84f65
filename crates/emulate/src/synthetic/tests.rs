use super::*;

const RUNS: u64 = 60;
const RUN: Duration = Duration::from_secs(300);

/// Mean capacity of each half second, Mbit/s.
fn half_seconds(trace: &Trace) -> Vec<f64> {
    let Capacity::Rates(rates) = &**trace.capacity() else { panic!("rates") };
    let mut bins = vec![0.0; steps(RUN, Duration::from_millis(500))];
    let mut at = 0.0;
    for (lasting, rate) in rates.iter() {
        let (mut left, mbps) = (lasting.as_secs_f64(), rate.as_bps() as f64 / 1e6);
        while left > 1e-12 {
            let bin = ((at + 1e-9) / 0.5) as usize;
            let here = left.min((bin + 1) as f64 * 0.5 - at);
            bins[bin.min(599)] += mbps * here / 0.5;
            at += here;
            left -= here;
        }
    }
    bins
}

fn probes(timeline: &Timeline<Duration>) -> Vec<f64> {
    let values = (0..1_500).map(|index| timeline.at(PROBE * index).as_secs_f64() * 2e3);
    values.collect()
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        a.iter().zip(b).map(|(&x, &y)| f(x - mean_a, y - mean_b)).sum()
    };
    sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt()
}

/// Lengths of the runs in which `low` holds, in values.
fn runs(values: impl IntoIterator<Item = bool>) -> Vec<f64> {
    let mut lengths = Vec::new();
    let mut length = 0.0;
    for low in values.into_iter().chain([false]) {
        if low {
            length += 1.0;
        } else if length > 0.0 {
            lengths.push(length);
            length = 0.0;
        }
    }
    lengths
}

#[track_caller]
fn check(what: &str, value: f64, low: f64, high: f64) {
    println!("{what}: {value:.3} in {low:.3}..{high:.3}");
    assert!((low..=high).contains(&value), "{what}: {value} is not in {low}..{high}");
}

fn traces(operator: &Operator) -> Vec<Trace> {
    (0..RUNS).map(|seed| synthetic_trace(seed, 0, operator, RUN)).collect()
}

#[test]
fn capacity_has_the_operators_quantiles_and_memory() {
    for (operator, [p5, p50, p95], below) in
        [(Operator::ATT, [0.55, 11.3, 55.9], 0.078), (Operator::VERIZON, [0.34, 13.1, 56.8], 0.096)]
    {
        let runs_of: Vec<Vec<f64>> = traces(&operator).iter().map(half_seconds).collect();
        let mut all = runs_of.concat();
        let name = operator.name;
        check(&format!("{name} p50"), quantile(&mut all, 0.5), p50 * 0.8, p50 * 1.25);
        check(&format!("{name} p5"), quantile(&mut all, 0.05), p5 * 0.5, p5 * 1.8);
        check(&format!("{name} p95"), quantile(&mut all, 0.95), p95 * 0.8, p95 * 1.25);
        let share = all.iter().filter(|&&mbps| mbps < 1.0).count() as f64 / all.len() as f64;
        check(&format!("{name} below 1 Mbit/s"), share, below - 0.03, below + 0.03);
        for (lag, target) in [(1, 0.92), (10, 0.55), (20, 0.35)] {
            let of_run = runs_of.iter().map(|run| correlation(&run[lag..], &run[..600 - lag]));
            let mean = of_run.sum::<f64>() / RUNS as f64;
            check(&format!("{name} autocorrelation {lag}"), mean, target - 0.1, target + 0.1);
        }
        let low = |run: &Vec<f64>| runs(run.iter().map(|&mbps| mbps < 1.0));
        let mut dips: Vec<f64> = runs_of.iter().flat_map(low).map(|bins| bins / 2.0).collect();
        let minutes = RUNS as f64 * RUN.as_secs_f64() / 60.0;
        check(&format!("{name} dips per minute"), dips.len() as f64 / minutes, 1.1, 2.6);
        check(&format!("{name} dip p50"), quantile(&mut dips, 0.5), 0.5, 1.5);
        check(&format!("{name} dip p90"), quantile(&mut dips, 0.9), 4.0, 10.0);
        check(&format!("{name} dip p99"), quantile(&mut dips, 0.99), 15.0, 45.0);
    }
}

#[test]
fn operators_of_one_drive_depend_on_each_other_weakly() {
    let mut correlations = Vec::new();
    let mut both = 0.0;
    for seed in 0..RUNS {
        let a = half_seconds(&synthetic_trace(seed, 0, &Operator::ATT, RUN));
        let b = half_seconds(&synthetic_trace(seed, 1, &Operator::VERIZON, RUN));
        correlations.push(correlation(&a, &b));
        both += a.iter().zip(&b).filter(|(a, b)| a.max(**b) < 1.0).count() as f64 / 600.0;
    }
    let mean = correlations.iter().sum::<f64>() / RUNS as f64;
    check("correlation", mean, 0.05, 0.28);
    check("both below 1 Mbit/s", both / RUNS as f64, 0.008, 0.032);
}

#[test]
fn round_trip_times_have_their_quantiles_and_spikes() {
    for operator in [Operator::ATT, Operator::TMOBILE, Operator::VERIZON] {
        let runs_of: Vec<Vec<f64>> = traces(&operator).iter().map(|t| probes(t.delay())).collect();
        let mut all = runs_of.concat();
        let RttQuantiles { p50_ms, p99_ms, p999_ms } = operator.rtt;
        let name = operator.name;
        check(&format!("{name} rtt p50"), quantile(&mut all, 0.5), p50_ms * 0.9, p50_ms * 1.1);
        check(&format!("{name} rtt p99"), quantile(&mut all, 0.99), p99_ms * 0.7, p99_ms * 1.3);
        check(&format!("{name} rtt p999"), quantile(&mut all, 0.999), p999_ms * 0.6, p999_ms * 1.4);
        let high = |run: &Vec<f64>| runs(run.iter().map(|&rtt| rtt > p50_ms + 100.0));
        let mut spikes: Vec<f64> = runs_of.iter().flat_map(high).map(|n| n * 0.2).collect();
        let minutes = RUNS as f64 * RUN.as_secs_f64() / 60.0;
        check(&format!("{name} spikes per minute"), spikes.len() as f64 / minutes, 3.0, 9.0);
        check(&format!("{name} spike p50"), quantile(&mut spikes, 0.5), 0.19, 0.41);
        check(&format!("{name} spike p90"), quantile(&mut spikes, 0.9), 0.39, 1.01);
    }
}

#[test]
fn loss_has_its_share_and_its_bursts() {
    for operator in [Operator::ATT, Operator::TMOBILE, Operator::VERIZON] {
        let mut lost = 0;
        let mut bursts = Vec::new();
        for seed in 0..RUNS * 5 {
            let trace = synthetic_trace(seed, 0, &operator, RUN);
            let values: Vec<bool> =
                (0..1_500).map(|probe| trace.loss().at(PROBE * probe) > 0.5).collect();
            lost += values.iter().filter(|&&lost| lost).count();
            bursts.extend(runs(values));
        }
        let name = operator.name;
        let share = lost as f64 / (RUNS * 5 * 1_500) as f64;
        let mean = bursts.iter().sum::<f64>() / bursts.len() as f64;
        check(&format!("{name} loss"), share, operator.loss * 0.75, operator.loss * 1.25);
        let target = operator.loss_burst_probes;
        check(&format!("{name} burst"), mean, target * 0.8, target * 1.2);
    }
}

#[test]
fn pauses_come_as_often_and_last_as_long_as_they_should() {
    let pauses_of = |operator: &Operator| -> Vec<f64> {
        let mut lengths = Vec::new();
        for trace in traces(operator) {
            let Capacity::Rates(rates) = &**trace.capacity() else { panic!("rates") };
            let pauses = rates.iter().filter(|(_, rate)| rate.as_bps() == 0);
            lengths.extend(pauses.map(|(lasting, _)| lasting.as_secs_f64() * 1e3));
        }
        lengths
    };
    let minutes = RUNS as f64 * RUN.as_secs_f64() / 60.0;
    let without_gaps =
        Operator { gaps: Gaps { per_minute: 0.0, ..Gaps::OCCASIONAL }, ..Operator::ATT };
    let mut handovers = pauses_of(&without_gaps);
    check("handovers per minute", handovers.len() as f64 / minutes, 2.2, 2.8);
    check("handover p50", quantile(&mut handovers, 0.5), 52.0, 68.0);
    check("handover p90", quantile(&mut handovers, 0.9), 110.0, 160.0);
    check("handover p99", quantile(&mut handovers, 0.99), 400.0, 1_000.0);
    let gaps = pauses_of(&Operator::LTE);
    for (ms, target) in [(50.0, 132.0), (100.0, 15.6), (200.0, 7.3), (1_000.0, 0.9)] {
        let per_minute = gaps.iter().filter(|&&gap| gap >= ms).count() as f64 / minutes;
        check(&format!("gaps above {ms} ms"), per_minute, target * 0.65, target * 1.5);
    }
}

#[test]
fn the_bytes_of_a_gap_follow_within_a_second() {
    // One gap of 300 to 400 ms at 8 Mbit/s: 10 s hold what they would have held without it.
    let gaps = Gaps { per_minute: 6.0, at_least: &[(300.0, 1.0), (400.0, 0.0)] };
    let operator = Operator { gaps, handovers_per_minute: 0.0, ..Operator::ATT };
    let length = Duration::from_secs(600);
    let pauses = pauses::Pauses::draw(&mut Random::new(1), &operator, length);
    let left = pauses.apply(&vec![8.0; 6_000], STEP, length);
    assert!(left.iter().any(|(_, rate)| rate == Rate::ZERO));
    let mean = Capacity::Rates(left).mean_rate().as_bps() as f64;
    check("mean rate", mean, 7.95e6, 8.05e6);
}

#[test]
fn equal_seeds_give_equal_traces_and_others_do_not() {
    let trace = |seed, index| synthetic_trace(seed, index, &Operator::LTE, Duration::from_secs(20));
    assert_eq!(trace(1, 0), trace(1, 0));
    assert_ne!(trace(1, 0), trace(2, 0));
    assert_ne!(trace(1, 0), trace(1, 1));
}

#[test]
fn any_length_works() {
    for length in [0, 1, 99_999_999, 100_000_001, 200_000_000, 1_000_000_007] {
        let length = Duration::from_nanos(length);
        synthetic_trace(3, 0, &Operator::LTE, length);
    }
}
