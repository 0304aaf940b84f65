//! Packets that came to one shard of a server and belong to another.

use std::collections::VecDeque;

use bytes::Bytes;
use roadweave_identity::PublicKey;

use crate::node::RecvMeta;

/// A packet for another shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stray {
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

impl Stray {
    /// The length of the packet, bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Packet { payload, .. } => payload.len(),
            Self::Inner { packet, .. } => packet.len(),
        }
    }
}

/// Strays that wait to be handed over, oldest first, bounded in bytes.
#[derive(Debug, Default)]
pub struct StrayQueue {
    waiting: VecDeque<Stray>,
    bytes: usize,
}

impl StrayQueue {
    /// The most bytes that may wait: what comes in 100 ms at 300 Mbit/s.
    pub const BYTES_MAX: usize = 4 << 20;
    /// The cost of a stray beside the bytes of its packet.
    pub const OVERHEAD_BYTES: usize = size_of::<Stray>();

    /// Takes a stray; returns whether there was room.
    pub fn push(&mut self, stray: Stray) -> bool {
        let bytes = stray.bytes() + Self::OVERHEAD_BYTES;
        let has_room = self.bytes + bytes <= Self::BYTES_MAX;
        if has_room {
            self.bytes += bytes;
            self.waiting.push_back(stray);
        }
        has_room
    }

    /// The oldest stray.
    pub fn pop(&mut self) -> Option<Stray> {
        let stray = self.waiting.pop_front()?;
        self.bytes -= stray.bytes() + Self::OVERHEAD_BYTES;
        Some(stray)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leaves_first_and_makes_room() {
        let mut queue = StrayQueue::default();
        let stray = |number: u8| {
            let meta = RecvMeta::new(roadweave_proto::UplinkId(0), ([192, 0, 2, 1], 4433).into());
            Stray::Packet { shard: 1, meta, payload: Bytes::from(vec![number; 1 << 20]) }
        };
        assert_eq!(
            (0..5).map(|number| queue.push(stray(number))).filter(|taken| *taken).count(),
            3
        );
        assert_eq!((queue.pop(), queue.push(stray(5))), (Some(stray(0)), true));
        let rest: Vec<Stray> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [stray(1), stray(2), stray(5)]);
        assert_eq!((queue.is_empty(), queue.bytes), (true, 0));
    }
}
