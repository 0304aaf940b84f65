//! The networks between nodes: uplinks with a delay and loss, or with rates and queues, and the
//! legs between proxies and the anchor.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use roadweave_emulate::{Direction, Link, LinkStats, Random};
use roadweave_lab::world::{SERVER, UDP_IP_HEADERS};
use roadweave_proto::{Instant, UplinkId};
use roadweave_quic::Route;
use roadweave_tunnel::{LEG_SOCKET, RecvMeta};

use super::config::LEG_DELAY;
use super::{ClientId, Config, NodeId};

/// A packet under way. Ordered by time, then by number.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Packet {
    at: Instant,
    number: u64,
    from: SocketAddr,
    to: SocketAddr,
    pub(super) data: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub up: u64,
    pub down: u64,
    /// Handshake packets among those of the boxes.
    pub handshakes_up: u64,
}

#[derive(Debug)]
pub(super) struct Network {
    delay: Duration,
    loss: f64,
    leg_loss: f64,
    leg_mtu: usize,
    /// Both directions of each uplink of the only box, if they have rates.
    links: Vec<[Link<Packet>; 2]>,
    flying: BinaryHeap<Reverse<Packet>>,
    packets: u64,
    pub(super) counts: Counts,
    dead: BTreeSet<(usize, u32)>,
    cut: BTreeSet<usize>,
    random: Random,
}

impl Network {
    pub(super) fn new(config: &Config) -> Self {
        let links = config.links.iter().map(|link| [&link.up, &link.down]);
        Self {
            delay: config.delay,
            loss: config.loss,
            leg_loss: config.leg_loss,
            leg_mtu: config.leg_mtu,
            links: links.map(|ways| ways.map(|way| Link::new(way.clone()))).collect(),
            flying: BinaryHeap::new(),
            packets: 0,
            counts: Counts::default(),
            dead: BTreeSet::new(),
            cut: BTreeSet::new(),
            random: Random::new(config.seed),
        }
    }

    pub(super) fn set_dead(&mut self, now: Instant, (number, uplink): (usize, u32), dead: bool) {
        match self.links.get_mut(uplink as usize) {
            Some(ways) => ways.iter_mut().for_each(|way| way.set_dead(now, dead)),
            None if dead => _ = self.dead.insert((number, uplink)),
            None => _ = self.dead.remove(&(number, uplink)),
        }
    }

    pub(super) fn cut_leg(&mut self, proxy: usize, is_cut: bool) {
        match is_cut {
            true => self.cut.insert(proxy),
            false => self.cut.remove(&proxy),
        };
    }

    pub(super) fn link_stats(&self, link: usize, direction: Direction) -> &LinkStats {
        self.links[link][usize::from(direction == Direction::Down)].stats()
    }

    pub(super) fn push(&mut self, now: Instant, node: NodeId, route: &Route, data: &[u8]) {
        let to = route.destination;
        let from = match (node, route.uplink) {
            (NodeId::Client(id), Some(uplink)) => client_address(id, uplink.0),
            (NodeId::Client(_), None) => return,
            (NodeId::Server(proxy), Some(LEG_SOCKET)) => {
                SocketAddr::new(server_address(proxy).ip(), LEG_PORT)
            }
            (NodeId::Server(server), _) => server_address(server),
            (NodeId::Anchor, _) => anchor_address(),
        };
        let is_up = matches!(node, NodeId::Client(_));
        let is_handshake = data.first().is_some_and(|first| first & LONG_HEADER != 0);
        self.counts.up += u64::from(is_up);
        self.counts.down += u64::from(!is_up);
        self.counts.handshakes_up += u64::from(is_up && is_handshake);
        let leg = match (node, node_at(to)) {
            (NodeId::Server(proxy), Some((NodeId::Anchor, _)))
            | (NodeId::Anchor, Some((NodeId::Server(proxy), _))) => Some(proxy),
            _ => None,
        };
        let box_end = if is_up { from } else { to };
        let uplink = match node_at(box_end) {
            Some((NodeId::Client(id), uplink)) => (id.number, uplink.0),
            _ => (usize::MAX, 0),
        };
        self.packets += 1;
        let mut packet = Packet { at: now, number: self.packets, from, to, data: data.to_vec() };
        if leg.is_none()
            && let Some(ways) = self.links.get_mut(uplink.1 as usize)
        {
            let _ = ways[usize::from(!is_up)].push(now, data.len() + UDP_IP_HEADERS, packet);
            return;
        }
        let (delay, loss) = match leg {
            Some(_) => (LEG_DELAY, self.leg_loss),
            None => (self.delay + Duration::from_millis(10) * uplink.1, self.loss),
        };
        let is_lost = self.random.chance(loss);
        let is_cut = leg.is_some_and(|leg| self.cut.contains(&leg) || data.len() > self.leg_mtu);
        if !is_lost && !is_cut && !self.dead.contains(&uplink) {
            packet.at = now + delay;
            self.flying.push(Reverse(packet));
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let links = self.links.iter().flatten().filter_map(Link::poll_timeout);
        links.chain(self.flying.peek().map(|Reverse(packet)| packet.at)).min()
    }

    pub(super) fn poll(&mut self, now: Instant) -> Option<Packet> {
        if let Some(packet) = self.links.iter_mut().flatten().find_map(|link| link.poll(now)) {
            return Some(packet);
        }
        self.flying.peek().filter(|Reverse(packet)| packet.at <= now)?;
        self.flying.pop().map(|Reverse(packet)| packet)
    }
}

impl Packet {
    /// Its node, if there may be one, and how it is received.
    pub(super) fn meta(&self, received: Instant) -> Option<(NodeId, RecvMeta)> {
        let (node, socket) = node_at(self.to)?;
        let is_plain = matches!(node, NodeId::Server(_)) && socket != LEG_SOCKET;
        let local = is_plain.then(|| self.to.ip());
        let received = Some(received);
        Some((node, RecvMeta { socket, remote: self.from, local, ecn: None, received }))
    }
}

/// Set in the first byte of handshake packets (RFC 9000 section 17.2).
const LONG_HEADER: u8 = 0x80;
const LEG_PORT: u16 = 5_001;
const CLIENT_PORTS: u16 = 5_000;
const BOXES: u32 = 0x6440_0000;
const UPLINKS: u32 = 16;

pub(super) fn anchor_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(203, 0, 113, 1), 4_434))
}

pub(super) fn server_address(server: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(first_server() + server as u32), SERVER.port()))
}

fn first_server() -> u32 {
    let IpAddr::V4(first) = SERVER.ip() else { unreachable!("it is written so") };
    first.to_bits()
}

fn client_address(id: ClientId, uplink: u32) -> SocketAddr {
    let ip = Ipv4Addr::from(BOXES + id.number as u32 * UPLINKS + uplink);
    SocketAddr::from((ip, CLIENT_PORTS + id.server as u16))
}

fn node_at(address: SocketAddr) -> Option<(NodeId, UplinkId)> {
    if address == anchor_address() {
        return Some((NodeId::Anchor, UplinkId(0)));
    }
    let IpAddr::V4(ip) = address.ip() else { return None };
    if let Some(server) = ip.to_bits().checked_sub(first_server()) {
        let socket = if address.port() == LEG_PORT { LEG_SOCKET } else { UplinkId(0) };
        return Some((NodeId::Server(server as usize), socket));
    }
    let place = ip.to_bits().checked_sub(BOXES)?;
    let server = usize::from(address.port().checked_sub(CLIENT_PORTS)?);
    let id = ClientId { number: (place / UPLINKS) as usize, server };
    Some((NodeId::Client(id), UplinkId(place % UPLINKS)))
}
