//! `none`: no repairs. For yardsticks, and for traffic that repairs itself.

use roadweave_proto::{Instant, PacketId, PathId, PathOffer, PathSnapshot};

use crate::{Recovery, RecoveryStats, Repair, SentCopy};

/// The recovery that repairs nothing.
#[derive(Debug, Default)]
pub struct NoRecovery;

impl Recovery for NoRecovery {
    fn on_sent(&mut self, _now: Instant, _packet: SentCopy, _paths: &[PathSnapshot]) {}
    fn on_waiting(&mut self, _now: Instant, _packet: SentCopy, _paths: &[PathSnapshot]) {}
    fn on_acknowledged(&mut self, _now: Instant, _id: PacketId) {}
    fn on_abandoned(&mut self, _id: PacketId) {}
    fn on_lost(&mut self, _now: Instant, _id: PacketId, _path: PathId) {}
    fn poll_repair(&mut self, _: Instant, _: &[PathOffer<'_>], _backlog: u64) -> Option<Repair> {
        None
    }
    fn is_settled(&self) -> bool {
        true
    }
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    fn stats(&self) -> RecoveryStats {
        RecoveryStats::default()
    }
}
