//! Numbers that are old, far ahead, or begin elsewhere.

use super::*;

#[test]
fn numbers_wrap() {
    let mut bench = Bench::new();
    for number in [u32::MAX - 1, 0, u32::MAX, 1] {
        bench.data(0, 0, number);
    }
    assert_eq!(bench.numbers(), [u32::MAX - 1, u32::MAX, 0, 1]);
    assert_eq!(bench.router.status().peer_packets, 4);
    // A jump by half of all numbers is not believed.
    bench.data(1, 1, 1 + (1 << 31));
    bench.data(2, 0, 2);
    assert_eq!(bench.numbers(), [u32::MAX - 1, u32::MAX, 0, 1, 2]);
}

#[test]
fn floods_of_old_numbers_are_counted_and_not_delivered() {
    let mut bench = Bench::new();
    let newest = 1_000_000;
    bench.data(0, 0, newest - 1);
    bench.data(0, 0, newest);
    for number in 0..50_000 {
        bench.data(1, 1, number);
        bench.data(1, 1, newest - 1);
    }
    assert_eq!(bench.numbers(), [newest - 1, newest]);
    assert_eq!(bench.lane_drops(DropReason::Duplicate), 50_000);
    assert_eq!(bench.lane_drops(DropReason::Late), 50_000);
    let counters = bench.counters(1);
    assert_eq!((counters.adopted, counters.duplicates, counters.late), (0, 50_000, 50_000));
    bench.data(2, 0, newest + 1);
    assert_eq!(bench.out.len(), 3, "the stream goes on");
}

#[test]
fn old_numbers_are_not_delivered_again_after_a_silence() {
    let mut bench = Bench::new();
    for number in 0..200_000 {
        bench.data(0, 0, number);
    }
    for quiet in [701, 1_500, 100_000] {
        for number in (10..2_000).chain(199_000..200_000) {
            bench.data(quiet, 1, number);
        }
    }
    assert_eq!(bench.out.len(), 200_000);
    bench.data(100_001, 0, 200_000);
    assert_eq!(bench.out.len(), 200_001, "the stream goes on");
}

#[test]
fn numbers_far_ahead_do_not_silence_the_tunnel() {
    for pause in [1, 20, 200, 5_000] {
        for ahead in [
            &[2_000][..],
            &[65_536],
            &[65_536, 65_537],
            &[2_000, 2_001],
            &[65_536, 131_072],
            &[65_536, 131_072, 196_608],
            &[70_000, 70_001],
            &[1 << 30, (1 << 30) + 1],
        ] {
            let mut bench = Bench::new();
            for number in 0..10 {
                bench.data(u64::from(number) * pause, 0, number);
            }
            ahead.iter().for_each(|number| bench.data(9 * pause, 1, *number));
            for number in 10..1_200 {
                bench.data(u64::from(number) * pause, 0, number);
            }
            assert_eq!(bench.numbers(), (0..1_200).collect::<Vec<_>>(), "{pause} {ahead:?}");
            assert_eq!(bench.router.drops().get(DropReason::IdJump), ahead.len() as u64);
            let status = bench.router.status();
            assert_eq!((status.peer_packets, status.peer_packets_lost), (1_200, 0));
            assert_eq!(status.stats.lanes[0].received.order.timeouts, 0);
        }
    }
}

#[test]
fn after_an_outage_what_was_in_doubt_goes_out_unless_it_is_too_old() {
    for (pause, expected) in
        [(100, &[0, 5_000, 5_001, 5_002, 5_003][..]), (200, &[0, 5_001, 5_002, 5_003])]
    {
        let mut bench = Bench::new();
        bench.data(0, 0, 0);
        for step in 0..4 {
            bench.data(5_000 + u64::from(step) * pause, 0, 5_000 + step);
        }
        bench.run_until(7_000);
        assert_eq!(bench.numbers(), expected);
        let dropped = bench.router.drops().get(DropReason::IdJump);
        assert_eq!(dropped + bench.out.len() as u64, 5);
    }
}
