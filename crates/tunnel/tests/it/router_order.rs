//! What the router delivers, and when, against the paper's own algorithm.
//!
//! With separate gaps the router does as figure 5, packet for packet and timeout for timeout. If a
//! gap follows another, the paper waits again and the router does not: no packet leaves later.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use crate::figure5::{Figure5, Limit};
use proptest::prelude::*;
use roadweave_proto::wire::{Geneve, GeneveSequence};
use roadweave_proto::{DropReason, Instant, Order, UplinkId};
use roadweave_tunnel::{Node as _, RecvMeta, Router, RouterConfig, RouterLink, RouterPeer};

const MAX_MS: u64 = 300;

fn meta() -> RecvMeta {
    RecvMeta::new(UplinkId(0), peer())
}

fn packet(epoch: u32, number: u32) -> Vec<u8> {
    let inner = [0x45, 0, 0, 24, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let header = Geneve::inner_header(0, 0x45, GeneveSequence { epoch, number });
    [&header[..], &inner, &number.to_be_bytes()].concat()
}

fn peer() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 6081))
}

struct Bench {
    router: Router,
    sent: BTreeMap<u32, Instant>,
}

impl Bench {
    fn new() -> Self {
        let link =
            RouterLink { name: "link".into(), number: 0, socket: 0, peer: RouterPeer::At(peer()) };
        let config = RouterConfig {
            vni: 0,
            epoch: 1,
            hello_begin_us: 0,
            order: Order::Reorder { max_buffer: Duration::from_millis(MAX_MS) },
            links: vec![link],
            inner_sources: None,
        };
        Self { router: Router::new(config).expect("a router"), sent: BTreeMap::new() }
    }

    fn handle(&mut self, now: Instant, number: u32) {
        self.run_until(now);
        self.router.handle_packet(now, &meta(), &packet(2, number));
        self.collect(now);
    }

    fn run_until(&mut self, now: Instant) {
        while let Some(due) = self.router.poll_timeout()
            && due <= now
        {
            self.router.handle_timeout(due);
            while self.router.poll_transmit().is_some() {}
            self.collect(due);
        }
    }

    fn collect(&mut self, now: Instant) {
        while let Some(packet) = self.router.poll_inner() {
            let number = u32::from_be_bytes(*packet.last_chunk().expect("a number"));
            assert!(self.sent.last_key_value().is_none_or(|(last, _)| *last < number), "in order");
            self.sent.insert(number, now);
        }
    }

    /// Gaps that timed out, gaps given up earlier, and discarded packets.
    fn counts(&self) -> (u64, u64, u64) {
        let received = self.router.status().stats.lanes.remove(0).received;
        let discarded = received.drops.get(DropReason::OutOfOrder);
        (received.order.timeouts, received.order.forced, discarded)
    }
}

/// Feeds both with arrivals (millisecond, number), and runs until nothing waits.
fn run(mut arrivals: Vec<(u64, u32)>, holds: Limit) -> (Bench, Figure5) {
    arrivals.sort_unstable();
    let (mut bench, mut paper) = (Bench::new(), Figure5::new(Duration::from_millis(MAX_MS), holds));
    for (at, number) in &arrivals {
        bench.handle(Instant::from_millis(*at), *number);
        paper.handle(Instant::from_millis(*at), *number);
    }
    let end = Instant::from_millis(arrivals.last().map_or(0, |(at, _)| *at) + 100_000);
    bench.run_until(end);
    paper.run_until(end);
    (bench, paper)
}

fn stream(delays: &[Option<u16>]) -> Vec<(u64, u32)> {
    let packet = |(number, delay): (usize, &Option<u16>)| {
        Some((2 * number as u64 + u64::from((*delay)?), number as u32))
    };
    delays.iter().enumerate().filter_map(packet).collect()
}

/// A gap every two seconds: after how many packets, its width, and its packets' delay if they come.
fn lone_gaps(gaps: &[(u32, u32, Option<u16>)]) -> Vec<(u64, u32)> {
    let (mut number, mut arrivals) = (0, Vec::new());
    for (second, (before, width, delay)) in gaps.iter().enumerate() {
        for at in 0..before + width + 5 {
            let is_missing = (*before..before + width).contains(&at);
            let delay = if is_missing { *delay } else { Some(0) };
            let sent = 2_000 * second as u64 + 2 * u64::from(at);
            arrivals.extend(delay.map(|delay| (sent + u64::from(delay), number)));
            number += 1;
        }
    }
    arrivals
}

fn delay() -> impl Strategy<Value = Option<u16>> {
    prop_oneof![
        6 => (0..30_u16).prop_map(Some),
        2 => (0..800_u16).prop_map(Some),
        1 => Just(None),
    ]
}

proptest! {
    #[test]
    fn a_gap_alone_is_treated_as_in_the_paper(
        gaps in prop::collection::vec((0..6_u32, 1..6_u32, prop_oneof![
            3 => (0..600_u16).prop_map(Some),
            3 => (MAX_MS as u16 - 12..MAX_MS as u16 + 12).prop_map(Some),
            1 => Just(None),
        ]), 1..12),
    ) {
        let (bench, paper) = run(lone_gaps(&gaps), Limit::ItsPacketWaits);
        let (timeouts, forced, discarded) = bench.counts();
        prop_assert_eq!(&bench.sent, &paper.sent);
        prop_assert_eq!((timeouts, forced), (paper.timeouts, 0));
        prop_assert_eq!(discarded, paper.discarded.len() as u64);
    }

    #[test]
    fn no_packet_waits_for_longer_than_in_the_paper(
        delays in prop::collection::vec(delay(), 1..120),
        holds in prop_oneof![Just(Limit::ItsPacketWaits), Just(Limit::NextPacket)],
    ) {
        let arrivals = stream(&delays);
        let (bench, paper) = run(arrivals.clone(), holds);
        for (number, at) in &bench.sent {
            prop_assert!(paper.sent.get(number).is_some_and(|there| at <= there), "{}", number);
        }
        let came: BTreeSet<u32> = arrivals.iter().map(|(_, number)| *number).collect();
        let discarded = came.iter().filter(|number| !bench.sent.contains_key(number));
        prop_assert_eq!(bench.counts().2, discarded.count() as u64);
        prop_assert_eq!(came.len(), paper.sent.len() + paper.discarded.len());
        for (at, number) in arrivals {
            let arrived = Instant::from_millis(at);
            let waited = bench.sent.get(&number).map(|sent| sent.since(arrived));
            prop_assert!(waited.unwrap_or_default() <= Duration::from_millis(MAX_MS));
        }
    }
}

/// The second gap opens while the first is waited for.
#[test]
fn the_paper_waits_again_at_a_second_gap_and_the_router_does_not() {
    let arrivals = vec![(0, 0), (10, 2), (20, 4)];
    let (bench, paper) = run(arrivals, Limit::ItsPacketWaits);
    let at = |millis: [u64; 3]| -> BTreeMap<u32, Instant> {
        [0, 2, 4].into_iter().zip(millis.map(Instant::from_millis)).collect()
    };
    assert_eq!((bench.sent.clone(), bench.counts().0), (at([0, 310, 320]), 2));
    assert_eq!((paper.sent, paper.timeouts), (at([0, 310, 610]), 2));
}

#[test]
fn waits_that_end_with_the_sequence_are_counted_apart() {
    let mut bench = Bench::new();
    for number in [0, 2, 4] {
        bench.handle(Instant::ZERO, number);
    }
    bench.router.handle_packet(Instant::from_millis(1), &meta(), &packet(3, 0));
    assert_eq!(bench.counts(), (0, 2, 0));
    // So is one that ends because memory is full.
    let mut bench = Bench::new();
    bench.handle(Instant::ZERO, 0);
    for number in 2..=4_098 {
        bench.handle(Instant::from_millis(1), number);
    }
    assert_eq!(bench.counts(), (0, 1, 0));
}
