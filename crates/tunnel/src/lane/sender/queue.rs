//! The packets of a lane that wait for a free window: expiry, cutting, and shedding for memory.

use roadweave_proto::wire::{
    FragmentPosition, SOURCE_HEADER, SYMBOL_HEADER, SourceDatagram, Symbol,
};
use roadweave_proto::{DropReason, Instant, Urgency};

use super::LaneSender;
use crate::lane::memory::MemoryStats;
use crate::lane::shed::{FrameKey, Shedder};

#[derive(Debug)]
pub(super) struct Queued {
    pub(super) since: Instant,
    pub(super) datagram: SourceDatagram,
    pub(super) flow: u64,
    pub(super) frame: Option<FrameKey>,
    pub(super) ends_frame: bool,
    pub(super) urgency: Urgency,
    pub(super) ends_packet: bool,
}

impl LaneSender {
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(reason) = self.given_up(now) {
            if self.pop().is_some_and(|queued| queued.ends_packet) {
                self.stats.drops.count(reason);
            }
        }
        while let Some((since, id)) = self.resends.again.front().copied()
            && (now.since(since) >= self.keeping.age_max || self.has_expired(now, id))
        {
            self.give_up_again();
        }
    }

    pub(super) fn give_up_again(&mut self) {
        let Some((_, id)) = self.resends.again.pop_front() else { return };
        self.recovery.of(id).on_abandoned(id);
        self.coding.encoder.forget(id);
    }

    pub(super) fn given_up(&mut self, now: Instant) -> Option<DropReason> {
        let Some(front) = self.queue.front() else {
            self.stale.shedder.iter_mut().for_each(Shedder::on_empty);
            return None;
        };
        let has_expired = now.since(front.since) >= self.keeping.age_max;
        let expired = has_expired.then_some(DropReason::QueueExpired);
        let Some(shedder) = &mut self.stale.shedder else { return expired };
        shedder.on_front(now, front.since);
        let Some(frame) = front.frame else { return expired };
        if has_expired {
            shedder.on_expired(frame, front.since);
            return expired;
        }
        if shedder.is_late(now, frame, front.since, self.keeping.age_max) {
            return Some(DropReason::FrameShed);
        }
        let followers = self.queue.iter().skip(1).take(FRAME_LOOK);
        let is_alone = || !followers.clone().any(|next| next.frame == Some(frame));
        let stays = shedder.stays(now, frame, front.since, is_alone);
        (!stays).then_some(DropReason::FrameShed)
    }

    pub(super) fn pop(&mut self) -> Option<Queued> {
        let queued = self.queue.pop_front()?;
        self.stats.queue_bytes -= queued.datagram.len() as u64;
        Some(queued)
    }

    pub(super) fn split_front(&mut self, limit: usize) -> bool {
        let room = limit.saturating_sub(SOURCE_HEADER + SYMBOL_HEADER);
        let Some(whole) = self.pop() else { return false };
        if room == 0 {
            self.stats.drops.count(DropReason::OversizedInner);
            return true;
        }
        // It may be a fragment already, cut for a wider path.
        let (opens, closes) = match whole.datagram.position() {
            FragmentPosition::Whole => (true, true),
            FragmentPosition::First => (true, false),
            FragmentPosition::Middle => (false, false),
            FragmentPosition::Last => (false, true),
        };
        let pieces: Vec<&[u8]> = whole.datagram.body().chunks(room).collect();
        for (at, piece) in pieces.iter().enumerate().rev() {
            let last = at + 1 == pieces.len();
            let position = match (opens && at == 0, closes && last) {
                (true, true) => FragmentPosition::Whole,
                (true, false) => FragmentPosition::First,
                (false, true) => FragmentPosition::Last,
                (false, false) => FragmentPosition::Middle,
            };
            let datagram = SourceDatagram::new(self.lane, &Symbol { position, body: piece });
            self.stats.queue_bytes += datagram.len() as u64;
            self.queue.push_front(Queued {
                since: whole.since,
                datagram,
                flow: whole.flow,
                frame: whole.frame,
                ends_frame: whole.ends_frame && last,
                urgency: whole.urgency,
                ends_packet: whole.ends_packet && last,
            });
        }
        true
    }

    pub(crate) fn memory(&self) -> MemoryStats {
        let repairs = self.resends.repairs.keys().map(|path| self.repair_bytes(*path)).sum::<u64>();
        let waiting = self.queue.len() + self.resends.copies.len();
        MemoryStats {
            queue_bytes: self.stats.queue_bytes
                + self.resends.copies.total_bytes()
                + repairs
                + (waiting * QUEUED_OVERHEAD) as u64,
            encoder_bytes: self.coding.encoder.bytes() as u64,
            flow_bytes: self.sent_flows.memory() as u64,
            ..MemoryStats::default()
        }
    }

    pub(crate) fn shed(&mut self, now: Instant, bytes: u64) {
        let held = self.memory();
        let target = held.total().saturating_sub(bytes);
        let waiting_first = held.queue_bytes >= held.encoder_bytes;
        for is_waiting in [waiting_first, !waiting_first] {
            let excess = self.memory().total().saturating_sub(target);
            match is_waiting {
                true => self.shed_waiting(now, excess),
                false => {
                    self.coding.encoder.shed(excess as usize);
                    self.forget_flows();
                }
            }
        }
    }

    pub(super) fn forget_flows(&mut self) {
        self.sent_flows.retain_from(|id| self.coding.encoder.symbol(id).is_some());
    }

    pub(super) fn shed_waiting(&mut self, now: Instant, bytes: u64) {
        let mut freed = 0;
        while freed < bytes {
            freed += if let Some(oldest) = self.pop() {
                if oldest.ends_packet {
                    self.stats.drops.count(DropReason::MemoryShare);
                }
                (oldest.datagram.len() + QUEUED_OVERHEAD) as u64
            } else if let Some((path, copy)) = self.resends.copies.pop_oldest() {
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

const QUEUED_OVERHEAD: usize = 192;

/// How many packets are searched for the next one of a frame, between other videos'.
const FRAME_LOOK: usize = 8;
