//! The receiver's side: hands out every packet once, the moment it is determined.
//!
//! ```text
//! source packet --> window: missing?  ----------------------------------> out
//!                      |                                                   ^
//!                      v                                                   |
//!                   known symbols --> blocks of equations -- determined ---+
//!                      |                 ^
//! coded packet --> less what is known ---+
//! ```
//!
//! Packets that were delivered are remembered twice: in a bitmap, so that none is delivered again,
//! and for a while with their bytes, because a later equation may cover them. Equations that share
//! missing packets form a [`Block`].
//!
//! What a broken or hostile peer can do: get its own packets refused, and get false bytes delivered
//! for packets that it sent false equations about. What is known is never changed by an equation, a
//! contradiction costs the equations of one block, and memory and the work per packet have a bound.

#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_types::{DropCounters, DropReason, Instant, PacketId};

use crate::block::{Block, Contradiction};
use crate::equations::Equations;
use crate::kernel::{Kernel, Term};
use crate::pool::Pool;
use crate::symbol::{SYMBOL_BYTES_MAX, SYMBOL_PREFIX_BYTES, is_symbol};
use crate::window::{Place, Position, Window};
use crate::{COUNT_MAX, CodedRange, coefficients};

/// The bounds of a [`Decoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    /// The age at which an equation, and a delivered symbol, is dropped (CellFusion section 4.4.3).
    pub expiry: Duration,
    /// The most bytes of delivered symbols to keep, each with an allowance of 128 bytes.
    pub known_bytes_max: usize,
    /// The most bytes of equations to keep, each with an allowance of 512 bytes.
    pub equation_bytes_max: usize,
}

impl Default for DecoderConfig {
    /// 700 ms as in CellFusion; 16 MiB of symbols, which is that at 190 Mbit/s, and 4 MiB of equations.
    fn default() -> Self {
        Self {
            expiry: Duration::from_millis(700),
            known_bytes_max: 16 << 20,
            equation_bytes_max: 4 << 20,
        }
    }
}

/// What became of a source packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceOutcome {
    /// It was missing, and is the first that went to `out`.
    New,
    /// It was delivered before, or determined by coded packets.
    Duplicate,
    /// It is so far behind the newest packet that nobody knows whether it was delivered.
    Late,
    /// Its ID is too far ahead to be believed ([`Decoder`]).
    FarAhead,
    /// It is no symbol.
    Malformed,
}

/// What became of a coded packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodedOutcome {
    /// It determined so many packets, which went to `out`.
    Determined(usize),
    /// It is kept until more is known, or memory runs out.
    Kept,
    /// It tells nothing that is not known or does not follow from the equations kept.
    Redundant,
    /// It covers packets too far behind the newest one.
    Late,
    /// It covers packets too far ahead to be believed ([`Decoder`]).
    FarAhead,
    /// Its range or its length breaks the format.
    Malformed,
    /// It contradicts what is known, or what the equations kept say.
    Inconsistent,
}

/// What a [`Decoder`] took in and gave out.
///
/// `sources + coded` is all that came in; it equals `new_sources + recovered + redundant`, the drops
/// and the equations still kept ([`Decoder::pending`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecoderStats {
    /// Source packets that came.
    pub sources: u64,
    /// Coded packets that came.
    pub coded: u64,
    /// Source packets that were missing, and delivered.
    pub new_sources: u64,
    /// Packets that coded packets determined, and that were delivered. Each used up one coded packet.
    pub recovered: u64,
    /// Coded packets that turned out to tell nothing new.
    pub redundant: u64,
    /// What was discarded: sources as [`DropReason::Duplicate`], coded packets that expired or were
    /// evicted, and either that was late, far ahead, malformed or inconsistent.
    pub drops: DropCounters,
}

/// Solves for missing packets as source and coded packets come in, in any order.
///
/// IDs wrap. The decoder follows the newest ID; a window of 131,072 IDs behind it separates new
/// packets from duplicates. An ID more than 65,536 ahead of the newest is refused, so that one broken
/// packet cannot push the window away from the lane's traffic, unless no packet was delivered for
/// longer than the expiry: then nothing in the window can still be repaired, the peer may have gone
/// on without us (an outage of all paths), and the window moves to the new ID.
#[derive(Debug)]
pub struct Decoder {
    config: DecoderConfig,
    kernel: Kernel,
    /// None before the first packet.
    window: Option<Window>,
    delivered_at: Instant,
    known: Pool,
    equations: Equations,
    stats: DecoderStats,
}

impl Decoder {
    /// A decoder that has seen nothing.
    #[must_use]
    pub fn new(config: DecoderConfig) -> Self {
        Self::with_kernel(config, Kernel::fastest())
    }

    /// A decoder that computes with `kernel`, for measurements; the results are the same.
    #[must_use]
    pub fn with_kernel(config: DecoderConfig, kernel: Kernel) -> Self {
        Self {
            config,
            kernel,
            window: None,
            delivered_at: Instant::ZERO,
            known: Pool::new(config.known_bytes_max),
            equations: Equations::new(kernel, config.expiry, config.equation_bytes_max),
            stats: DecoderStats::default(),
        }
    }

    /// Takes in a source packet.
    ///
    /// `symbol`: prefix and bytes, unpadded; kept without a copy, so it should not be a slice of
    /// something much larger. `out` gets what is to be delivered, each packet once: this one first, if
    /// it was missing, then those that it determined together with coded packets kept.
    pub fn on_source(
        &mut self,
        now: Instant,
        id: PacketId,
        symbol: Bytes,
        out: &mut Vec<(PacketId, Bytes)>,
    ) -> SourceOutcome {
        self.stats.sources += 1;
        self.expire(now);
        let (outcome, reason) = match self.place_source(now, id, &symbol) {
            Ok(position) => {
                self.deliver(now, position, symbol.clone(), out);
                self.stats.new_sources += 1;
                self.learn(now, position, &symbol, out);
                return SourceOutcome::New;
            }
            Err(refusal) => refusal,
        };
        self.stats.drops.count(reason);
        outcome
    }

    /// Takes in a coded packet.
    ///
    /// `payload`: at least as long as every symbol of the range. `out` gets the packets that it
    /// determined, by ascending ID; each packet is given out once.
    pub fn on_coded(
        &mut self,
        now: Instant,
        range: CodedRange,
        payload: Bytes,
        out: &mut Vec<(PacketId, Bytes)>,
    ) -> CodedOutcome {
        self.stats.coded += 1;
        self.expire(now);
        let first = match self.place_coded(now, range, &payload) {
            Ok(first) => first,
            Err((outcome, reason)) => {
                self.stats.drops.count(reason);
                return outcome;
            }
        };
        let mut coefficients = [0; COUNT_MAX as usize];
        let coefficients = &mut coefficients[..usize::from(range.count)];
        coefficients::fill(range.seed, coefficients);

        let mut missing = Vec::with_capacity(coefficients.len());
        let mut known: Vec<Term<'_>> = Vec::with_capacity(coefficients.len());
        for (position, coefficient) in (first..).zip(coefficients.iter()) {
            match self.known.get(position) {
                Some(symbol) => known.push((*coefficient, symbol)),
                None => missing.push((position, *coefficient)),
            }
        }
        if known.iter().any(|(_, symbol)| symbol.len() > payload.len()) {
            self.stats.drops.count(DropReason::Inconsistent);
            return CodedOutcome::Inconsistent;
        }
        let window = self.window.as_ref().expect("the packet was placed in it");
        if missing.iter().all(|(position, _)| window.place(*position) != Place::Missing) {
            self.stats.redundant += 1;
            return CodedOutcome::Redundant;
        }
        let mut block = self.equations.take_for(now, &missing, &mut self.stats.drops);
        let is_new = block.insert(now, &missing, || {
            let mut payload = BytesMut::from(payload);
            self.kernel.dot_add(&mut payload, &known);
            payload
        });
        if !is_new {
            self.stats.redundant += 1;
            self.equations.put(block, &mut self.stats.drops);
            return CodedOutcome::Redundant;
        }
        let before = out.len();
        match self.settle(now, block, out) {
            Err(Contradiction) => CodedOutcome::Inconsistent,
            Ok(()) if out.len() > before => CodedOutcome::Determined(out.len() - before),
            Ok(()) => CodedOutcome::Kept,
        }
    }

    /// Drops equations and delivered symbols that are too old; also done by the other methods.
    pub fn expire(&mut self, now: Instant) {
        self.known.expire(now, self.config.expiry);
        self.equations.expire(now, &mut self.stats.drops);
    }

    /// What came in and went out.
    #[must_use]
    pub fn stats(&self) -> &DecoderStats {
        &self.stats
    }

    /// Coded packets kept, each an equation that waits for more.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.equations.len()
    }

    /// Bytes of delivered symbols and equations held, with their allowances; at most the sum of the
    /// configured bounds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.known.bytes() + self.equations.bytes()
    }

    /// Decides whether a source packet is to be delivered.
    fn place_source(
        &mut self,
        now: Instant,
        id: PacketId,
        symbol: &[u8],
    ) -> Result<Position, (SourceOutcome, DropReason)> {
        if !is_symbol(symbol) {
            return Err((SourceOutcome::Malformed, DropReason::MalformedMessage));
        }
        let (position, place) = self.place(now, id);
        match place {
            Place::Missing => Ok(position),
            Place::Delivered => Err((SourceOutcome::Duplicate, DropReason::Duplicate)),
            Place::Behind => Err((SourceOutcome::Late, DropReason::Late)),
            Place::FarAhead => Err((SourceOutcome::FarAhead, DropReason::IdJump)),
        }
    }

    /// Decides whether a coded packet is to be used; gives the position of its first packet.
    fn place_coded(
        &mut self,
        now: Instant,
        range: CodedRange,
        payload: &[u8],
    ) -> Result<Position, (CodedOutcome, DropReason)> {
        let lengths = SYMBOL_PREFIX_BYTES + 1..=SYMBOL_BYTES_MAX;
        if range.count == 0 || range.count > COUNT_MAX || !lengths.contains(&payload.len()) {
            return Err((CodedOutcome::Malformed, DropReason::MalformedMessage));
        }
        let length = u64::from(range.count) - 1;
        let (last, place) = self.place(now, range.start.plus(u32::from(range.count) - 1));
        if place == Place::FarAhead {
            return Err((CodedOutcome::FarAhead, DropReason::IdJump));
        }
        let first = last.saturating_sub(length);
        let window = self.window.as_ref().expect("the last packet was placed in it");
        if window.place(first) == Place::Behind {
            return Err((CodedOutcome::Late, DropReason::Late));
        }
        Ok(first)
    }

    /// Unfolds an ID; starts the window at the first one, and moves it after a long silence.
    fn place(&mut self, now: Instant, id: PacketId) -> (Position, Place) {
        let window = self.window.get_or_insert_with(|| {
            self.delivered_at = now;
            Window::starting_at(id)
        });
        let position = window.position(id);
        let place = window.place(position);
        if place == Place::FarAhead && now.since(self.delivered_at) > self.config.expiry {
            self.delivered_at = now;
            window.advance(position);
            return (position, Place::Missing);
        }
        (position, place)
    }

    /// Uses a packet that came to simplify the equations that cover it.
    fn learn(
        &mut self,
        now: Instant,
        position: Position,
        symbol: &[u8],
        out: &mut Vec<(PacketId, Bytes)>,
    ) {
        let drops = &mut self.stats.drops;
        let Some(mut block) = self.equations.take_with(now, position, drops) else { return };
        let before = block.len();
        let contradicting = block.learn(position, symbol);
        let redundant = before - block.len() - contradicting;
        drops.add(DropReason::Inconsistent, contradicting as u64);
        self.stats.redundant += redundant as u64;
        // A contradiction costs the block and is counted; the source packet is good nevertheless.
        let _ = self.settle(now, block, out);
    }

    /// Delivers what a block determines, and puts back what remains of it.
    ///
    /// # Errors
    /// [`Contradiction`]; then the block is dropped.
    fn settle(
        &mut self,
        now: Instant,
        mut block: Block,
        out: &mut Vec<(PacketId, Bytes)>,
    ) -> Result<(), Contradiction> {
        let before = block.len();
        let solved = block.solve().inspect_err(|Contradiction| {
            self.stats.drops.add(DropReason::Inconsistent, before as u64);
        })?;
        for (position, symbol) in &solved {
            if self.deliver(now, *position, symbol.clone(), out) {
                self.stats.recovered += 1;
            } else {
                self.stats.redundant += 1;
            }
        }
        if solved.len() < before {
            for (position, symbol) in &solved {
                block.learn(*position, symbol);
            }
            // Each solved packet used up one equation; others that went contradicted it.
            let contradicting = before - block.len() - solved.len();
            self.stats.drops.add(DropReason::Inconsistent, contradicting as u64);
            self.equations.put(block, &mut self.stats.drops);
        }
        Ok(())
    }

    /// Hands a packet out unless it was delivered or is too old; returns whether it did.
    fn deliver(
        &mut self,
        now: Instant,
        position: Position,
        symbol: Bytes,
        out: &mut Vec<(PacketId, Bytes)>,
    ) -> bool {
        let window = self.window.as_mut().expect("the packet was placed in it");
        if !window.deliver(position) {
            return false;
        }
        self.delivered_at = now;
        self.known.insert(now, position, symbol.clone());
        out.push((PacketId(position as u32), symbol));
        true
    }
}
