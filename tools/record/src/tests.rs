//! Recording emulated links and replaying them gives the links back.

mod hostile;
mod world;

use std::time::Duration;

use roadweave_emulate::{
    AtEnd, Capacity, Operator, Opportunities, Timeline, Trace, synthetic_trace,
};
use roadweave_proto::{Instant, Rate};
use world::{START, World};

use super::*;

impl Default for RecordLimits {
    fn default() -> Self {
        Self {
            sessions: 64,
            length: Duration::from_secs(3_600),
            rate: Rate::from_kbps(200_000),
            rate_all: Rate::from_kbps(4_000_000),
        }
    }
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn plan(seconds: u64) -> RecordPlan {
    RecordPlan { length: SECOND * seconds as u32, ..RecordPlan::default() }
}

fn constant(kbps: u64, delay_ms: u32) -> Trace {
    Trace::constant(Rate::from_kbps(kbps), MS * delay_ms)
}

fn steps<V: Copy>(steps: &[(u64, V)]) -> Timeline<V> {
    let steps = steps.iter().map(|&(at, value)| (SECOND * at as u32, value));
    Timeline::new(steps, SECOND * 100_000, AtEnd::Hold).unwrap()
}

fn recorded(plan: &RecordPlan, traces: &[(Trace, Trace)]) -> World {
    let mut world = World::new(plan, traces);
    world.run();
    world
}

fn usual(seconds: u64) -> World {
    World::new(&plan(seconds), &[(constant(10_000, 20), constant(10_000, 20))])
}

fn both_ways(plan: &RecordPlan, trace: &Trace) -> [DirectionRecording; 2] {
    let world = recorded(plan, &[(trace.clone(), trace.clone())]);
    let recording = world.recording(0, DelayClock::HalfRoundTrip).unwrap();
    assert_eq!(recording.entries_missing, 0);
    [recording.up, recording.down]
}

fn opportunities(trace: &Trace) -> &Opportunities {
    match &**trace.capacity() {
        Capacity::Opportunities(opportunities) => opportunities,
        Capacity::Rates(_) => panic!("it was not measured"),
    }
}

fn bytes_of(trace: &Trace, from: Duration, lasting: Duration) -> u64 {
    let within = opportunities(trace).iter().filter(|(at, _)| (from..from + lasting).contains(at));
    within.map(|(_, bytes)| bytes).sum()
}

fn assert_within(measured: f64, expected: f64, share: f64) {
    let off = (measured / expected - 1.0).abs();
    assert!(off <= share, "{measured} instead of {expected}: {:.1} % off", off * 100.0);
}

/// Checks a capacity to 3 % and a delay to 2 ms, plus the transmission of a probe's 78 bytes.
fn check(recording: &DirectionRecording, capacity: Rate, delay: Duration) {
    let delay = delay + capacity.time_for(78);
    let measured = recording.trace.capacity().mean_rate();
    assert_within(measured.as_bps() as f64, capacity.as_bps() as f64, 0.03);
    let length = recording.trace.length().unwrap();
    for at in (0..).map(|index| SECOND * index).take_while(|at| *at < length) {
        let measured = recording.trace.delay().at(at);
        assert!(measured.abs_diff(delay) < MS * 2, "{measured:?} for {delay:?}");
    }
}

#[test]
fn a_constant_link_is_given_back_at_any_rate_and_delay() {
    for (kbps, delay_ms) in [(200, 10), (1_000, 300), (6_000, 20), (30_000, 5), (150_000, 40)] {
        let trace = constant(kbps, delay_ms);
        let world = recorded(&plan(20), &[(trace.clone(), trace)]);
        for clock in [DelayClock::HalfRoundTrip, DelayClock::Synchronized] {
            let recording = world.recording(0, clock).unwrap();
            assert_eq!(recording.delay_clock, clock);
            for direction in [&recording.up, &recording.down] {
                check(direction, Rate::from_kbps(kbps), MS * delay_ms);
                assert_eq!(direction.trace.length(), Some(SECOND * 10));
                assert_eq!(direction.summary.loss, Some(0.0));
            }
        }
    }
}

const CHANGES: [(u64, u64, u32); 4] =
    [(0, 20_000, 25), (12, 3_000, 60), (22, 45_000, 12), (32, 8_000, 40)];

fn changing() -> Trace {
    let rates = CHANGES.map(|(at, kbps, _)| (at, Rate::from_kbps(kbps)));
    let delays = CHANGES.map(|(at, _, delay_ms)| (at, MS * delay_ms));
    Trace::new(Capacity::Rates(steps(&rates)), steps(&delays), Timeline::constant(0.0))
}

#[test]
fn a_link_that_changes_is_given_back() {
    for recording in both_ways(&plan(40), &changing()) {
        let replay = recording.trace;
        assert_eq!(replay.length(), Some(SECOND * 20));
        for (segment, (_, kbps, delay_ms)) in (0..).zip(CHANGES) {
            let (begin, rate) = (SECOND * 5 * segment, Rate::from_kbps(kbps));
            let bytes = bytes_of(&replay, begin, SECOND * 5);
            assert_within(bytes as f64, rate.bytes_in(SECOND * 5) as f64, 0.03);
            let (delay, expected) = (replay.delay().at(begin), MS * delay_ms + rate.time_for(78));
            assert!(delay.abs_diff(expected) < MS * 2, "{delay:?} for {expected:?}");
        }
    }
}

#[test]
fn a_cellular_link_is_given_back_second_by_second() {
    let plan = plan(120);
    for (seed, operator) in [(1, Operator::LTE), (3, Operator::VERIZON)] {
        let trace = synthetic_trace(seed, 0, &operator, SECOND * 200);
        let Capacity::Rates(rates) = &**trace.capacity() else { panic!("it has rates") };
        let kilobytes = |from: Duration, lasting: Duration| {
            let millis = 0..lasting.as_millis() as u32;
            millis.map(|ms| rates.at(from + MS * ms).bytes_in(MS) as f64 / 1e3).sum::<f64>()
        };
        // A delay that jumps by a second during the fill would look like missing capacity.
        let trace =
            trace.with_loss(Timeline::constant(0.0)).with_delay(Timeline::constant(MS * 30));
        let [recording, _] = both_ways(&plan, &trace);
        let (mut all, mut all_expected, mut off) = (0.0, 0.0, 0.0);
        for second in 0..60 {
            let cycle = second / 5 + 1;
            let recorded_at = plan.counts_from(cycle) + SECOND * u32::from(second % 5);
            let expected = kilobytes(recorded_at, SECOND);
            let measured =
                bytes_of(&recording.trace, SECOND * u32::from(second), SECOND) as f64 / 1e3;
            all += measured;
            all_expected += expected;
            off += (measured - expected).abs();
        }
        assert_within(all, all_expected, 0.03);
        assert!(off / all_expected < 0.03, "{} {off} of {all_expected}", operator.name);
    }
}

#[test]
fn each_direction_has_its_own_delay_when_clocks_are_synchronised() {
    let pair = (constant(10_000, 50), constant(40_000, 15));
    let world = recorded(&plan(10), &[pair]);
    let recording = world.recording(0, DelayClock::Synchronized).unwrap();
    check(&recording.up, Rate::from_kbps(10_000), MS * 50);
    check(&recording.down, Rate::from_kbps(40_000), MS * 15);
    let recording = world.recording(0, DelayClock::HalfRoundTrip).unwrap();
    check(&recording.up, Rate::from_kbps(10_000), Duration::from_micros(32_500));
    check(&recording.down, Rate::from_kbps(40_000), Duration::from_micros(32_500));
}

#[test]
fn several_links_follow_one_plan_and_every_run_is_the_same() {
    let traces = [(6_000, 20), (30_000, 35), (40_000, 8)]
        .map(|(kbps, delay_ms)| (constant(kbps, delay_ms), constant(2 * kbps, delay_ms)));
    let run = || {
        let world = recorded(&plan(10), &traces);
        let recording = |link| world.recording(link, DelayClock::HalfRoundTrip).unwrap();
        (0..3).map(recording).collect::<Vec<LinkRecording>>()
    };
    let recordings = run();
    for (recording, (up, down)) in recordings.iter().zip(&traces) {
        let delay = up.delay().at(Duration::ZERO);
        check(&recording.up, up.capacity().mean_rate(), delay);
        check(&recording.down, down.capacity().mean_rate(), delay);
    }
    assert_eq!(recordings, run());
}

#[test]
fn loss_is_that_of_the_probes_and_reports_survive_it() {
    let lossy = constant(10_000, 20).with_loss(Timeline::constant(0.1));
    for recording in both_ways(&plan(200), &lossy) {
        let loss = recording.summary.loss.unwrap();
        assert!((0.07..0.13).contains(&loss), "{loss}");
        // Lost packets are missing from the capacity: a tenth.
        let measured = recording.trace.capacity().mean_rate().as_bps() as f64;
        assert_within(measured, 9e6, 0.03);
    }
}

#[test]
fn a_constant_rate_measures_what_is_below_it_without_pause() {
    let plan =
        RecordPlan { mode: RecordMode::Constant(Rate::from_kbps(50_000)), down: false, ..plan(30) };
    let rates = [(0, 30_000), (12, 80_000), (22, 10_000)].map(|(at, r)| (at, Rate::from_kbps(r)));
    let trace = constant(1, 30).with_capacity(Capacity::Rates(steps(&rates)));
    let world = recorded(&plan, &[(trace.clone(), trace)]);
    let recording = world.recording(0, DelayClock::HalfRoundTrip).unwrap();
    let up = &recording.up.trace;
    assert_eq!(up.length(), Some(SECOND * 30));
    for (from, kbps) in [(0, 30_000), (10, 50_000), (20, 10_000)] {
        let bytes = bytes_of(up, SECOND * from, SECOND * 9);
        assert_within(bytes as f64, Rate::from_kbps(kbps).bytes_in(SECOND * 9) as f64, 0.03);
    }
    assert!(up.delay().at(Duration::ZERO).abs_diff(MS * 30) < MS * 2);
    assert_eq!(recording.up.summary.loss, None);
    assert_eq!(recording.down.summary.capacity_bps, None);
    assert_eq!(recording.down.trace.capacity().mean_rate(), Rate::from_kbps(20_000));
}

#[test]
fn an_outage_is_recorded_as_one_and_the_session_survives_it() {
    let mut world = usual(50);
    // Dead from the saturation of the second cycle to that of the fourth.
    for (at, dead) in [(14, true), (34, false)] {
        world.run_until(START + SECOND * at);
        let now = world.now;
        world.links[0].iter_mut().for_each(|link| link.set_dead(now, dead));
    }
    world.run();
    let recording = world.recording(0, DelayClock::HalfRoundTrip).unwrap();
    assert_eq!(world.server.statistics().opened, 1);
    assert_eq!(recording.entries_missing, 0);
    for direction in [&recording.up, &recording.down] {
        let rate = |from| bytes_of(&direction.trace, MS * from, MS * 1_000) as f64 * 8.0;
        for from in [3_000, 5_000, 18_000, 21_000] {
            assert_within(rate(from), 10e6, 0.03);
        }
        assert_eq!([7_000, 8_000, 10_000, 12_000, 14_000, 15_000].map(rate), [0.0; 6]);
    }
}

#[test]
fn a_link_that_changes_its_address_goes_on_with_its_session() {
    let mut world = usual(30);
    world.run_until(START + SECOND * 9);
    world.ports[0] = 77;
    world.run();
    let recording = world.recording(0, DelayClock::HalfRoundTrip).unwrap();
    assert_eq!((world.server.statistics().opened, recording.entries_missing), (1, 0));
    check(&recording.up, Rate::from_kbps(10_000), MS * 20);
    check(&recording.down, Rate::from_kbps(10_000), MS * 20);
}

#[test]
fn a_server_that_starts_again_costs_a_few_seconds() {
    let mut world = usual(30);
    world.run_until(START + SECOND * 8);
    world.server = World::new_server(SECOND * 10, 7);
    world.server_started = SECOND * 10;
    world.run();
    assert_eq!(world.server.statistics().opened, 1);
    for clock in [DelayClock::HalfRoundTrip, DelayClock::Synchronized] {
        let recording = world.recording(0, clock).unwrap();
        for direction in [&recording.up, &recording.down] {
            let rest = bytes_of(&direction.trace, SECOND * 5, SECOND * 10);
            assert_within(rest as f64, Rate::from_kbps(10_000).bytes_in(SECOND * 10) as f64, 0.03);
            assert!(direction.trace.delay().at(SECOND * 12).abs_diff(MS * 20) < MS * 2);
        }
    }
}

#[test]
fn a_recording_that_is_interrupted_keeps_what_it_has() {
    let interrupted = |ms: u32| {
        let mut world = usual(60);
        world.run_until(START + MS * ms);
        let now = world.now;
        world.clients[0].finish(now);
        world.run();
        assert!(world.now.since(now) < SECOND * 2, "{}", world.now);
        world.recording(0, DelayClock::HalfRoundTrip)
    };
    // In the middle of the second saturation; 3 s of it count.
    let recording = interrupted(15_500).unwrap();
    assert_eq!(recording.up.trace.length(), Some(SECOND * 8));
    check(&recording.up, Rate::from_kbps(10_000), MS * 20);
    check(&recording.down, Rate::from_kbps(10_000), MS * 20);
    assert_eq!(interrupted(1_000).unwrap_err(), RecordError::TooShort);
}
