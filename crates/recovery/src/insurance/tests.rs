use roadweave_proto::Policy;

use super::*;
use crate::testing::{at, free as offers, path, sent};

fn insurance(percent: u8) -> Insurance {
    Insurance::new(RecoveryConfig::default(), percent)
}

fn send_frame(insurance: &mut Insurance, now: Instant, first: u32, on: &[u32]) {
    for (id, path) in (first..).zip(on) {
        let ends_frame = id == first + on.len() as u32 - 1;
        insurance.on_sent(now, &SentCopy { ends_frame, ..sent(id, *path) });
    }
}

fn premiums(insurance: &mut Insurance, now: Instant, paths: &[PathSnapshot]) -> Vec<(u32, u16)> {
    let mut sums: BTreeMap<u32, u16> = BTreeMap::new();
    while let Some(premium) = insurance.poll(now, &offers(paths)) {
        premium.shares.iter().for_each(|(path, share)| *sums.entry(path.0).or_default() += share);
    }
    sums.into_iter().collect()
}

fn two(windows: [u64; 2]) -> [PathSnapshot; 2] {
    [path(0, 40, windows[0]), path(1, 60, windows[1])]
}

#[test]
fn what_is_overdue_is_insured_on_a_path_that_owes_nothing() {
    let (mut insurance, paths) = (insurance(100), two([200, 200]));
    send_frame(&mut insurance, at(0), 0, &[0, 0, 0, 0, 1, 1]);
    assert_eq!(premiums(&mut insurance, at(45), &paths), []);
    insurance.on_acknowledged(PacketId(3));
    assert_eq!(premiums(&mut insurance, at(49), &paths), [(1, 4)], "three, and one more");
    assert_eq!(premiums(&mut insurance, at(60), &paths), [], "once");
}

#[test]
fn a_combination_spans_a_block_of_one_frame() {
    let (mut insurance, paths) = (insurance(100), two([400, 400]));
    send_frame(&mut insurance, at(0), 7, &[0; 70]);
    send_frame(&mut insurance, at(1), 77, &[0; 5]);
    let mut blocks = Vec::new();
    while let Some(premium) = insurance.poll(at(52), &offers(&paths)) {
        blocks.push((premium.start.0, premium.count));
    }
    assert_eq!(blocks, [(7, 60), (67, 10), (77, 5)]);
}

#[test]
fn room_that_would_be_a_queue_is_not_free() {
    let overdue = |windows| {
        let mut insurance = insurance(100);
        send_frame(&mut insurance, at(0), 0, &[0; 20]);
        let mut paths = two(windows);
        paths[1].bytes_in_flight = 12_000;
        let premium = insurance.poll(at(50), &offers(&paths));
        premium.map_or(Vec::new(), |premium| premium.shares)
    };
    assert_eq!(overdue([200, 20]), [], "half of its window is taken");
    assert_eq!(overdue([200, 30]), [(PathId(1), 4)], "and what a coded packet has beyond a packet");
    let mut held_back = two([200, 200]);
    held_back[1].pacing_budget = 100;
    let mut insurance = insurance(100);
    send_frame(&mut insurance, at(0), 0, &[0; 20]);
    assert_eq!(premiums(&mut insurance, at(50), &held_back), []);
    assert!(insurance.poll_timeout().is_some_and(|due| due > at(50)), "there may be room soon");
}

#[test]
fn a_budget_is_a_share_of_the_lanes_bytes() {
    let sent = |percent: u8| {
        let (mut insurance, paths) = (insurance(percent), two([4000, 4000]));
        let mut sent = 0;
        for frame in 0..50_u64 {
            send_frame(&mut insurance, at(frame * 100), frame as u32 * 20, &[0; 20]);
            let overdue = premiums(&mut insurance, at(frame * 100 + 60), &paths);
            sent += overdue.iter().map(|(_, share)| u32::from(*share)).sum::<u32>();
        }
        sent
    };
    assert!((180..=200).contains(&sent(20)), "{} of 1000 packets", sent(20));
    assert_eq!(sent(0), 0);
}

#[test]
fn nothing_leaves_that_would_come_too_late_or_on_a_path_that_takes_no_insurance() {
    let (mut insurance, mut paths) = (insurance(100), two([200, 200]));
    send_frame(&mut insurance, at(0), 0, &[0; 20]);
    paths[1].policy = Policy { takes_insurance: false, ..Policy::default() };
    assert_eq!(premiums(&mut insurance, at(60), &paths), []);
    paths[1].policy = Policy::default();
    assert_eq!(premiums(&mut insurance, at(140), &paths), []);
    assert_eq!(premiums(&mut insurance, at(151), &paths), []);
    assert_eq!(insurance.poll_timeout(), None, "nobody is woken for it any more");
}

#[test]
fn it_is_put_off_while_something_waits_to_be_sent() {
    let (mut insurance, paths) = (insurance(100), two([200, 200]));
    assert_eq!((insurance.put_off(at(0)), insurance.poll_timeout()), ((), None));
    send_frame(&mut insurance, at(0), 0, &[0; 20]);
    insurance.put_off(at(60));
    assert!(insurance.poll_timeout().is_some_and(|due| due > at(60)), "time goes on");
    assert_eq!(premiums(&mut insurance, at(60), &paths), []);
    assert_eq!(premiums(&mut insurance, at(64), &paths), [(1, 19)], "all that the budget has");
}

#[test]
fn packets_are_needed_while_they_may_be_covered() {
    let (mut insurance, paths) = (insurance(100), two([200, 200]));
    send_frame(&mut insurance, at(0), 0, &[0, 0, 0]);
    (0..2).for_each(|id| insurance.on_acknowledged(PacketId(id)));
    assert!((0..3).all(|id| insurance.needs(PacketId(id))) && !insurance.needs(PacketId(3)));
    assert_eq!(insurance.poll_done(), None);
    premiums(&mut insurance, at(200), &paths);
    let done: Vec<_> = std::iter::from_fn(|| insurance.poll_done()).collect();
    assert_eq!(done, [(PacketId(0), 1), (PacketId(1), 1)], "the third may yet be repaired");
    assert!(!insurance.needs(PacketId(0)));
}

#[test]
fn what_is_watched_is_bounded() {
    let mut insurance = insurance(10);
    (0..10_000).for_each(|id| send_frame(&mut insurance, at(0), id, &[0]));
    assert_eq!(insurance.blocks.len(), BLOCKS_MAX);
    (0..10_000).for_each(|id| insurance.on_acknowledged(PacketId(id)));
    (10_000..40_000).for_each(|id| {
        send_frame(&mut insurance, at(0), id, &[0]);
        insurance.on_acknowledged(PacketId(id));
    });
    assert!(insurance.done.len() <= BLOCKS_MAX * BLOCK_MAX);
}
