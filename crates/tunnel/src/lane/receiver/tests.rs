use roadweave_proto::wire::Stamp;

use super::*;

fn lane() -> LaneReceiver {
    LaneReceiver::new(LaneId(0), Opening::default())
}

fn arrive(lane: &mut LaneReceiver, millis: u64, ids: &[u32]) -> LaneReport {
    for id in ids {
        let symbol = Bytes::from_static(&[0, 1, 7]);
        lane.handle_source(Instant::from_millis(millis), PacketId(*id), symbol, &mut |_| {});
    }
    lane.report()
}

#[test]
fn losses_are_counted_in_any_order_and_across_the_wrap() {
    for (ids, highest) in
        [(vec![5, 0, 1, 2, 3, 4, 10], 10), (vec![u32::MAX - 1, 1, u32::MAX, 5], 5)]
    {
        let report = arrive(&mut lane(), 0, &ids);
        assert_eq!((report.highest, report.lost), (PacketId(highest), 4));
    }
}

#[test]
fn broken_ids_are_no_losses() {
    for wild in [1 << 30, 3 << 30] {
        let mut lane = lane();
        arrive(&mut lane, 0, &[wild]);
        let report = arrive(&mut lane, 1, &[0, 1, 2, 4]);
        assert_eq!((report.highest, report.lost), (PacketId(4), 1), "the first of a lane");
        assert_eq!(arrive(&mut lane, 900, &[wild]).lost, 1, "after a silence");
        let report = arrive(&mut lane, 901, &[6]);
        assert_eq!((report.highest, report.lost), (PacketId(6), 2));
    }
}

fn symbol(position: FragmentPosition, body: &[u8]) -> Bytes {
    let mut symbol = bytes::BytesMut::new();
    Symbol { position, body }.write(&mut symbol);
    symbol.freeze()
}

#[test]
fn incomplete_packets_are_kept_as_long_as_the_peer_may_complete_them() {
    // The promised age, whether packets are coded, and how late the rest may come.
    for (age, coded, fragments, block) in
        [(0, true, 700, 700), (200, true, 700, 700), (2_000, true, 2_000, 2_000)]
            .into_iter()
            .chain([(10_000, false, 10_000, 700), (60_000, true, 10_000, 10_000)])
    {
        let check = |late: u64, by: fn(&mut LaneReceiver, Instant, Instant) -> bool| {
            let mut lane = lane();
            if age > 0 {
                let age_max = Duration::from_millis(age);
                let promise = Promise { age_max, coded, ..Promise::default() };
                lane.set_promise(Instant::ZERO, promise, &mut |_| {});
            }
            let begin = Instant::from_millis(50);
            by(&mut lane, begin, begin + Duration::from_millis(late))
        };
        let joins = |lane: &mut LaneReceiver, begin: Instant, end: Instant| {
            let mut packets = 0;
            let last = symbol(FragmentPosition::Last, b"second");
            let first = symbol(FragmentPosition::First, b"first");
            lane.handle_source(begin, PacketId(0), first, &mut |_| packets += 1);
            lane.handle_source(end, PacketId(1), last, &mut |_| packets += 1);
            packets == 1
        };
        assert_eq!([fragments, fragments + 1].map(|late| check(late, joins)), [true, false]);
        let solves = |lane: &mut LaneReceiver, begin: Instant, end: Instant| {
            let symbols = [7, 8].map(|byte| symbol(FragmentPosition::Whole, &[byte; 9]));
            let mut encoder = roadweave_coding::Encoder::new(Default::default());
            for (id, symbol) in (0..).zip(&symbols) {
                encoder.insert(begin, PacketId(id), symbol.clone());
            }
            let mut payload = bytes::BytesMut::new();
            let (start, count, seed) = (PacketId(0), 2, 5);
            encoder.encode(CodedRange { start, count, seed }, &mut payload).expect("held");
            let coded = Coded { lane: LaneId(0), count, seed, start, payload: payload.freeze() };
            let mut packets = 0;
            let [first, _] = symbols;
            lane.handle_source(begin, PacketId(0), first, &mut |_| packets += 1);
            lane.handle_coded(end, coded, &mut |_| packets += 1);
            packets == 2
        };
        assert_eq!([block, block + 1].map(|late| check(late, solves)), [true, false]);
    }
}

#[test]
fn packets_that_became_too_old_are_dropped_as_they_come_and_as_they_wait() {
    let mut lane = lane();
    let order = Order::Reorder { max_buffer: Duration::from_millis(500) };
    let age_max = Duration::from_millis(300);
    let promise = Promise { order, age_max, expires: true, coded: false, ..Promise::default() };
    lane.set_promise(Instant::ZERO, promise, &mut |_| {});
    let mut out = Vec::new();
    let mut comes = |lane: &mut LaneReceiver, now: u64, id: u32, sent: u64| {
        let stamp = Stamp::of(Instant::from_millis(sent)).to_bytes();
        let symbol = symbol(FragmentPosition::Whole, &[&stamp[..], &[0x45, id as u8]].concat());
        let mut deliver = |delivery: Delivery| out.push(delivery.packet[1]);
        lane.handle_source(Instant::from_millis(now), PacketId(id), symbol, &mut deliver);
    };
    comes(&mut lane, 1_000, 0, 90_000); // the quickest: all are judged by it
    comes(&mut lane, 1_400, 1, 90_100); // 300 ms
    comes(&mut lane, 1_402, 2, 90_101); // 301 ms
    comes(&mut lane, 1_410, 3, 90_390); // nobody waits for the one before
    comes(&mut lane, 1_420, 5, 90_300); // 120 ms, and waits for its turn
    comes(&mut lane, 1_605, 6, 90_600);
    comes(&mut lane, 1_610, 4, 90_590); // the turn comes when it is 310 ms old
    assert_eq!(out, [0, 1, 3, 4, 6]);
    assert_eq!(lane.stats().drops.get(DropReason::ArrivedExpired), 2);
    assert_eq!(lane.stats().delivered_packets, 5);
    let delays = lane.stats().excess_delays;
    let counts: Vec<_> = delays.buckets().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counts, [(0.005, 1), (0.01, 1), (0.02, 2), (0.3, 1)]);
    let promise = Promise { expires: false, ..promise };
    lane.set_promise(Instant::from_millis(1_620), promise, &mut |_| {});
    let mut count = 0;
    let stamp = Stamp::of(Instant::from_millis(90_000)).to_bytes();
    let symbol = symbol(FragmentPosition::Whole, &[&stamp[..], &[0x45]].concat());
    lane.handle_source(Instant::from_millis(1_630), PacketId(7), symbol, &mut |_| count += 1);
    assert_eq!(count, 1);
}

#[test]
fn a_frame_waits_the_shorter_the_longer_it_has_waited_elsewhere() {
    // How long the second frame waited before its lane, and when the incomplete first is given up.
    for (waited, given_up) in [(0, 1_420), (40, 1_380), (200, 1_330)] {
        let mut lane = lane();
        let [deadline, decode, max_buffer] = [100, 10, 300].map(Duration::from_millis);
        let order = Order::Frames { deadline, decode, max_buffer };
        lane.set_promise(Instant::ZERO, Promise { order, ..Promise::default() }, &mut |_| {});
        let mut out = Vec::new();
        let mut comes = |lane: &mut LaneReceiver, now: u64, id: u8, sent: u64, of: (u8, bool)| {
            let stamp = Stamp::of(Instant::from_millis(sent)).to_bytes();
            let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0];
            packet.extend([10, 77, 0, 2, 198, 51, 100, 1, 19, 1, 19, 1, 0, 20, 0, 0]);
            packet.extend([0x80, 96 | u8::from(of.1) << 7, 0, id, 0, 0, 0, of.0, 1, 2, 3, 4]);
            let symbol = symbol(FragmentPosition::Whole, &[&stamp[..], &packet].concat());
            let deliver = &mut |delivery: Delivery| out.push((now, delivery.id.0));
            lane.handle_source(Instant::from_millis(now), PacketId(id.into()), symbol, deliver);
        };
        for id in 0..8 {
            comes(&mut lane, 1_000 + u64::from(id), id, 90_000 + u64::from(id), (id, true));
        }
        comes(&mut lane, 1_300, 8, 90_300, (8, false));
        comes(&mut lane, 1_330, 10, 90_330 - waited, (9, true));
        let due = lane.poll_timeout();
        let due = due.map_or(1_330, |due| due.as_nanos() / 1_000_000);
        lane.handle_timeout(Instant::from_millis(due), &mut |delivery| {
            out.push((due, delivery.id.0));
        });
        assert_eq!(out[8..], [(given_up, 8), (given_up, 10)], "{waited} ms");
    }
}
