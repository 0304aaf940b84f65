//! The sending half of a stream: what is unsent, in flight, lost, and acknowledged.
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

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::STREAM_CREDIT;

use crate::ranges::Ranges;
use crate::ring::Ring;

/// The sending half.
#[derive(Debug)]
pub(crate) struct SendBuffer {
    ring: Ring,
    /// All below is acknowledged.
    base: u64,
    /// All below was sent once.
    next: u64,
    /// What was sent, by its offset.
    in_flight: BTreeMap<u64, InFlight>,
    /// What is to be sent again.
    lost: Ranges,
    fin: Fin,
    /// The highest offset that the peer takes.
    credit: u64,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    end: u64,
    sent: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    /// More may be written.
    Open,
    /// It is to be sent; `again`: it was before.
    Due {
        again: bool,
    },
    Sent(Instant),
    Acknowledged,
}

/// Bytes of the stream that go into one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) fin: bool,
}

/// The peer acknowledges what was not sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NeverSent;

impl Default for SendBuffer {
    fn default() -> Self {
        Self {
            ring: Ring::default(),
            base: 0,
            next: 0,
            in_flight: BTreeMap::new(),
            lost: Ranges::default(),
            fin: Fin::Open,
            credit: STREAM_CREDIT,
        }
    }
}

impl SendBuffer {
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        debug_assert!(self.is_open());
        self.ring.push(bytes);
    }

    /// Nothing more will be written.
    pub(crate) fn finish(&mut self) {
        if self.is_open() {
            self.fin = Fin::Due { again: false };
        }
    }

    /// The peer wants no more: what was sent is all there is.
    pub(crate) fn stop(&mut self) {
        self.finish();
        self.discard();
    }

    /// Forgets all bytes.
    pub(crate) fn discard(&mut self) {
        self.ring.advance(self.ring.len());
        self.base = self.next;
        self.in_flight.clear();
        self.lost.clear();
    }

    /// Whether more may be written.
    pub(crate) fn is_open(&self) -> bool {
        self.fin == Fin::Open
    }

    /// Whether the peer has everything, and knows that it is.
    pub(crate) fn is_done(&self) -> bool {
        self.fin == Fin::Acknowledged && self.base == self.end()
    }

    /// The bytes that were sent: the final size if the stream is reset now.
    pub(crate) fn sent(&self) -> u64 {
        self.next
    }

    /// The bytes that were written and are not acknowledged in one run.
    pub(crate) fn buffered(&self) -> u64 {
        self.ring.len() as u64
    }

    /// The bytes that were sent and are not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u64 {
        let in_flight = self.in_flight.iter().map(|(start, flight)| flight.end - start);
        in_flight.sum::<u64>() + self.lost.total()
    }

    /// Records of what is in flight and lost.
    pub(crate) fn records(&self) -> usize {
        self.in_flight.len() + self.lost.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Whether there is something to send again, or the fin alone; neither takes credit.
    pub(crate) fn has_again(&self) -> bool {
        let fin_alone = matches!(self.fin, Fin::Due { .. }) && self.next == self.end();
        !self.lost.is_empty() || fin_alone
    }

    /// Whether there is something that was never sent, and credit for it.
    pub(crate) fn has_fresh(&self) -> bool {
        self.next < self.end().min(self.credit)
    }

    /// The bytes that were never sent, and that there is credit for.
    pub(crate) fn unsent(&self) -> u64 {
        self.end().min(self.credit).saturating_sub(self.next)
    }

    /// Whether the credit alone holds it back, and nothing is under way that the peer would answer.
    pub(crate) fn is_blocked(&self) -> bool {
        self.next < self.end() && self.next >= self.credit && self.is_quiet()
    }

    /// Whether nothing that was sent is still to be acknowledged.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_fin_under_way = matches!(self.fin, Fin::Sent(_) | Fin::Due { again: true });
        self.in_flight.is_empty() && self.lost.is_empty() && !is_fin_under_way
    }

    /// What is to be sent again, up to `room` bytes of it: what was lost, then the fin alone.
    pub(crate) fn again(&self, room: u64) -> Option<Segment> {
        match self.lost.first() {
            Some(lost) => self.segment(lost, room),
            None => self.has_again().then(|| self.whole(self.next..self.next)),
        }
    }

    /// Where [`SendBuffer::again`] begins.
    pub(crate) fn again_from(&self) -> u64 {
        self.lost.first().map_or(self.next, |lost| lost.start)
    }

    /// What goes into the first frame of the stream: up to `room` bytes from offset 0 on, of what
    /// is new up to `credit`. None if these were sent and are not known to be lost.
    pub(crate) fn first(&self, room: u64, credit: u64) -> Segment {
        let nothing = Segment { offset: 0, length: 0, fin: false };
        match self.lost.first() {
            Some(lost) if lost.start == 0 => self.segment(lost, room).unwrap_or(nothing),
            _ if self.next > 0 => nothing,
            _ => self.fresh(room.min(credit)).unwrap_or_else(|| self.whole(0..0)),
        }
    }

    /// What was never sent, up to `room` bytes of it.
    pub(crate) fn fresh(&self, room: u64) -> Option<Segment> {
        self.segment(self.next..self.end().min(self.credit), room)
    }

    /// The place of what comes next, for a frame that only asks for an answer.
    pub(crate) fn probe(&self) -> Segment {
        Segment { offset: self.next, length: 0, fin: false }
    }

    pub(crate) fn copy_to(&self, segment: &Segment, out: &mut Vec<u8>) {
        // An open that is sent again without data begins below what is held.
        let at = segment.offset.saturating_sub(self.base) as usize;
        self.ring.copy_to(at, segment.length as usize, out);
    }

    /// A segment of [`SendBuffer::again`] or [`SendBuffer::fresh`] left: how many of its bytes left
    /// for the first time.
    pub(crate) fn on_sent(&mut self, now: Instant, segment: &Segment) -> u64 {
        let (start, end) = (segment.offset, segment.offset + segment.length);
        let fresh = end.saturating_sub(self.next);
        self.next = self.next.max(end);
        self.lost.remove(start..end);
        if start < end {
            self.in_flight.insert(start, InFlight { end, sent: now });
        }
        if segment.fin && self.fin != Fin::Acknowledged {
            self.fin = Fin::Sent(now);
        }
        fresh
    }

    /// The peer has all below `contiguous`, `ranges` above, and knows the final size if `fin`.
    /// Whether that is news.
    ///
    /// `may_split`: whether records may become more. Without, ranges that would split one are left
    /// aside: what the peer has then may be sent again.
    ///
    /// # Errors
    /// When any of it was never sent; nothing has changed then.
    pub(crate) fn on_acknowledged(
        &mut self,
        contiguous: u64,
        ranges: &[Range<u64>],
        fin: bool,
        may_split: bool,
    ) -> Result<bool, NeverSent> {
        let highest = ranges.last().map_or(contiguous, |range| range.end);
        let fin_was_sent = !matches!(self.fin, Fin::Open | Fin::Due { again: false });
        if highest > self.next || fin && !fin_was_sent {
            return Err(NeverSent);
        }
        let mut is_news = fin && self.fin != Fin::Acknowledged;
        if fin {
            self.fin = Fin::Acknowledged;
        }
        if contiguous > self.base {
            is_news = true;
            self.settle(self.base..contiguous);
            self.ring.advance((contiguous - self.base) as usize);
            self.base = contiguous;
        }
        if may_split {
            for range in ranges {
                is_news |= self.settle(range.clone());
            }
        }
        Ok(is_news)
    }

    /// Whether the peer now takes more than before.
    pub(crate) fn raise_credit(&mut self, credit: u64) -> bool {
        let is_more = credit > self.credit;
        self.credit = self.credit.max(credit);
        is_more
    }

    /// Takes for lost what left `patience` ago or earlier; whether that was anything.
    pub(crate) fn mark_lost(&mut self, now: Instant, patience: Duration) -> bool {
        let mut any = false;
        let lost = &mut self.lost;
        self.in_flight.retain(|start, flight| {
            let is_lost = flight.sent + patience <= now;
            if is_lost {
                lost.insert(*start..flight.end);
                any = true;
            }
            !is_lost
        });
        if let Fin::Sent(sent) = self.fin
            && sent + patience <= now
        {
            (self.fin, any) = (Fin::Due { again: true }, true);
        }
        any
    }

    /// When the first of what is in flight left.
    pub(crate) fn earliest_sent(&self) -> Option<Instant> {
        let fin = if let Fin::Sent(sent) = self.fin { Some(sent) } else { None };
        self.in_flight.values().map(|flight| flight.sent).chain(fin).min()
    }

    /// Offsets that have arrived: they are neither in flight nor to be sent again.
    fn settle(&mut self, range: Range<u64>) -> bool {
        let mut any = self.lost.remove(range.clone());
        if let Some((&start, flight)) = self.in_flight.range_mut(..range.start).next_back()
            && flight.end > range.start
        {
            let rest = *flight;
            flight.end = range.start;
            any = true;
            debug_assert!(start < range.start);
            if rest.end > range.end {
                self.in_flight.insert(range.end, rest);
            }
        }
        while let Some((&start, &flight)) = self.in_flight.range(range.clone()).next() {
            self.in_flight.remove(&start);
            any = true;
            if flight.end > range.end {
                self.in_flight.insert(range.end, flight);
            }
        }
        any
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
