//! From solved rows to packets.
//!
//! ```text
//!                 payloads  known symbols
//! row 0       [   recipe   | coefficients  ]       packet     >  prefix > length
//! row 2       [   recipe   | coefficients  ]   =   packet     >  prefix > length
//! ...                                              no symbol  >  its equations are suspect
//! ```

use bytes::{Bytes, BytesMut};
use roadweave_proto::PacketId;

use super::{Block, Contradicting, Equation, Known};
use crate::decoder::bits::Bits;
use crate::symbol::{symbol_len, unshare};

impl Block {
    /// Appends the determined packets to `solved`, ascending, with their symbols, and makes them
    /// known; each uses up one equation. Returns the contradicting equations, which are removed.
    ///
    /// An impossible packet shows that one of its equations is false, but not which: all of them
    /// are removed, and no other packet made of them is believed. The other equations stay,
    /// although the computation with them was in vain. To keep a peer from repeating that, the
    /// [last](CONTRADICTIONS_MAX) contradiction removes the whole block.
    pub(in crate::decoder) fn settle(
        &mut self,
        solved: &mut Vec<(PacketId, Bytes)>,
    ) -> Contradicting {
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        self.matrix.solved(self.missing, &mut ready);
        let mut contradicting = Contradicting::default();
        if !ready.is_empty() {
            let start = solved.len();
            self.evaluate(&ready, solved);
            let room: usize = solved[start..].iter().map(|(_, symbol)| symbol.len()).sum();
            let suspects = self.cut(&ready, &mut solved[start..]);
            if !suspects.is_empty() {
                self.withhold(suspects, &mut ready, solved, start);
                contradicting.has_newest = suspects.has(self.len() - 1);
                contradicting.count = self.remove_equations(|number, _| suspects.has(number));
                self.contradictions += 1;
            }
            // Padding and withheld packets are not counted, so they must not keep memory.
            let held: usize = solved[start..].iter().map(|(_, symbol)| symbol.len()).sum();
            if held < room / 2 {
                solved[start..].iter_mut().for_each(|(_, symbol)| unshare(symbol));
            }
            if ready.len() == self.len() {
                self.clear();
            } else {
                self.note_all(&ready, &solved[start..]);
            }
            if self.contradictions >= CONTRADICTIONS_MAX {
                contradicting.has_newest = true;
                contradicting.count += self.len() as u64;
                self.clear();
            }
        }
        self.ready = ready;
        contradicting
    }

    /// The only place that combines payloads: appends the packets of `ready` rows, with padding.
    fn evaluate(&self, ready: &[(u8, u8)], solved: &mut Vec<(PacketId, Bytes)>) {
        let rows = || ready.iter().map(|(_, row)| usize::from(*row));
        let used = if ready.len() == self.len() {
            Bits::run(0, self.len())
        } else {
            rows().fold(Bits::EMPTY, |used, row| used | self.matrix.recipe(row))
        };
        let is_used =
            |known: &&Known| rows().any(|row| self.matrix.halves(row).0[known.column] != 0);
        let known: Vec<&Known> = self.known.iter().filter(is_used).collect();
        let mut sources: Vec<&[u8]> = Vec::with_capacity(self.len() + known.len());
        sources.extend(used.iter().map(|number| &self.equations[number].payload[..]));
        sources.extend(known.iter().map(|known| &known.symbol[..]));

        let mut factors = Vec::with_capacity(ready.len() * sources.len());
        for row in rows() {
            let (coefficients, recipe) = self.matrix.halves(row);
            if ready.len() == self.len() {
                factors.extend_from_slice(recipe);
            } else {
                factors.extend(used.iter().map(|number| recipe[number]));
            }
            factors.extend(known.iter().map(|known| coefficients[known.column]));
        }
        let length = sources.iter().map(|source| source.len()).max().unwrap_or(0).max(1);
        #[cfg(test)]
        COMBINED_BYTES.with(|bytes| bytes.set(bytes.get() + factors.len() * length));
        let at_once = (SHARED_BYTES_MAX / length).max(1);
        let groups = ready.chunks(at_once).zip(factors.chunks(at_once * sources.len()));
        for (ready, factors) in groups {
            let mut packets = BytesMut::zeroed(length * ready.len());
            let mut outputs: Vec<&mut [u8]> = packets.chunks_exact_mut(length).collect();
            self.kernel.combine(&mut outputs, factors, &sources);
            let packets = packets.freeze();
            for (number, (column, _)) in ready.iter().enumerate() {
                let id = PacketId((self.base + u64::from(*column)) as u32);
                solved.push((id, packets.slice(number * length..(number + 1) * length)));
            }
        }
    }

    /// Cuts solved packets to their lengths. Returns the suspect equations: those that make up a
    /// packet that is no symbol, or that is longer than an equation over it; and these equations.
    fn cut(&self, ready: &[(u8, u8)], solved: &mut [(PacketId, Bytes)]) -> Bits {
        let shortest = self.equations.iter().map(|equation| equation.payload.len()).min();
        let mut suspects = Bits::EMPTY;
        for ((column, row), (_, symbol)) in ready.iter().zip(solved) {
            let recipe = || self.matrix.recipe(usize::from(*row));
            let Some(length) = symbol_len(symbol) else {
                suspects |= recipe();
                continue;
            };
            if shortest.is_some_and(|shortest| shortest < length) {
                let too_short = self.too_short(usize::from(*column), length);
                if !too_short.is_empty() {
                    suspects |= recipe() | too_short;
                }
            }
            symbol.truncate(length);
        }
        suspects
    }

    fn note_all(&mut self, ready: &[(u8, u8)], solved: &[(PacketId, Bytes)]) {
        let mut noted = Bits::EMPTY;
        for ((column, _), (_, symbol)) in ready.iter().zip(solved) {
            self.note(usize::from(*column), symbol.clone());
            noted.insert(usize::from(*column));
        }
        if ready.len() > 1 {
            // Packets that equations still cover may stay here after the others are dropped.
            let known = self.known.iter_mut().filter(|known| noted.has(known.column));
            known.for_each(|known| unshare(&mut known.symbol));
        }
    }

    fn too_short(&self, column: usize, length: usize) -> Bits {
        let is_short =
            |equation: &Equation| equation.columns.has(column) && equation.payload.len() < length;
        (0..self.len()).filter(|number| is_short(&self.equations[*number])).collect()
    }

    /// Removes packets made of `suspects` from `ready`, and from `solved` from `start` on.
    fn withhold(
        &self,
        suspects: Bits,
        ready: &mut Vec<(u8, u8)>,
        solved: &mut Vec<(PacketId, Bytes)>,
        start: usize,
    ) {
        let mut kept = 0;
        for index in 0..ready.len() {
            let recipe = self.matrix.recipe(usize::from(ready[index].1));
            if (recipe & suspects).is_empty() {
                ready.swap(kept, index);
                solved.swap(start + kept, start + index);
                kept += 1;
            }
        }
        ready.truncate(kept);
        solved.truncate(start + kept);
    }
}

/// A block does not survive this contradiction.
const CONTRADICTIONS_MAX: u32 = 4;

#[cfg(test)]
thread_local! {
    /// Bytes multiplied on this thread, the work of solving.
    pub(in crate::decoder) static COMBINED_BYTES: std::cell::Cell<usize> =
        const { std::cell::Cell::new(0) };
}

/// Solved packets share an allocation up to this size if they fill half and are dropped together.
const SHARED_BYTES_MAX: usize = 32 << 10;
