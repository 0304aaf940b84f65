//! The networks of a chain: between boxes and proxies, and the backhauls.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roadweave_proto::{Instant, UplinkId};
use roadweave_quic::Route;
use roadweave_tunnel::{LEG_SOCKET, RecvMeta};

use super::{ChainConfig, NodeId};

/// A packet under way. Ordered by time, then by number.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Packet {
    at: Instant,
    number: u64,
    from: SocketAddr,
    to: SocketAddr,
    pub(super) data: Vec<u8>,
}

impl Packet {
    pub(super) fn meta(&self) -> Option<(NodeId, RecvMeta)> {
        let node = node_at(self.to)?;
        let socket = if self.to.port() == LEG_PORT { LEG_SOCKET } else { UplinkId(0) };
        Some((node, RecvMeta { socket, remote: self.from, local: None, ecn: None, received: None }))
    }
}

#[derive(Debug)]
pub(super) struct Network {
    access: (Duration, f64),
    leg: (Duration, f64),
    leg_mtu: usize,
    flying: BinaryHeap<Reverse<Packet>>,
    packets: u64,
    cut: BTreeSet<usize>,
    random: Pcg64Mcg,
}

impl Network {
    pub(super) fn new(config: &ChainConfig) -> Self {
        Self {
            access: (config.access_delay, config.access_loss),
            leg: (config.leg_delay, config.leg_loss),
            leg_mtu: config.leg_mtu,
            flying: BinaryHeap::new(),
            packets: 0,
            cut: BTreeSet::new(),
            random: Pcg64Mcg::seed_from_u64(config.seed),
        }
    }

    pub(super) fn cut_leg(&mut self, proxy: usize, is_cut: bool) {
        match is_cut {
            true => self.cut.insert(proxy),
            false => self.cut.remove(&proxy),
        };
    }

    pub(super) fn push(&mut self, now: Instant, node: NodeId, route: &Route, data: &[u8]) {
        let to = route.destination;
        let from = match node {
            NodeId::Box { number, proxy } => box_address(number, proxy),
            NodeId::Proxy(proxy) if route.uplink == Some(LEG_SOCKET) => leg_address(proxy),
            NodeId::Proxy(proxy) => super::proxy_address(proxy),
            NodeId::Anchor => anchor_address(),
        };
        let leg = match (node, node_at(to)) {
            (NodeId::Proxy(proxy), Some(NodeId::Anchor)) => Some(proxy),
            (NodeId::Anchor, Some(NodeId::Proxy(proxy))) => Some(proxy),
            _ => None,
        };
        let (delay, loss) = if leg.is_some() { self.leg } else { self.access };
        let is_cut = leg.is_some_and(|leg| self.cut.contains(&leg) || data.len() > self.leg_mtu);
        let is_lost = (f64::from(self.random.next_u32()) / f64::from(u32::MAX)) < loss;
        if is_cut || is_lost {
            return;
        }
        self.packets += 1;
        let (number, data) = (self.packets, data.to_vec());
        self.flying.push(Reverse(Packet { at: now + delay, number, from, to, data }));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.flying.peek().map(|Reverse(packet)| packet.at)
    }

    pub(super) fn poll(&mut self, now: Instant) -> Option<Packet> {
        let Reverse(packet) = self.flying.peek()?;
        if packet.at > now {
            return None;
        }
        self.flying.pop().map(|Reverse(packet)| packet)
    }
}

const LEG_PORT: u16 = 5_001;
const BOXES: u32 = 0x6440_0000;
const PROXIES: u32 = 0xc000_0200;

pub(super) fn anchor_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(203, 0, 113, 1), 4_434))
}

fn box_address(number: usize, proxy: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(BOXES + number as u32), 10_000 + proxy as u16))
}

fn leg_address(proxy: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(PROXIES + proxy as u32), LEG_PORT))
}

fn node_at(address: SocketAddr) -> Option<NodeId> {
    if address == anchor_address() {
        return Some(NodeId::Anchor);
    }
    let IpAddr::V4(ip) = address.ip() else { return None };
    let bits = ip.to_bits();
    if let Some(proxy) = bits.checked_sub(PROXIES) {
        return Some(NodeId::Proxy(proxy as usize));
    }
    let number = bits.checked_sub(BOXES)? as usize;
    Some(NodeId::Box { number, proxy: usize::from(address.port() - 10_000) })
}
