//! The receiving half of a stream: reassembly.
//!
//! ```text
//!        read         contiguous                      highest             credit
//! ────────┼───────────────┼──────────────────────────────┼───────────────────┼──
//!         │ to be read    │ missing  held  missing  held  │ not sent yet      │ refused
//! ────────┴───────────────┴──────────────────────────────┴───────────────────┴──
//!
//!        fin             all has come            all is read
//!  Recv ─────► SizeKnown ─────────────► DataRecvd ───────────► done     (RFC 9000 section 3.2)
//!   └── stopped: what comes is counted and dropped, until the final size is known
//! ```
//!
//! A byte that comes twice is ignored the second time, even if it differs (RFC 9000 section 2.2).

use std::ops::Range;

use roadweave_proto::wire::{ACKNOWLEDGED_RANGES_MAX, EARLY_CREDIT, STREAM_CREDIT, VARINT_MAX};

use crate::error::Violation;
use crate::ranges::Ranges;
use crate::ring::Ring;

/// Ranges of each stream in any case: beside a fast link a slow one's packets each leave a gap.
pub(crate) const RANGES_MIN: usize = 64;

/// Bytes in flight while nothing was read: credit stays given, so unread streams must leave room.
const FIRST_WINDOW: u64 = EARLY_CREDIT;
const WINDOW_OF_READ: u64 = 64;

#[derive(Debug, Default)]
pub(crate) struct ReceiveBuffer {
    ring: Ring,
    /// All below is read or dropped.
    pub(crate) read: u64,
    received: Ranges,
    pub(crate) highest: u64,
    pub(crate) final_size: Option<u64>,
    /// The highest offset announced to the peer, or received within `untold`.
    credit: u64,
    /// What the peer may send without announced credit.
    untold: u64,
    pub(crate) is_stopped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    New,
    Duplicate,
    Dropped,
}

impl ReceiveBuffer {
    /// `is_ours`: the open frame has announced a credit.
    pub(crate) fn new(is_ours: bool) -> Self {
        Self {
            credit: STREAM_CREDIT,
            untold: if is_ours { STREAM_CREDIT } else { EARLY_CREDIT },
            ..Self::default()
        }
    }

    /// By how much data up to `end` raises the highest offset; changes nothing.
    ///
    /// # Errors
    /// When the peer may not send it.
    pub(crate) fn growth(&self, end: u64, fin: bool) -> Result<u64, Violation> {
        if end > self.credit.max(self.untold) {
            return Err(Violation::StreamCredit);
        }
        // RFC 9000 section 4.5: "Once a final size for a stream is known, it cannot change."
        let is_wrong = |size| end > size || fin && end != size;
        if self.final_size.is_some_and(is_wrong) || fin && end < self.highest {
            return Err(Violation::FinalSize);
        }
        Ok(end.saturating_sub(self.highest))
    }

    /// Takes what [`ReceiveBuffer::growth`] allows; without `may_split` at most [`RANGES_MIN`].
    pub(crate) fn receive(
        &mut self,
        offset: u64,
        data: &[u8],
        fin: bool,
        may_split: bool,
    ) -> Received {
        let end = offset + data.len() as u64;
        let contiguous = self.contiguous();
        let mut is_new = fin && self.final_size.is_none() || self.is_stopped && end > self.highest;
        if !self.is_stopped && end > self.read {
            let start = offset.max(self.read);
            let missing = self.received.missing(start..end);
            let stands_alone = start > contiguous && !self.received.touches(start..end);
            let splits = stands_alone && !missing.is_empty();
            if splits && !may_split && self.received.len() >= RANGES_MIN {
                return Received::Dropped;
            }
            is_new |= !missing.is_empty();
            for missing in missing {
                let bytes = (missing.start - offset) as usize..(missing.end - offset) as usize;
                self.ring.write_at((missing.start - self.read) as usize, &data[bytes]);
                self.received.insert(missing);
            }
        }
        self.highest = self.highest.max(end);
        self.credit = self.credit.max(end);
        if fin {
            self.final_size = Some(end);
        }
        if self.is_stopped {
            self.read = self.highest;
        }
        if is_new { Received::New } else { Received::Duplicate }
    }

    /// The peer reset the stream at `final_size`. Returns the bytes sent and not received.
    ///
    /// # Errors
    /// When the stream cannot end there.
    pub(crate) fn end_at(&mut self, final_size: u64) -> Result<u64, Violation> {
        let growth = self.growth(final_size, true)?;
        self.final_size = Some(final_size);
        self.highest = final_size;
        Ok(growth)
    }

    pub(crate) fn stop(&mut self) -> u64 {
        self.is_stopped = true;
        self.ring.advance(self.ring.len());
        self.received = Ranges::default();
        let dropped = self.highest - self.read;
        self.read = self.highest;
        dropped
    }

    pub(crate) fn peek(&self) -> [&[u8]; 2] {
        self.ring.front(self.readable() as usize)
    }

    pub(crate) fn consume(&mut self, length: usize) {
        self.ring.advance(length);
        let read = self.read + length as u64;
        self.received.remove(self.read..read);
        self.read = read;
    }

    pub(crate) fn readable(&self) -> u64 {
        self.contiguous() - self.read
    }

    pub(crate) fn is_done(&self) -> bool {
        self.final_size == Some(self.read)
    }

    pub(crate) fn held(&self) -> u64 {
        self.highest - self.read
    }

    pub(crate) fn claim(&self) -> u64 {
        self.final_size.unwrap_or(self.credit) - self.read
    }

    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    pub(crate) fn records(&self) -> usize {
        self.received.len()
    }

    /// All below was received, or is not wanted.
    pub(crate) fn contiguous(&self) -> u64 {
        self.received.first().filter(|first| first.start == self.read).map_or(self.read, |r| r.end)
    }

    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let contiguous = self.contiguous();
        let above = self.received.iter().filter(|range| range.start > contiguous);
        above.take(ACKNOWLEDGED_RANGES_MAX).collect()
    }

    /// Raises the credit to `room` beyond what was read, or to what the reader's progress warrants.
    pub(crate) fn extend_credit(&mut self, room: u64) -> u64 {
        if self.final_size.is_none() {
            let window = room.min(self.window());
            self.credit = self.credit.max((self.read + window).min(VARINT_MAX));
        }
        self.credit
    }

    fn window(&self) -> u64 {
        self.read.saturating_mul(WINDOW_OF_READ).max(FIRST_WINDOW)
    }

    pub(crate) fn wants_to_advertise(&self, room: u64) -> bool {
        let window = room.min(self.window());
        self.final_size.is_none() && self.read + window >= self.credit + window / 4
    }
}

#[cfg(test)]
mod tests;
