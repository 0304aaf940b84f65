//! The receiver's side: hands out every packet once, the moment it is determined.
//!
//! ```text
//! source packet --> Window: missing? ------------------------------------> out
//!                     |                                                     ^
//!                     v                                                     |
//!                   Pool of known symbols        Matrix: coefficients       |
//!                     |                            ^      |  which rows     |
//!                     v                            |      v  are solved     |
//! coded packet --> Equations: the Block that it belongs to --> one pass ----+
//!                                                     over the payloads
//! ```
//!
//! Delivered packets are recorded twice: in a bitmap, so that none is delivered again, and for a
//! while with their bytes, because a later equation may cover them. Equations that share missing
//! packets form a block, which eliminates on coefficients alone; payloads are kept unchanged and
//! read when packets are solved. Start reading with [`Decoder`], then `block.rs` and `matrix.rs`.
//!
//! # What a broken or hostile peer can do
//!
//! - A false *coded packet* corrupts the packets that are determined with it. As long as encode
//!   ranges do not partly overlap, as in CellFusion section 4.4.2, these are packets of its own
//!   range. Where ranges overlap, a packet of one helps to determine packets of the other and
//!   passes its error on. The error ends where no range overlaps, and at the width of a block.
//! - An equation never changes a delivered packet. A source packet is always believed: one that
//!   arrives after it was determined is a duplicate and is not delivered again, but equations are
//!   solved with it from then on. Packets determined by false equations stay delivered.
//! - An equation that contradicts a known packet is dropped. If equations contradict one another,
//!   those that made the impossible packet are dropped; the fourth time, the whole block is.
//! - If a coded packet would connect more than 128 packets, all equations over the oldest are
//!   dropped: newer packets can still be in time, and a false coded packet could have corrupted all
//!   connected with it. They count as [`DropReason::ReceiveMemory`], like those dropped for memory.
//! - Memory is bounded in bytes and age, work by the width of a block. Each drop is counted.

mod bits;
mod block;
mod config;
mod equations;
mod matrix;
mod outcome;
#[cfg(test)]
mod tests;
mod window;

use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::{DropReason, Instant, PacketId};

use self::bits::Bits;
use self::block::{NewEquation, Span};
pub use self::config::DecoderConfig;
use self::equations::{Added, Equations};
pub use self::outcome::{CodedOutcome, DecoderStats, SourceOutcome};
pub use self::window::WINDOW_IDS;
use self::window::{AHEAD_IDS_MAX, FullId, IdState, Window};
use crate::kernel::Kernel;
use crate::pool::Pool;
use crate::symbol::{SYMBOL_BYTES_MAX, SYMBOL_PREFIX_BYTES, is_symbol, unshare};
use crate::{COUNT_MAX, CodedRange, coefficients};

/// Solves for missing packets as source and coded packets arrive, in any order.
///
/// IDs wrap. The decoder follows the newest ID; a window of [`WINDOW_IDS`] behind it separates new
/// packets from duplicates. IDs further behind, or more than 65,536 ahead, are refused, so that one
/// broken packet cannot push the window away from the lane's traffic.
///
/// The window itself may be in the wrong place: the peer continued during an outage of all paths,
/// or a broken packet was believed. The decoder doubts the window if no packet was delivered for
/// longer than the expiry, or only one ever. Then two source packets near one another, but not near
/// the window, move it: the first is refused, later ones are delivered. If they are behind the
/// window, packets before them count as delivered: none is delivered twice. Where IDs never start
/// again, such a move waits ([`DecoderConfig::rewind_after`]): such packets are old.
#[derive(Debug)]
pub struct Decoder {
    config: DecoderConfig,
    window: Option<Window>,
    delivered_at: Instant,
    /// The last source packet refused for its ID in a doubtful window; `None` after a delivery.
    outlier: Option<PacketId>,
    known: Pool,
    equations: Equations,
    stats: DecoderStats,
}

impl Decoder {
    /// An empty decoder.
    #[must_use]
    pub fn new(config: DecoderConfig) -> Self {
        Self::with_kernel(config, Kernel::fastest())
    }

    /// A decoder that computes with `kernel`, for measurements; the results are the same.
    #[must_use]
    pub fn with_kernel(config: DecoderConfig, kernel: Kernel) -> Self {
        Self {
            config,
            window: None,
            delivered_at: Instant::ZERO,
            outlier: None,
            known: Pool::new(config.known_bytes_max),
            equations: Equations::new(kernel, config.expiry, config.equation_bytes_max),
            stats: DecoderStats::default(),
        }
    }

    /// Handles a source packet.
    ///
    /// `symbol`: prefix and bytes, unpadded; kept without a copy, so it should not be a slice of a
    /// much larger buffer. Appends the packets to deliver to `out`, each once: this one first, if
    /// it was missing, then those that it determines together with stored coded packets.
    pub fn on_source(
        &mut self,
        now: Instant,
        id: PacketId,
        symbol: Bytes,
        out: &mut Vec<(PacketId, Bytes)>,
    ) -> SourceOutcome {
        self.stats.sources += 1;
        let oldest = self.expire_before(now);
        let (outcome, reason) = match self.place_source(now, id, &symbol) {
            Ok(full_id) => {
                self.note_delivery(now, full_id, &symbol);
                self.stats.new_sources += 1;
                out.push((id, symbol.clone()));
                let determined = out.len();
                self.equations.learn(oldest, full_id, &symbol, &mut self.stats, out);
                self.deliver_from(now, determined, out);
                return SourceOutcome::New;
            }
            Err(refusal) => refusal,
        };
        self.stats.drops.count(reason);
        outcome
    }

    /// Handles a coded packet.
    ///
    /// `payload`: at least as long as every symbol of the range. Appends the packets that it
    /// determines to `out`, by ascending ID, each once.
    pub fn on_coded(
        &mut self,
        now: Instant,
        range: CodedRange,
        payload: Bytes,
        out: &mut Vec<(PacketId, Bytes)>,
    ) -> CodedOutcome {
        let count = usize::from(range.count);
        if count == 0 || count > usize::from(COUNT_MAX) {
            return self.refuse(CodedOutcome::Malformed);
        }
        let mut coefficients = [0; COUNT_MAX as usize];
        let coefficients = &mut coefficients[..count];
        coefficients::fill(range.seed, coefficients);
        let oldest = self.expire_before(now);
        let (first, missing) = match self.place_coded(range, &payload) {
            Ok(placed) => placed,
            Err(outcome) => return self.refuse(outcome),
        };
        self.stats.coded += 1;
        let span = Span { first, last: first + count as u64 - 1 };
        let new = NewEquation { at: now, span, coefficients, missing, payload };
        let determined = out.len();
        let added = self.equations.add(oldest, new, &self.known, &mut self.stats, out);
        let solved = out.len() - determined;
        match (self.deliver_from(now, determined, out), added) {
            (0, Added::Used) if solved == 0 => CodedOutcome::Kept,
            (0, Added::Used | Added::Redundant) => CodedOutcome::Redundant,
            (0, Added::Inconsistent) => CodedOutcome::Inconsistent,
            (delivered, _) => CodedOutcome::Determined(delivered),
        }
    }

    /// Sets the age at which equations and delivered symbols are dropped.
    pub fn set_expiry(&mut self, expiry: Duration) {
        self.config.expiry = expiry;
        self.equations.set_age_max(expiry);
    }

    /// Drops equations and delivered symbols that are too old; also done by the other methods.
    pub fn expire(&mut self, now: Instant) {
        self.expire_before(now);
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &DecoderStats {
        &self.stats
    }

    /// Stored coded packets, each an equation that needs more packets.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.equations.len()
    }

    /// Bytes of delivered symbols and equations, with allowances; at most the sum of the bounds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.known.bytes() + self.equations.bytes()
    }

    /// All memory, bytes: [`Decoder::bytes`] and, once it exists, the window of IDs.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.bytes() + self.window.as_ref().map_or(0, Window::memory)
    }

    /// Drops the oldest symbols or equations, whichever take more memory, until `bytes` bytes are
    /// freed or nothing is left. Symbols only serve later equations; dropped equations are counted.
    pub fn shed(&mut self, bytes: usize) {
        let target = self.bytes().saturating_sub(bytes);
        while self.bytes() > target {
            let excess = self.bytes() - target;
            let (known, equations) = (self.known.bytes(), self.equations.bytes());
            if known >= equations {
                // At first down to the size of the equations.
                self.known.shed(excess.min((known - equations).max(known.div_ceil(8))));
            } else {
                let excess = excess.min((equations - known).max(equations.div_ceil(8)));
                self.equations.shed(excess, &mut self.stats);
            }
        }
    }

    fn place_source(
        &mut self,
        now: Instant,
        id: PacketId,
        symbol: &Bytes,
    ) -> Result<FullId, (SourceOutcome, DropReason)> {
        if !is_symbol(symbol) {
            return Err((SourceOutcome::Malformed, DropReason::MalformedMessage));
        }
        let (full_id, state) = self.locate(id);
        match state {
            IdState::Missing => Ok(full_id),
            IdState::Delivered => {
                self.correct(now, full_id, symbol);
                Err((SourceOutcome::Duplicate, DropReason::Duplicate))
            }
            IdState::Behind | IdState::FarAhead if self.follow(now, id, full_id) => Ok(full_id),
            IdState::Behind => Err((SourceOutcome::Late, DropReason::Late)),
            IdState::FarAhead => Err((SourceOutcome::FarAhead, DropReason::IdJump)),
        }
    }

    /// Replaces the stored bytes of a packet by those of its source packet: the stored ones may
    /// have been determined by a false coded packet.
    fn correct(&mut self, now: Instant, full_id: FullId, symbol: &Bytes) {
        match self.known.get(full_id) {
            Some(held) if held == symbol => return,
            Some(_) => _ = self.known.insert(now, full_id, symbol.clone()),
            None => {}
        }
        self.equations.correct(full_id, symbol, &mut self.stats);
    }

    /// Decides whether a coded packet is used; returns the full ID of its first packet, and the
    /// offsets of its packets without a known symbol.
    fn place_coded(
        &mut self,
        range: CodedRange,
        payload: &[u8],
    ) -> Result<(FullId, Bits), CodedOutcome> {
        let lengths = SYMBOL_PREFIX_BYTES + 1..=SYMBOL_BYTES_MAX;
        if !lengths.contains(&payload.len()) {
            return Err(CodedOutcome::Malformed);
        }
        let length = u64::from(range.count) - 1;
        let (last, state) = self.locate(range.start.plus(length as u32));
        if state == IdState::FarAhead {
            return Err(CodedOutcome::FarAhead);
        }
        let first = last.saturating_sub(length);
        let window = self.window.as_ref().expect("the last packet was placed in it");
        if window.state(first) == IdState::Behind {
            return Err(CodedOutcome::Late);
        }
        let mut missing = Bits::from(window.missing(first, range.count.into()));
        if missing.is_empty() {
            return Err(CodedOutcome::Redundant);
        }
        for offset in (Bits::run(0, range.count.into()) & !missing).iter() {
            match self.known.get(first + offset as u64) {
                Some(symbol) if symbol.len() > payload.len() => {
                    return Err(CodedOutcome::Inconsistent);
                }
                Some(_) => {}
                // Delivered so long ago that its bytes were dropped.
                None => missing.insert(offset),
            }
        }
        Ok((first, missing))
    }

    fn refuse(&mut self, outcome: CodedOutcome) -> CodedOutcome {
        self.stats.coded += 1;
        self.count_refused(outcome);
        outcome
    }

    fn count_refused(&mut self, outcome: CodedOutcome) {
        let reason = match outcome {
            CodedOutcome::Late => DropReason::Late,
            CodedOutcome::FarAhead => DropReason::IdJump,
            CodedOutcome::Malformed => DropReason::MalformedMessage,
            CodedOutcome::Inconsistent => DropReason::Inconsistent,
            CodedOutcome::Redundant | CodedOutcome::Kept | CodedOutcome::Determined(_) => {
                self.stats.redundant += 1;
                return;
            }
        };
        self.stats.drops.count(reason);
    }

    /// Expands an ID; the first one starts the window.
    fn locate(&mut self, id: PacketId) -> (FullId, IdState) {
        let window = self.window.get_or_insert_with(|| Window::starting_at(id));
        let full_id = window.full_id(id);
        (full_id, window.state(full_id))
    }

    /// Moves a doubted window to a distant packet near the last outlier; returns whether it moved.
    fn follow(&mut self, now: Instant, id: PacketId, full_id: FullId) -> bool {
        let quiet = now.since(self.delivered_at);
        let is_alone = self.stats.new_sources + self.stats.recovered <= 1;
        if !is_alone && quiet <= self.config.expiry {
            return false;
        }
        let window = self.window.as_ref().expect("packets were placed in it");
        // Before it counts as an outlier: old copies must not hide where the lane continued.
        let may_rewind = quiet > self.config.rewind_after
            || is_alone && self.config.rewind_after <= self.config.expiry;
        if window.is_behind(full_id) && !may_rewind {
            return false;
        }
        let Some(outlier) = self.outlier.replace(id) else { return false };
        let distance = i64::from(id.distance(outlier));
        if distance == 0 || distance.unsigned_abs() >= AHEAD_IDS_MAX {
            return false;
        }
        let window = self.window.as_mut().expect("packets were placed in it");
        window.restart(full_id.saturating_add_signed(-distance.max(0)));
        true
    }

    /// Drops what is too old; returns the time before which everything is.
    fn expire_before(&mut self, now: Instant) -> Instant {
        let oldest = now - self.config.expiry;
        self.known.expire_before(oldest);
        self.equations.expire(now, oldest, &mut self.stats);
        oldest
    }

    /// Keeps the packets of `out` from index `determined` on that were not delivered before;
    /// returns their number. The bytes of the others were dropped after their delivery.
    fn deliver_from(
        &mut self,
        now: Instant,
        determined: usize,
        out: &mut Vec<(PacketId, Bytes)>,
    ) -> usize {
        let window = self.window.as_ref().expect("packets were placed in it");
        let is_repeated =
            |(id, _): &mut (PacketId, Bytes)| window.state(window.full_id(*id)) != IdState::Missing;
        let repeated = out.extract_if(determined.., is_repeated).count();
        for (id, symbol) in &mut out[determined..] {
            if repeated > 0 {
                unshare(symbol);
            }
            let window = self.window.as_ref().expect("packets were placed in it");
            let full_id = window.full_id(*id);
            self.note_delivery(now, full_id, symbol);
        }
        self.stats.redundant += repeated as u64;
        let delivered = out.len() - determined;
        self.stats.recovered += delivered as u64;
        delivered
    }

    fn note_delivery(&mut self, now: Instant, full_id: FullId, symbol: &Bytes) {
        let window = self.window.as_mut().expect("packets were placed in it");
        let is_new = window.deliver(full_id);
        debug_assert!(is_new, "{full_id} was not missing");
        self.delivered_at = now;
        self.outlier = None;
        self.known.insert(now, full_id, symbol.clone());
    }
}
