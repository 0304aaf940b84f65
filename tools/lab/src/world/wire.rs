//! Both directions of one link, with its NAT and its cross traffic.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::BytesMut;
use roadweave_emulate::{Direction, DuplexLink, Link, LinkSettings, Trace};
use roadweave_proto::{Instant, SplitMix64};

use super::strangers::Hostile;
use super::tamper::{Tamperer, Tampering};
use super::{Transit, UDP_IP_HEADERS};

#[derive(Debug)]
pub(super) enum LinkPacket {
    Tunnel {
        /// Apparent source address.
        from: SocketAddr,
        /// The server's address as the destination, if it is one.
        to: SocketAddr,
        boarded: Instant,
        number: u64,
        packet: BytesMut,
    },
    Cross,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossStats {
    pub pushed: u64,
    pub pushed_bytes: u64,
    pub delivered: u64,
}

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) name: String,
    pub(super) public: SocketAddr,
    former: Option<SocketAddr>,
    lost: Option<SocketAddr>,
    pub(super) hostile: Option<Hostile>,
    /// Up and down.
    ways: [OneWay; 2],
}

#[derive(Debug)]
struct OneWay {
    link: Link<LinkPacket>,
    cross: CrossStats,
    boarded: u64,
    newest: u64,
    /// Bytes of packets that were too late, or corrupted by former tamperers.
    useless_bytes: u64,
    tamperer: Option<Tamperer>,
    out: VecDeque<Out>,
}

/// Apparent source, the server's address if it is the destination, bytes, transit.
type Out = (SocketAddr, SocketAddr, BytesMut, Transit);

impl Wire {
    pub(super) fn new(index: u32, link: &DuplexLink) -> Self {
        // Carrier-grade NATs use the addresses of RFC 6598.
        let [.., high, low] = (index + 1).to_be_bytes();
        Self {
            name: link.name.clone(),
            public: SocketAddr::from(([100, 64, high, low], FIRST_PORT)),
            former: None,
            lost: None,
            hostile: None,
            ways: [&link.up, &link.down].map(OneWay::new),
        }
    }

    pub(super) fn push_up(&mut self, now: Instant, to: SocketAddr, packet: BytesMut) {
        if self.lost != Some(self.public) {
            self.ways[0].push(now, self.public, to, packet);
        }
    }

    pub(super) fn leads_to(&self, address: SocketAddr) -> bool {
        self.public == address || self.former == Some(address)
    }

    /// Packets of the vehicle's present port are lost from now on.
    pub(super) fn lose_binding(&mut self) {
        self.lost = Some(self.public);
    }

    /// The vehicle uses another port and keeps listening at the old one.
    pub(super) fn change_port(&mut self) {
        self.former = Some(self.public);
        self.next_port();
    }

    pub(super) fn push_down(&mut self, now: Instant, from: SocketAddr, packet: BytesMut) {
        self.ways[1].push(now, from, self.public, packet);
    }

    pub(super) fn push_cross(&mut self, now: Instant, direction: Direction, bytes: usize) {
        let OneWay { link, cross, .. } = self.way_mut(direction);
        cross.pushed += 1;
        cross.pushed_bytes += bytes as u64;
        let _ = link.push(now, bytes, LinkPacket::Cross);
    }

    /// The next tunnel packet that has arrived by `now`; the caller sets the link's number.
    pub(super) fn poll(&mut self, now: Instant, direction: Direction) -> Option<Out> {
        self.way_mut(direction).poll(now)
    }

    pub(super) fn poll_timeouts(&self) -> [Option<Instant>; 2] {
        self.ways.each_ref().map(|way| way.link.poll_timeout())
    }

    pub(super) fn set_dead(&mut self, now: Instant, dead: bool) {
        self.ways.iter_mut().for_each(|way| way.link.set_dead(now, dead));
    }

    pub(super) fn rebind(&mut self) {
        self.former = None;
        self.next_port();
    }

    fn next_port(&mut self) {
        let port = self.public.port().checked_add(1).unwrap_or(FIRST_PORT);
        self.public.set_port(port);
    }

    pub(super) fn restart(&mut self, now: Instant, traces: [Trace; 2]) {
        for (way, trace) in self.ways.iter_mut().zip(traces) {
            way.link.restart_with(now, trace);
        }
    }

    pub(super) fn tamper(&mut self, tampering: Tampering, seed: u64) {
        for (way, stream) in self.ways.iter_mut().zip(0..) {
            way.useless_bytes = way.useless_bytes();
            way.tamperer = Some(Tamperer::new(tampering, SplitMix64::word(seed, stream)));
        }
    }

    pub(super) fn useless_bytes(&self, direction: Direction) -> u64 {
        self.way(direction).useless_bytes()
    }

    pub(super) fn waste(&mut self, direction: Direction, bytes: usize) {
        self.way_mut(direction).useless_bytes += bytes as u64;
    }

    pub(super) fn link(&self, direction: Direction) -> &Link<LinkPacket> {
        &self.way(direction).link
    }

    pub(super) fn link_mut(&mut self, direction: Direction) -> &mut Link<LinkPacket> {
        &mut self.way_mut(direction).link
    }

    pub(super) fn cross_stats(&self, direction: Direction) -> &CrossStats {
        &self.way(direction).cross
    }

    fn way(&self, direction: Direction) -> &OneWay {
        &self.ways[direction as usize]
    }

    fn way_mut(&mut self, direction: Direction) -> &mut OneWay {
        &mut self.ways[direction as usize]
    }
}

impl OneWay {
    fn new(link: &LinkSettings) -> Self {
        Self {
            link: Link::new(link.clone()),
            cross: CrossStats::default(),
            boarded: 0,
            newest: 0,
            useless_bytes: 0,
            tamperer: None,
            out: VecDeque::new(),
        }
    }

    fn push(&mut self, now: Instant, from: SocketAddr, to: SocketAddr, packet: BytesMut) {
        let bytes = packet.len() + UDP_IP_HEADERS;
        let load = LinkPacket::Tunnel { from, to, boarded: now, number: self.boarded, packet };
        self.boarded += 1;
        // The link counts its drops.
        let _ = self.link.push(now, bytes, load);
    }

    fn useless_bytes(&self) -> u64 {
        self.useless_bytes + self.tamperer.as_ref().map_or(0, Tamperer::spoilt_bytes)
    }

    fn poll(&mut self, now: Instant) -> Option<Out> {
        loop {
            if let Some(out) = self.out.pop_front() {
                return Some(out);
            }
            match self.link.poll(now)? {
                LinkPacket::Cross => self.cross.delivered += 1,
                LinkPacket::Tunnel { from, to, boarded, number, packet } => {
                    self.newest = self.newest.max(number);
                    if self.newest - number >= TOO_LATE {
                        self.useless_bytes += packet.len() as u64;
                    }
                    let settings = self.link.settings();
                    let propagation = settings.trace.delay().at(boarded.since(settings.origin));
                    let ride = Transit { link: 0, boarded, propagation };
                    match &mut self.tamperer {
                        None => return Some((from, to, packet, ride)),
                        Some(tamperer) => {
                            let out = tamperer.pass(packet).map(|bytes| (from, to, bytes, ride));
                            self.out.extend(out);
                        }
                    }
                }
            }
        }
    }
}

/// A packet overtaken by more than this many counts as replayed in the QUIC library.
const TOO_LATE: u64 = 128;
const FIRST_PORT: u16 = 20_000;
