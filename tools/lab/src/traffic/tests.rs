use roadweave_emulate::Direction;

use super::*;
use crate::inner;
use crate::video::rtp::RtpPacket;
use crate::video::stream_log::{Arrivals, SentStream};

const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// `lost` drops packets by number.
fn play(
    traffic: &mut dyn Traffic,
    delay: Duration,
    lost: impl Fn(u64) -> bool,
    end: Instant,
) -> TrafficReport {
    let mut on_the_way = std::collections::VecDeque::<(Instant, Direction, Bytes)>::new();
    let mut number = 0;
    loop {
        let arrival = on_the_way.front().map(|(at, ..)| *at);
        let Some(now) = [arrival, traffic.poll_timeout()].into_iter().flatten().min() else {
            break;
        };
        if now > end {
            break;
        }
        while on_the_way.front().is_some_and(|(at, ..)| *at <= now) {
            let (at, direction, packet) = on_the_way.pop_front().unwrap();
            traffic.handle_arrival(at, direction, &packet);
        }
        while let Some((direction, packet)) = traffic.poll_transmit(now) {
            assert_eq!(inner::port(&packet), Some(traffic.port()));
            if !lost(number) {
                on_the_way.push_back((now + delay, direction, packet));
            }
            number += 1;
        }
    }
    traffic.report(end)
}

fn constant(rate_kbps: u64, packet_bytes: usize, lasting: Duration) -> TrafficSpec {
    let kind = TrafficKind::Constant { rate: Rate::from_kbps(rate_kbps), packet_bytes };
    TrafficSpec { kind, lasting, ..TrafficSpec::video(Rate::ZERO, lasting) }
}

#[test]
fn constant_traffic_keeps_its_rate_and_knows_what_is_missing() {
    let mut traffic = constant(800, 1_000, MS * 1_000).build(at(500), 1);
    assert_eq!(traffic.poll_timeout(), Some(at(500)));
    let report = play(&mut *traffic, MS * 30, |number| number % 10 == 3, at(9_000));
    assert_eq!((report.sent_packets, report.sent_bytes), (100, 100_000));
    assert_eq!((report.arrived_packets, report.unexpected_packets), (90, 0));
    let stream = report.stream().unwrap();
    assert_eq!(stream.log.packets[99], at(500 + 990));
    assert_eq!((stream.arrivals[3], stream.arrivals[4]), (None, Some(at(570))));
    assert_eq!((report.delay_ms.p50, report.delay_ms.p999), (30.0, 30.0));
}

#[test]
fn packets_that_come_again_or_from_nowhere_are_unexpected() {
    let mut traffic = constant(800, 1_000, MS * 100).build(at(0), 1);
    let (direction, packet) = traffic.poll_transmit(at(0)).unwrap();
    traffic.handle_arrival(at(5), direction, &packet);
    traffic.handle_arrival(at(6), direction, &packet);
    traffic.handle_arrival(at(7), Direction::Down, &packet);
    traffic.handle_arrival(at(8), direction, &inner::udp(direction, 5_000, b"x"));
    let report = traffic.report(at(9));
    assert_eq!((report.arrived_packets, report.unexpected_packets), (1, 3));
    assert_eq!(report.stream().unwrap().arrivals, [Some(at(5))]);
}

fn video(report: &TrafficReport) -> &VideoReport {
    match &report.detail {
        Detail::Video(video) => video,
        other => panic!("a video reports a video, not {other:?}"),
    }
}

#[test]
fn a_synthetic_video_has_the_rate_that_it_was_given_and_an_idr_frame_a_second() {
    let spec = TrafficSpec::video(Rate::from_kbps(6_000), MS * 10_000);
    let report = play(&mut *spec.build(at(0), 7), MS * 20, |_| false, at(60_000));
    let video = video(&report);
    assert_eq!((video.quality.fps, video.quality.stall_ratio), (30.0, 0.0));
    assert_eq!(video.quality.frame_delay.p999, 20.0);
    let frames = &video.stream.log.frames;
    assert_eq!(frames.len(), 300);
    assert!(frames.iter().enumerate().all(|(number, frame)| frame.idr == (number % 30 == 0)));
    let rtp_bytes = report.sent_bytes - report.sent_packets * inner::HEADERS as u64;
    let rate = rtp_bytes as f64 * 8.0 / 10.0 / 6e6;
    assert!((1.0..1.03).contains(&rate), "{rate} of the rate, with RTP's headers");
    let again = play(&mut *spec.build(at(0), 7), MS * 20, |_| false, at(60_000));
    assert_eq!(report, again);
    let other = play(&mut *spec.build(at(0), 8), MS * 20, |_| false, at(60_000));
    assert_ne!(report.sent_bytes, other.sent_bytes, "the seed decides the sizes");
}

#[test]
fn rtp_is_not_changed_and_its_numbers_may_wrap() {
    let mut traffic = TrafficSpec::video(Rate::from_kbps(1_000), MS * 100).build(at(0), 1);
    let (_, packet) = traffic.poll_transmit(at(0)).unwrap();
    let rtp = RtpPacket::parse(&inner::payload(&packet)).unwrap();
    assert_eq!((rtp.sequence, rtp.timestamp), (0, 0));

    let spec = TrafficSpec::video(Rate::from_kbps(60_000), MS * 12_000);
    let report = play(&mut *spec.build(at(0), 1), MS * 20, |_| false, at(60_000));
    assert!(report.sent_packets > 70_000, "{}", report.sent_packets);
    assert_eq!((report.arrived_packets, report.unexpected_packets), (report.sent_packets, 0));
}

#[test]
fn a_clips_logs_are_those_of_a_demo() {
    let picture = |header: u8, size: usize| AccessUnit { nals: vec![vec![header; size].into()] };
    let clip: Arc<[AccessUnit]> = vec![picture(0x65, 3_000), picture(0x41, 500)].into();
    let spec = TrafficSpec::clip(clip.clone(), MS * 100);
    let report = play(&mut *spec.build(at(1_000), 1), MS * 20, |number| number == 1, at(60_000));
    let (mut sent, mut arrived) = (Vec::new(), Vec::new());
    video(&report).write_logs(&clip, &mut sent, &mut arrived).unwrap();
    let stream = SentStream::read(sent.as_slice()).unwrap();
    assert_eq!(stream.log, video(&report).stream.log);
    assert_eq!(stream.log.frames.len(), 3);
    let arrivals = Arrivals::read(&stream, arrived.as_slice()).unwrap();
    assert_eq!(arrivals.first, video(&report).stream.arrivals);
    assert_eq!((arrivals.duplicates, arrivals.foreign), (0, 0));
    assert_eq!(arrivals.first[1], None);
}

fn requests(app: App, delay: Duration, lost: impl Fn(u64) -> bool, seconds: u32) -> RequestReport {
    let kind = TrafficKind::Requests(app);
    let lasting = Duration::from_secs(seconds.into());
    let spec = TrafficSpec { kind, lasting, ..TrafficSpec::video(Rate::ZERO, lasting) };
    let end = at(0) + lasting + Duration::from_secs(15);
    let report = play(&mut *spec.build(at(0), 1), delay, lost, end);
    match report.detail {
        Detail::Requests(requests) => requests,
        other => panic!("requests report requests, not {other:?}"),
    }
}

#[test]
fn a_request_takes_as_many_round_trips_as_its_app_has_turns() {
    for (app, seconds, asked, response) in [
        (App::Speech, 60, 12..25, 40.0),
        (App::Music, 60, 12..13, 80.0),
        (App::Recommender, 600, 25..36, 40.0),
    ] {
        let report = requests(app, MS * 20, |_| false, seconds);
        assert!(asked.contains(&report.asked), "{app:?}: {}", report.asked);
        assert_eq!(report.answered, report.asked, "{app:?}");
        assert_eq!((report.response_ms.p50, report.response_ms.p999), (response, response));
    }
}

#[test]
fn a_lost_part_is_sent_again_and_a_request_without_an_answer_given_up() {
    let report = requests(App::Recommender, MS * 20, |number| number == 0, 1);
    assert_eq!((report.asked, report.answered), (1, 1));
    assert_eq!(report.response_ms.p50, 340.0, "a timeout and a round trip");
    let report = requests(App::Music, MS * 20, |_| true, 25);
    assert_eq!((report.asked, report.answered), (3, 0), "at 0, 10 and 20 seconds");
}
