//! Encode ranges: their borders, and what is left to do for each.

use roadweave_proto::{Instant, PacketId};

use super::group::GROUP_MAX;
use super::{Deferred, Xnc};
use crate::flight::{Flight, PacketState};
use crate::{Repair, SentCopy};

#[derive(Clone, Copy, Debug)]
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
    pub(super) fn is_settled(&self) -> bool {
        !self.open && self.in_flight == 0 && self.lost == 0
    }

    pub(super) fn position(&self, id: PacketId) -> Option<u32> {
        let offset = u32::try_from(id.distance(self.start)).ok()?;
        (offset < self.count).then_some(offset)
    }
}

impl Xnc {
    pub(super) fn range_mut(&mut self, sequence: u64) -> Option<&mut Range> {
        let index = usize::try_from(sequence.checked_sub(self.first_range)?).ok()?;
        self.ranges.get_mut(index)
    }

    pub(super) fn on_range_repaired(&mut self, sequence: u64, lost: u32) {
        let Some(range) = self.range_mut(sequence) else { return };
        range.lost = range.lost.saturating_sub(lost);
        if range.lost == 0 {
            self.pending.remove(&sequence);
        }
        self.note_settled(sequence);
    }

    pub(super) fn note_settled(&mut self, sequence: u64) {
        let Some(range) = self.range_mut(sequence) else { return };
        if range.is_settled() && range.kept {
            range.kept = false;
            let done = (range.start, range.count);
            self.note_done(done);
        }
    }

    pub(super) fn note_done(&mut self, done: (PacketId, u32)) {
        if self.done.len() >= RANGES_MAX {
            self.done.pop_front();
        }
        self.done.push_back(done);
    }

    pub(super) fn note_arrived(&mut self, id: PacketId) {
        if let Some(sequence) = self.range_of(id)
            && let Some(range) = self.range_mut(sequence)
            && let Some(position) = range.position(id)
        {
            range.arrived |= 1 << position;
        }
    }

    pub(super) fn range_of(&self, id: PacketId) -> Option<u64> {
        let after = self.ranges.partition_point(|range| id.distance(range.start) >= 0);
        let index = after.checked_sub(1)?;
        self.ranges[index].position(id)?;
        Some(self.first_range + index as u64)
    }

    pub(super) fn current_range(&mut self, now: Instant, id: PacketId) -> (u64, &mut Range) {
        let (span, bridges) = (self.config.range_span, self.config.bridges);
        if let Some(last) = self.ranges.back_mut()
            && now.since(last.first_sent) >= span
        {
            last.open = false;
        }
        if self.ranges.back().is_none_or(|last| !last.open) {
            self.ranges.push_back(Range {
                start: id,
                count: 0,
                first_sent: now,
                last_sent: now,
                in_flight: 0,
                lost: 0,
                arrived: 0,
                kept: bridges,
                bytes_max: 0,
                open: true,
            });
        }
        let sequence = self.first_range + self.ranges.len() as u64 - 1;
        (sequence, self.ranges.back_mut().expect("one was pushed if there was none"))
    }

    pub(super) fn note_packet(&mut self, now: Instant, packet: &SentCopy) -> u64 {
        if !self.flight.is_new(packet.id) {
            return self.first_range; // its range is known to the flight
        }
        let range_packets = self.config.range_packets.min(GROUP_MAX);
        let (sequence, range) = self.current_range(now, packet.id);
        range.count += 1;
        range.in_flight += 1;
        range.last_sent = now;
        range.bytes_max = range.bytes_max.max(packet.bytes);
        range.open = range.count < range_packets && !packet.ends_frame;
        sequence
    }

    pub(super) fn on_range_loss(&mut self, now: Instant, sequence: u64) {
        self.stats.lost += 1;
        let gather = self.config.gather;
        if let Some(range) = self.range_mut(sequence) {
            range.in_flight = range.in_flight.saturating_sub(1);
            range.lost += 1;
            self.pending.entry(sequence).or_insert(Deferred::Gathering(now + gather));
        }
    }

    pub(super) fn retire(&mut self, now: Instant) -> Option<Repair> {
        while let Some(range) = self.ranges.front().copied() {
            let settled = range.in_flight == 0 && range.lost == 0;
            let expired = now.since(range.last_sent) > self.config.lane.expire_after;
            let done = settled && !range.open;
            if !done && !expired && self.ranges.len() <= RANGES_MAX {
                return None;
            }
            self.ranges.pop_front();
            self.pending.remove(&self.first_range);
            self.first_range += 1;
            if settled {
                if range.kept {
                    self.note_done((range.start, range.count));
                }
                continue;
            }
            let lost = self.settle(range.start, range.count);
            self.stats.abandoned += u64::from(lost);
            return Some(Repair::Abandon { start: range.start, count: range.count });
        }
        None
    }

    /// Forgets `count` packets from `start`; returns how many of them were lost.
    pub(super) fn settle(&mut self, start: PacketId, count: u32) -> u32 {
        let before = |flight: &mut Flight<u64>, id| flight.set(id, PacketState::Settled);
        let lost = |(state, _)| matches!(state, PacketState::Lost { .. });
        (0..count)
            .filter(|offset| before(&mut self.flight, start.plus(*offset)).is_some_and(lost))
            .count() as u32
    }
}

const RANGES_MAX: usize = 1 << 14;
