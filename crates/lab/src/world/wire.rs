//! Both directions of one link, with the address translator at its end and those who share it.

use std::net::SocketAddr;

use bytes::BytesMut;
use roadweave_emulate::{Direction, Link};
use roadweave_types::Instant;

use super::{Ride, SERVER, UDP_IP_HEADERS, WorldLink};

/// What a link carries.
#[derive(Debug)]
pub(super) enum Load {
    /// A packet between client and server.
    Tunnel {
        /// The address that it seems to come from.
        from: SocketAddr,
        /// When it was put in.
        boarded: Instant,
        /// Its UDP payload.
        packet: BytesMut,
    },
    /// Somebody else's packet.
    Cross,
}

/// Competing packets in one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossStats {
    /// Packets put in.
    pub pushed: u64,
    /// Their bytes.
    pub pushed_bytes: u64,
    /// Packets that came out.
    pub delivered: u64,
}

/// A link between the vehicle and the server.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) name: String,
    /// The address that the network's translator shows to the server.
    pub(super) public: SocketAddr,
    up: Link<Load>,
    down: Link<Load>,
    cross_up: CrossStats,
    cross_down: CrossStats,
}

impl Wire {
    pub(super) fn new(index: u32, link: &WorldLink) -> Self {
        // Carrier-grade translators have the addresses of RFC 6598.
        let [.., high, low] = (index + 1).to_be_bytes();
        Self {
            name: link.name.clone(),
            public: SocketAddr::from(([100, 64, high, low], FIRST_PORT)),
            up: Link::new(link.up.clone()),
            down: Link::new(link.down.clone()),
            cross_up: CrossStats::default(),
            cross_down: CrossStats::default(),
        }
    }

    pub(super) fn push_up(&mut self, now: Instant, packet: BytesMut) {
        let bytes = packet.len() + UDP_IP_HEADERS;
        // What the link drops, it counts.
        let _ = self.up.push(now, bytes, Load::Tunnel { from: self.public, boarded: now, packet });
    }

    pub(super) fn push_down(&mut self, now: Instant, packet: BytesMut) {
        let bytes = packet.len() + UDP_IP_HEADERS;
        let _ = self.down.push(now, bytes, Load::Tunnel { from: SERVER, boarded: now, packet });
    }

    pub(super) fn push_cross(&mut self, now: Instant, direction: Direction, bytes: usize) {
        let (link, cross) = self.parts(direction);
        cross.pushed += 1;
        cross.pushed_bytes += bytes as u64;
        let _ = link.push(now, bytes, Load::Cross);
    }

    /// The next packet of the tunnel that has arrived by `now`: where it seems to come from, its bytes,
    /// and how it came (the caller knows the number of this link).
    pub(super) fn poll(
        &mut self,
        now: Instant,
        direction: Direction,
    ) -> Option<(SocketAddr, BytesMut, Ride)> {
        let (link, cross) = self.parts(direction);
        loop {
            match link.poll(now)? {
                Load::Cross => cross.delivered += 1,
                Load::Tunnel { from, boarded, packet } => {
                    let settings = link.settings();
                    let propagation = settings.trace.delay().at(boarded.since(settings.origin));
                    return Some((from, packet, Ride { link: 0, boarded, propagation }));
                }
            }
        }
    }

    pub(super) fn poll_timeouts(&self) -> [Option<Instant>; 2] {
        [self.up.poll_timeout(), self.down.poll_timeout()]
    }

    pub(super) fn set_dead(&mut self, now: Instant, dead: bool) {
        self.up.set_dead(now, dead);
        self.down.set_dead(now, dead);
    }

    pub(super) fn rebind(&mut self) {
        let port = self.public.port().checked_add(1).unwrap_or(FIRST_PORT);
        self.public.set_port(port);
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.up.restart(now);
        self.down.restart(now);
    }

    pub(super) fn link(&self, direction: Direction) -> &Link<Load> {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }

    pub(super) fn link_mut(&mut self, direction: Direction) -> &mut Link<Load> {
        self.parts(direction).0
    }

    pub(super) fn cross_stats(&self, direction: Direction) -> &CrossStats {
        match direction {
            Direction::Up => &self.cross_up,
            Direction::Down => &self.cross_down,
        }
    }

    fn parts(&mut self, direction: Direction) -> (&mut Link<Load>, &mut CrossStats) {
        match direction {
            Direction::Up => (&mut self.up, &mut self.cross_up),
            Direction::Down => (&mut self.down, &mut self.cross_down),
        }
    }
}

/// The first port that a translator gives.
const FIRST_PORT: u16 = 20_000;
