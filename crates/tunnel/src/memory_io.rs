//! An [`Io`] for programs that move packets themselves.

use bytes::Bytes;
use roadweave_proto::Instant;
use roadweave_quic::{Outbox, Route};

use crate::node::Io;

/// An [`Io`] that keeps a node's output in memory.
///
/// It is for existing event loops, tests and simulations. Take the output after each
/// [`turn`](crate::turn), since it accumulates. An end with much traffic needs its own [`Io`],
/// which avoids a copy of each packet.
#[derive(Clone, Debug, Default)]
pub struct MemoryIo {
    /// The current time; set it before each turn, never backwards.
    pub now: Instant,
    /// Inner packets for this side's device, in order.
    pub delivered: Vec<Bytes>,
    /// Packets for the network with their routes, in order.
    pub transmitted: Vec<(Route, Bytes)>,
}

impl MemoryIo {
    /// Empty, at the time `now`.
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
