//! A CPU that each packet keeps busy for a while, and the socket in which packets wait for it.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::Instant;

use super::network::Packet;

#[derive(Debug)]
pub(super) struct Processor {
    per_packet: Duration,
    free_at: Instant,
    socket: VecDeque<(Instant, Packet)>,
}

impl Processor {
    pub(super) fn new(per_packet: Duration) -> Self {
        Self { per_packet, free_at: Instant::ZERO, socket: VecDeque::new() }
    }

    pub(super) fn pause(&mut self, until: Instant) {
        self.free_at = self.free_at.max(until);
    }

    pub(super) fn work(&mut self, now: Instant, packets: usize) {
        self.free_at = self.free_at.max(now) + self.per_packet * packets as u32;
    }

    pub(super) fn is_free(&self, now: Instant) -> bool {
        self.free_at <= now
    }

    pub(super) fn receive(&mut self, now: Instant, packet: Packet) {
        if self.socket.len() < SOCKET_PACKETS {
            self.socket.push_back((now, packet));
        }
    }

    pub(super) fn take(&mut self) -> Vec<(Instant, Packet)> {
        // Without a time per packet one batch takes all.
        let most = if self.per_packet.is_zero() { usize::MAX } else { BATCH };
        self.socket.drain(..self.socket.len().min(most)).collect()
    }

    /// The time of the next turn, if there is a packet or something is due at `due`.
    pub(super) fn next_turn(&self, due: Option<Instant>) -> Option<Instant> {
        let waiting = (!self.socket.is_empty()).then_some(Instant::ZERO);
        due.into_iter().chain(waiting).min().map(|at| at.max(self.free_at))
    }
}

/// Capacity of a socket: small packets take about 800 bytes each of the kernel's 8 MiB.
const SOCKET_PACKETS: usize = 10_000;
const BATCH: usize = 64;
