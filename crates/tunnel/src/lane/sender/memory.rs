//! What the sending half of a lane holds, and what it frees when memory is short.

use roadweave_proto::{DropReason, Instant};

use super::LaneSender;
use crate::lane::memory::MemoryStats;

impl LaneSender {
    pub(crate) fn memory(&self) -> MemoryStats {
        let repairs = self.repairs.keys().map(|path| self.repair_bytes(*path)).sum::<u64>();
        let waiting = self.queue.len() + self.copies.len();
        MemoryStats {
            queue_bytes: self.stats.queue_bytes
                + self.copies.total_bytes()
                + repairs
                + (waiting * QUEUED_OVERHEAD) as u64,
            encoder_bytes: self.encoder.bytes() as u64,
            flow_bytes: self.sent_flows.memory() as u64,
            ..MemoryStats::default()
        }
    }

    /// Frees the oldest until `bytes` bytes less are held, the larger kind first.
    pub(crate) fn shed(&mut self, now: Instant, bytes: u64) {
        let held = self.memory();
        let target = held.total().saturating_sub(bytes);
        let waiting_first = held.queue_bytes >= held.encoder_bytes;
        for is_waiting in [waiting_first, !waiting_first] {
            let excess = self.memory().total().saturating_sub(target);
            match is_waiting {
                true => self.shed_waiting(now, excess),
                false => {
                    self.encoder.shed(excess as usize);
                    self.forget_flows();
                }
            }
        }
    }

    pub(super) fn forget_flows(&mut self) {
        self.sent_flows.retain_from(|id| self.encoder.symbol(id).is_some());
    }

    /// Frees `bytes` bytes of waiting data: packets, then copies, then repairs.
    pub(super) fn shed_waiting(&mut self, now: Instant, bytes: u64) {
        let mut freed = 0;
        while freed < bytes {
            freed += if let Some(oldest) = self.pop() {
                if oldest.ends_packet {
                    self.stats.drops.count(DropReason::MemoryShare);
                }
                (oldest.datagram.len() + QUEUED_OVERHEAD) as u64
            } else if let Some((path, copy)) = self.copies.pop_oldest() {
                self.stats.drops.count(DropReason::CopyUnsent);
                self.recovery.of(copy.id).on_lost(now, copy.id, path);
                (copy.datagram.len() + QUEUED_OVERHEAD) as u64
            } else if let Some(bytes) = self.drop_repair(now) {
                bytes
            } else {
                return;
            };
        }
    }
}

/// What a queued packet costs beside its bytes, at most.
const QUEUED_OVERHEAD: usize = 192;
