//! The sending half of a stream: bytes unsent, in flight, lost and acknowledged.
//!
//! ```text
//!   base            ┌── lost: to be sent again ◄─┐ timer, new session         next      end
//! ───┼──────────────┴──────────┬─────────────────┴──────────────────────────────┼─────────┼──
//!    │  in flight    lost      │ acknowledged     in flight                     │ unsent  │
//! ───┴─────────────────────────┴────────────────────────────────────────────────┴─────────┴──
//! all acknowledged: forgotten     ranges of an acknowledgement: kept until base passes them
//!
//!            finish                 all sent, and fin             all acknowledged, and fin
//!  Ready/Send ─────► fin is due ──────────────────────► fin sent ───────────────────────► done
//!       │                                ▲     ◄────────┘ lost
//!       └── stopped by the peer: what is unsent is dropped
//! ```
//!
//! The states are those of RFC 9000 section 3.1; reset is the stream's, in both directions.

use std::ops::Range;
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::STREAM_CREDIT;

use crate::config::Obligation;
use crate::error::Violation;
use crate::ranges::Ranges;
use crate::ring::Ring;

#[derive(Debug, Default)]
pub(crate) struct SendBuffer {
    ring: Ring,
    /// All below is acknowledged.
    base: u64,
    /// All below was sent once; the final size if the stream is reset now.
    pub(crate) next: u64,
    in_flight: Ranges<Instant>,
    lost: Ranges,
    fin: Obligation,
    credit: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) fin: bool,
}

impl SendBuffer {
    pub(crate) fn new() -> Self {
        Self { credit: STREAM_CREDIT, ..Self::default() }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        debug_assert!(self.is_open());
        self.ring.push(bytes);
    }

    pub(crate) fn finish(&mut self) {
        if self.is_open() {
            self.fin = Obligation::Due;
        }
    }

    pub(crate) fn stop(&mut self) {
        self.finish();
        self.discard();
    }

    pub(crate) fn discard(&mut self) {
        self.ring.advance(self.ring.len());
        self.base = self.next;
        self.in_flight = Ranges::default();
        self.lost = Ranges::default();
    }

    pub(crate) fn is_open(&self) -> bool {
        self.fin == Obligation::None
    }

    pub(crate) fn is_done(&self) -> bool {
        self.fin == Obligation::Met && self.base == self.end()
    }

    pub(crate) fn buffered(&self) -> u64 {
        self.ring.len() as u64
    }

    pub(crate) fn records(&self) -> usize {
        self.in_flight.len() + self.lost.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Whether bytes or the fin alone are to be sent; neither takes credit.
    pub(crate) fn has_again(&self) -> bool {
        let fin_alone = self.fin.is_due() && self.next == self.end();
        self.lost.len() > 0 || fin_alone
    }

    pub(crate) fn has_fresh(&self) -> bool {
        self.next < self.end().min(self.credit)
    }

    pub(crate) fn unsent(&self) -> u64 {
        self.end().min(self.credit).saturating_sub(self.next)
    }

    /// Whether only credit is missing, and nothing in flight will be answered.
    pub(crate) fn is_blocked(&self) -> bool {
        self.next < self.end() && self.next >= self.credit && self.is_quiet()
    }

    pub(crate) fn is_quiet(&self) -> bool {
        let is_fin_under_way = matches!(self.fin, Obligation::Sent(_) | Obligation::Again);
        self.records() == 0 && !is_fin_under_way
    }

    pub(crate) fn again(&self, room: u64) -> Option<Segment> {
        match self.lost.first() {
            Some(lost) => self.segment(lost, room),
            None => self.has_again().then(|| self.whole(self.next..self.next)),
        }
    }

    pub(crate) fn again_from(&self) -> u64 {
        self.lost.first().map_or(self.next, |lost| lost.start)
    }

    /// Up to `room` bytes from offset 0, `credit` for new ones. Empty if they are in flight.
    pub(crate) fn first(&self, room: u64, credit: u64) -> Segment {
        let nothing = Segment { offset: 0, length: 0, fin: false };
        match self.lost.first() {
            Some(lost) if lost.start == 0 => self.segment(lost, room).unwrap_or(nothing),
            _ if self.next > 0 => nothing,
            _ => self.fresh(room.min(credit)).unwrap_or_else(|| self.whole(0..0)),
        }
    }

    pub(crate) fn fresh(&self, room: u64) -> Option<Segment> {
        self.segment(self.next..self.end().min(self.credit), room)
    }

    pub(crate) fn copy_to(&self, segment: &Segment, out: &mut Vec<u8>) {
        // A repeated open without data begins below what is held.
        let at = segment.offset.saturating_sub(self.base) as usize;
        self.ring.copy_to(at, segment.length as usize, out);
    }

    /// Notes a sent segment; returns how many of its bytes are new.
    pub(crate) fn on_sent(&mut self, now: Instant, segment: &Segment) -> u64 {
        let (start, end) = (segment.offset, segment.offset + segment.length);
        let fresh = end.saturating_sub(self.next);
        self.next = self.next.max(end);
        self.lost.remove(start..end);
        if start < end {
            self.in_flight.0.insert(start, (end, now));
        }
        if segment.fin && self.fin != Obligation::Met {
            self.fin = Obligation::Sent(now);
        }
        fresh
    }

    /// The peer has all below `contiguous`, and `ranges`; with `fin` it knows the final size.
    /// Returns whether that is progress.
    ///
    /// Without `may_split` ranges that could add records are ignored.
    ///
    /// # Errors
    /// When any of it was never sent; nothing has changed then.
    pub(crate) fn on_acknowledged(
        &mut self,
        contiguous: u64,
        ranges: &[Range<u64>],
        fin: bool,
        may_split: bool,
    ) -> Result<bool, Violation> {
        let highest = ranges.last().map_or(contiguous, |range| range.end);
        let fin_was_sent = !matches!(self.fin, Obligation::None | Obligation::Due);
        if highest > self.next || fin && !fin_was_sent {
            return Err(Violation::NeverSent);
        }
        let mut is_progress = fin && self.fin != Obligation::Met;
        if fin {
            self.fin = Obligation::Met;
        }
        if contiguous > self.base {
            is_progress = true;
            self.settle(self.base..contiguous);
            self.ring.advance((contiguous - self.base) as usize);
            self.base = contiguous;
        }
        if may_split {
            for range in ranges {
                is_progress |= self.settle(range.clone());
            }
        }
        Ok(is_progress)
    }

    pub(crate) fn raise_credit(&mut self, credit: u64) -> bool {
        let is_more = credit > self.credit;
        self.credit = self.credit.max(credit);
        is_more
    }

    pub(crate) fn mark_lost(&mut self, now: Instant, timeout: Duration) -> bool {
        let mut any = false;
        let lost = &mut self.lost;
        self.in_flight.0.retain(|start, (end, sent)| {
            let is_lost = *sent + timeout <= now;
            if is_lost {
                lost.insert(*start..*end);
                any = true;
            }
            !is_lost
        });
        self.fin.mark_lost(now, timeout) || any
    }

    pub(crate) fn earliest_sent(&self) -> Option<Instant> {
        self.in_flight.0.values().map(|(_, sent)| *sent).chain(self.fin.sent()).min()
    }

    fn settle(&mut self, range: Range<u64>) -> bool {
        self.lost.remove(range.clone()) | self.in_flight.remove(range)
    }

    fn end(&self) -> u64 {
        self.base + self.ring.len() as u64
    }

    fn segment(&self, of: Range<u64>, room: u64) -> Option<Segment> {
        let end = of.end.min(of.start.saturating_add(room));
        (end > of.start).then(|| self.whole(of.start..end))
    }

    fn whole(&self, of: Range<u64>) -> Segment {
        let fin = !self.is_open() && of.end == self.end();
        Segment { offset: of.start, length: of.end - of.start, fin }
    }
}

#[cfg(test)]
mod tests;
