mod nat;
mod numbers;

use std::net::Ipv4Addr;

use proptest::prelude::*;
use roadweave_proto::UplinkId;
use roadweave_proto::wire::{Geneve, GeneveContent};

use super::*;
use crate::geneve::{LinkCounters, RouterPeer};
use crate::testing::at as ms;

const VNI: u32 = 7;
const PEER_EPOCH: u32 = 100;
const MAX: Duration = Duration::from_millis(300);
const SOCKET: UplinkId = UplinkId(0);

fn address(link: usize) -> SocketAddr {
    SocketAddr::from(([10, link as u8 + 1, 0, 2], 6081))
}

fn inner(number: u32) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 24, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend(number.to_be_bytes());
    packet
}

fn number_of(packet: &[u8]) -> u32 {
    u32::from_be_bytes(*packet.last_chunk().expect("a packet"))
}

fn data(epoch: u32, number: u32, packet: &[u8]) -> Vec<u8> {
    let sequence = GeneveSequence { epoch, number };
    [&Geneve::inner_header(VNI, packet[0], sequence)[..], packet].concat()
}

fn hello(epoch: u32, link: u8) -> Vec<u8> {
    let hello = GeneveHello { epoch, link, held_us: u32::MAX, ..GeneveHello::default() };
    Geneve::hello(VNI, &hello).to_vec()
}

fn config(peers: Vec<RouterPeer>) -> RouterConfig {
    let link = |(at, peer)| {
        let (name, number) = (format!("link{at}"), at as u8);
        RouterLink { name, number, socket: SOCKET.0, peer }
    };
    RouterConfig {
        vni: VNI,
        epoch: 1,
        hello_begin_us: u32::MAX - 500,
        order: Order::Reorder { max_buffer: MAX },
        links: peers.into_iter().enumerate().map(link).collect(),
        inner_sources: None,
    }
}

struct Bench {
    router: Router,
    out: Vec<(u64, u32)>,
}

impl Bench {
    fn new() -> Self {
        let router = Router::new(config((0..2).map(|at| RouterPeer::At(address(at))).collect()));
        Self { router: router.expect("two links"), out: Vec::new() }
    }

    fn bytes(&mut self, millis: u64, link: usize, bytes: &[u8]) {
        self.run_until(millis);
        self.router.handle_packet(ms(millis), &RecvMeta::new(SOCKET, address(link)), bytes);
        self.collect(millis);
    }

    fn data(&mut self, millis: u64, link: usize, number: u32) {
        self.bytes(millis, link, &data(PEER_EPOCH, number, &inner(number)));
    }

    fn run_until(&mut self, millis: u64) {
        while let Some(due) = self.router.poll_timeout()
            && due <= ms(millis)
        {
            self.router.handle_timeout(due);
            while self.router.poll_transmit().is_some() {}
            self.collect(due.as_nanos() / 1_000_000);
        }
    }

    fn collect(&mut self, millis: u64) {
        while let Some(packet) = self.router.poll_inner() {
            self.out.push((millis, number_of(&packet)));
        }
    }

    fn numbers(&self) -> Vec<u32> {
        self.out.iter().map(|(_, number)| *number).collect()
    }

    fn counters(&self, link: usize) -> LinkCounters {
        self.router.status().paths[link].counters
    }

    fn lane_drops(&self, reason: DropReason) -> u64 {
        self.router.status().stats.lanes[0].received.drops.get(reason)
    }
}

fn sent(router: &mut Router) -> Vec<Vec<Vec<u8>>> {
    let mut links = Vec::new();
    while let Some(packets) = router.poll_transmit() {
        links.push(packets.packets().map(|(_, bytes)| bytes.to_vec()).collect());
    }
    links
}

#[test]
fn every_packet_leaves_on_every_link_with_the_same_number() {
    let mut bench = Bench::new();
    bench.router.handle_timeout(Instant::ZERO);
    let hellos = sent(&mut bench.router);
    assert_eq!(hellos.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
    for number in 0..3 {
        bench.router.handle_inner(ms(1), &inner(number));
    }
    bench.router.handle_timeout(ms(1));
    let links = sent(&mut bench.router);
    assert_eq!(links.len(), 2);
    for packets in links {
        let expected: Vec<_> = (0..3).map(|number| data(1, number, &inner(number))).collect();
        assert_eq!(packets, expected);
    }
    let lane = bench.router.status().stats.lanes.remove(0);
    assert_eq!((lane.sent.source_datagrams, lane.sent.duplicate_datagrams), (3, 3));
}

#[test]
fn the_first_copy_wins_and_is_counted_for_its_link() {
    let mut bench = Bench::new();
    bench.data(0, 0, 0);
    bench.data(1, 1, 0);
    bench.data(2, 1, 1);
    bench.data(3, 0, 1);
    bench.data(4, 1, 2);
    assert_eq!(bench.numbers(), [0, 1, 2]);
    let (first, second) = (bench.counters(0), bench.counters(1));
    assert_eq!((first.adopted, first.duplicates), (1, 1));
    assert_eq!((second.adopted, second.duplicates), (2, 1));
    let status = bench.router.status();
    assert_eq!((status.peer_packets, status.peer_packets_lost), (3, 0));
    assert_eq!((status.paths[0].lost, status.paths[1].lost), (1, 0));
    assert!((status.paths[1].adopted_ratio - 2.0 / 3.0).abs() < 1e-9);
}

#[test]
fn the_first_packets_may_come_in_any_order() {
    let mut bench = Bench::new();
    bench.data(0, 0, 1);
    bench.data(5, 1, 0);
    assert_eq!(bench.numbers(), [0, 1], "the peer has just begun");
    let mut bench = Bench::new();
    bench.data(0, 0, 5_000);
    bench.data(5, 1, 4_999);
    assert_eq!(bench.numbers(), [5_000], "this side has");
    assert_eq!(bench.counters(1).late, 1);
}

#[test]
fn a_restarted_peer_is_heard_at_once() {
    let mut bench = Bench::new();
    bench.data(0, 0, 1_000);
    bench.data(1, 0, 1_002);
    bench.bytes(2, 1, &data(200, 0, &inner(0)));
    assert_eq!(bench.numbers(), [1_000, 1_002, 0], "what waited comes first");
    // The slow link still brings what the peer sent before.
    bench.data(3, 0, 1_001);
    bench.bytes(4, 0, &data(200, 1, &inner(1)));
    bench.bytes(5, 0, &data(200, 0, &inner(0)));
    assert_eq!(bench.numbers(), [1_000, 1_002, 0, 1]);
    assert_eq!(bench.router.drops().get(DropReason::Late), 1);
    let status = bench.router.status();
    assert_eq!(status.peer_restarts, 1);
    assert_eq!(status.stats.lanes[0].received.delivered_packets, 4, "counted over both");
    assert_eq!(bench.router.poll_event(), Some(RouterEvent::PeerHeard));
    assert!(
        std::iter::from_fn(|| bench.router.poll_event()).any(|e| e == RouterEvent::PeerRestarted)
    );
}

#[test]
fn a_hello_alone_reveals_a_restart() {
    let mut bench = Bench::new();
    bench.data(0, 0, 9);
    bench.bytes(1, 0, &hello(200, 0));
    assert_eq!(bench.router.status().peer_restarts, 1);
    bench.bytes(2, 0, &data(200, 9, &inner(77)));
    bench.run_until(400);
    assert_eq!(bench.numbers(), [9, 77], "the same number, and another packet");
}

#[test]
fn an_epoch_that_only_a_broken_packet_spoke_of_does_not_last() {
    let mut bench = Bench::new();
    bench.data(0, 0, 0);
    bench.bytes(1, 0, &data(0xdead, 0, &inner(50)));
    bench.data(500, 0, 1);
    bench.data(1_100, 0, 2);
    bench.data(1_200, 0, 3);
    bench.run_until(1_500);
    assert_eq!(bench.numbers(), [0, 50, 2, 3]);
    for epoch in 1_000..2_000 {
        bench.bytes(1_600, 0, &hello(epoch, 0));
    }
    let events = std::iter::from_fn(|| bench.router.poll_event());
    let reported = events.filter(|event| *event == RouterEvent::PeerRestarted).count();
    assert!(reported <= 3, "{reported} of {}", bench.router.status().peer_restarts);
}

#[test]
fn a_former_epoch_returns_without_what_came_of_it() {
    let mut bench = Bench::new();
    for number in 0..=10 {
        bench.data(0, 0, number);
    }
    bench.bytes(1, 0, &data(200, 0, &inner(100)));
    // All links are dead for more than a second; then old copies come, and the new ones.
    for number in 5..=10 {
        bench.data(1_500, 1, number);
    }
    bench.bytes(1_501, 0, &data(200, 1, &inner(101)));
    assert_eq!(bench.numbers(), [(0..=10).collect::<Vec<_>>(), vec![100, 101]].concat());
    assert_eq!(bench.router.status().peer_restarts, 1);
    // It does return with what cannot be an old copy, but its old copies do not.
    bench.data(2_600, 0, 11);
    bench.data(2_601, 0, 10);
    bench.run_until(3_000);
    assert_eq!(bench.numbers()[13..], [11]);
}

#[test]
fn strangers_are_refused() {
    let mut bench = Bench::new();
    let stranger = SocketAddr::from(([192, 0, 2, 1], 6081));
    let bytes = data(PEER_EPOCH, 0, &inner(0));
    bench.router.handle_packet(ms(0), &RecvMeta::new(SOCKET, stranger), &bytes);
    bench.router.handle_packet(ms(0), &RecvMeta::new(SOCKET, stranger), &hello(PEER_EPOCH, 0));
    // The address of a link, but by another socket.
    bench.router.handle_packet(ms(0), &RecvMeta::new(UplinkId(1), address(0)), &bytes);
    assert_eq!(bench.router.drops().get(DropReason::UnknownPeer), 3);
    assert_eq!(bench.router.poll_inner(), None);
    // Any port of a known address will do (RFC 8926 section 3.3).
    let port = SocketAddr::new(address(0).ip(), 50_000);
    bench.router.handle_packet(ms(0), &RecvMeta::new(SOCKET, port), &bytes);
    assert!(bench.router.poll_inner().is_some());
}

/// The network doubles each packet of the first link and loses every other one.
#[test]
fn duplicates_of_the_network_do_not_hide_what_a_link_lost() {
    let mut bench = Bench::new();
    for number in 0..100 {
        if number % 2 == 0 {
            bench.data(number.into(), 0, number);
            bench.data(number.into(), 0, number);
        }
        bench.data(number.into(), 1, number);
    }
    let lost: Vec<u64> = bench.router.status().paths.iter().map(|link| link.lost).collect();
    assert_eq!(lost, [50, 0]);
    assert_eq!(bench.counters(0).inner_received, 100);
}

#[test]
fn hellos_measure_the_round_trip_and_detect_silence() {
    let config = || config(vec![RouterPeer::At(address(0))]);
    let mut a = Router::new(config()).expect("a link");
    let mut b = Router::new(RouterConfig { epoch: 2, ..config() }).expect("a link");
    let meta = RecvMeta::new(SOCKET, address(0));
    // Clocks that have nothing in common; 20 ms and 30 ms on the way.
    let offset = Duration::from_secs(5_000);
    for second in 1..4 {
        let now = ms(second * 1_000);
        a.handle_timeout(now);
        let there = sent(&mut a).remove(0).remove(0);
        b.handle_packet(now + offset + Duration::from_millis(20), &meta, &there);
        let later = now + Duration::from_millis(400);
        b.handle_timeout(later + offset);
        let back = sent(&mut b).remove(0).remove(0);
        a.handle_packet(later + Duration::from_millis(30), &meta, &back);
    }
    let link = a.status().paths.remove(0);
    assert_eq!(link.smoothed_rtt_ms, Some(50.0));
    assert_eq!(link.status, PathStatus::Usable);
    a.handle_timeout(ms(8_000));
    assert_eq!(a.status().paths[0].status, PathStatus::Suspect);
    a.handle_inner(ms(8_000), &inner(0));
    a.handle_timeout(ms(8_000));
    assert_eq!(sent(&mut a)[0].len(), 2, "packets go there all the same");
}

#[test]
fn what_is_no_packet_of_ours_is_counted_and_dropped() {
    let mut bench = Bench::new();
    let good = data(PEER_EPOCH, 0, &inner(0));
    let other_vni = {
        let sequence = GeneveSequence { epoch: PEER_EPOCH, number: 0 };
        [&Geneve::inner_header(VNI + 1, 0x45, sequence)[..], &inner(0)].concat()
    };
    let mut version = good.clone();
    version[0] |= 0x40;
    let mut long_options = good.clone();
    long_options[0] = 0x3f;
    let mut neither = good.clone();
    neither[20] = 0x55;
    let truncated_inner = good[..good.len() - 1].to_vec();
    for (bytes, reason) in [
        (other_vni, DropReason::UnknownMessage),
        (version, DropReason::UnknownMessage),
        (good[..7].to_vec(), DropReason::MalformedMessage),
        (Vec::new(), DropReason::MalformedMessage),
        (long_options, DropReason::MalformedMessage),
        (neither, DropReason::MalformedInner),
        (truncated_inner, DropReason::MalformedInner),
    ] {
        let before = bench.router.drops().get(reason);
        bench.bytes(0, 0, &bytes);
        assert_eq!(bench.router.drops().get(reason), before + 1, "{bytes:02x?}");
    }
    assert_eq!(bench.out, []);
    bench.bytes(0, 0, &good);
    assert_eq!(bench.numbers(), [0], "what is good is still taken");
}

#[test]
fn memory_is_bounded_while_the_clock_stands_still() {
    let mut bench = Bench::new();
    bench.data(0, 0, 0);
    // Packet 1 never comes, and no time passes.
    let meta = RecvMeta::new(SOCKET, address(0));
    for number in 2..20_000 {
        let packet = data(PEER_EPOCH, number, &inner(number));
        bench.router.handle_packet(Instant::ZERO, &meta, &packet);
        bench.router.handle_inner(Instant::ZERO, &inner(number));
        bench.router.handle_timeout(Instant::ZERO);
        while bench.router.poll_transmit().is_some() {}
        bench.collect(0);
        let received = bench.router.status().stats.lanes[0].received.order.held_packets;
        assert!(received <= 4_096, "{received}");
    }
    let numbers = bench.numbers();
    assert!(numbers.len() > 15_000 && numbers.is_sorted(), "the oldest go out");
    // Sent packets are not kept, since they are not acknowledged.
    let sent = &bench.router.status().stats.lanes[0].sent;
    assert_eq!((sent.queue_bytes, sent.copy_queue_bytes, sent.drops.total()), (0, 0, 0));
}

#[test]
fn packets_without_a_known_peer_wait_within_bounds() {
    let nat = vec!["100.64.0.0/10".parse().expect("a prefix")];
    let mut router = Router::new(config(vec![RouterPeer::Within(nat)])).expect("a link");
    let mut packet = inner(0);
    packet.resize(1_400, 0);
    packet[2..4].copy_from_slice(&1_400_u16.to_be_bytes());
    for _ in 0..10_000 {
        router.handle_inner(Instant::ZERO, &packet);
    }
    let sent = router.status().stats.lanes.remove(0).sent;
    assert!(sent.queue_bytes <= 4 << 20);
    assert_eq!(sent.queue_bytes / 1_408 + sent.drops.get(DropReason::QueueFull), 10_000);
    router.handle_timeout(ms(701));
    let sent = router.status().stats.lanes.remove(0).sent;
    assert_eq!((sent.queue_bytes, sent.drops.total()), (0, 10_000));
}

#[test]
fn only_the_sources_that_are_allowed_come_through() {
    let mut settings = config(vec![RouterPeer::At(address(0))]);
    settings.inner_sources = Some(vec!["10.9.0.0/16".parse().expect("a prefix")]);
    let mut router = Router::new(settings).expect("a link");
    router.handle_packet(ms(0), &RecvMeta::new(SOCKET, address(0)), &data(5, 0, &inner(0)));
    assert_eq!(router.poll_inner(), None);
    assert_eq!(router.status().stats.drops.get(DropReason::SpoofedSource), 1);
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let error = |config| Router::new(config).expect_err("out of bounds");
    assert_eq!(error(config(Vec::new())), RouterError::Links(0));
    let one = || vec![RouterPeer::At(address(0))];
    assert_eq!(error(config(vec![one().remove(0); 17])), RouterError::Links(17));
    assert_eq!(error(RouterConfig { vni: 1 << 24, ..config(one()) }), RouterError::Vni(1 << 24));
}

proptest! {
    #[test]
    fn any_bytes_are_taken_or_counted(
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        is_headed in any::<bool>(),
    ) {
        let mut bench = Bench::new();
        let bytes = if is_headed { data(PEER_EPOCH, 0, &[&[0x45][..], &bytes].concat()) } else { bytes };
        bench.bytes(0, 0, &bytes);
        let counters = bench.counters(0);
        let delivered = bench.out.len() as u64;
        prop_assert_eq!(delivered, counters.adopted);
        let copies = counters.duplicates + counters.late;
        // Random bytes are never a hello with its option.
        prop_assert_eq!(delivered + copies + bench.router.drops().total(), 1);
    }
}
