//! Packets that came to one shard of a server and belong to another.

use bytes::Bytes;
use roadweave_identity::PublicKey;

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
