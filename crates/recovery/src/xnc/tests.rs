use proptest::prelude::*;
use roadweave_proto::PathStatus;

use super::shares::{Size, every_path, in_proportion, outlasting_any_path};
use super::*;
use crate::testing::{Among, at, path, sent};

/// Repairs with n + 3 combinations alone, as the paper has it.
fn combined() -> XncConfig {
    XncConfig { systematic: false, extra: 3, ..XncConfig::default() }
}

fn paper() -> XncConfig {
    let spread = Spread::EveryPath;
    XncConfig { spread, bridges: false, retries: false, ..combined() }
}

fn usual() -> Xnc {
    Xnc::new(combined())
}

/// Has sent ten packets at time zero on path 0; all but `lost` are acknowledged.
fn burst(config: XncConfig, lost: &[u32], paths: &[PathSnapshot]) -> Xnc {
    let mut xnc = Xnc::new(config);
    (0..10).for_each(|id| xnc.on_sent(at(0), sent(id, 0), paths));
    let arrived = (0..10).filter(|id| !lost.contains(id));
    arrived.for_each(|id| xnc.on_acknowledged(at(40), PacketId(id)));
    xnc
}

fn copies(id: u32, paths: [u32; 2]) -> Repair {
    Repair::Copies { id: PacketId(id), paths: paths.map(PathId).to_vec() }
}

/// The path of a queue of 300 ms, so that nothing there counts as lost before 337 ms.
fn queued(packets: u64) -> PathSnapshot {
    let (min_rtt, pto) = (Duration::from_millis(40), Duration::from_millis(900));
    PathSnapshot { min_rtt, pto, ..path(0, 300, packets) }
}

/// `range`: x for each lost packet, a dot for each that has arrived, from `start` on.
fn coded(start: u32, range: &str, shares: Vec<(PathId, u16)>) -> Repair {
    let lost = range.bytes().rev().fold(0, |mask, state| mask << 1 | u64::from(state == b'x'));
    Repair::Coded { start: PacketId(start), count: range.len() as u16, lost, shares }
}

fn all_repairs(xnc: &mut Xnc, now: Instant, paths: &[PathSnapshot]) -> Vec<Repair> {
    std::iter::from_fn(|| xnc.poll_repair_among(now, paths, 0)).collect()
}

#[test]
fn a_burst_becomes_one_combination_over_all_paths() {
    let paths = [path(0, 40, 100), path(1, 60, 100)]; // PTO of path 0: 50 ms
    let mut xnc = burst(paper(), &[2, 3, 4, 5], &paths);
    assert_eq!(all_repairs(&mut xnc, at(49), &paths), []);
    let all = coded(2, "xxxx", vec![(PathId(0), 7), (PathId(1), 7)]);
    assert_eq!(all_repairs(&mut xnc, at(50), &paths), [all]);
    assert_eq!(all_repairs(&mut xnc, at(5000), &paths), [], "one shot");
    assert_eq!((xnc.stats().repaired, xnc.stats().abandoned), (4, 0));
}

#[test]
fn scattered_losses_are_runs_of_their_own_and_a_single_packet_goes_on_every_usable_path() {
    let mut paths = vec![path(0, 40, 100), path(1, 60, 100), path(2, 20, 100), path(3, 20, 0)];
    paths[2].status = PathStatus::Suspect;
    let repairs = ablation(paper(), &[1, 7], &paths, at(50));
    assert_eq!(repairs, [copies(1, [0, 1]), copies(7, [0, 1])]);
}

#[test]
fn ranges_end_after_r_packets_after_t_and_with_a_frame() {
    let paths = [path(0, 400, 100)];
    let mut xnc = usual();
    let starts = |xnc: &Xnc| xnc.ranges.all.iter().map(|range| range.start.0).collect::<Vec<_>>();
    (0..11).for_each(|id| xnc.on_sent(at(0), sent(id, 0), &paths));
    assert_eq!(starts(&xnc), [0, 10]);
    xnc.on_sent(at(59), sent(11, 0), &paths);
    assert_eq!(starts(&xnc), [0, 10]);
    xnc.on_sent(at(60), SentCopy { ends_frame: true, ..sent(12, 0) }, &paths);
    assert_eq!(starts(&xnc), [0, 10, 12]);
    xnc.on_sent(at(60), sent(13, 0), &paths);
    assert_eq!(starts(&xnc), [0, 10, 12, 13]);
    xnc.on_frame_ended();
    xnc.on_frame_ended();
    xnc.on_sent(at(60), sent(14, 0), &paths);
    assert_eq!(starts(&xnc), [0, 10, 12, 13, 14]);
}

#[test]
fn losses_are_gathered_while_packets_of_the_range_are_in_flight() {
    let paths = [path(0, 40, 100)];
    let mut xnc = usual();
    (0..10).for_each(|id| xnc.on_sent(at(id.into()), sent(id, 0), &paths));
    xnc.on_lost(at(50), PacketId(0), PathId(0));
    assert_eq!(all_repairs(&mut xnc, at(50), &paths), [], "nine others may be lost as well");
    assert_eq!(xnc.poll_timeout(), Some(at(51)), "the next packet may be lost then");
    let repairs = all_repairs(&mut xnc, at(55), &paths);
    let [Repair::Coded { start, count, lost, .. }] = repairs[..] else { panic!("{repairs:?}") };
    assert_eq!((start, count, lost), (PacketId(0), 6, 0b11_1111));
}

#[test]
fn without_window_the_repair_waits_and_then_expires() {
    let room = [path(0, 40, 100)];
    let full = [path(0, 40, 6)];
    let mut xnc = burst(combined(), &[2, 3, 4, 5], &room);
    assert_eq!(all_repairs(&mut xnc, at(60), &full), [], "n' = 7 and b = 6");
    assert!(xnc.poll_timeout() > Some(at(60)), "time does not help, so there is no busy waiting");
    assert_eq!(ablation(combined(), &[2, 3, 4, 5], &room, at(699)).len(), 1);
    let abandon = Repair::Abandon { start: PacketId(0), count: 10 };
    assert_eq!(all_repairs(&mut xnc, at(701), &full), [abandon]);
    assert_eq!(xnc.stats().abandoned, 4);
}

#[test]
fn a_late_acknowledgement_saves_the_repair() {
    let paths = [path(0, 40, 100)];
    let mut xnc = usual();
    xnc.on_sent(at(0), sent(0, 0), &paths);
    assert_eq!(all_repairs(&mut xnc, at(50), &paths), []);
    xnc.on_acknowledged(at(51), PacketId(0));
    assert_eq!(all_repairs(&mut xnc, at(60), &paths), []);
    assert_eq!((xnc.stats().lost, xnc.stats().spurious), (1, 1));
}

#[test]
fn a_lean_repair_sends_what_is_needed_and_what_loss_will_take() {
    let mut paths = [path(0, 40, 100), path(1, 60, 300), path(2, 60, 300)];
    let repair = |paths: &[PathSnapshot]| ablation(combined(), &[2, 3, 4, 5], paths, at(50));
    let repaired = |shares: [u16; 3]| {
        [coded(2, "xxxx", (0..).map(PathId).zip(shares).filter(|(_, share)| *share > 0).collect())]
    };
    // n' = 7, in proportion 1 to 3 to 3.
    assert_eq!(repair(&paths), repaired([1, 3, 3]));
    // A path that dies takes no more than three of them; the four left are enough.
    paths[2] = path(2, 60, 2000);
    assert_eq!(repair(&paths), repaired([1, 3, 3]));
    paths[1].loss = 0.25;
    assert_eq!(repair(&paths), repaired([2, 3, 3]), "an eighth of the room: 7 / 0.97");
    paths.iter_mut().for_each(|path| path.loss = 0.25);
    assert_eq!(repair(&paths), repaired([2, 4, 4]), "7 / 0.75, all but 4 / 0.75 on one path");
}

#[test]
fn a_repair_begins_with_the_lost_packets_themselves_on_its_fastest_paths() {
    let paths = [path(0, 60, 100), path(1, 40, 100), path(2, 80, 100)];
    let repairs = ablation(XncConfig::default(), &[2, 3, 5], &paths, at(70));
    let copy = |id, path| Repair::Copies { id: PacketId(id), paths: vec![PathId(path)] };
    // n' = 5, and no path carries more than two.
    let rest = coded(2, "xx.x", vec![(PathId(0), 1), (PathId(2), 1)]);
    assert_eq!(repairs, [copy(2, 1), copy(3, 1), copy(5, 0), rest]);
}

#[test]
fn copies_and_combinations_of_a_repair_count_together() {
    let paths = [path(0, 40, 100), path(1, 60, 100)];
    let mut xnc = burst(XncConfig::default(), &[2, 3, 4, 5], &paths);
    assert!(!all_repairs(&mut xnc, at(50), &paths).is_empty());
    for id in [3, 5, 3] {
        xnc.on_acknowledged(at(90), PacketId(id));
    }
    xnc.on_repair_acknowledged(PacketId(2));
    assert!(!xnc.is_settled(), "three of four");
    xnc.on_repair_acknowledged(PacketId(2));
    assert!(xnc.is_settled());
}

#[test]
fn the_loss_of_any_path_leaves_enough_of_a_lean_repair() {
    let check = |rooms: &[u64], lost, expected: &[u16]| {
        let rooms: Vec<_> = (0..).map(PathId).zip(rooms.iter().copied()).collect();
        let size = outlasting_any_path(&rooms, lost, 3, 0.0).expect("there is room");
        let shares = in_proportion(&rooms, size);
        let shares: Vec<u16> = shares.iter().map(|(_, share)| *share).collect();
        assert_eq!(shares, expected, "{rooms:?}, {lost} lost");
    };
    check(&[280, 32, 32], 4, &[3, 2, 2]);
    check(&[280, 32, 32], 3, &[3, 2, 1]);
    check(&[100, 100], 3, &[3, 3]);
    // Each of two paths must do alone: there it takes more than n'.
    check(&[100, 100], 4, &[4, 4]);
    check(&[100, 100], 10, &[10, 10]);
    check(&[100, 100, 100, 100], 10, &[4, 4, 3, 3]);
    // Where the windows do not hold that, n' as evenly as they do.
    check(&[100, 2], 4, &[5, 2]);
    check(&[100], 4, &[7]);
    assert_eq!(outlasting_any_path(&[(PathId(0), 4), (PathId(1), 2)], 4, 3, 0.0), None);
}

proptest! {
    #[test]
    fn lean_shares_keep_to_windows_and_outlast_any_path_that_dies(
        rooms in proptest::collection::vec(0..60_u64, 1..6),
        lost in 2..20_u64,
        loss in 0.0..0.9_f64,
    ) {
        let rooms: Vec<_> = (0..).map(PathId).zip(rooms).collect();
        let room: u64 = rooms.iter().map(|(_, room)| room).sum();
        let size = outlasting_any_path(&rooms, lost, 3, loss);
        prop_assert_eq!(size.is_some(), room >= lost + 3);
        let Some(size) = size else { return Ok(()) };
        let shares = in_proportion(&rooms, size);
        let most = shares.iter().map(|(_, share)| u64::from(*share)).max().unwrap_or(0);
        let all: u64 = shares.iter().map(|(_, share)| u64::from(*share)).sum();
        prop_assert_eq!(all, size.wanted);
        prop_assert!(all >= lost + 3);
        for (id, share) in &shares {
            prop_assert!(u64::from(*share) <= rooms[id.0 as usize].1);
        }
        // A spread exists if enough packets are left without any path of at most `cap`.
        let evenly = |cap: u64| rooms.iter().map(|(_, room)| (*room).min(cap)).sum::<u64>();
        let may = loss == 0.0 && (1..=lost).any(|cap| evenly(cap) >= (lost + cap).max(lost + 3));
        prop_assert!(!may || all - most >= lost, "{:?} of {:?}", shares, rooms);
    }
}

#[test]
fn a_lean_repair_spares_a_path_that_answers_nothing_newer_while_others_may_soon_have_room() {
    let lose = |newer_is_acknowledged: bool, paths: &[PathSnapshot]| {
        let mut xnc = usual();
        for (ids, ms) in [(0..6, 0), (6..10, 1), (10..11, 2)] {
            ids.for_each(|id| xnc.on_sent(at(ms), sent(id, 0), paths));
        }
        let acknowledged = (0..6).chain(newer_is_acknowledged.then_some(10));
        acknowledged.for_each(|id| xnc.on_acknowledged(at(42), PacketId(id)));
        (6..10).for_each(|id| xnc.on_lost(at(45), PacketId(id), PathId(0)));
        xnc
    };
    let repair = |newer_is_acknowledged, rooms: [u64; 2]| {
        let paths = [path(0, 40, rooms[0]), path(1, 60, rooms[1])];
        all_repairs(&mut lose(newer_is_acknowledged, &paths), at(45), &paths)
    };
    let coded = |shares| [coded(6, "xxxx", shares)];
    assert_eq!(repair(false, [100, 300]), coded(vec![(PathId(1), 7)]));
    assert_eq!(repair(true, [100, 300]), coded(vec![(PathId(0), 4), (PathId(1), 4)]));

    // Without room elsewhere it waits, but not for ever.
    let paths = [path(0, 40, 100), path(1, 60, 0)];
    let mut xnc = lose(false, &paths);
    assert_eq!(all_repairs(&mut xnc, at(45), &paths), []);
    assert_eq!(all_repairs(&mut xnc, at(150), &paths), [], "the packets left at 1");
    assert_eq!(xnc.poll_timeout(), Some(at(151)));
    assert_eq!(all_repairs(&mut xnc, at(151), &paths), coded(vec![(PathId(0), 7)]));
    let alone = [path(0, 40, 100)];
    assert_eq!(all_repairs(&mut lose(false, &alone), at(45), &alone), coded(vec![(PathId(0), 7)]));
}

#[test]
fn a_lean_copy_goes_on_the_two_fastest_paths() {
    let paths = [path(0, 40, 100), path(1, 60, 100), path(2, 20, 100), path(3, 10, 0)];
    let repairs = ablation(combined(), &[1], &paths, at(50));
    assert_eq!(repairs, [copies(1, [0, 2])]);
}

#[test]
fn shares_never_exceed_window_or_cap() {
    let rooms = [(PathId(0), 3), (PathId(1), 50)];
    assert_eq!(every_path(&rooms, 11), [(PathId(0), 3), (PathId(1), 11)]);
    let in_proportion = |rooms: &[_], cap, wanted| in_proportion(rooms, Size { wanted, cap });
    assert_eq!(in_proportion(&rooms, 11, 13), [(PathId(0), 2), (PathId(1), 11)]);
    assert_eq!(in_proportion(&rooms, 50, 53), [(PathId(0), 3), (PathId(1), 50)]);
    assert_eq!(in_proportion(&rooms, 50, 60), [(PathId(0), 3), (PathId(1), 50)]);
    assert_eq!(in_proportion(&[], 11, 13), []);
}

fn ablation(config: XncConfig, lost: &[u32], paths: &[PathSnapshot], now: Instant) -> Vec<Repair> {
    all_repairs(&mut burst(config, lost, paths), now, paths)
}

#[test]
fn without_coding_the_lost_packets_go_out_again_as_spread_as_combinations_would() {
    let config = XncConfig { codes: false, ..combined() };
    let paths = [path(1, 40, 100), path(2, 60, 100)];
    // n' = 5: 3 on one path, 2 on the other.
    let repairs = ablation(config, &[4, 5], &paths, at(105));
    assert_eq!(repairs, [copies(4, [1, 2]), copies(5, [1, 2])], "no packet twice on a path");
    let repairs = ablation(config, &[3, 4, 5, 6], &paths, at(105));
    let all = [3, 4, 5, 6].map(|id| copies(id, [1, 2]));
    assert_eq!(repairs, all, "each of two paths must do alone");
}

#[test]
fn without_qoe_a_packet_is_lost_when_quic_says_so() {
    let slow =
        [PathSnapshot { pto: Duration::from_millis(400), ..path(0, 40, 100) }, path(1, 40, 100)];
    let quic = XncConfig { detection: Detection::Quic, ..combined() };
    // The deadline of 100 ms leaves 80 ms for the answer.
    assert_eq!(ablation(combined(), &[4, 5], &slow, at(85)).len(), 1);
    assert_eq!(ablation(quic, &[4, 5], &slow, at(85)), []);
    assert_eq!(ablation(quic, &[4, 5], &slow, at(150)), [], "no deadline");
    assert_eq!(ablation(quic, &[4, 5], &slow, at(400)).len(), 1);
}

#[test]
fn a_repair_that_does_not_arrive_is_fired_again_for_what_is_missing() {
    let paths = [path(0, 40, 100), path(1, 60, 100)];
    let mut xnc = burst(combined(), &[2, 3, 4, 5], &paths);
    assert_eq!(all_repairs(&mut xnc, at(50), &paths).len(), 1);
    // Three of the seven coded packets arrive; the slower path answers within 67.5 ms.
    (0..3).for_each(|_| xnc.on_repair_acknowledged(PacketId(2)));
    assert_eq!(all_repairs(&mut xnc, at(117), &paths), []);
    let again = all_repairs(&mut xnc, at(118), &paths);
    let [Repair::Coded { start: PacketId(2), count: 4, shares, .. }] = &again[..] else {
        panic!("one more over the whole range: {again:?}");
    };
    let coded: u16 = shares.iter().map(|(_, share)| share).sum();
    assert_eq!(coded, 5, "one is missing, taken for two, and three more");
    xnc.on_repair_acknowledged(PacketId(2));
    assert_eq!(all_repairs(&mut xnc, at(300), &paths), []);
    assert!(xnc.is_settled());
}

#[test]
fn scattered_losses_are_one_combination_over_what_has_arrived_between_them() {
    let paths = [path(0, 40, 100), path(1, 60, 100), path(2, 50, 100)];
    let mut xnc = burst(combined(), &[3, 5, 7], &paths);
    assert!(xnc.needs(PacketId(4)) && xnc.needs(PacketId(0)), "they may be part of a combination");
    let shares = vec![(PathId(0), 2), (PathId(1), 2), (PathId(2), 2)];
    assert_eq!(all_repairs(&mut xnc, at(50), &paths), [coded(3, "x.x.x", shares)]);
    assert_eq!((xnc.stats().lost, xnc.stats().repaired), (3, 3));

    // The repair may be fired again until three of it, or the packets themselves, have arrived.
    let done = |xnc: &mut Xnc| std::iter::from_fn(|| xnc.poll_done()).collect::<Vec<_>>();
    assert_eq!(done(&mut xnc), [(PacketId(0), 10)]);
    assert_eq!(xnc.poll_arrived(), None, "the repair is on its way");
    let needed = |xnc: &Xnc| (0..10).filter(|id| xnc.needs(PacketId(*id))).collect::<Vec<_>>();
    assert_eq!(needed(&xnc), [3, 4, 5, 6, 7]);
    xnc.on_acknowledged(at(60), PacketId(4)); // told again
    (0..2).for_each(|_| xnc.on_repair_acknowledged(PacketId(3)));
    assert_eq!(needed(&xnc), [3, 4, 5, 6, 7]);
    xnc.on_acknowledged(at(60), PacketId(5));
    assert_eq!((needed(&xnc), done(&mut xnc)), (vec![], vec![(PacketId(3), 5)]));
    assert_eq!((xnc.poll_arrived(), xnc.poll_arrived()), (Some((PacketId(3), 0b10101)), None));
    assert!(xnc.is_settled());
}

#[test]
fn a_combination_bridges_neither_what_is_on_its_way_nor_what_was_repaired_nor_what_is_long_ago() {
    let paths = [path(0, 40, 100), path(1, 60, 100)];
    let mut xnc = usual();
    (0..10).for_each(|id| xnc.on_sent(at(0), sent(id, 0), &paths));
    [0, 2, 4, 6, 7, 8, 9].into_iter().for_each(|id| xnc.on_acknowledged(at(40), PacketId(id)));
    xnc.on_lost(at(41), PacketId(3), PathId(0));
    let copies = |id| copies(id, [0, 1]);
    assert_eq!(all_repairs(&mut xnc, at(46), &paths), [copies(3)]);
    [1, 5].into_iter().for_each(|id| xnc.on_lost(at(47), PacketId(id), PathId(0)));
    // It is unknown whether packet 3 has arrived by now.
    assert_eq!(all_repairs(&mut xnc, at(47), &paths), [copies(1), copies(5)]);

    let once = XncConfig { retries: false, ..combined() };
    let repairs_at = |ms| ablation(once, &[3, 5], &paths, at(ms)).len();
    assert_eq!(repairs_at(350), 1);
    assert_eq!(repairs_at(351), 2, "the receiver will soon forget packet 4");
}

#[test]
fn packets_of_a_range_are_let_go_when_nothing_is_lost_in_it() {
    let paths = [path(0, 40, 100)];
    let mut xnc = usual();
    (0..12).for_each(|id| xnc.on_sent(at(0), sent(id, 0), &paths));
    // The first range still waits for a packet; the second is done when a frame ends with it.
    (1..12).for_each(|id| xnc.on_acknowledged(at(40), PacketId(id)));
    assert_eq!(xnc.poll_done(), None);
    xnc.on_acknowledged(at(41), PacketId(0));
    assert_eq!(xnc.poll_done(), Some((PacketId(0), 10)));
    assert!(!xnc.needs(PacketId(9)) && xnc.needs(PacketId(10)));
    xnc.on_frame_ended();
    assert_eq!(all_repairs(&mut xnc, at(45), &paths), []);
    assert_eq!(xnc.poll_done(), Some((PacketId(10), 2)));
    assert!(!xnc.needs(PacketId(10)));
}

#[test]
fn one_shot_is_all_that_the_paper_fires() {
    let paths = [path(0, 40, 100), path(1, 60, 100)];
    let once = XncConfig { retries: false, ..combined() };
    let mut xnc = burst(once, &[2, 3, 4, 5], &paths);
    assert_eq!(all_repairs(&mut xnc, at(50), &paths).len(), 1);
    for ms in [120, 150, 200, 300, 5000] {
        assert_eq!(all_repairs(&mut xnc, at(ms), &paths), [], "{ms} ms");
    }
}

#[test]
fn a_packet_behind_a_queue_is_repaired_on_credit_where_another_path_is_faster() {
    let repairs_at_130 = |other_rtt_ms, earned: u32, retries| {
        let paths = [queued(100), path(1, other_rtt_ms, 100)];
        let mut xnc = Xnc::new(XncConfig { retries, ..combined() });
        for id in 0..earned {
            xnc.on_sent(at(0), sent(id, 1), &paths);
            xnc.on_acknowledged(at(0), PacketId(id));
        }
        xnc.on_sent(at(0), sent(earned, 0), &paths);
        assert_eq!(all_repairs(&mut xnc, at(129), &paths), []);
        assert_eq!(all_repairs(&mut xnc, at(130), &paths), [], "gathering");
        all_repairs(&mut xnc, at(135), &paths).len()
    };
    assert_eq!(repairs_at_130(60, 50, true), 1);
    assert_eq!(repairs_at_130(400, 50, true), 0, "the other path is no faster");
    assert_eq!(repairs_at_130(60, 50, false), 0, "the paper waits for the threshold");
}

#[test]
fn without_credit_a_queue_is_not_sent_twice() {
    let paths = [queued(2000), path(1, 60, 2000)];
    let mut xnc = usual();
    (0..1000).for_each(|id| xnc.on_sent(at(0), sent(id, 0), &paths));
    all_repairs(&mut xnc, at(140), &paths);
    // 3 % of a thousand packets, at 1.3 each, and a range that was begun.
    assert!((23..=24).contains(&xnc.stats().lost), "{:?}", xnc.stats());
}

proptest! {
    /// No packet is repaired twice without retries; each loss is repaired, given up or spurious;
    /// the recovery falls silent when nothing is in flight.
    #[test]
    fn every_loss_is_settled_once(
        fates in proptest::collection::vec(0..4_u8, 1..120),
        room in 0..40_u64,
        retries: bool,
    ) {
        let paths = [path(0, 40, room), path(1, 70, room / 2)];
        let mut xnc = Xnc::new(XncConfig { retries, ..combined() });
        let mut settled = vec![0_u32; fates.len()];
        let mut repairs = Vec::new();
        for (id, fate) in fates.iter().enumerate() {
            let now = at(id as u64);
            xnc.on_sent(now, sent(id as u32, u32::from(*fate % 2)), &paths);
            if *fate == 3 {
                xnc.on_lost(now, PacketId(id as u32), PathId(1));
            }
            repairs.extend(all_repairs(&mut xnc, now, &paths));
        }
        for (id, fate) in fates.iter().enumerate() {
            if *fate == 0 {
                xnc.on_acknowledged(at(130), PacketId(id as u32));
            }
        }
        let mut now = at(130);
        for _ in 0..10_000 {
            repairs.extend(all_repairs(&mut xnc, now, &paths));
            let Some(next) = xnc.poll_timeout() else { break };
            now = next.max(now);
        }
        prop_assert_eq!(xnc.poll_timeout(), None);
        for repair in &repairs {
            match repair {
                Repair::Reinject { .. } => panic!("xnc never asks for {repair:?}"),
                _ => repair.brings_back().for_each(|id| settled[id.0 as usize] += 1),
            }
        }
        // Half of the expiry holds no more timeouts than that.
        let most = if retries { 350 / 50 } else { 1 };
        prop_assert!(settled.iter().all(|times| *times <= most), "{settled:?}");
        let repaired = settled.iter().filter(|times| **times > 0).count() as u64;
        let stats = xnc.stats();
        prop_assert_eq!(stats.repaired, repaired);
        prop_assert!(xnc.is_settled());
        prop_assert_eq!(stats.lost, stats.repaired + stats.abandoned + stats.spurious);
    }
}

#[test]
fn what_a_gone_path_has_answered_is_forgotten() {
    let mut xnc = usual();
    for number in 0..200 {
        let ms = u64::from(number) * 10;
        let paths = [path(number, 40, 100)];
        xnc.on_sent(at(ms), sent(number, number), &paths);
        xnc.on_acknowledged(at(ms + 5), PacketId(number));
        assert_eq!(xnc.poll_repair_among(at(ms + 6), &paths, 0), None);
    }
    assert!(xnc.answered.len() <= 2, "{}", xnc.answered.len());
}

#[test]
fn ranges_that_are_done_at_once_are_each_let_go() {
    let paths = [path(0, 40, 100)];
    let mut xnc = usual();
    (0..30).for_each(|id| xnc.on_sent(at(0), sent(id, 0), &paths));
    (0..20).for_each(|id| xnc.on_acknowledged(at(40), PacketId(id)));
    let done: Vec<_> = std::iter::from_fn(|| xnc.poll_done()).collect();
    assert_eq!(done, [(PacketId(0), 10), (PacketId(10), 10)]);
}
