//! The network between the vehicles of a crowd and its server: a delay per uplink, and loss.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roadweave_proto::Instant;

use super::CrowdConfig;

/// A packet under way. Ordered by time, then by number.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flying {
    at: Instant,
    number: u64,
    pub(super) vehicle: usize,
    pub(super) uplink: u32,
    pub(super) up: bool,
    pub(super) packet: Vec<u8>,
}

/// Counts of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sent by vehicles.
    pub up: u64,
    /// Packets sent by the server.
    pub down: u64,
    /// Handshake packets among those of the vehicles.
    pub handshakes_up: u64,
    /// Packets dropped by full sockets.
    pub no_room: u64,
}

#[derive(Debug)]
pub(super) struct Network {
    delay: Duration,
    loss: f64,
    flying: BinaryHeap<Reverse<Flying>>,
    packets: u64,
    pub(super) counts: Counts,
    dead: BTreeSet<(usize, u32)>,
    random: Pcg64Mcg,
}

impl Network {
    pub(super) fn new(config: &CrowdConfig) -> Self {
        Self {
            delay: config.delay,
            loss: config.loss,
            flying: BinaryHeap::new(),
            packets: 0,
            counts: Counts::default(),
            dead: BTreeSet::new(),
            random: Pcg64Mcg::seed_from_u64(config.seed),
        }
    }

    pub(super) fn set_dead(&mut self, vehicle: usize, uplink: u32, dead: bool) {
        match dead {
            true => self.dead.insert((vehicle, uplink)),
            false => self.dead.remove(&(vehicle, uplink)),
        };
    }

    /// At the vehicle's end if `up`.
    pub(super) fn push(
        &mut self,
        now: Instant,
        vehicle: usize,
        uplink: u32,
        up: bool,
        packet: &[u8],
    ) {
        let is_handshake = packet.first().is_some_and(|first| first & LONG_HEADER != 0);
        match up {
            true => self.counts.up += 1,
            false => self.counts.down += 1,
        }
        self.counts.handshakes_up += u64::from(up && is_handshake);
        let lost = (self.random.next_u32() as f64 / f64::from(u32::MAX)) < self.loss;
        if lost || self.dead.contains(&(vehicle, uplink)) {
            return;
        }
        self.packets += 1;
        let at = now + self.delay + Duration::from_millis(10) * uplink;
        let (number, packet) = (self.packets, packet.to_vec());
        self.flying.push(Reverse(Flying { at, number, vehicle, uplink, up, packet }));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.flying.peek().map(|Reverse(flying)| flying.at)
    }

    pub(super) fn poll(&mut self, now: Instant) -> Option<Flying> {
        self.poll_timeout().filter(|at| *at <= now)?;
        self.flying.pop().map(|Reverse(flying)| flying)
    }
}

/// Set in the first byte of handshake packets (RFC 9000 section 17.2).
const LONG_HEADER: u8 = 0x80;
