//! Small streams with known figures, and a millisecond-by-millisecond reference player.

use proptest::prelude::*;

use super::*;

const PACKETS: usize = 2;

fn ms(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn stream(frames: usize, idr_interval: usize) -> StreamLog {
    let mut log = StreamLog::default();
    for index in 0..frames {
        let captured = ms(1_000 + 100 * index as u64);
        let packets = index * PACKETS..(index + 1) * PACKETS;
        log.packets.extend([captured; PACKETS]);
        log.frames.push(SentFrame { captured, idr: index.is_multiple_of(idr_interval), packets });
    }
    log
}

fn player(frame_wait_ms: u64) -> Player {
    Player {
        jumps: false,
        frame_wait: Duration::from_millis(frame_wait_ms),
        deadline: Duration::from_millis(150),
        fps: 10,
    }
}

/// `delays` of each frame's last packet in ms, `None` if lost; first packets take 10 ms.
fn arrivals(log: &StreamLog, delays: &[Option<u64>]) -> Vec<Option<Instant>> {
    let of_frame = |(frame, delay): (&SentFrame, &Option<u64>)| {
        [Some(10), *delay].map(|ms| ms.map(|ms| frame.captured + Duration::from_millis(ms)))
    };
    log.frames.iter().zip(delays).flat_map(of_frame).collect()
}

fn run(log: &StreamLog, frame_wait_ms: u64, delays: &[Option<u64>]) -> (Playout, Quality) {
    let (player, arrivals) = (player(frame_wait_ms), arrivals(log, delays));
    let playout = Playout::new(log, &arrivals, &player, ms(60_000));
    let quality = measure(log, &arrivals, &playout, &player);
    (playout, quality)
}

fn shown_at(playout: &Playout) -> Vec<Option<u64>> {
    let at = |frame: &FrameFate| frame.shown.then(|| frame.closed.as_nanos() / 1_000_000 - 1_000);
    playout.frames.iter().map(at).collect()
}

#[test]
fn a_lost_packet_breaks_the_chain_until_the_next_idr_frame() {
    let mut delays = [Some(40); 10];
    delays[2] = None;
    let (playout, quality) = run(&stream(10, 5), 0, &delays);
    let undamaged: Vec<_> = playout.frames.iter().map(|frame| frame.undamaged).collect();
    // Frames 3 and 4 are complete but refer to frame 2.
    assert_eq!(undamaged, [true, true, false, false, false, true, true, true, true, true]);
    assert_eq!((quality.frames_complete, quality.lost, quality.late), (9, 0.05, 0.0));
    assert_eq!(quality.stall_ratio, 0.0, "one frame missing is a gap of 200 ms, not above");
}

#[test]
fn a_frame_overtaken_for_longer_than_the_wait_is_not_shown() {
    let delays = [Some(20), Some(160), Some(20), Some(20)];
    let (without_wait, _) = run(&stream(4, 4), 0, &delays);
    assert_eq!(shown_at(&without_wait), [Some(20), None, Some(220), Some(320)]);
    let (with_wait, quality) = run(&stream(4, 4), 50, &delays);
    assert_eq!(shown_at(&with_wait), [Some(20), Some(260), Some(260), Some(320)]);
    assert_eq!(quality.frames_undamaged, 4);
    assert_eq!(quality.late, 1.0 / 8.0, "160 ms are above the deadline, shown or not");
    assert_eq!(quality.stall_ratio, 240.0 / 400.0, "the gap from 20 to 260 ms counts whole");
}

#[test]
fn a_player_that_jumps_waits_for_nothing_before_a_key_frame() {
    let log = stream(8, 5);
    // Frame 3 arrives after the key frame 5; frame 4 never arrives.
    let delays = [Some(20), Some(20), Some(20), Some(240), None, Some(20), Some(20), Some(20)];
    let arrivals = arrivals(&log, &delays);
    let plays = |jumps| {
        let player = Player { jumps, ..player(100) };
        let playout = Playout::new(&log, &arrivals, &player, ms(60_000));
        let undamaged = playout.frames.iter().map(|frame| frame.undamaged).collect::<Vec<_>>();
        (shown_at(&playout), undamaged)
    };
    let (waits, _) = plays(false);
    assert_eq!(waits[3..], [Some(540), None, Some(620), Some(620), Some(720)]);
    let (jumps, undamaged) = plays(true);
    assert_eq!(jumps[3..], [None, None, Some(520), Some(620), Some(720)]);
    assert!(undamaged[5..].iter().all(|it| *it));
}

#[test]
fn a_frame_is_in_order_if_nothing_of_it_came_behind_what_was_sent_later() {
    let check = |delays: &[Option<u64>], expected| {
        let (_, quality) = run(&stream(4, 4), 0, delays);
        assert_eq!(quality.frames_in_order, expected, "{delays:?}");
    };
    check(&[Some(10), Some(10), Some(10), Some(20)], 4);
    check(&[Some(10), Some(110), Some(20), Some(20)], 4);
    check(&[Some(10), Some(111), Some(20), Some(20)], 3);
    check(&[Some(10), None, Some(20), Some(20)], 3);
    check(&[Some(350), Some(250), Some(20), Some(20)], 2);
    check(&[Some(20), Some(5), Some(20), Some(20)], 3);
}

#[test]
fn gaps_at_the_start_and_at_the_end_are_stalls() {
    let mut delays = [Some(10); 20];
    delays[..3].fill(None);
    delays[15..].fill(None);
    let (_, quality) = run(&stream(20, 1), 0, &delays);
    let stalls: Vec<_> =
        quality.stalls.iter().map(|(from, to)| (from.as_millis(), to.as_millis())).collect();
    assert_eq!(stalls, [(0, 310), (1_410, 2_000)]);
    assert!((quality.stall_ratio - 0.45).abs() < 1e-9);
}

#[test]
fn an_empty_stream_has_no_figures() {
    let log = StreamLog::default();
    let playout = Playout::new(&log, &[], &player(0), ms(0));
    assert_eq!(measure(&log, &[], &playout, &player(0)), Quality::default());
}

#[test]
fn percentiles_are_nearest_ranks() {
    let durations: Vec<_> = (1..=1_000).map(Duration::from_millis).collect();
    let expected = Percentiles { p50: 500.0, p95: 950.0, p99: 990.0, p999: 999.0 };
    assert_eq!(Percentiles::of_sorted(&durations), expected);
    let one = Percentiles { p50: 1.0, p95: 1.0, p99: 1.0, p999: 1.0 };
    assert_eq!(Percentiles::of_sorted(&durations[..1]), one);
}

fn reference(
    log: &StreamLog,
    completed: &[Option<u64>],
    frame_wait: u64,
    end: u64,
) -> Vec<Option<u64>> {
    let mut shown = vec![None; log.frames.len()];
    let mut next = 0;
    for now in 0..=end {
        while next < completed.len() {
            if completed[next].is_some_and(|at| at <= now) {
                shown[next] = Some(now);
            } else if !completed[next + 1..].iter().flatten().any(|at| at + frame_wait <= now) {
                break;
            }
            next += 1;
        }
    }
    shown
}

proptest! {
    #[test]
    fn playout_equals_the_rule_replayed_in_small_steps(
        delays in prop::collection::vec(prop::option::weighted(0.8, 11_u64..500), 1..20),
        frame_wait in 0_u64..200,
    ) {
        let log = stream(delays.len(), 4);
        let (playout, quality) = run(&log, frame_wait, &delays);
        let completed: Vec<_> =
            delays.iter().enumerate().map(|(i, d)| d.map(|d| d + 100 * i as u64)).collect();
        prop_assert_eq!(shown_at(&playout), reference(&log, &completed, frame_wait, 4_000));
        prop_assert!(playout.frames.windows(2).all(|pair| pair[0].closed <= pair[1].closed));
        prop_assert!((0.0..=1.0).contains(&quality.stall_ratio));
        prop_assert!(quality.frames_undamaged <= quality.frames_complete);
    }
}
