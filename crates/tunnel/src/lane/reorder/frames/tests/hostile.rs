//! Hostile peers with a key: waits and memory stay bounded, and other sources are not affected.

use super::*;

#[test]
fn sources_are_bounded_and_those_that_fell_silent_go_first() {
    let mut bench = Bench::new(MAX);
    for number in 0..20 * SOURCES_MAX as u32 {
        let mut video = Video::new(1, 100, 5000);
        video.next.ssrc = number;
        for packet in video.frame(0, &mut bench.id, 6) {
            bench.handle(1, packet);
        }
        let ReorderPolicy::Frames(frames) = &bench.reorder.policy else { panic!("it was made so") };
        assert!(frames.streams.len() <= SOURCES_MAX && frames.due.len() <= SOURCES_MAX);
        assert!(bench.reorder.memory() <= SOURCES_MAX * SOURCE_OVERHEAD + (1 << 20));
    }
    assert_eq!(bench.out.len(), 6 * 20 * SOURCES_MAX, "who finds no place has no order");
    let mut late = Video::new(2, 100, 5000);
    let mut meets = |at: u64, bench: &mut Bench| {
        for packet in late.frame(at, &mut bench.id, 4) {
            bench.handle(at, packet);
        }
        let ReorderPolicy::Frames(frames) = &bench.reorder.policy else { panic!("it was made so") };
        frames.streams.keys().any(|(_, ssrc)| *ssrc == 0x7777)
    };
    assert!(!meets(9_000, &mut bench));
    assert!(meets(11_000, &mut bench), "the others are silent for 10 s");
}

#[test]
fn nothing_waits_for_longer_than_it_may() {
    for is_endless in [false, true] {
        let [deadline, max_buffer] = [10_000, 70].map(Duration::from_millis);
        let order = Order::Frames { deadline, decode: Duration::ZERO, max_buffer };
        let mut bench = Bench::new(MAX);
        bench.reorder = Reorder::new(order, PacketId(0));
        let mut video = Video::new(1, 100, 5000);
        bench.meet(&mut video);
        video.marks = false;
        let mut came = BTreeMap::new();
        for at in BEGIN..BEGIN + 2_000 {
            for packet in video.frame(at, &mut bench.id, 3).into_iter().step_by(2) {
                let timestamp = if is_endless { 1 } else { packet.timestamp };
                came.insert(packet.id, at);
                bench.handle(at, Packet { timestamp, ..packet });
            }
        }
        bench.run_until(10_000);
        assert_eq!(bench.out.len(), came.len());
        let longest = bench.out.iter().map(|(at, id)| at - came[id]).max();
        assert_eq!(longest, Some(70));
    }
}

#[test]
fn memory_is_bounded_and_who_holds_most_gives_up_first() {
    let mut bench = Bench::new(10_000);
    let mut videos = [Video::new(1, 100, 5000), Video::new(2, 100, 5000)];
    videos.iter_mut().for_each(|video| bench.meet(video));
    let fair = videos[1].frame(BEGIN, &mut bench.id, 3);
    bench.handle(BEGIN, fair[0]);
    bench.handle(BEGIN, fair[2]);
    let endless = |bench: &mut Bench, video: &mut Video, count: usize, bytes: usize| {
        video.marks = false;
        for packet in video.frame(BEGIN, &mut bench.id, count) {
            if packet.sequence % 2 == 0 {
                bench.handle_unit(BEGIN, packet.unit(BEGIN, bytes));
                let stats = bench.reorder.stats();
                assert!(stats.held_packets <= HELD_MAX as u64);
                assert!(stats.held_bytes <= HELD_BYTES_MAX as u64);
            }
        }
    };
    endless(&mut bench, &mut videos[0], 3 * HELD_MAX, 0);
    assert!(bench.out.len() > HELD_MAX / 2, "what finds no room goes out");
    endless(&mut bench, &mut videos[0], 400, 60_000);
    assert!(bench.out.iter().all(|(_, id)| fair.iter().all(|packet| packet.id != *id)));
    bench.handle(BEGIN + 1, fair[1]);
    let out: Vec<u32> = bench.out[bench.out.len() - 3..].iter().map(|(_, id)| *id).collect();
    assert_eq!(out, fair.iter().map(|packet| packet.id).collect::<Vec<u32>>());
}

#[test]
fn a_share_of_the_memory_that_is_used_up_makes_it_forget_sources() {
    let mut bench = Bench::new(MAX);
    for number in 0..100 {
        let mut video = Video::new(1, 100, 5000);
        video.next.ssrc = number;
        bench.meet(&mut video);
    }
    assert!(bench.reorder.memory() >= 100 * SOURCE_OVERHEAD);
    bench.reorder.shed(usize::MAX, &mut |_| {});
    assert_eq!(bench.reorder.memory(), 0);
}

proptest! {
    #[test]
    fn whatever_comes_goes_out_or_is_discarded_in_time(
        packets in proptest::collection::vec(
            (0..3_usize, any::<u16>(), 0..40_u16, any::<u32>(), any::<bool>(), 0..20_u64, any::<bool>()),
            1..400,
        ),
        decode in 0..200_u64,
    ) {
        let mut bench = Bench::new(MAX);
        let [deadline, decode, max_buffer] = [DEADLINE, decode, MAX].map(Duration::from_millis);
        bench.reorder = Reorder::new(Order::Frames { deadline, decode, max_buffer }, PacketId(0));
        let mut videos = [1, 2, 3].map(|port| Video::new(port, 20, 0));
        videos.iter_mut().for_each(|video| bench.meet(video));
        let (mut at, mut discarded, mut came) = (BEGIN, 0, BTreeMap::new());
        let ids = bench.id..;
        for (id, packet) in ids.zip(packets) {
            let (source, wild, near, timestamp, marker, pause, is_near) = packet;
            at += pause;
            let packet = Packet {
                id: (id ^ 1) * 2,
                sent: at - pause,
                sequence: if is_near { near } else { wild },
                timestamp: if is_near { timestamp % 4 } else { timestamp },
                marker,
                ..videos[source].next
            };
            came.insert(packet.id, at);
            discarded += usize::from(bench.handle(at, packet) == Turn::Discarded);
        }
        bench.run_until(at + MAX);
        prop_assert_eq!(bench.out.len() + discarded, came.len());
        prop_assert!(bench.out.iter().all(|(at, id)| at - came[id] <= MAX));
        let stats = bench.reorder.stats();
        prop_assert_eq!((stats.held_packets, stats.held_bytes), (0, 0));
        prop_assert_eq!(bench.reorder.poll_timeout(), None);
    }
}
