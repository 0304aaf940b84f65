//! The packets of a lane that wait for a free window: expiry, cutting, and shedding of old video.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_proto::wire::{
    FragmentPosition, SOURCE_HEADER, SYMBOL_HEADER, SourceDatagram, Symbol,
};
use roadweave_proto::{DropCounters, DropReason, Instant, LaneId, Urgency};

use crate::lane::shed::{FrameKey, Shedder};
use crate::lane::superseded::{RecentlySuperseded, Superseded};
use crate::lane::unfinished::{Unfinished, inner_of};

/// Stream data that waits for room in the queue, and the urgency of its most urgent part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBack {
    pub(crate) bytes: u64,
    pub(crate) urgency: Urgency,
}

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

impl Queued {
    /// A whole packet of no flow and no frame.
    pub(super) fn new(since: Instant, datagram: SourceDatagram, urgency: Urgency) -> Self {
        let (flow, frame, ends_frame, ends_packet) = (0, None, false, true);
        Self { since, datagram, flow, frame, ends_frame, urgency, ends_packet }
    }
}

#[derive(Debug)]
pub(super) struct SendQueue {
    lane: LaneId,
    pub(super) packets: VecDeque<Queued>,
    pub(super) bytes: u64,
    /// Set in a lane that carries streams.
    pub(super) held_back: Option<HeldBack>,
    pub(super) shedder: Option<Shedder>,
    pub(super) superseded: RecentlySuperseded,
}

impl SendQueue {
    pub(super) fn new(lane: LaneId, shedder: Option<Shedder>) -> Self {
        let (packets, superseded) = (VecDeque::new(), RecentlySuperseded::default());
        Self { lane, packets, bytes: 0, held_back: None, shedder, superseded }
    }

    pub(super) fn push(&mut self, queued: Queued, bytes_max: usize) -> Result<(), DropReason> {
        let bytes = queued.datagram.len();
        if self.bytes as usize + bytes > bytes_max {
            return Err(DropReason::QueueFull);
        }
        self.bytes += bytes as u64;
        self.packets.push_back(queued);
        Ok(())
    }

    pub(super) fn pop(&mut self) -> Option<Queued> {
        let queued = self.packets.pop_front()?;
        self.bytes -= queued.datagram.len() as u64;
        Some(queued)
    }

    pub(super) fn expire(&mut self, now: Instant, age_max: Duration, drops: &mut DropCounters) {
        while let Some(reason) = self.given_up(now, age_max) {
            if self.pop().is_some_and(|queued| queued.ends_packet) {
                drops.count(reason);
            }
        }
    }

    fn given_up(&mut self, now: Instant, age_max: Duration) -> Option<DropReason> {
        let Some(front) = self.packets.front() else {
            self.shedder.iter_mut().for_each(Shedder::on_empty);
            return None;
        };
        let has_expired = now.since(front.since) >= age_max;
        let expired = has_expired.then_some(DropReason::QueueExpired);
        let Some(shedder) = &mut self.shedder else { return expired };
        shedder.on_front(now, front.since);
        let Some(frame) = front.frame else { return expired };
        if has_expired {
            shedder.on_expired(frame, front.since);
            return expired;
        }
        if shedder.is_late(now, frame, front.since, age_max) {
            return Some(DropReason::FrameShed);
        }
        let followers = self.packets.iter().skip(1).take(FRAME_LOOK);
        let is_alone = || !followers.clone().any(|next| next.frame == Some(frame));
        let stays = shedder.stays(now, frame, front.since, is_alone);
        (!stays).then_some(DropReason::FrameShed)
    }

    pub(super) fn split_front(&mut self, limit: usize, drops: &mut DropCounters) -> bool {
        let room = limit.saturating_sub(SOURCE_HEADER + SYMBOL_HEADER);
        let Some(whole) = self.pop() else { return false };
        if room == 0 {
            drops.count(DropReason::OversizedInner);
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
            self.bytes += datagram.len() as u64;
            let (ends_frame, ends_packet) = (whole.ends_frame && last, whole.ends_packet && last);
            self.packets.push_front(Queued { datagram, ends_frame, ends_packet, ..whole });
        }
        true
    }

    /// Bytes of `flow` among the first [`FLOW_LOOK`] packets.
    pub(super) fn flow_bytes(&self, flow: u64) -> u64 {
        if self.carries_streams() {
            return self.backlog_bytes();
        }
        let of_flow = self.packets.iter().take(FLOW_LOOK).filter(|queued| queued.flow == flow);
        of_flow.map(|queued| queued.datagram.len() as u64).sum()
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.bytes + self.held_back.map_or(0, |held_back| held_back.bytes)
    }

    pub(super) fn carries_streams(&self) -> bool {
        self.held_back.is_some()
    }

    /// The urgency of what leaves next, in a lane that carries streams.
    pub(super) fn next_urgency(&self) -> Option<Urgency> {
        let held_back = self.held_back?.urgency;
        let queued = self.packets.iter().map(|queued| queued.urgency).min();
        Some(queued.map_or(held_back, |it| it.min(held_back)))
    }

    /// Gives up older packets of a video; returns how many. Fragments stay.
    pub(super) fn supersede(&mut self, now: Instant, superseded: Superseded) -> u64 {
        self.superseded.note(now, superseded);
        let (mut packets, mut bytes) = (0, 0);
        self.packets.retain(|queued| {
            let goes = is_whole_and_older(queued, superseded);
            if goes {
                (packets, bytes) = (packets + 1, bytes + queued.datagram.len() as u64);
            }
            !goes
        });
        self.bytes -= bytes;
        packets
    }

    /// Takes the inner packets that are whole and young enough, and counts the others.
    pub(super) fn take_unfinished(
        &mut self,
        now: Instant,
        age_max: Duration,
        drops: &mut DropCounters,
    ) -> Vec<Unfinished> {
        let (mut packets, mut parts) = (Vec::new(), None::<BytesMut>);
        while let Some(queued) = self.pop() {
            let position = queued.datagram.position();
            if matches!(position, FragmentPosition::Whole | FragmentPosition::First) {
                parts = Some(BytesMut::new());
            }
            parts.iter_mut().for_each(|whole| whole.extend_from_slice(queued.datagram.body()));
            if !queued.ends_packet {
                continue;
            }
            match parts.take().filter(|_| now.since(queued.since) < age_max) {
                Some(whole) => {
                    let packet = inner_of(whole.freeze());
                    packets.push(Unfinished { since: queued.since, packet });
                }
                // A packet whose first fragments have left cannot be put together here.
                None => drops.count(DropReason::QueueExpired),
            }
        }
        packets
    }
}

fn is_whole_and_older(queued: &Queued, superseded: Superseded) -> bool {
    let body = || Bytes::copy_from_slice(queued.datagram.body());
    let is_whole = queued.datagram.position() == FragmentPosition::Whole;
    is_whole && superseded.covers_packet(&inner_of(body()))
}

/// How many packets are searched for the next one of a frame, between other videos'.
const FRAME_LOOK: usize = 8;
const FLOW_LOOK: usize = 32;
