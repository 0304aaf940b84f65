//! Two redundant routers over simulated links: arrivals and counters.
//!
//! ```text
//! stream ─► near ═══ link 0: 30 ms, loses 2 % in bursts ═══► far ─► in order, each once
//!                ═══ link 1: 60 ms, loses 15 % in bursts ══►
//! ```
//!
//! The loss rates are those of the paper's drive (Networking'24 table III).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::figure5::{Figure5, Limit};
use crate::world::{ms, udp_v4};
use bytes::Bytes;
use roadweave_emulate::{GilbertElliott, Jitter, Link, LinkSettings, Trace};
use roadweave_proto::wire::{Geneve, GeneveContent};
use roadweave_proto::{DropReason, Instant, Order, Rate, UplinkId};
use roadweave_tunnel::{
    MemoryIo, Node as _, RecvMeta, Router, RouterConfig, RouterLink, RouterPeer, turn,
};

/// One packet a millisecond: 9.6 Mbit/s.
const PACKET_BYTES: usize = 1_200;

/// By link: the delay in ms, and the share of packets lost in bursts of five.
const LINKS: [(u64, f64); 2] = [(30, 0.02), (60, 0.15)];

struct World {
    now: Instant,
    near: Router,
    far: Router,
    /// By link: towards the far router, and back.
    links: [[Link<Bytes>; 2]; 2],
    /// By link: packets carried to the far router.
    carried: [BTreeSet<u32>; 2],
    first_copies: Vec<(Instant, u32)>,
    sent: BTreeMap<u32, Instant>,
    out: Vec<(Instant, u32)>,
}

fn end(link: usize, far: bool) -> SocketAddr {
    SocketAddr::from(([10, link as u8, 0, u8::from(far) + 1], 6081))
}

fn meta(socket: UplinkId, remote: SocketAddr) -> RecvMeta {
    RecvMeta { socket, remote, local: None, ecn: None, received: None }
}

impl World {
    fn new(max_buffer_ms: u64, seed: u64) -> Self {
        let router = |far: bool| {
            let link = |link: usize| RouterLink {
                name: format!("link{link}"),
                number: link as u8,
                socket: link as u32,
                peer: RouterPeer::At(end(link, !far)),
            };
            let config = RouterConfig {
                vni: 1,
                epoch: 1 + u32::from(far),
                hello_begin_us: 0,
                order: Order::Reorder { max_buffer: ms(max_buffer_ms) },
                links: [0, 1].map(link).into(),
                inner_sources: None,
            };
            Router::new(config).expect("a router")
        };
        let link = |at: u64| {
            let (delay, loss) = LINKS[at as usize];
            [0, 1].map(|direction| {
                let trace = Trace::constant(Rate::from_kbps(50_000), ms(delay));
                Link::new(LinkSettings {
                    burst_loss: Some(GilbertElliott::bursts(loss, 5.0)),
                    jitter: Some(Jitter { deviation: ms(2), reorders: true }),
                    ..LinkSettings::new(trace, seed * 100 + at * 2 + direction)
                })
            })
        };
        Self {
            now: Instant::ZERO,
            near: router(false),
            far: router(true),
            links: [0, 1].map(link),
            carried: Default::default(),
            first_copies: Vec::new(),
            sent: BTreeMap::new(),
            out: Vec::new(),
        }
    }

    fn send(&mut self, number: u32) {
        let mut packet = udp_v4([10, 0, 0, 1], [10, 0, 0, 2], 0, PACKET_BYTES);
        packet[20..24].copy_from_slice(&number.to_be_bytes());
        self.near.handle_inner(self.now, &packet);
        self.sent.insert(number, self.now);
        self.turn();
    }

    fn turn(&mut self) {
        let now = self.now;
        let [mut near, mut far] = [MemoryIo::new(now), MemoryIo::new(now)];
        turn(&mut self.near, &mut near);
        turn(&mut self.far, &mut far);
        for (direction, sent) in [near.transmitted, far.transmitted].into_iter().enumerate() {
            for (route, packet) in sent {
                let link = route.uplink.expect("a socket").0 as usize;
                let _ = self.links[link][direction].push(now, packet.len(), packet);
            }
        }
        let packets = far.delivered.iter();
        let numbers = packets.map(|packet| packet[20..].first_chunk().expect("a number"));
        self.out.extend(numbers.map(|number| (now, u32::from_be_bytes(*number))));
    }

    fn run_until(&mut self, until: Instant) {
        loop {
            let links = self.links.iter().flatten().filter_map(Link::poll_timeout);
            let routers = [&self.near, &self.far].map(Router::poll_timeout).into_iter().flatten();
            let next = links.chain(routers).min().unwrap_or(until);
            if next > until {
                self.now = until;
                return;
            }
            self.now = self.now.max(next);
            for at in 0..self.links.len() {
                while let Some(packet) = self.links[at][0].poll(self.now) {
                    self.note_carried(at, &packet);
                    let socket = UplinkId(at as u32);
                    self.far.handle_packet(self.now, &meta(socket, end(at, false)), &packet);
                }
                while let Some(packet) = self.links[at][1].poll(self.now) {
                    let socket = UplinkId(at as u32);
                    self.near.handle_packet(self.now, &meta(socket, end(at, true)), &packet);
                }
            }
            self.turn();
        }
    }

    fn note_carried(&mut self, link: usize, packet: &[u8]) {
        let parsed = Geneve::parse(packet).expect("the routers write what can be read");
        if let GeneveContent::Inner { sequence, .. } = parsed.content {
            let number = sequence.number;
            if !self.carried.iter().any(|carried| carried.contains(&number)) {
                self.first_copies.push((self.now, number));
            }
            self.carried[link].insert(number);
        }
    }

    /// Sends for a minute, and waits for the last packets.
    fn stream(&mut self) {
        for number in 0..60_000 {
            self.run_until(Instant::from_millis(number.into()));
            self.send(number);
        }
        self.run_until(self.now + ms(3_000));
    }

    fn brought(&self) -> BTreeSet<u32> {
        self.carried.iter().flatten().copied().collect()
    }
}

#[test]
fn what_one_link_brings_arrives_in_order_and_only_what_both_lose_is_lost() {
    let mut world = World::new(300, 1);
    world.stream();
    let brought = world.brought();
    let numbers: BTreeSet<u32> = world.out.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers, brought, "all that came, and nothing else");
    assert!(world.out.windows(2).all(|two| two[0].1 < two[1].1), "in order, each once");
    let status = world.far.status();
    // The last packets may be lost on both links and then remain unknown.
    let sent = status.peer_packets;
    assert!((world.sent.len() as u64 - sent) < 10, "{sent}");
    assert_eq!(status.peer_packets_lost, sent - brought.len() as u64);
    for (link, carried) in status.paths.iter().zip(&world.carried) {
        assert_eq!(link.lost, sent - carried.len() as u64);
        assert_eq!(link.counters.adopted + link.counters.duplicates, carried.len() as u64);
    }
    let adopted: u64 = status.paths.iter().map(|link| link.counters.adopted).sum();
    assert_eq!(adopted, brought.len() as u64);
    assert!(status.paths[0].adopted_ratio > 0.9, "the faster link wins most of the time");
    assert_eq!(status.stats.lanes[0].received.drops.get(DropReason::OutOfOrder), 0);
    // No packet waits longer than the buffer allows.
    for (at, number) in &world.out {
        assert!(at.since(world.sent[number]) <= ms(300 + 80), "{number}");
    }
}

type Counts = (u64, u64);

/// The same arrivals under the paper's own algorithm.
fn by_figure_5(world: &World, millis: u64, holds: Limit) -> Counts {
    let mut paper = Figure5::new(ms(millis), holds);
    for (at, number) in &world.first_copies {
        paper.handle(*at, *number);
    }
    paper.run_until(world.now);
    (paper.timeouts, paper.discarded.len() as u64)
}

/// Table IV of the paper: with 10 ms packets of the slower link are too late, with 300 ms in time.
#[test]
fn a_short_buffer_discards_what_the_slower_link_brings() {
    let run = |millis| {
        let mut world = World::new(millis, 2);
        world.stream();
        let received = world.far.status().stats.lanes.remove(0).received;
        let discarded = received.drops.get(DropReason::OutOfOrder);
        assert_eq!(world.out.len() as u64 + discarded, world.brought().len() as u64);
        assert!(world.out.windows(2).all(|two| two[0].1 < two[1].1), "in order, each once");
        assert_eq!(received.order.forced, 0, "nothing ended a wait but time");
        let paper = [Limit::ItsPacketWaits, Limit::NextPacket]
            .map(|holds| by_figure_5(&world, millis, holds));
        ((received.order.timeouts, discarded), paper)
    };
    let runs = [10, 100, 300, 500, 1000].map(run);
    println!("timeouts and discarded packets with 10, 100, 300, 500 and 1000 ms: {runs:?}");
    let ours = runs.map(|(ours, _)| ours);
    assert!(ours[0].0 > 100 && ours[0].1 > 100, "{runs:?}");
    assert!(ours[1..].iter().all(|(_, discarded)| *discarded == 0), "{runs:?}");
    // Both readings of the paper's algorithm have nearly the same counts.
    let is_near = |(one, other): (u64, u64)| one.abs_diff(other) <= 1 + one.max(other) / 20;
    assert!(
        runs.iter().all(|(ours, paper)| {
            paper.iter().all(|paper| is_near((ours.0, paper.0)) && is_near((ours.1, paper.1)))
        }),
        "{runs:?}"
    );
    // The rest are packets that both links lost.
    assert!(
        ours[1..].iter().all(|(timeouts, _)| (1..ours[0].0 / 2).contains(timeouts)),
        "{runs:?}"
    );
}
