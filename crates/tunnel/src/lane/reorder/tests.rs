use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const MAX: Duration = Duration::from_millis(300);

fn unit(id: u32, after: u16) -> Unit {
    fragmented(id, id, after)
}

fn fragmented(first: u32, last: u32, after: u16) -> Unit {
    let (first, last) = (PacketId(first), PacketId(last));
    let packet = Some(Bytes::copy_from_slice(&first.0.to_be_bytes()));
    Unit { first, last, id: last, after, sent: None, age: Duration::ZERO, decoded: false, packet }
}

struct Bench {
    reorder: Reorder,
    out: Vec<(u64, u32)>,
}

impl Bench {
    fn new(order: Order) -> Self {
        Self { reorder: Reorder::new(order, PacketId(0)), out: Vec::new() }
    }

    fn strict() -> Self {
        Self::new(Order::Reorder { max_buffer: MAX })
    }

    fn adaptive() -> Self {
        Self::new(Order::Adaptive { max_buffer: MAX })
    }

    fn handle(&mut self, millis: u64, unit: Unit) -> Turn {
        self.run_until(millis);
        let out = &mut self.out;
        self.reorder.handle(Instant::from_millis(millis), unit, &mut |unit| {
            out.push((millis, unit.first.0));
        })
    }

    fn set_order(&mut self, millis: u64, order: Order) {
        let out = &mut self.out;
        let now = Instant::from_millis(millis);
        self.reorder.set_order(now, order, &mut |unit| out.push((millis, unit.first.0)));
    }

    fn run_until(&mut self, millis: u64) {
        while let Some(due) = self.reorder.poll_timeout()
            && due <= Instant::from_millis(millis)
        {
            let out = &mut self.out;
            let at = due.as_nanos() / 1_000_000;
            self.reorder.handle_timeout(due, &mut |unit| out.push((at, unit.first.0)));
        }
    }
}

fn ids(out: &[(u64, u32)]) -> Vec<u32> {
    out.iter().map(|(_, id)| *id).collect()
}

#[test]
fn what_was_given_up_is_forgotten_with_its_gap() {
    let mut bench = Bench::adaptive();
    for id in [0, 3] {
        bench.handle(0, unit(id, 1));
    }
    bench.run_until(MAX.as_millis() as u64);
    assert_eq!(ids(&bench.out), [0, 3], "nobody waits any longer");
    assert!(bench.reorder.memory() > 0, "its gap is remembered, to learn from");
    bench.handle(2 * MAX.as_millis() as u64, unit(4, 1));
    assert_eq!(bench.reorder.memory(), 0);
}

#[test]
fn strict_waits_for_a_gap_and_discards_what_is_late() {
    let mut bench = Bench::strict();
    bench.handle(0, unit(0, 0));
    bench.handle(10, unit(2, 0));
    bench.handle(20, unit(3, 0));
    bench.handle(30, unit(5, 0));
    bench.run_until(309);
    assert_eq!(bench.out, [(0, 0)]);
    bench.run_until(329);
    assert_eq!(bench.out[1..], [(310, 2), (310, 3)], "3 is in order behind 2");
    assert_eq!(bench.handle(329, unit(1, 0)), Turn::Discarded);
    bench.handle(329, unit(4, 0));
    assert_eq!(bench.out[3..], [(329, 4), (329, 5)]);
}

#[test]
fn another_wait_alone_breaks_no_promise() {
    let orders: [fn(Duration) -> Order; 2] =
        [|max_buffer| Order::Reorder { max_buffer }, |max_buffer| Order::Adaptive { max_buffer }];
    for order in orders {
        let mut bench = Bench::new(order(MAX));
        bench.handle(0, unit(0, 0));
        bench.handle(0, unit(2, 1));
        bench.set_order(10, order(MAX * 2));
        bench.run_until(500);
        assert_eq!(ids(&bench.out), [0], "it may wait for longer now");
        bench.handle(500, unit(1, 1));
        bench.handle(500, unit(4, 1));
        bench.set_order(550, order(MAX / 10));
        assert_eq!(ids(&bench.out), [0, 1, 2, 4], "it has waited for long enough");
    }
}

#[test]
fn another_order_lets_go_what_waits() {
    let mut bench = Bench::strict();
    bench.handle(0, unit(1, 0));
    bench.set_order(10, Order::Adaptive { max_buffer: MAX });
    bench.handle(11, unit(0, 0));
    assert_eq!(bench.out, [(10, 1), (11, 0)]);
    assert_eq!(bench.reorder.stats().waited_packets, 1, "figures are kept");
}

#[test]
fn strict_lets_pass_what_was_sent_before_the_promise() {
    let mut bench = Bench::strict();
    bench.reorder = Reorder::new(Order::Reorder { max_buffer: MAX }, PacketId(10));
    bench.handle(0, unit(8, 0));
    bench.handle(0, unit(10, 0));
    bench.handle(1, unit(9, 0));
    assert_eq!(ids(&bench.out), [8, 10, 9]);
}

#[test]
fn adaptive_lets_no_flow_wait_for_another() {
    let mut bench = Bench::adaptive();
    // Flow a: 0, 1, 4; flow b: 2, 3, 5. Packet 1 is missing.
    for (id, after) in [(0, 0), (2, 0), (3, 1), (4, 3), (5, 2)] {
        bench.handle(u64::from(id), unit(id, after));
    }
    assert_eq!(ids(&bench.out), [0, 2, 3, 5]);
    bench.handle(50, unit(1, 1));
    assert_eq!(ids(&bench.out), [0, 2, 3, 5, 1, 4]);
    assert_eq!(bench.reorder.stats().waited_packets, 1);
}

#[test]
fn adaptive_puts_out_late_what_it_gave_up() {
    let mut bench = Bench::adaptive();
    bench.handle(0, unit(0, 0));
    bench.handle(10, unit(3, 1));
    bench.handle(60, unit(2, 1));
    bench.run_until(309);
    assert_eq!(ids(&bench.out), [0]);
    bench.run_until(400);
    assert_eq!(bench.out[1..], [(310, 2), (310, 3)], "both wait for 1, whose gap opened at 10");
    assert_eq!(bench.handle(400, unit(1, 1)), Turn::Late);
    assert_eq!(bench.out[3..], [(400, 1)]);
    assert_eq!(bench.reorder.stats().late_packets, 1);
}

#[test]
fn adaptive_learns_how_long_gaps_take_to_fill() {
    let mut bench = Bench::adaptive();
    for pair in 0..1000_u32 {
        let (id, at) = (2 * pair, u64::from(pair) * 30);
        bench.handle(at, unit(id + 1, 1));
        bench.handle(at + 20, unit(id, 1));
    }
    assert_eq!(bench.out.len(), 2000);
    bench.handle(40_000, unit(2001, 1));
    bench.run_until(41_000);
    let (at, id) = bench.out[2000];
    assert!(id == 2001 && (40_040..40_055).contains(&at), "{at}");
    assert_eq!(bench.handle(41_000, unit(2000, 1)), Turn::Late);
}

#[test]
fn what_is_no_packet_takes_its_place() {
    for mut bench in [Bench::strict(), Bench::adaptive()] {
        bench.handle(0, unit(1, 1));
        bench.handle(5, Unit { packet: None, ..unit(0, 0) });
        assert_eq!(bench.out, [(5, 0), (5, 1)]);
    }
}

#[test]
fn a_lane_that_goes_on_elsewhere_waits_for_nothing_before() {
    for mut bench in [Bench::strict(), Bench::adaptive()] {
        bench.handle(0, unit(0, 0));
        bench.handle(0, unit(2, 1));
        bench.handle(1, unit(1 << 30, 1));
        bench.handle(1, unit((1 << 30) + 1, 1));
        assert_eq!(ids(&bench.out), [0, 2, 1 << 30, (1 << 30) + 1]);
        bench.handle(2, unit(7, 1));
        assert_eq!(bench.out.len(), 5, "and back");
    }
}

#[test]
fn strict_lets_nothing_out_behind_where_a_lane_went_on() {
    let mut bench = Bench::strict();
    bench.handle(0, unit(0, 0));
    bench.handle(1, unit(1 << 30, 0));
    assert_eq!(bench.handle(2, unit((1 << 30) - 1, 0)), Turn::Discarded);
    assert_eq!(ids(&bench.out), [0, 1 << 30]);
}

#[test]
fn memory_is_bounded_and_the_oldest_go_out() {
    for mut bench in [Bench::strict(), Bench::adaptive()] {
        for id in 1..=2 * HELD_MAX as u32 {
            bench.handle(0, unit(id * 2, 1));
            assert!(bench.reorder.stats().held_packets <= HELD_MAX as u64);
        }
        assert_eq!(bench.out.len(), HELD_MAX);
        assert!(bench.out.is_sorted());
        let large = Bytes::from(vec![0; 60_000]);
        for id in 1..400 {
            let unit = unit(id * 2 + 50_000, 1);
            bench.handle(0, Unit { packet: Some(large.clone()), ..unit });
            assert!(bench.reorder.stats().held_bytes <= HELD_BYTES_MAX as u64);
        }
    }
}

/// Packets of up to four IDs from `start` on, in three flows: (unit, flow, arrival).
fn traffic(start: u32, packets: &[(u8, u8, Option<u16>)]) -> Vec<(Unit, u8, u64)> {
    let mut last_of = BTreeMap::new();
    let mut id = start;
    let mut arrivals = Vec::new();
    for (index, (size, flow, delay)) in packets.iter().enumerate() {
        let (first, last) = (id, id.wrapping_add(u32::from(*size)));
        let after = last_of.insert(*flow, last).map_or(0, |before| first.wrapping_sub(before));
        if let Some(delay) = delay {
            let unit = fragmented(first, last, after as u16);
            arrivals.push((unit, *flow, 2 * index as u64 + u64::from(*delay)));
        }
        id = last.wrapping_add(1);
    }
    arrivals.sort_by_key(|(_, _, at)| *at);
    arrivals
}

prop_compose! {
    fn packets()(
        start in prop_oneof![Just(0_u32), Just(u32::MAX - 60), any::<u32>()],
        packets in proptest::collection::vec(
            (
                prop_oneof![5 => Just(0_u8), 1 => 1..4_u8],
                0..3_u8,
                prop_oneof![6 => (0..30_u16).prop_map(Some), 2 => (0..800_u16).prop_map(Some), 1 => Just(None)],
            ),
            1..120,
        ),
    ) -> (u32, Vec<(Unit, u8, u64)>) {
        (start, traffic(start, &packets))
    }
}

proptest! {
    #[test]
    fn strict_puts_out_ascending_ids_and_accounts_for_each((start, arrivals) in packets()) {
        let mut bench = Bench::strict();
        bench.reorder = Reorder::new(bench.reorder.order, PacketId(start));
        let mut discarded = 0;
        let mut arrived = BTreeMap::new();
        for (unit, _, at) in &arrivals {
            arrived.insert(unit.first.0, *at);
            discarded += usize::from(bench.handle(*at, unit.clone()) == Turn::Discarded);
        }
        bench.run_until(10_000);
        prop_assert_eq!(bench.out.len() + discarded, arrivals.len());
        let stats = bench.reorder.stats();
        prop_assert_eq!((stats.held_packets, stats.held_bytes), (0, 0));
        let order: Vec<u32> = bench.out.iter().map(|(_, id)| id.wrapping_sub(start)).collect();
        prop_assert!(order.is_sorted_by(|a, b| a < b), "{:?}", order);
        for (at, id) in &bench.out {
            prop_assert!(at - arrived[id] <= MAX.as_millis() as u64);
        }
    }

    #[test]
    fn adaptive_keeps_each_flow_in_order_and_loses_none((start, arrivals) in packets()) {
        let mut bench = Bench::adaptive();
        bench.reorder = Reorder::new(bench.reorder.order, PacketId(start));
        let mut arrived = BTreeMap::new();
        // The highest that went out of each flow; and those that came too late.
        let (mut newest, mut late) = (BTreeMap::<u8, u32>::new(), Vec::new());
        let mut checked = 0;
        for (unit, flow, at) in &arrivals {
            bench.run_until(*at);
            for (_, id) in &bench.out[checked..] {
                let newest = newest.entry(arrived[id]).or_default();
                *newest = id.wrapping_sub(start).max(*newest);
            }
            checked = bench.out.len();
            let place = unit.first.0.wrapping_sub(start);
            if newest.get(flow).is_some_and(|newest| place < *newest) {
                late.push(unit.first.0);
            }
            arrived.insert(unit.first.0, *flow);
            prop_assert_ne!(bench.handle(*at, unit.clone()), Turn::Discarded);
        }
        bench.run_until(10_000);
        prop_assert_eq!(bench.out.len(), arrivals.len());
        let stats = bench.reorder.stats();
        prop_assert_eq!((stats.held_packets, stats.held_bytes), (0, 0));
        let mut newest = BTreeMap::new();
        for (at, id) in &bench.out {
            let (_, flow, came) =
                arrivals.iter().find(|(unit, ..)| unit.first.0 == *id).expect("it came");
            prop_assert!(at - came <= MAX.as_millis() as u64);
            if late.contains(id) {
                continue;
            }
            let place = id.wrapping_sub(start);
            if let Some(before) = newest.insert(flow, place) {
                prop_assert!(before < place, "{} after {}", place, before);
            }
        }
    }

    #[test]
    fn any_units_are_put_out_or_discarded_and_none_is_held_for_ever(
        units in proptest::collection::vec((any::<u32>(), 0..5_u32, any::<u16>(), 0..50_u64), 1..60),
        near in any::<bool>(),
        strict in any::<bool>(),
    ) {
        let mut bench = if strict { Bench::strict() } else { Bench::adaptive() };
        let (mut at, mut discarded) = (0, 0);
        let mut handed = 0;
        for (id, size, after, pause) in units {
            let id = if near { id % 64 } else { id };
            at += pause;
            handed += 1;
            let unit = fragmented(id, id.wrapping_add(size), after % 4096);
            discarded += usize::from(bench.handle(at, unit) == Turn::Discarded);
        }
        bench.run_until(at + 1000);
        prop_assert_eq!(bench.out.len() + discarded, handed);
        prop_assert_eq!(bench.reorder.stats().held_bytes, 0);
    }
}
