use roadweave_emulate::{DriveLink, Trace};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::LaneConfig;

use super::*;
use crate::event::{Action, ScriptEvent};
use crate::traffic::Bulk;

const FPS: u32 = 30;

fn two_links(strategy: &str) -> ClosedLoop {
    let link = |(name, delay_ms): (&str, u64), index| {
        let trace = Trace::constant(Rate::from_kbps(6_000), Duration::from_millis(delay_ms));
        DuplexLink::new(&DriveLink::symmetric(name, trace), index, 1)
    };
    ClosedLoop {
        links: vec![link(("a", 25), 0), link(("b", 30), 1)],
        strategy: strategy.parse().expect("known"),
        encoder: Encoder::Adaptive(Rate::from_kbps(30_000)),
        deadline: Duration::from_millis(100),
        fps: FPS,
        seconds: 16,
        seed: 1,
    }
}

fn with_dead(closed_loop: &ClosedLoop, links: &[usize], from_ms: u64, to_ms: u64) -> VideoReport {
    let event = |at_ms, action| {
        links.iter().map(move |link| ScriptEvent {
            at: Duration::from_millis(at_ms),
            link: *link,
            action,
        })
    };
    let mut scenario = closed_loop.scenario();
    scenario.events = event(from_ms, Action::Down).chain(event(to_ms, Action::Up)).collect();
    let outcome = run(&scenario).expect("two links");
    match &outcome.traffic[0].detail {
        Detail::Video(video) => (**video).clone(),
        other => panic!("{other:?}"),
    }
}

fn mean_size(video: &VideoReport, from_ms: u64, to_ms: u64) -> usize {
    let frames = &video.stream.log.frames;
    let at = |ms: u64| (ms * u64::from(FPS) / 1_000) as usize;
    let range = &frames[at(from_ms)..at(to_ms)];
    range.iter().map(|frame| video.frame_bytes(frame)).sum::<usize>() / range.len()
}

#[test]
fn an_encoder_fills_the_links_and_its_frames_are_there_in_time() {
    for strategy in ["lola", "xnc"] {
        let seen = two_links(strategy).run().expect("two links");
        // 12 Mbit/s; an encoder uses two thirds to four fifths of it.
        assert!((6.0..11.0).contains(&seen.sent_mbps), "{strategy}: {:.1}", seen.sent_mbps);
        assert_eq!(seen.stalls, 0, "{strategy}");
        let p95 = seen.frame_delays_ms[seen.frame_delays_ms.len() * 95 / 100];
        assert!(p95 < 110.0, "{strategy}: {p95}");
    }
}

#[test]
fn a_transfer_beside_it_leaves_an_encoder_its_share() {
    let mut scenario = two_links("xnc").scenario();
    let strategy = "minrtt".parse().expect("known");
    scenario.lanes.push(LaneConfig { rank: 1, ..LaneConfig::new("tcp", strategy) });
    let port = scenario.traffic[0].port;
    scenario.lanes[0].rule.ports = Some(port..=port);
    let upload = TrafficKind::Bulk(Bulk { congestion: CongestionControl::Cubic, bytes: None });
    let video = TrafficSpec::video(Rate::ZERO, Duration::from_secs(16));
    scenario.traffic.push(TrafficSpec { kind: upload, port: port + 1, ..video });
    let outcome = run(&scenario).expect("two links");
    let Detail::Video(video) = &outcome.traffic[0].detail else { panic!("it is a video") };
    let frames = &video.stream.log.frames;
    let tiny = frames.iter().filter(|frame| video.frame_bytes(frame) < 300).count();
    assert!(tiny < frames.len() / 20, "{tiny} of {} frames have nothing", frames.len());
    assert!(mean_size(video, 4_000, 14_000) > 5_000, "{}", mean_size(video, 4_000, 14_000));
}

#[test]
fn when_a_link_dies_the_frames_follow_within_a_round_trip_and_two_frames() {
    for strategy in ["lola", "xnc"] {
        let video = with_dead(&two_links(strategy), &[0], 6_000, 10_000);
        let both = mean_size(&video, 4_000, 6_000);
        let one = mean_size(&video, 7_000, 10_000);
        assert!(one < both * 7 / 10, "{strategy}: {both}, then {one}");
        // A round trip of 60 ms, the threshold behind it, and two frames.
        let soon = mean_size(&video, 6_200, 6_500);
        assert!(soon < both * 7 / 10, "{strategy}: {both}, soon {soon}");
        let again = mean_size(&video, 12_000, 14_000);
        assert!(again > both * 85 / 100, "{strategy}: {both}, then {again} after it came back");
    }
}

fn picture_back(strategy: &str, seed: u64, return_ms: u64) -> (Duration, VideoReport) {
    let closed_loop = ClosedLoop { seed, ..two_links(strategy) };
    let video = with_dead(&closed_loop, &[0, 1], 6_000, return_ms);
    let start = video.stream.log.frames[0].captured;
    let back = start + Duration::from_millis(return_ms);
    let shown = video.playout.frames.iter().filter(|fate| fate.undamaged && fate.closed > back);
    let took = shown.map(|fate| fate.closed.since(back)).min().expect("it comes back");
    (took, video)
}

#[test]
fn when_all_links_were_dead_the_picture_is_back_soon() {
    for strategy in ["lola", "xnc"] {
        // At every phase between two keep-alives.
        for (seed, return_ms) in (1..).zip((10_000..10_240).step_by(20)) {
            let (took, video) = picture_back(strategy, seed, return_ms);
            assert!(took < Duration::from_millis(300), "{strategy}, {return_ms} ms: {took:?}");
            // Frames are as small as possible meanwhile.
            assert!(mean_size(&video, 7_000, 9_900) < 2_000, "{strategy}");
        }
    }
}

fn longest_gap(video: &VideoReport, from_ms: u64) -> Duration {
    let start = video.stream.log.frames[0].captured;
    let (from, to) =
        (start + Duration::from_millis(from_ms), start + Duration::from_millis(from_ms + 1_000));
    let shown: Vec<_> =
        video.playout.frames.iter().filter(|fate| fate.undamaged).map(|fate| fate.closed).collect();
    let gaps = shown.windows(2).filter(|pair| pair[1] > from && pair[0] < to);
    gaps.map(|pair| pair[1].since(pair[0])).max().expect("it is shown")
}

#[test]
fn when_the_link_that_carries_most_dies_the_picture_stands_for_a_quarter_of_a_second() {
    let link = |(index, (name, kbps)): (u64, (&str, u64))| {
        let trace = Trace::constant(Rate::from_kbps(kbps), Duration::from_millis(25));
        DuplexLink::new(&DriveLink::symmetric(name, trace), index, 1)
    };
    let links: Vec<_> = (0..).zip([("a", 24_000), ("b", 5_000), ("c", 5_000)]).map(link).collect();
    for (seed, dies_ms) in (1..).zip((6_000..6_100).step_by(10)) {
        let closed_loop = ClosedLoop { links: links.clone(), seed, ..two_links("xnc") };
        let video = with_dead(&closed_loop, &[0], dies_ms, 9_000);
        let gap = longest_gap(&video, dies_ms);
        assert!(gap < Duration::from_millis(250), "{dies_ms} ms: {gap:?}");
    }
}
