//! Encode ranges: their borders, and what is left to do for each.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use roadweave_proto::{Instant, PacketId};

use super::group::GROUP_MAX;
use super::{Deferred, XncConfig};
use crate::SentCopy;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Range {
    pub(super) start: PacketId,
    pub(super) count: u32,
    pub(super) first_sent: Instant,
    pub(super) last_sent: Instant,
    pub(super) in_flight: u32,
    pub(super) lost: u32,
    /// Bit i: the i-th packet has arrived.
    pub(super) arrived: u64,
    pub(super) kept: bool,
    /// The longest datagram: the size of a coded packet.
    pub(super) bytes_max: u32,
    pub(super) open: bool,
}

impl Range {
    fn is_settled(&self) -> bool {
        !self.open && self.in_flight == 0 && self.lost == 0
    }

    fn position(&self, id: PacketId) -> Option<u32> {
        let offset = u32::try_from(id.distance(self.start)).ok()?;
        (offset < self.count).then_some(offset)
    }
}

/// The ranges of a lane, ascending, each named by its sequence number.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    pub(super) all: VecDeque<Range>,
    /// The sequence number of the oldest.
    pub(super) first: u64,
    /// Ranges with lost packets that are not repaired yet.
    pub(super) pending: BTreeMap<u64, Deferred>,
    /// Packets that need not be kept for combinations: the first, and the number.
    pub(super) done: VecDeque<(PacketId, u32)>,
}

impl Ranges {
    /// Adds a new packet to its range; returns the range.
    pub(super) fn on_new(&mut self, now: Instant, packet: &SentCopy, config: &XncConfig) -> u64 {
        if self.all.back().is_some_and(|last| now.since(last.first_sent) >= config.range_span) {
            self.on_frame_ended();
        }
        if self.all.back().is_none_or(|last| !last.open) {
            let (start, kept) = (packet.id, config.bridges);
            self.all.push_back(Range { start, first_sent: now, kept, ..Range::default() });
        }
        let range = self.all.back_mut().expect("one was pushed if there was none");
        range.count += 1;
        range.in_flight += 1;
        range.last_sent = now;
        range.bytes_max = range.bytes_max.max(packet.bytes);
        range.open = range.count < config.range_packets.min(GROUP_MAX) && !packet.ends_frame;
        self.first + self.all.len() as u64 - 1
    }

    pub(super) fn on_frame_ended(&mut self) {
        if let Some(last) = self.all.back_mut() {
            last.open = false;
        }
    }

    pub(super) fn on_arrived(&mut self, id: PacketId) {
        if let Some((index, position)) = self.place(id) {
            self.all[index].arrived |= 1 << position;
        }
    }

    pub(super) fn on_lost(&mut self, now: Instant, sequence: u64, gather: Duration) {
        if let Some(range) = self.get_mut(sequence) {
            range.in_flight = range.in_flight.saturating_sub(1);
            range.lost += 1;
            self.pending.entry(sequence).or_insert(Deferred::Gathering(now + gather));
        }
    }

    pub(super) fn on_settled(&mut self, sequence: u64) {
        if let Some(range) = self.get_mut(sequence) {
            range.in_flight = range.in_flight.saturating_sub(1);
        }
        self.note_settled(sequence);
    }

    pub(super) fn on_repaired(&mut self, sequence: u64, lost: u32) {
        let Some(range) = self.get_mut(sequence) else { return };
        range.lost = range.lost.saturating_sub(lost);
        if range.lost == 0 {
            self.pending.remove(&sequence);
        }
        self.note_settled(sequence);
    }

    /// Forgets what is settled or expired; returns the first that expired before it was settled.
    pub(super) fn retire(&mut self, now: Instant, expire_after: Duration) -> Option<Range> {
        while let Some(range) = self.all.front().copied() {
            let expired = now.since(range.last_sent) > expire_after;
            if !range.is_settled() && !expired && self.all.len() <= RANGES_MAX {
                return None;
            }
            self.all.pop_front();
            self.pending.remove(&self.first);
            self.first += 1;
            if range.in_flight > 0 || range.lost > 0 {
                return Some(range);
            }
            if range.kept {
                self.note_done((range.start, range.count));
            }
        }
        None
    }

    /// Whether a combination may cover the packet.
    pub(super) fn keeps(&self, id: PacketId) -> bool {
        self.place(id).is_some_and(|(index, _)| self.all[index].kept)
    }

    pub(super) fn get(&self, sequence: u64) -> Option<&Range> {
        self.all.get(usize::try_from(sequence.checked_sub(self.first)?).ok()?)
    }

    fn get_mut(&mut self, sequence: u64) -> Option<&mut Range> {
        self.all.get_mut(usize::try_from(sequence.checked_sub(self.first)?).ok()?)
    }

    /// The index of a packet's range, and the packet's position in it.
    fn place(&self, id: PacketId) -> Option<(usize, u32)> {
        let after = self.all.partition_point(|range| id.distance(range.start) >= 0);
        let index = after.checked_sub(1)?;
        Some((index, self.all[index].position(id)?))
    }

    fn note_settled(&mut self, sequence: u64) {
        let Some(range) = self.get_mut(sequence) else { return };
        if range.is_settled() && range.kept {
            range.kept = false;
            let done = (range.start, range.count);
            self.note_done(done);
        }
    }

    fn note_done(&mut self, done: (PacketId, u32)) {
        if self.done.len() >= RANGES_MAX {
            self.done.pop_front();
        }
        self.done.push_back(done);
    }
}

const RANGES_MAX: usize = 1 << 14;
