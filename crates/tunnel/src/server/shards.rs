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
use roadweave_proto::{DropReason, Instant};

use super::misrouted::{MisroutedPacket, MisroutedQueue};
use super::shared_state::SharedState;
use super::{Server, ServerConfig};
use crate::node::{Node as _, RecvMeta};

#[derive(Debug, Default)]
pub(super) struct Misrouting {
    waiting: MisroutedQueue,
    /// Set while a packet from another shard is handled, which would circulate.
    is_closed: bool,
}

impl ServerConfig {
    /// The settings of one of `count` shards: limits over all clients are divided.
    pub fn of_shard(&self, count: u16) -> Self {
        let mut config = self.clone();
        let share = |all: usize| (all / usize::from(count.max(1))).max(1);
        let transport = &mut config.transport;
        transport.half_open_max = share(transport.half_open_max);
        transport.retry_threshold = share(transport.retry_threshold);
        transport.half_open_per_source_max = share(transport.half_open_per_source_max);
        config.memory_max = share(config.memory_max);
        config.client_memory_max = config.client_memory_max.min(config.memory_max);
        config
    }
}

impl Server {
    /// Shares `state` with the other shards, instead of an own one.
    pub fn share_state(&mut self, state: SharedState) {
        self.shared = state;
    }

    /// The next packet for another shard; give it to [`Server::handle_misrouted`] there. Poll it
    /// until it returns `None` after each [`Node::handle_packet`](crate::Node::handle_packet) and
    /// [`Node::handle_inner`](crate::Node::handle_inner), or after some of them.
    pub fn poll_misrouted(&mut self) -> Option<MisroutedPacket> {
        self.misrouting.waiting.pop()
    }

    /// Takes a packet from another shard. One that is not for this shard either is dropped.
    pub fn handle_misrouted(&mut self, now: Instant, packet: MisroutedPacket) {
        self.misrouting.is_closed = true;
        match packet {
            MisroutedPacket::Packet { meta, payload, .. } => {
                self.handle_packet(now, &meta, &payload)
            }
            MisroutedPacket::Inner { packet, .. } => self.handle_inner(now, &packet),
        }
        self.misrouting.is_closed = false;
    }

    /// A client has a newer session with another shard: the one here ends.
    pub fn on_replaced(&mut self, now: Instant, key: &PublicKey) {
        if let Some(id) = self.sessions.by_key.get(key).copied() {
            let name = self.sessions.all.get(&id).map(|joined| joined.peer.name.clone());
            self.replace(now, id, *key, &name.unwrap_or_default());
        }
        self.end_streams_of(key);
    }

    /// Entries of these clients in the shared table of peers have changed. Sessions of clients that
    /// are gone or have other addresses end with the next calls of
    /// [`Node::handle_timeout`](crate::Node::handle_timeout), some at a time.
    pub fn on_changed(&mut self, keys: impl IntoIterator<Item = PublicKey>) {
        let (by_key, standbys) = (&self.sessions.by_key, &self.standbys);
        let streams = self.streams.as_ref();
        let is_here = |key: &PublicKey| {
            by_key.contains_key(key)
                || standbys.of(key).is_some()
                || streams.is_some_and(|all| all.table.peer(key).is_some())
        };
        self.changed.extend(keys.into_iter().filter(is_here).collect::<Vec<_>>());
    }

    pub(super) fn is_misrouted(&mut self, meta: &RecvMeta, payload: &[u8]) -> bool {
        let Some(shard) = self.config.transport.shard else { return false };
        let owner = shard.map.shard_of(payload);
        if owner == shard.number {
            return false;
        }
        let payload = Bytes::copy_from_slice(payload);
        self.put_out(MisroutedPacket::Packet { shard: owner, meta: *meta, payload });
        true
    }

    pub(super) fn without_session(&mut self, key: PublicKey, packet: &[u8]) {
        if self.config.transport.shard.is_none() {
            return self.drops.count(DropReason::NoSession);
        }
        self.put_out(MisroutedPacket::Inner { key, packet: Bytes::copy_from_slice(packet) });
    }

    fn put_out(&mut self, packet: MisroutedPacket) {
        if self.misrouting.is_closed {
            self.drops.count(DropReason::NoSession);
        } else if !self.misrouting.waiting.push(packet) {
            self.drops.count(DropReason::ShardFull);
        }
    }
}
