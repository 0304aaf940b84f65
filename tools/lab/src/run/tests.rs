use roadweave_emulate::{AtEnd, Capacity, Direction, DriveLink, DuplexLink, Timeline, Trace};
use roadweave_proto::{Instant, Rate};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::Strategy;

use super::*;
use crate::event::{Action, ScriptEvent};

fn constant(name: &str, mbps: u64, delay_ms: u64, index: u64) -> DuplexLink {
    let trace = Trace::constant(Rate::from_kbps(mbps * 1_000), Duration::from_millis(delay_ms));
    DuplexLink::new(&DriveLink::symmetric(name, trace), index, 1)
}

fn video(strategy: &str, links: Vec<DuplexLink>, mbps: u64, seconds: u32) -> Scenario {
    let strategy: Strategy = strategy.parse().unwrap();
    let lasting = Duration::from_secs(seconds.into());
    Scenario {
        traffic: vec![TrafficSpec::video(Rate::from_kbps(mbps * 1_000), lasting)],
        seconds,
        // Cubic has no timed probes, so delays are predictable.
        congestion: CongestionControl::Cubic,
        ..Scenario::new("test", links, strategy)
    }
}

fn event(at_ms: u64, link: usize, action: Action) -> ScriptEvent {
    ScriptEvent { at: Duration::from_millis(at_ms), link, action }
}

fn peak(values: &[f64], from: usize, to: usize) -> f64 {
    values[from * 10..to * 10].iter().copied().fold(0.0, f64::max)
}

/// Number of packets of frames captured between two moments, and how many of them arrived.
fn arrived_between(outcome: &RunOutcome, begin: Duration, end: Duration) -> (usize, usize) {
    let stream = outcome.traffic[0].stream().unwrap();
    let start = stream.log.frames[0].captured;
    let within = |at: Instant| (begin..end).contains(&at.since(start));
    let frames = stream.log.frames.iter().filter(|frame| within(frame.captured));
    let packets: Vec<_> =
        frames.flat_map(|frame| &stream.arrivals[frame.packets.clone()]).collect();
    (packets.len(), packets.iter().filter(|arrival| arrival.is_some()).count())
}

#[test]
fn a_link_that_pauses_in_the_lead_in_does_not_pause_in_the_stream() {
    let rates = [(0, 20), (1_500, 0)]
        .map(|(at, mbps)| (Duration::from_millis(at), Rate::from_kbps(mbps * 1_000)));
    let rates = Timeline::new(rates, Duration::from_secs(6), AtEnd::Repeat).unwrap();
    let mut link = constant("a", 20, 20, 0);
    link.up.trace = link.up.trace.with_capacity(Capacity::Rates(rates));
    let outcome = run(&video("single:a", vec![link], 4, 2)).unwrap();
    let (begin, end) = (Duration::from_millis(300), Duration::from_millis(1_400));
    let (sent, arrived) = arrived_between(&outcome, begin, end);
    assert_eq!((sent > 400, arrived), (true, sent));
}

#[test]
fn delays_are_those_of_the_link() {
    // Propagation is 30 ms, and the packets of a frame leave at once: the n-th arrives when n
    // packets of 1,240 bytes with the headers of the tunnel (below 100 bytes) have been sent at 10
    // Mbit/s.
    let outcome = run(&video("xnc", vec![constant("a", 10, 30, 0)], 1, 4)).unwrap();
    let stream = outcome.traffic[0].stream().unwrap();
    let mut on_the_link = std::collections::BTreeSet::new();
    for frame in stream.log.frames.iter().filter(|frame| !frame.idr) {
        let arrivals = &stream.arrivals[frame.packets.clone()];
        for pair in arrivals[..arrivals.len() - 1].windows(2) {
            on_the_link.insert(pair[1].unwrap().since(pair[0].unwrap()));
        }
        let first = arrivals[0].unwrap().since(frame.captured);
        on_the_link.insert(first - Duration::from_millis(30));
    }
    let bytes: Vec<u128> = on_the_link.iter().map(|time| time.as_nanos() / 800).collect();
    assert!(bytes.iter().all(|bytes| (1_270..1_340).contains(bytes)), "{bytes:?}");
    assert!(bytes.len() < 8, "nothing but small control frames adds to it: {bytes:?}");
    assert!((33.0..35.0).contains(&outcome.frame_delay_ms.p50), "{:?}", outcome.frame_delay_ms);
    assert_eq!(outcome.run.delays.len() as u64, outcome.traffic[0].sent_packets);
    assert_eq!(outcome.causes, Causes::default(), "nothing was late");
    assert_eq!((outcome.drops.len(), outcome.events.len()), (0, 0));
}

#[test]
fn events_take_effect_when_their_time_has_come() {
    let mut scenario =
        video("single:a", vec![constant("a", 20, 20, 0), constant("b", 20, 30, 1)], 4, 8);
    scenario.events = vec![
        event(2_000, 0, Action::Delay(Duration::from_millis(100))),
        event(4_000, 0, Action::Delay(Duration::ZERO)),
        event(5_000, 0, Action::Down),
        event(6_000, 0, Action::Up),
    ];
    let outcome = run(&scenario).unwrap();
    let stream = outcome.traffic[0].stream().unwrap();
    let start = stream.log.packets[0];
    let mean = |from_ms: u64, to_ms: u64| {
        let within = |at: &Instant| {
            let at = at.since(start).as_millis() as u64;
            at >= from_ms && at < to_ms
        };
        let packets = stream.log.packets.iter().zip(&stream.arrivals).filter(|(at, _)| within(at));
        let delays: Vec<f64> = packets
            .filter_map(|(sent, arrival)| Some(arrival.as_ref()?.since(*sent).as_secs_f64() * 1e3))
            .collect();
        delays.iter().sum::<f64>() / delays.len() as f64
    };
    assert!((20.0..40.0).contains(&mean(0, 1_900)), "{}", mean(0, 1_900));
    assert!((120.0..150.0).contains(&mean(2_100, 3_900)), "{}", mean(2_100, 3_900));
    assert!((20.0..40.0).contains(&mean(4_300, 4_900)), "{}", mean(4_300, 4_900));
    let timeline = &outcome.run.timeline;
    assert_eq!(timeline.missing[..48].iter().sum::<u32>(), 0);
    assert!(timeline.missing[50..55].iter().all(|missing| *missing > 0), "{:?}", timeline.missing);
    assert!(!outcome.run.stalls.is_empty());
    assert!(outcome.causes.late > 0);
    let propagation = &outcome.causes.propagation;
    assert!(propagation.packets * 10 > outcome.causes.late * 8, "{:?}", outcome.causes);
}

#[test]
fn capacity_events_show_in_the_time_line_and_in_the_queues() {
    let mut scenario = video("xnc", vec![constant("a", 20, 20, 0)], 8, 6);
    scenario.events = vec![event(3_000, 0, Action::Capacity(0.25))];
    let outcome = run(&scenario).unwrap();
    let timeline = &outcome.run.timeline;
    let capacity = &timeline.capacities[0].1;
    assert_eq!((capacity[29], capacity[30]), (20.0, 5.0));
    assert!(peak(&timeline.uplinks[0].1, 1, 3) > 8.0);
    let queued = |steps: std::ops::Range<usize>| {
        timeline.link_queues[0].1[steps.clone()].iter().max().copied().unwrap_or(0)
            + timeline.lane_queue[steps].iter().max().copied().unwrap_or(0)
    };
    assert!(queued(35..60) > 4 * queued(10..29).max(10_000), "{timeline:?}");
    assert!(outcome.causes.link_queue.seconds + outcome.causes.window_wait.seconds > 1.0);
}

#[test]
fn cross_traffic_takes_its_share_and_is_no_traffic_of_ours() {
    let mut scenario = video("xnc", vec![constant("a", 10, 20, 0)], 4, 5);
    let alone = run(&scenario).unwrap();
    scenario.cross = vec![crate::event::CrossTraffic {
        link: 0,
        direction: Direction::Up,
        rate: Rate::from_kbps(5_000),
        packet_bytes: 1_250,
        begin: Duration::from_secs(1),
        end: Duration::from_secs(4),
        on: Duration::from_secs(1),
        off: Duration::ZERO,
    }];
    let shared = run(&scenario).unwrap();
    assert_eq!(shared.links[0].cross, 1_500);
    assert_eq!(alone.links[0].cross, 0);
    let rate = |outcome: &RunOutcome| outcome.run.timeline.uplinks[0].1.iter().sum::<f64>() / 50.0;
    assert!((rate(&shared) / rate(&alone) - 1.0).abs() < 0.1, "{} {}", rate(&shared), rate(&alone));
    assert!(shared.run.figures.delay_ms.p95 > alone.run.figures.delay_ms.p95 + 1.0);
}

#[test]
fn several_applications_share_a_tunnel() {
    let mut scenario =
        video("xnc", vec![constant("a", 20, 20, 0), constant("b", 20, 30, 1)], 4, 12);
    let kind = TrafficKind::Constant { rate: Rate::from_kbps(100), packet_bytes: 100 };
    let lasting = scenario.duration();
    let video = scenario.traffic[0].clone();
    let steering = TrafficSpec {
        name: "steering".into(),
        direction: Direction::Down,
        port: 6_000,
        kind,
        ..video.clone()
    };
    let music = TrafficSpec {
        name: "music".into(),
        port: 7_000,
        kind: TrafficKind::Requests(crate::traffic::App::Music),
        ..video.clone()
    };
    scenario.traffic = vec![steering, video, music];
    let outcome = run(&scenario).unwrap();
    assert_eq!(outcome.run.figures.fps, 30.0, "the video is judged, wherever it stands");
    let steering = &outcome.traffic[0];
    assert_eq!((steering.sent_packets, steering.arrived_packets), (1_500, 1_500));
    assert_eq!(steering.sent_bytes, Rate::from_kbps(100).bytes_in(lasting));
    assert!((20.0..25.0).contains(&steering.delay_ms.p50), "{:?}", steering.delay_ms);
    let crate::traffic::Detail::Requests(music) = &outcome.traffic[2].detail else {
        panic!("requests report requests")
    };
    assert_eq!((music.asked, music.answered), (3, 3));
    assert!((80.0..130.0).contains(&music.response_ms.p50), "{:?}", music.response_ms);
}

#[test]
fn links_that_are_dead_from_the_start_are_an_outcome() {
    let mut scenario = video("xnc", vec![constant("a", 20, 20, 0)], 1, 1);
    scenario.links[0].up.burst_loss = Some(roadweave_emulate::GilbertElliott::independent(1.0));
    let outcome = run(&scenario).unwrap();
    assert_eq!((outcome.run.figures.fps, outcome.run.figures.residual_loss), (0.0, 1.0));
    assert_eq!(outcome.run.figures.stall_ratio, 1.0);
}
