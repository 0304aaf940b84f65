//! The CPU of an end of a crowd, which each packet keeps busy for a while, and the socket in which
//! packets wait for it.
//!
//! ```text
//! network ─► socket, of bounded size ─► as many as a batch takes, when the processor is free
//!                └─ no room: lost                 └─ busy for the time of each packet in and out
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::Instant;

use super::network::Flying;

#[derive(Debug)]
pub(super) struct Processor {
    per_packet: Duration,
    free_at: Instant,
    socket: VecDeque<(Instant, Flying)>,
    pub(super) no_room: u64,
}

impl Processor {
    pub(super) fn new(per_packet: Duration) -> Self {
        Self { per_packet, free_at: Instant::ZERO, socket: VecDeque::new(), no_room: 0 }
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

    pub(super) fn receive(&mut self, now: Instant, packet: Flying) {
        match self.socket.len() < SOCKET_PACKETS {
            true => self.socket.push_back((now, packet)),
            false => self.no_room += 1,
        }
    }

    pub(super) fn take(&mut self) -> impl Iterator<Item = (Instant, Flying)> {
        // Without a time per packet one batch takes all.
        let most = if self.per_packet.is_zero() { usize::MAX } else { BATCH };
        self.socket.drain(..self.socket.len().min(most))
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
