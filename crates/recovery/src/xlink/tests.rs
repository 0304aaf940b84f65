use super::*;
use crate::testing::{Among, at, free, path, sent};

fn xlink_with(name: &str) -> Xlink {
    let thresholds = match name.strip_prefix("xlink:") {
        Some(percents) => Thresholds::parse(percents).expect("they are some"),
        None => Thresholds::default(),
    };
    Xlink::new(RecoveryConfig::default(), thresholds)
}

fn paths() -> [PathSnapshot; 2] {
    [path(0, 20, 100), path(1, 200, 100)].map(|path| PathSnapshot { pto: path.pto * 50, ..path })
}

fn repairs(xlink: &mut Xlink, now: Instant, backlog: u64) -> Vec<Repair> {
    let paths = paths();
    std::iter::from_fn(|| xlink.poll_repair_among(now, &paths, backlog)).collect()
}

fn buffer(cached_frames: u64, fps: f64) -> Qoe {
    Qoe { cached_bytes: 0, cached_frames, bps: 0, fps }
}

fn reinject(id: u32) -> Repair {
    Repair::Reinject { id: PacketId(id), path: PathId(0) }
}

#[test]
fn late_packets_of_the_slow_path_are_sent_again_on_the_fast_one_oldest_first_and_once() {
    let mut xlink = xlink_with("xlink");
    xlink.on_sent(at(0), sent(0, 1), &paths());
    xlink.on_sent(at(1), sent(1, 0), &paths());
    xlink.on_sent(at(2), sent(2, 1), &paths());
    xlink.on_sent(at(3), sent(3, 1), &paths());
    xlink.on_acknowledged(at(4), PacketId(2));
    assert_eq!(repairs(&mut xlink, at(5), 1200), [], "new packets go first");
    // 95 ms are left, the slow path takes 200.
    assert_eq!(repairs(&mut xlink, at(5), 0), [reinject(0), reinject(3)]);
    xlink.on_sent(at(5), sent(0, 0), &paths());
    xlink.on_sent(at(5), sent(3, 0), &paths());
    assert_eq!(repairs(&mut xlink, at(50), 0), []);
    assert_eq!(xlink.stats().lost, 0, "nothing was lost so far");
}

#[test]
fn a_path_that_is_fast_enough_needs_no_second_copy() {
    let mut xlink = xlink_with("xlink");
    let paths = [path(0, 20, 100), path(1, 60, 100)];
    xlink.on_sent(at(0), sent(0, 1), &paths);
    assert_eq!(xlink.poll_repair_among(at(30), &paths, 0), None, "70 ms are left, and 60 needed");
    assert_eq!(xlink.poll_timeout(), Some(at(40)));
    assert_eq!(xlink.poll_repair_among(at(41), &paths, 0), Some(reinject(0)), "59 ms are left");
}

#[test]
fn copies_wait_for_room_on_the_fast_path() {
    let mut xlink = xlink_with("xlink");
    let full = [path(0, 20, 1), path(1, 200, 100)];
    xlink.on_sent(at(0), sent(0, 1), &full);
    assert_eq!(xlink.poll_repair_among(at(10), &full, 0), None);
    assert_eq!(repairs(&mut xlink, at(10), 0), [reinject(0)]);
}

#[test]
fn what_a_player_has_cached_decides_and_is_played_meanwhile() {
    let mut xlink = xlink_with("xlink");
    xlink.set_qoe(at(0), buffer(9, 30.0)); // 300 ms
    xlink.on_sent(at(0), sent(0, 1), &paths());
    assert_eq!(repairs(&mut xlink, at(99), 0), []);
    assert_eq!(repairs(&mut xlink, at(101), 0), [reinject(0)], "199 ms are left");
}

#[test]
fn a_player_whose_buffer_is_always_empty_has_a_part_of_its_packets_copied() {
    let mut xlink = xlink_with("xlink");
    let mut copies = 0;
    for id in 0..8_000 {
        let now = at(u64::from(id));
        xlink.set_qoe(now, buffer(0, 30.0));
        xlink.on_sent(now, sent(id, 1), &paths());
        copies += repairs(&mut xlink, now, 0).len();
        if let Some(id) = id.checked_sub(50) {
            xlink.on_acknowledged(now, PacketId(id));
        }
    }
    // 512 at once, and then each fourth.
    assert_eq!(copies, 512 + 7_999 / 4);
}

#[test]
fn copies_stay_within_a_budget_that_all_paths_have_spent() {
    let mut xlink = xlink_with("xlink");
    xlink.on_sent(at(0), sent(0, 1), &paths());
    let spent = paths().map(|path| PathSnapshot { redundancy_left: 1_499, ..path });
    assert_eq!(xlink.poll_repair_among(at(10), &spent, 0), None);
    assert_eq!(repairs(&mut xlink, at(10), 0), [reinject(0)]);
}

fn near(left: Left, ms: u64) -> bool {
    let [low, high] =
        [ms.saturating_sub(1), ms + 1].map(|ms| Left::from(Duration::from_millis(ms)));
    (low..=high).contains(&left)
}

#[test]
fn beyond_the_upper_threshold_it_is_off_and_below_the_lower_one_it_is_on() {
    let mut xlink = xlink_with("xlink");
    let qoe = |frames| buffer(frames, 1000.0);
    // The play-time left goes from 1 to 1,000 ms: T1 is 50 ms, T2 is 200 ms.
    xlink.on_sent(at(0), sent(0, 0), &paths());
    xlink.on_waiting(at(0), sent(1, 0), &paths());
    for ms in 1..=1000 {
        xlink.set_qoe(at(ms * 10), qoe(ms));
        repairs(&mut xlink, at(ms * 10), 1200);
    }
    let (low, high) = xlink.observed.thresholds().expect("enough was seen");
    assert!(near(low, 50) && near(high, 200), "{low:?}, {high:?}");
    let mut decides = |left, rtt_ms| {
        let paths = [path(0, 5, 100), path(1, rtt_ms, 100)];
        xlink.set_qoe(at(20_000), qoe(left));
        let queue = [(at(0), PacketId(0))].into();
        xlink.candidates.insert(PathId(1), [(Urgency::FIRST, queue)].into());
        xlink.wants(at(20_000), PacketId(0), &free(&paths))
    };
    assert!(!decides(250, 400), "it would be late, but there is much left");
    assert!(decides(150, 160));
    assert!(!decides(150, 140));
    assert!(decides(40, 10), "it would be in time, but there is little left");
}

#[test]
fn thresholds_are_named_by_how_often_they_are_exceeded() {
    let mut xlink = xlink_with("xlink:60-1");
    for ms in 1..=1000 {
        xlink.observed.note(at(ms * 10), Left::from(Duration::from_millis(ms)));
    }
    let (low, high) = xlink.observed.thresholds().expect("enough was seen");
    assert!(near(low, 400) && near(high, 990), "{low:?}, {high:?}");
    for percents in ["", "80-95", "95-0", "100-5", "95", "a-b", "95-80-1"] {
        assert_eq!(Thresholds::parse(percents), None, "{percents}");
    }
}

/// The share of copied packets, one sent each 10 ms for a minute over a path of `rtt_ms(packet)`.
fn copied(name: &str, rtt_ms: impl Fn(u64) -> u64) -> f64 {
    let mut xlink = xlink_with(name);
    let paths = paths();
    let mut acknowledgements = BTreeMap::new();
    let mut copies = 0;
    for ms in 0..60_000 {
        while let Some(first) = acknowledgements.first_entry()
            && *first.key() <= (ms, u64::MAX)
        {
            xlink.on_acknowledged(at(ms), PacketId(first.remove()));
        }
        if ms % 10 == 0 {
            let id = ms / 10;
            xlink.on_sent(at(ms), sent(id as u32, 1), &paths);
            acknowledgements.insert((ms + rtt_ms(id), id), id as u32);
        }
        for repair in std::iter::from_fn(|| xlink.poll_repair_among(at(ms), &paths, 0)) {
            assert!(matches!(repair, Repair::Reinject { .. }), "{repair:?}");
            copies += 1;
        }
    }
    f64::from(copies) / 6000.0
}

#[test]
fn thresholds_bound_the_copies_where_no_packet_can_be_in_time() {
    // Every round trip takes longer than the deadline of 100 ms: by 20 ms to 70 ms.
    let rtt = |id: u64| 120 + 10 * (id * 7 % 50 / 10);
    let (usual, all) = (copied("xlink", rtt), copied("xlink:1-1", rtt));
    assert!(all > 0.5, "{all}");
    assert!(usual < 0.25, "T2 is exceeded in 80 % of the time, and {usual} were copied");
    assert!(usual > 0.01, "{usual}");
}

#[test]
fn a_player_that_stops_reporting_is_forgotten() {
    let mut xlink = xlink_with("xlink");
    xlink.set_qoe(at(0), buffer(900, 30.0)); // 30 s
    for id in 0..4 {
        let now = at(u64::from(id) * 900);
        xlink.on_sent(now, sent(id, 1), &paths());
        assert_eq!(repairs(&mut xlink, now + Duration::from_millis(50), 0), []);
        xlink.on_acknowledged(now, PacketId(id));
    }
    xlink.on_sent(at(3000), sent(4, 1), &paths());
    // What is left of the lane's deadline counts again: 50 ms, of the 200 that the slow path takes.
    assert_eq!(repairs(&mut xlink, at(3050), 0), [reinject(4)]);
}

#[test]
fn lost_packets_are_sent_again_and_may_be_reinjected_again() {
    let mut xlink = xlink_with("xlink");
    xlink.on_sent(at(0), sent(0, 1), &paths());
    xlink.on_lost(at(1), PacketId(0), PathId(1));
    assert_eq!(repairs(&mut xlink, at(1), 0), [Repair::Again { id: PacketId(0) }]);
    xlink.on_sent(at(2), sent(0, 1), &paths());
    assert_eq!(repairs(&mut xlink, at(2), 0), [reinject(0)]);
    xlink.on_acknowledged(at(9), PacketId(0));
    assert!(xlink.is_settled());
    assert_eq!(repairs(&mut xlink, at(10), 0), []);
    assert!(xlink.candidates.is_empty());
}

#[test]
fn what_is_under_way_and_more_urgent_is_sent_again_before_what_waits() {
    let mut xlink = xlink_with("xlink");
    let sent_with = |id, urgency| SentCopy { urgency: Urgency(urgency), ..sent(id, 1) };
    for (id, urgency) in [(0, 5), (1, 2), (2, 3)] {
        xlink.on_sent(at(id.into()), sent_with(id, urgency), &paths());
    }
    assert_eq!(repairs(&mut xlink, at(5), 1200), [], "what waits may be more urgent");
    xlink.set_next(Urgency(3));
    assert_eq!(repairs(&mut xlink, at(5), 1200), [reinject(1)], "equals wait");
    xlink.on_sent(at(5), sent(1, 0), &paths());
    assert_eq!(repairs(&mut xlink, at(6), 0), [reinject(2), reinject(0)]);
}
