//! What is around a node whose owner has sockets, devices and time of his own.

use bytes::Bytes;
use roadweave_proto::Instant;
use roadweave_quic::{Outbox, Route};

use crate::node::Io;

/// An [`Io`] that keeps what a node gives it in memory.
///
/// It is for a program that turns nodes by itself: an event loop that is there already, a test, a
/// simulation. After each [`turn`](crate::turn) take out of it what has come; it forgets nothing,
/// and what nobody takes stays. An end that sends much is better served by an [`Io`] of its own,
/// which hands packets to sockets and device without a copy of each.
#[derive(Clone, Debug, Default)]
pub struct MemoryIo {
    /// The time that the node is told. Set it before each turn; it never goes back.
    pub now: Instant,
    /// Inner packets for this side's device, in order.
    pub delivered: Vec<Bytes>,
    /// Packets for the network with their routes, in order.
    pub transmitted: Vec<(Route, Bytes)>,
}

impl MemoryIo {
    /// Nothing kept, at the time `now`.
    pub fn new(now: Instant) -> Self {
        Self { now, ..Self::default() }
    }
}

impl Io for MemoryIo {
    fn now(&self) -> Instant {
        self.now
    }

    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
        self.delivered.extend(packets);
    }

    fn transmit(&mut self, packets: &Outbox) {
        let copy = |(route, packet)| (route, Bytes::copy_from_slice(packet));
        self.transmitted.extend(packets.packets().map(copy));
    }
}
