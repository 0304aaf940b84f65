//! Long synthetic traces against the generator's statistics, each within the tolerance beside it.

use super::*;
use crate::statistics::{Dips, PairStatistics, RoundTripStatistics, TraceStatistics};

/// Enough minutes for the share of rare events.
const RUNS: u64 = 240;
const RUN: Duration = Duration::from_secs(300);

#[track_caller]
fn check(what: &str, value: f64, target: f64, tolerance: f64) {
    let miss = value / target - 1.0;
    println!("{what}: {value:.3}, should be {target:.3}, {:+.0} %", miss * 100.0);
    assert!(miss.abs() <= tolerance, "{what}: {value} is not within {tolerance} of {target}");
}

fn traces(operator: &Operator) -> Vec<Trace> {
    (0..RUNS).map(|seed| synthetic_trace(seed, 0, operator, RUN)).collect()
}

fn check_link(operator: &Operator) -> TraceStatistics {
    let name = operator.name;
    let traces = traces(operator);
    let statistics = TraceStatistics::of(&traces).unwrap();

    let capacity = statistics.capacity_bps;
    let known = [(-1.645, capacity.p5), (-0.674, capacity.p25), (0.0, capacity.p50)];
    for (score, bps) in known.into_iter().chain([(1.645, capacity.p95)]) {
        // The gaps of LTE are from other recordings than its capacity and are added to it: they
        // take more than 5 % of all half seconds.
        let (is_known, tolerance) =
            if operator.gaps == Gaps::LTE { (score > -1.0, 0.3) } else { (true, 0.15) };
        let quantile = operator.capacity.iter().find(|known| known.0 == score);
        if let Some((_, mbps)) = quantile.filter(|_| is_known) {
            check(&format!("{name} capacity at {score}"), bps / 1e6, *mbps, tolerance);
        }
    }
    let loss = statistics.loss;
    check(&format!("{name} loss"), loss.share, operator.loss, 0.25);
    let burst = operator.loss_burst_probes;
    check(&format!("{name} burst"), loss.burst_probes.unwrap(), burst, 0.25);
    check(&format!("{name} lost again"), loss.after_a_loss.unwrap(), 1.0 - 1.0 / burst, 0.1);

    let rtts = RoundTripStatistics::of(traces.iter().map(|trace| (trace, trace))).unwrap();
    let RttQuantiles { p50_ms, p99_ms, p999_ms } = operator.rtt;
    check(&format!("{name} rtt p50"), rtts.rtt_ms.p50, p50_ms, 0.05);
    check(&format!("{name} rtt p99"), rtts.rtt_ms.p99, p99_ms, 0.15);
    check(&format!("{name} rtt p99.9"), rtts.rtt_ms.p999, p999_ms, 0.35);
    // 3 to 9 per minute; a median of 0.2 s means one probe, or two; p90 is 0.4 to 1 s.
    check(&format!("{name} spikes per minute"), rtts.spikes_per_minute, 6.0, 0.5);
    let lengths = rtts.spike_seconds.unwrap();
    check(&format!("{name} spike p50"), lengths.p50, 0.3, 0.35);
    check(&format!("{name} spike p90"), lengths.p90, 0.7, 0.45);
    statistics
}

/// Autocorrelation and dips are only known for these two.
#[test]
fn att_and_verizon_have_the_statistics_of_their_recordings() {
    let both = [(Operator::ATT, 0.078), (Operator::VERIZON, 0.096)].map(|(operator, below)| {
        let (name, statistics) = (operator.name, check_link(&operator));
        let memory = statistics.autocorrelation;
        for (lag, value, target) in [
            ("0.5 s", memory.after_500_ms, 0.92),
            ("5 s", memory.after_5_s, 0.55),
            ("10 s", memory.after_10_s, 0.35),
        ] {
            check(&format!("{name} autocorrelation after {lag}"), value.unwrap(), target, 0.1);
        }
        check(&format!("{name} below 1 Mbit/s"), statistics.dips.share_of_time, below, 0.15);
        statistics.dips
    });
    let mean = |of: fn(&Dips) -> f64| both.iter().map(of).sum::<f64>() / 2.0;
    check("dips per minute", mean(|dips| dips.per_minute), 1.6, 0.25);
    check("dip p50", mean(|dips| dips.seconds.unwrap().p50), 1.0, 0.01);
    check("dip p90", mean(|dips| dips.seconds.unwrap().p90), 7.0, 0.15);
    check("dip p99", mean(|dips| dips.seconds.unwrap().p99), 32.0, 0.3);
}

#[test]
fn tmobile_has_the_statistics_of_its_recordings() {
    check_link(&Operator::TMOBILE);
}

#[test]
fn lte_has_the_statistics_of_its_recordings_and_the_gaps_of_its_grants() {
    let gaps = check_link(&Operator::LTE).gaps;
    check("gaps of 50 ms", gaps.of_50_ms_per_minute, 132.0, 0.1);
    check("gaps of 100 ms", gaps.of_100_ms_per_minute, 15.6, 0.15);
    check("gaps of 200 ms", gaps.of_200_ms_per_minute, 7.3, 0.15);
    check("gaps of 1 s", gaps.of_1_s_per_minute, 0.9, 0.25);
}

#[test]
fn operators_of_one_drive_depend_on_each_other_weakly() {
    // As long as the recordings: short drives are more often alike or opposite by chance.
    let length = Duration::from_secs(90);
    let pairs: Vec<PairStatistics> = (0..RUNS)
        .map(|seed| {
            let att = synthetic_trace(seed, 0, &Operator::ATT, length);
            PairStatistics::of(&att, &synthetic_trace(seed, 1, &Operator::VERIZON, length))
        })
        .collect();
    // Recorded drives differ more from each other in this than synthetic drives.
    let mut correlations: Vec<f64> = pairs.iter().map(|pair| pair.correlation.unwrap()).collect();
    check("correlation", correlations.iter().sum::<f64>() / RUNS as f64, 0.15, 0.35);
    correlations.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| correlations[(RUNS as f64 * share) as usize];
    check("correlation p10", at(0.1), -0.31, 0.7);
    check("correlation p90", at(0.9), 0.68, 0.3);
    let both_low = pairs.iter().map(|pair| pair.both_low).sum::<f64>() / RUNS as f64;
    check("both below 1 Mbit/s", both_low, 0.02, 0.3);
}

#[test]
fn handovers_come_as_often_and_last_as_long_as_they_should() {
    let without_gaps =
        Operator { gaps: Gaps { per_minute: 0.0, ..Gaps::OCCASIONAL }, ..Operator::ATT };
    let mut handovers: Vec<f64> = Vec::new();
    for trace in traces(&without_gaps) {
        let Capacity::Rates(rates) = &**trace.capacity() else { panic!("rates") };
        let pauses = rates.iter().filter(|(_, rate)| rate.as_bps() == 0);
        handovers.extend(pauses.map(|(lasting, _)| lasting.as_secs_f64() * 1e3));
    }
    let minutes = RUNS as f64 * RUN.as_secs_f64() / 60.0;
    check("handovers per minute", handovers.len() as f64 / minutes, 2.5, 0.05);
    handovers.sort_unstable_by(f64::total_cmp);
    for (share, target, tolerance) in [(0.5, 60.0, 0.1), (0.9, 130.0, 0.1), (0.99, 640.0, 0.2)] {
        let lasts = handovers[(handovers.len() as f64 * share) as usize];
        check(&format!("handover at {share}"), lasts, target, tolerance);
    }
}

#[test]
fn the_bytes_of_a_gap_follow_within_a_second() {
    // One gap of 300 to 400 ms at 8 Mbit/s: 10 s carry as much as without the gap.
    let gaps = Gaps { per_minute: 6.0, at_least: &[(300.0, 1.0), (400.0, 0.0)] };
    let operator = Operator { gaps, handovers_per_minute: 0.0, ..Operator::ATT };
    let length = Duration::from_secs(600);
    let pauses = pauses::Pauses::draw(&mut Random::new(1), &operator, length);
    let left = pauses.apply(&vec![8.0; 6_000], STEP, length);
    assert!(left.iter().any(|(_, rate)| rate == Rate::ZERO));
    let mean = Capacity::Rates(left).mean_rate().as_bps() as f64;
    check("mean rate", mean, 8e6, 0.005);
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
