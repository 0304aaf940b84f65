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
//! Bytes that come twice are ignored the second time, even if they differ: RFC 9000 section 2.2
//! lets an endpoint do so, and what was read cannot be compared any more.

use std::ops::Range;

use roadweave_proto::wire::{ACKNOWLEDGED_RANGES_MAX, EARLY_CREDIT, STREAM_CREDIT, VARINT_MAX};

use crate::error::Violation;
use crate::ranges::Ranges;
use crate::ring::Ring;

/// Ranges that each stream may hold, however many the others have. Beside a fast link the packets
/// of a slow one lie scattered: of a download over both there is a gap for nearly each of them.
pub(crate) const RANGES_MIN: usize = 64;

/// What a stream may have under way that was not read at all: credit cannot be taken back, and
/// streams that nobody reads, however many begin at once, are to leave room for the others.
const FIRST_WINDOW: u64 = EARLY_CREDIT;
/// How many times what was read of it, else.
const WINDOW_OF_READ: u64 = 64;

/// The receiving half.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    /// What is held, from `read` on.
    ring: Ring,
    /// All below is read or dropped.
    read: u64,
    /// What is held.
    received: Ranges,
    highest: u64,
    final_size: Option<u64>,
    /// The highest offset that the peer was told it may send, or has sent untold.
    credit: u64,
    /// What the peer may send untold.
    untold: u64,
    is_stopped: bool,
}

/// What came of some data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Some of it.
    New,
    /// Nothing of it is new.
    Duplicate,
    /// It would have made one range too many.
    Dropped,
}

impl ReceiveBuffer {
    /// `is_ours`: the stream was opened here, and open has told a credit.
    pub(crate) fn new(is_ours: bool) -> Self {
        Self {
            ring: Ring::default(),
            read: 0,
            received: Ranges::default(),
            highest: 0,
            final_size: None,
            credit: STREAM_CREDIT,
            untold: if is_ours { STREAM_CREDIT } else { EARLY_CREDIT },
            is_stopped: false,
        }
    }

    /// How much further data up to `end` reaches than all before; it changes nothing.
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

    /// Takes data that [`ReceiveBuffer::growth`] has let through. `may_split`: whether it may make
    /// one range more than [`RANGES_MIN`]; without, it is dropped then, and comes again.
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

    /// The peer has ended the stream at `final_size`. How many more bytes were sent than came.
    ///
    /// # Errors
    /// When the stream cannot end there.
    pub(crate) fn end_at(&mut self, final_size: u64) -> Result<u64, Violation> {
        let growth = self.growth(final_size, true)?;
        self.final_size = Some(final_size);
        self.highest = final_size;
        Ok(growth)
    }

    /// Drops what is held and what will come; how many bytes nobody will read.
    pub(crate) fn stop(&mut self) -> u64 {
        self.is_stopped = true;
        self.ring.advance(self.ring.len());
        self.received.clear();
        let dropped = self.highest - self.read;
        self.read = self.highest;
        dropped
    }

    /// Moves what comes next to `out`; how many bytes that is.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        let length = (self.readable() as usize).min(out.len());
        self.ring.read(&mut out[..length]);
        self.on_read(length as u64);
        length
    }

    /// What comes next, in the two pieces in which it lies.
    pub(crate) fn peek(&self) -> [&[u8]; 2] {
        self.ring.front(self.readable() as usize)
    }

    /// The first `length` bytes of [`ReceiveBuffer::peek`] were taken.
    pub(crate) fn consume(&mut self, length: usize) {
        self.ring.advance(length);
        self.on_read(length as u64);
    }

    fn on_read(&mut self, length: u64) {
        self.received.remove(self.read..self.read + length);
        self.read += length;
    }

    /// Bytes that can be read at once.
    pub(crate) fn readable(&self) -> u64 {
        self.contiguous() - self.read
    }

    /// All below is read or dropped.
    pub(crate) fn read_up_to(&self) -> u64 {
        self.read
    }

    /// Whether all was read, or dropped, and nothing more can come.
    pub(crate) fn is_done(&self) -> bool {
        self.final_size == Some(self.read)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    pub(crate) fn final_size(&self) -> Option<u64> {
        self.final_size
    }

    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// What has come beyond what was read, with the gaps in between.
    pub(crate) fn held(&self) -> u64 {
        self.highest - self.read
    }

    /// How much may yet be held of it if nothing is read.
    pub(crate) fn claim(&self) -> u64 {
        self.final_size.unwrap_or(self.credit) - self.read
    }

    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    pub(crate) fn records(&self) -> usize {
        self.received.len()
    }

    /// All below has come, or is not wanted.
    pub(crate) fn contiguous(&self) -> u64 {
        self.received.first().filter(|first| first.start == self.read).map_or(self.read, |r| r.end)
    }

    /// The first ranges above: those whose gaps hold back the reader first.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let contiguous = self.contiguous();
        let above = self.received.iter().filter(|range| range.start > contiguous);
        above.take(ACKNOWLEDGED_RANGES_MAX).collect()
    }

    /// The peer is told that it may send `room` beyond what was read, or as much as the reader has
    /// shown to read; credit never shrinks.
    pub(crate) fn extend_credit(&mut self, room: u64) -> u64 {
        if self.final_size.is_none() {
            let window = room.min(self.window());
            self.credit = self.credit.max((self.read + window).min(VARINT_MAX));
        }
        self.credit
    }

    /// How far beyond what was read the peer may be told, whatever room there is.
    fn window(&self) -> u64 {
        self.read.saturating_mul(WINDOW_OF_READ).max(FIRST_WINDOW)
    }

    /// Whether so much more credit could be given that the peer should be told at once.
    pub(crate) fn wants_to_tell(&self, room: u64) -> bool {
        let window = room.min(self.window());
        self.final_size.is_none() && self.read + window >= self.credit + window / 4
    }
}

#[cfg(test)]
mod tests;
