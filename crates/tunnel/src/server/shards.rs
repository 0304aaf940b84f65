//! A server as one of several shards, each with clients of its own.
//!
//! ```text
//! packet of another shard's connection ──┐
//! inner packet for a client not here ────┴─► MisroutedPacket ─► the driver hands it over or drops it
//! the same client joined at another shard ─► its session here ends
//! ```
//!
//! The kernel leads most packets to the right shard. The driver hands on the others, but only once.

use bytes::Bytes;
use roadweave_identity::PublicKey;
use roadweave_proto::DropReason;
use roadweave_quic::Shard;

use crate::node::RecvMeta;
use crate::queue::{BoundedQueue, Waits};

/// A packet for another shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MisroutedPacket {
    /// A packet from the network, for a connection of that shard.
    Packet {
        /// That shard.
        shard: u16,
        /// How the packet came.
        meta: RecvMeta,
        /// Its payload.
        payload: Bytes,
    },
    /// An inner packet for a client that has no session here.
    Inner {
        /// That client.
        key: PublicKey,
        /// The inner packet.
        packet: Bytes,
    },
}

impl Waits for MisroutedPacket {
    fn bytes(&self) -> usize {
        match self {
            Self::Packet { payload, .. } => payload.len(),
            Self::Inner { packet, .. } => packet.len(),
        }
    }
}

/// Packets that wait to be handed over, at most 4 MiB: what comes in 100 ms at 300 Mbit/s.
pub type MisroutedQueue =
    BoundedQueue<MisroutedPacket, { 4 << 20 }, { size_of::<MisroutedPacket>() }>;

#[derive(Debug)]
pub(super) struct Misrouting {
    shard: Option<Shard>,
    waiting: MisroutedQueue,
    /// Set while a packet from another shard is handled, which would circulate.
    pub(super) is_closed: bool,
}

impl Misrouting {
    pub(super) fn new(shard: Option<Shard>) -> Self {
        Self { shard, waiting: MisroutedQueue::default(), is_closed: false }
    }

    pub(super) fn pop(&mut self) -> Option<MisroutedPacket> {
        self.waiting.pop()
    }

    /// Takes a packet from the network if it belongs to another shard.
    pub(super) fn take_packet(
        &mut self,
        meta: &RecvMeta,
        payload: &[u8],
    ) -> Option<Result<(), DropReason>> {
        let Shard { map, number } = self.shard?;
        let shard = map.shard_of(payload);
        (shard != number).then(|| {
            let payload = Bytes::copy_from_slice(payload);
            self.put_out(MisroutedPacket::Packet { shard, meta: *meta, payload })
        })
    }

    pub(super) fn take_inner(&mut self, key: PublicKey, packet: &[u8]) -> Result<(), DropReason> {
        self.shard.ok_or(DropReason::NoSession)?;
        self.put_out(MisroutedPacket::Inner { key, packet: Bytes::copy_from_slice(packet) })
    }

    fn put_out(&mut self, packet: MisroutedPacket) -> Result<(), DropReason> {
        if self.is_closed {
            return Err(DropReason::NoSession);
        }
        self.waiting.push(packet).then_some(()).ok_or(DropReason::ShardFull)
    }
}
