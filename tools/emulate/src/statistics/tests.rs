use roadweave_proto::Rate;

use super::*;
use crate::capacity::Opportunities;
use crate::timeline::{AtEnd, Timeline};

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn timeline<V: Copy>(steps: &[(u32, V)], seconds: u32) -> Timeline<V> {
    let steps = steps.iter().map(|&(at, value)| (MS * at, value));
    Timeline::new(steps, S * seconds, AtEnd::Repeat).unwrap()
}

fn constant() -> Trace {
    Trace::constant(Rate::from_kbps(8_000), MS * 20)
}

fn with_rates(kbps: &[(u32, u64)], seconds: u32) -> Trace {
    let rates: Vec<(u32, Rate)> =
        kbps.iter().map(|&(at, kbps)| (at, Rate::from_kbps(kbps))).collect();
    constant().with_capacity(Capacity::Rates(timeline(&rates, seconds)))
}

fn of(trace: &Trace) -> TraceStatistics {
    TraceStatistics::of([trace]).unwrap()
}

#[test]
fn what_never_changes_has_one_value_and_no_events() {
    let statistics = of(&constant());
    let capacity = statistics.capacity_bps;
    assert_eq!((capacity.mean, capacity.p5, capacity.p95), (8e6, 8e6, 8e6));
    assert_eq!(statistics.autocorrelation.after_500_ms, None);
    assert_eq!((statistics.dips.per_minute, statistics.dips.seconds), (0.0, None));
    assert_eq!((statistics.delay_ms.min, statistics.delay_ms.max), (20.0, 20.0));
    let loss =
        LossStatistics { share: 0.0, after_a_loss: None, burst_probes: None, longest_seconds: 0.0 };
    assert_eq!(statistics.loss, loss);
    assert_eq!(TraceStatistics::of([]), None);
    assert_eq!(RoundTripStatistics::of([]), None);
}

#[test]
fn dips_are_counted_in_half_seconds_and_gaps_to_the_nanosecond() {
    // Dips of 1 s and 2.5 s; the second begins with 150 ms of zero; 60 ms of zero are not a dip.
    let rates = [
        (0, 9_000),
        (10_000, 500),
        (11_000, 9_000),
        (20_000, 0),
        (20_150, 700),
        (22_500, 9_000),
        (25_100, 0),
        (25_160, 9_000),
    ];
    let Dips { below_bps, share_of_time, per_minute, seconds } = of(&with_rates(&rates, 30)).dips;
    assert_eq!((below_bps, per_minute), (1e6, 4.0));
    assert!((share_of_time - 3.5 / 30.0).abs() < 1e-9, "{share_of_time}");
    assert_eq!(seconds, Some(Lengths { p50: 1.0, p90: 2.5, p99: 2.5, max: 2.5 }));
    let gaps = of(&with_rates(&rates, 30)).gaps;
    assert_eq!((gaps.of_50_ms_per_minute, gaps.of_100_ms_per_minute), (4.0, 2.0));
    assert_eq!((gaps.of_200_ms_per_minute, gaps.longest_ms), (0.0, 150.0));
}

#[test]
fn gaps_are_also_those_between_opportunities() {
    let slots = [(0, 9), (40, 9), (290, 9), (300, 9)].map(|(at, bytes)| (MS * at, bytes));
    let opportunities = Opportunities::with_bytes(slots, MS * 600).unwrap();
    let trace = constant().with_capacity(Capacity::Opportunities(opportunities));
    let gaps = of(&trace).gaps;
    assert_eq!((gaps.of_50_ms_per_minute, gaps.of_1_s_per_minute), (200.0, 0.0));
    assert_eq!(gaps.longest_ms, 300.0);
}

#[test]
fn a_capacity_that_alternates_each_ten_seconds_says_so() {
    let rates = [(0, 2_000), (10_000, 9_000), (20_000, 2_000), (30_000, 9_000)];
    let correlation = of(&with_rates(&rates, 40)).autocorrelation;
    let [near, half, far] =
        [correlation.after_500_ms, correlation.after_5_s, correlation.after_10_s];
    assert!(near > Some(0.9) && half.unwrap().abs() < 0.2, "{near:?} {half:?}");
    assert!(far < Some(-0.99), "{far:?}");
}

#[test]
fn round_trips_add_both_ways_and_spikes_rise_from_their_median() {
    let there =
        constant().with_delay(timeline(&[(0, MS * 20), (400, MS * 130), (800, MS * 20)], 6));
    let back = constant().with_delay(timeline(&[(0, MS * 30), (4_000, MS * 60)], 6));
    let RoundTripStatistics { rtt_ms, spikes_per_minute, spike_seconds } =
        RoundTripStatistics::of([(&there, &back)]).unwrap();
    assert_eq!((rtt_ms.min, rtt_ms.p50, rtt_ms.max), (50.0, 50.0, 160.0));
    assert_eq!((spikes_per_minute, spike_seconds.map(|it| it.max)), (10.0, Some(0.4)));
}

#[test]
fn loss_is_reported_with_its_bursts() {
    // 2 s of blackout in 60 s are ten probes in a row.
    let burst = constant().with_loss(timeline(&[(0, 0.0), (9_000, 1.0), (11_000, 0.0)], 60));
    let LossStatistics { share, after_a_loss, burst_probes, longest_seconds } = of(&burst).loss;
    assert!((share - 2.0 / 60.0).abs() < 1e-9, "{share}");
    assert_eq!((after_a_loss, burst_probes, longest_seconds), (Some(0.9), Some(10.0), 2.0));
    // Of 2 % random losses, 2 % follow another loss.
    let even = constant().with_loss(Timeline::constant(0.02));
    let loss = TraceStatistics::of([&even.part(Duration::ZERO, S * 600)]).unwrap().loss;
    assert!((loss.after_a_loss.unwrap() - 0.02).abs() < 1e-4, "{loss:?}");
    assert!((loss.burst_probes.unwrap() - 1.0 / 0.98).abs() < 1e-3, "{loss:?}");
}

#[test]
fn several_recordings_are_pooled() {
    let slow = with_rates(&[(0, 500)], 20);
    let fast = with_rates(&[(0, 9_000)], 60);
    let pooled = TraceStatistics::of([&slow, &fast]).unwrap();
    assert_eq!((pooled.seconds, pooled.capacity_bps.mean), (80.0, 6.875e6));
    assert_eq!((pooled.dips.per_minute, pooled.dips.share_of_time), (0.75, 0.25));
}

#[test]
fn links_may_be_alike_or_opposite() {
    let one = with_rates(&[(0, 500), (2_000, 9_000)], 4);
    let other = with_rates(&[(0, 9_000), (2_000, 500)], 4);
    let alike = PairStatistics::of(&one, &one);
    assert_eq!(alike, PairStatistics { correlation: Some(1.0), both_low: 0.5 });
    let opposite = PairStatistics::of(&one, &other);
    assert_eq!(opposite, PairStatistics { correlation: Some(-1.0), both_low: 0.0 });
    assert_eq!(PairStatistics::of(&one, &constant()).correlation, None);
}

#[test]
fn a_recording_of_years_takes_no_more_than_one_of_a_day() {
    let years = with_rates(&[(0, 1), (1, 2)], 2_000_000_000);
    assert_eq!(of(&years).seconds, LENGTH_MAX.as_secs_f64());
}
