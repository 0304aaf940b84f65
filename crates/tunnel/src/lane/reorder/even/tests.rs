use bytes::Bytes;
use proptest::prelude::*;
use roadweave_proto::wire::Stamp;
use roadweave_proto::{Order, PacketId};

use super::super::{HELD_MAX, Reorder, Unit};
use super::*;

const MAX: Duration = Duration::from_millis(300);
const AHEAD: i64 = 7_777_777_777;
const EVERY: u64 = 5_000;

struct Bench {
    reorder: Reorder,
    out: Vec<(u64, u32)>,
    came: BTreeMap<u32, u64>,
    late: usize,
}

impl Bench {
    fn new(max_buffer: Duration) -> Self {
        let reorder = Reorder::new(Order::Even { max_buffer }, PacketId(0));
        Self { reorder, out: Vec::new(), came: BTreeMap::new(), late: 0 }
    }

    fn comes(&mut self, came: u64, id: u32, sent: i64) {
        self.run_until(came);
        let (first, last) = (PacketId(id), PacketId(id));
        let sent = Some(Stamp::of(Instant::ZERO + Duration::from_micros(sent.max(0) as u64)));
        let packet = Some(Bytes::from_static(&[0x45]));
        let age = Duration::ZERO;
        let unit = Unit { first, last, id: last, after: 0, sent, age, decoded: false, packet };
        self.came.insert(id, came);
        let out = &mut self.out;
        let now = Instant::ZERO + Duration::from_micros(came);
        let turn = self.reorder.handle(now, unit, &mut |unit| out.push((came, unit.first.0)));
        self.late += usize::from(turn == Turn::Late);
    }

    fn run_until(&mut self, micros: u64) {
        while let Some(due) = self.reorder.poll_timeout()
            && due <= Instant::ZERO + Duration::from_micros(micros)
        {
            let (out, at) = (&mut self.out, due.as_nanos() / 1_000);
            self.reorder.handle_timeout(due, &mut |unit| out.push((at, unit.first.0)));
        }
    }

    /// `n` packets from ID `from` on, with transit times `took`, stamped by `clock`, µs.
    fn play(&mut self, from: u32, n: u32, took: impl Fn(u32) -> u64, clock: impl Fn(u64) -> i64) {
        let sent = |id: u32| u64::from(id) * EVERY;
        let mut arrivals: Vec<_> = (from..from + n).map(|id| (sent(id) + took(id), id)).collect();
        arrivals.sort_unstable();
        for (came, id) in arrivals {
            self.comes(came, id, clock(sent(id)));
        }
    }

    fn delays(&self, from: u32) -> Vec<u64> {
        let mut out: Vec<(u32, u64)> = self.out.iter().map(|(at, id)| (*id, *at)).collect();
        out.sort_unstable();
        let later = out.into_iter().filter(|(id, _)| *id >= from);
        later.map(|(id, at)| at - u64::from(id) * EVERY).collect()
    }

    /// The median and the 99th percentile of the delays from ID `from` on, once all is out.
    fn settle(&mut self, from: u32) -> (u64, u64) {
        self.run_until(10_000_000_000);
        let delays = self.delays(from);
        (quantile(&delays, 500), quantile(&delays, 990))
    }

    fn longest_wait(&self) -> u64 {
        self.out.iter().map(|(at, id)| at - self.came[id]).max().unwrap_or(0)
    }
}

fn ahead(at: u64) -> i64 {
    at as i64 + AHEAD
}

fn two_paths(id: u32) -> u64 {
    let chance = u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let path = if (id / 7).is_multiple_of(3) { 50_000 } else { 20_000 };
    let repair = if chance.is_multiple_of(300) { 60_000 } else { 0 };
    path + chance % 8_000 + repair
}

fn quantile(delays: &[u64], per_mille: usize) -> u64 {
    let mut sorted = delays.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() * per_mille / 1_000]
}

#[test]
fn what_comes_by_two_paths_goes_out_as_if_it_were_one() {
    let mut bench = Bench::new(MAX);
    bench.play(0, 8_000, two_paths, ahead);
    let (median, p99) = bench.settle(2_000);
    assert_eq!(bench.out.len(), 8_000, "none is lost");
    assert!(p99 - median <= 1_500, "{median} {p99}");
    assert!((56_000..62_000).contains(&median), "as long as most took: {median}");
    let late = bench.reorder.stats().late_packets;
    assert!((1..200).contains(&late), "{late}");
    let orderly = bench.out.windows(2).filter(|pair| pair[0].1 < pair[1].1).count();
    assert!(orderly > 7_800, "all but late ones are in order: {orderly}");
}

#[test]
fn a_path_that_becomes_slower_raises_the_delay_at_once_and_one_that_becomes_quicker_slowly() {
    let mut bench = Bench::new(MAX);
    bench.play(0, 2_000, |_| 20_000, ahead);
    bench.play(2_000, 200, |_| 80_000, ahead);
    bench.run_until(11_200_000);
    let slow = bench.delays(2_010);
    assert!(slow.iter().all(|delay| (80_000..81_100).contains(delay)), "{slow:?}");
    let late = bench.late;
    assert!(late <= 25, "{late}");
    bench.play(2_300, 6_000, |_| 20_000, ahead);
    bench.run_until(60_000_000);
    let delays = bench.delays(2_300);
    let steps = delays.windows(2).map(|pair| pair[0].abs_diff(pair[1]));
    assert!(steps.max() <= Some(201), "it falls by a hundredth of the time");
    assert!(delays[delays.len() - 1] < 21_100, "{:?}", delays.last());
    assert_eq!(bench.late, late);
}

#[test]
fn clocks_that_drift_apart_make_nothing_late_and_no_wait_longer() {
    for ppm in [-100_i64, 100] {
        let mut bench = Bench::new(MAX);
        let drifting = |at: u64| ahead(at) + at as i64 * ppm / 1_000_000;
        // An hour and a half: 540 ms.
        bench.play(0, 1_080_000, two_paths, drifting);
        let (median, p99) = bench.settle(1_000_000);
        assert!((56_000..64_000).contains(&median), "{ppm} ppm: {median}");
        assert!(p99 - median <= 4_000, "{ppm} ppm: {median} {p99}");
        assert!(bench.late < 21_600, "{ppm} ppm: {}", bench.late);
    }
}

#[test]
fn a_clock_that_leaps_is_followed() {
    for leap in [-3_600_000_000_i64, -2_000_000, -100_000, 100_000, 2_000_000, 3_600_000_000] {
        let mut bench = Bench::new(MAX);
        let leaps = |at: u64| ahead(at) + if at < 20_000_000 { 0 } else { leap };
        bench.play(0, 14_000, two_paths, leaps);
        let (median, p99) = bench.settle(12_000);
        assert!(bench.longest_wait() <= 300_000, "{leap}");
        assert!((56_000..62_000).contains(&median), "{leap}: {median}");
        assert!(p99 - median <= 1_500, "{leap}: {median} {p99}");
        assert!(bench.late < 700, "{leap}: {}", bench.late);
    }
}

#[test]
fn a_lane_that_was_silent_begins_where_it_was() {
    let mut bench = Bench::new(MAX);
    bench.play(0, 4_000, two_paths, ahead);
    bench.play(24_000, 4_000, two_paths, ahead);
    let (median, p99) = bench.settle(24_000);
    assert!(p99 - median <= 5_000, "{median} {p99}");
}

#[test]
fn packets_without_a_timestamp_are_not_held() {
    let mut bench = Bench::new(MAX);
    bench.play(0, 100, two_paths, ahead);
    let packet = Some(Bytes::from_static(&[0x45]));
    let (first, age) = (PacketId(100), Duration::ZERO);
    let unit =
        Unit { first, last: first, id: first, after: 0, sent: None, age, decoded: false, packet };
    let mut out = Vec::new();
    let now = Instant::from_millis(600);
    let turn = bench.reorder.handle(now, unit, &mut |unit| out.push(unit.first.0));
    assert_eq!((turn, out.last()), (Turn::Kept, Some(&100)));
}

#[test]
fn a_shorter_wait_holds_at_once() {
    let mut bench = Bench::new(MAX);
    bench.play(0, 2_000, two_paths, ahead);
    let before = bench.reorder.stats();
    assert!(before.held_packets > 0 && before.wait_us > 30_000, "{before:?}");
    let now = Instant::from_millis(10_060);
    let max_buffer = Duration::from_millis(10);
    bench.reorder.set_order(now, Order::Even { max_buffer }, &mut |_| {});
    assert_eq!(bench.reorder.stats().held_packets, 0);
    assert!(bench.reorder.stats().wait_us <= 10_000);
}

proptest! {
    #[test]
    fn who_lies_about_times_has_nothing_held_for_longer_than_allowed_nor_more_than_there_is_room(
        max_ms in prop_oneof![Just(1_u64), Just(300), Just(10_000)],
        packets in proptest::collection::vec(
            (
                0..20_000_u64,
                prop_oneof![
                    2 => Just(0_i64),
                    2 => -400_000..400_000_i64,
                    1 => -30_000_000..30_000_000_i64,
                    1 => any::<i64>().prop_map(|lie| lie >> 16),
                ],
            ),
            1..300,
        ),
    ) {
        let mut bench = Bench::new(Duration::from_millis(max_ms));
        let mut at = 5_000_000;
        for (id, (pause, lie)) in packets.iter().enumerate() {
            at += pause;
            bench.comes(at, id as u32, (at as i64).saturating_add(*lie));
            let stats = bench.reorder.stats();
            prop_assert!(stats.wait_us <= max_ms * 1_000);
            prop_assert!(bench.reorder.memory() < 600 * 1024);
        }
        bench.run_until(at + 10_000_000);
        prop_assert_eq!(bench.out.len(), packets.len());
        prop_assert!(bench.longest_wait() <= max_ms * 1_000, "{}", bench.longest_wait());
        let stats = bench.reorder.stats();
        prop_assert_eq!((stats.held_packets, stats.held_bytes), (0, 0));
    }
}

#[test]
fn memory_is_bounded_whatever_the_times() {
    let mut bench = Bench::new(Duration::from_secs(10));
    for id in 0..40_000_u32 {
        let at = 100_000_000 + u64::from(id);
        // Each step lowers the least.
        bench.comes(at, id, ahead(at) + i64::from(id) * 9_000);
        assert!(bench.reorder.stats().held_packets <= HELD_MAX as u64);
        assert!(bench.reorder.memory() < HELD_MAX * 400 + 10_003 * 32);
    }
}
