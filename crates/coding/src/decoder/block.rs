//! Equations that share missing packets, and what follows from them.
//!
//! ```text
//! column              0  1  2  3  4  5  6  7         full ID: base + column
//! missing             x  .  .  x  .  x  x  .
//! known                  s  s     s        s         symbols that equations cover
//! equation A          [-----------]                  payload A, as it came
//! equation B          [-----------]                  payload B
//! equation C                   [-----------]         payload C
//!
//! coefficients > Matrix > solved row: recipe over A, B, C and coefficients of known columns
//!                                 `--> one pass over payloads and symbols > the missing packet
//! ```
//!
//! Elimination works on coefficients alone ([`Matrix`]). Payloads and known symbols are held
//! without a copy and read when packets are solved: all packets solved at the same time come out of
//! one pass. So a useless equation costs no arithmetic on its payload.
//!
//! Source: CellFusion section 4.3.3; the recipes are ours.

pub(super) mod solve;

use bytes::Bytes;
use roadweave_proto::Instant;

use super::bits::{BITS, Bits};
use super::matrix::Matrix;
use super::window::FullId;
use crate::kernel::Kernel;
use crate::pool::Pool;

/// The most consecutive packets of a block, which bounds work: two of the longest ranges.
pub(super) const SPAN_MAX: u64 = BITS as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: FullId,
    pub(super) last: FullId,
}

impl Span {
    pub(super) fn len(self) -> u64 {
        self.last - self.first + 1
    }

    pub(super) fn join(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// The part of this span that a block can hold with `part`, the newest packets preferred.
    pub(super) fn keepable(self, part: Self) -> Self {
        let newest = (self.last + 1).saturating_sub(SPAN_MAX).max(self.first);
        let first = newest.min(part.first);
        Self { first, last: self.last.min(first + SPAN_MAX - 1) }
    }

    fn contains(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

/// A received coded packet, and what is known of its range.
#[derive(Debug)]
pub(super) struct NewEquation<'a> {
    pub(super) at: Instant,
    pub(super) span: Span,
    /// One per packet of the span; a packet whose coefficient is zero is not covered.
    pub(super) coefficients: &'a [u8],
    /// By offset in the span: the covered packets without a known symbol. Not empty.
    pub(super) missing: Bits,
    pub(super) payload: Bytes,
}

/// Equations over up to [`SPAN_MAX`] consecutive packets.
#[derive(Debug)]
pub(super) struct Block {
    kernel: Kernel,
    /// The full ID of column 0.
    base: FullId,
    /// The columns covered by equations and not known.
    missing: Bits,
    known_set: Bits,
    known: Vec<Known>,
    equations: Vec<Equation>,
    matrix: Matrix,
    /// Without [`BLOCK_OVERHEAD_BYTES`].
    bytes: usize,
    /// No equation is older.
    oldest: Instant,
    /// How often packets turned out impossible since the block was empty.
    contradictions: u32,
    /// `(column, row)` of the packets being solved; a field so that its allocation is reused.
    ready: Vec<(u8, u8)>,
}

#[derive(Debug)]
struct Equation {
    at: Instant,
    columns: Bits,
    payload: Bytes,
}

/// A packet that is known and covered by equations.
#[derive(Debug)]
struct Known {
    column: usize,
    symbol: Bytes,
}

/// Equations removed because a packet became known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Removed {
    /// Equations left without a missing packet.
    pub(super) redundant: u64,
    /// Equations that contradict the packet.
    pub(super) inconsistent: u64,
}

/// Equations removed because an impossible packet follows from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Contradicting {
    pub(super) count: u64,
    /// Whether the newest equation is one of them.
    pub(super) has_newest: bool,
}

impl Block {
    pub(super) fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            base: 0,
            missing: Bits::EMPTY,
            known_set: Bits::EMPTY,
            known: Vec::new(),
            equations: Vec::new(),
            matrix: Matrix::new(kernel),
            bytes: 0,
            oldest: Instant::FAR_FUTURE,
            contradictions: 0,
            ready: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.equations.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.equations.is_empty()
    }

    /// Bytes held: payloads and symbols of the equations, with the allowances; 0 if empty.
    pub(super) fn bytes(&self) -> usize {
        if self.is_empty() { 0 } else { BLOCK_OVERHEAD_BYTES + self.bytes }
    }

    pub(super) fn lacks(&self, full_id: FullId) -> bool {
        self.column(full_id).is_some_and(|column| self.missing.has(column))
    }

    /// Whether `full_id` or a later packet is missing here.
    pub(super) fn reaches(&self, full_id: FullId) -> bool {
        self.missing.last().is_some_and(|column| full_id <= self.base + column as u64)
    }

    /// Whether it takes little memory when it is empty.
    pub(super) fn is_small(&self) -> bool {
        self.matrix.is_small()
    }

    pub(super) fn span(&self) -> Option<Span> {
        span_of(self.base, self.covered())
    }

    /// Makes room for an equation over `span`; returns the number of equations dropped for it.
    pub(super) fn make_room(&mut self, span: Span) -> u64 {
        if self.is_empty() {
            self.base = span.first;
        }
        let columns = (span.last + 1).saturating_sub(self.base);
        let mut removed = 0;
        if span.first < self.base || columns > SPAN_MAX {
            let all = self.span().map_or(span, |own| own.join(span));
            removed = self.keep_within(all.keepable(span));
            self.rebase(self.span().map_or(span, |own| own.join(span)));
        } else {
            self.matrix.widen(columns as usize);
        }
        removed
    }

    pub(super) fn keep_within(&mut self, span: Span) -> u64 {
        let base = self.base;
        self.remove_equations(|_, equation| {
            !span_of(base, equation.columns).is_some_and(|own| span.contains(own))
        })
    }

    /// Takes the equations of another block and leaves it empty. Together they span at most
    /// [`SPAN_MAX`] packets, and no packet is missing in both.
    pub(super) fn merge(&mut self, other: &mut Self) -> Removed {
        // One block may know a packet that the other lacks: delivered long ago and dropped since.
        let removed = self.learn_from(other).plus(other.learn_from(self));
        match (self.span(), other.span()) {
            (_, None) => {}
            (None, _) => std::mem::swap(self, other),
            (Some(own), Some(others)) => {
                self.rebase(own.join(others));
                other.rebase(own.join(others));
                self.matrix.append(&other.matrix);
                self.missing |= other.missing;
                self.contradictions += other.contradictions;
                other.equations.drain(..).for_each(|equation| self.push_equation(equation));
                other.known.drain(..).for_each(|known| self.push_known(known));
            }
        }
        other.clear();
        removed
    }

    /// Adds an independent equation; returns whether it is. First make [room](Self::make_room).
    /// `known` has the packets of its span that are not missing.
    pub(super) fn insert(&mut self, new: NewEquation<'_>, known: &Pool) -> bool {
        let first = (new.span.first - self.base) as usize;
        let covered = |offset: &usize| new.coefficients[*offset] != 0;
        let columns: Bits =
            (0..new.coefficients.len()).filter(covered).map(|offset| first + offset).collect();
        let missing = new.missing.shifted(first as isize) & !self.known_set;
        if !self.matrix.insert(first, new.coefficients, self.missing | missing) {
            return false;
        }
        self.missing |= missing;
        for column in (columns & !self.missing & !self.known_set).iter() {
            let symbol = known.get(self.base + column as u64).cloned();
            let symbol = symbol.expect("a packet is missing or known");
            self.push_known(Known { column, symbol });
        }
        self.push_equation(Equation { at: new.at, columns, payload: new.payload });
        true
    }

    /// Records a missing packet as known. The caller must [settle](Self::settle) the consequences.
    pub(super) fn learn(&mut self, full_id: FullId, symbol: &Bytes) -> Removed {
        let mut removed = Removed::default();
        let Some(column) = self.column(full_id) else { return removed };
        if !self.missing.has(column) {
            return removed;
        }
        removed.inconsistent = self.remove_too_short(column, symbol.len());
        // The column may have been removed with the equations.
        if self.missing.has(column) {
            removed.redundant = self.note(column, symbol.clone());
        }
        removed
    }

    /// Replaces a packet's known bytes by `symbol`; returns how many contradicting equations went.
    pub(super) fn correct(&mut self, full_id: FullId, symbol: &Bytes) -> u64 {
        let Some(column) = self.column(full_id) else { return 0 };
        let Some(known) = self.known.iter_mut().find(|known| known.column == column) else {
            return 0;
        };
        self.bytes = self.bytes - known.symbol.len() + symbol.len();
        known.symbol = symbol.clone();
        self.remove_too_short(column, symbol.len())
    }

    pub(super) fn expire(&mut self, oldest: Instant) -> u64 {
        if self.oldest >= oldest {
            return 0;
        }
        let expired = self.remove_equations(|_, equation| equation.at < oldest);
        self.oldest =
            self.equations.iter().map(|equation| equation.at).min().unwrap_or(Instant::FAR_FUTURE);
        expired
    }

    pub(super) fn clear(&mut self) {
        self.missing = Bits::EMPTY;
        self.known_set = Bits::EMPTY;
        self.known.clear();
        self.equations.clear();
        self.matrix.clear();
        self.bytes = 0;
        self.oldest = Instant::FAR_FUTURE;
        self.contradictions = 0;
    }

    fn learn_from(&mut self, other: &Self) -> Removed {
        let learnt = other.known.iter().map(|known| {
            let full_id = other.base + known.column as u64;
            self.learn(full_id, &known.symbol)
        });
        learnt.fold(Removed::default(), Removed::plus)
    }

    /// Makes a missing packet known; returns the number of equations dropped as redundant (0 or 1).
    fn note(&mut self, column: usize, symbol: Bytes) -> u64 {
        self.missing.remove(column);
        self.push_known(Known { column, symbol });
        let Some(row) = self.matrix.release(column, self.missing) else { return 0 };
        let equation = self.matrix.recipe(row).first().expect("recipes are invertible");
        self.remove_with_row(equation, row);
        self.tidy();
        1
    }

    fn push_equation(&mut self, equation: Equation) {
        self.oldest = self.oldest.min(equation.at);
        self.bytes += equation.payload.len() + EQUATION_OVERHEAD_BYTES;
        self.equations.push(equation);
    }

    fn push_known(&mut self, known: Known) {
        if !self.known_set.has(known.column) {
            self.known_set.insert(known.column);
            self.bytes += known.symbol.len() + KNOWN_OVERHEAD_BYTES;
            self.known.push(known);
        }
    }

    /// Drops the equations for which `is_condemned` holds; returns the number. `is_condemned` gets
    /// the number and the equation, once for each.
    fn remove_equations(&mut self, is_condemned: impl Fn(usize, &Equation) -> bool) -> u64 {
        let before = self.len();
        // Backwards, because the last equation takes the number of a removed one.
        for number in (0..before).rev() {
            if is_condemned(number, &self.equations[number]) {
                let row = self.matrix.user_of(number).expect("recipes are invertible");
                self.remove_with_row(number, row);
            }
        }
        if self.len() < before {
            self.tidy();
        }
        (before - self.len()) as u64
    }

    /// Drops the equations that cover `column` with less than `length` bytes; returns the number.
    fn remove_too_short(&mut self, column: usize, length: usize) -> u64 {
        self.remove_equations(|_, equation| {
            equation.columns.has(column) && equation.payload.len() < length
        })
    }

    fn remove_with_row(&mut self, equation: usize, row: usize) {
        self.matrix.remove(row, equation);
        let removed = self.equations.swap_remove(equation);
        self.bytes -= removed.payload.len() + EQUATION_OVERHEAD_BYTES;
    }

    /// Removes the columns that no equation covers.
    fn tidy(&mut self) {
        let covered = self.covered();
        self.missing = self.missing & covered;
        self.known_set = self.known_set & covered;
        let bytes = &mut self.bytes;
        self.known.retain(|known| {
            let is_covered = covered.has(known.column);
            if !is_covered {
                *bytes -= known.symbol.len() + KNOWN_OVERHEAD_BYTES;
            }
            is_covered
        });
    }

    fn column(&self, full_id: FullId) -> Option<usize> {
        let column = usize::try_from(full_id.checked_sub(self.base)?).ok()?;
        (column < BITS).then_some(column)
    }

    fn covered(&self) -> Bits {
        self.equations.iter().fold(Bits::EMPTY, |covered, equation| covered | equation.columns)
    }

    /// Makes the first packet of `span`, which has all covered packets, column 0, and makes room.
    fn rebase(&mut self, span: Span) {
        let by = self.base as isize - span.first as isize;
        self.matrix.widen(span.len() as usize);
        self.base = span.first;
        if by == 0 || self.is_empty() {
            return;
        }
        self.matrix.shift(by);
        self.missing = self.missing.shifted(by);
        self.known_set = self.known_set.shifted(by);
        for known in &mut self.known {
            known.column = known.column.wrapping_add_signed(by);
        }
        for equation in &mut self.equations {
            equation.columns = equation.columns.shifted(by);
        }
    }
}

impl NewEquation<'_> {
    pub(super) fn missing_span(&self) -> Span {
        let at = |offset: Option<usize>| self.span.first + offset.expect("one is missing") as u64;
        Span { first: at(self.missing.first()), last: at(self.missing.last()) }
    }
}

impl Removed {
    fn plus(self, other: Self) -> Self {
        Self {
            redundant: self.redundant + other.redundant,
            inconsistent: self.inconsistent + other.inconsistent,
        }
    }
}

fn span_of(base: FullId, columns: Bits) -> Option<Span> {
    let (first, last) = (columns.first()? as u64, columns.last()? as u64);
    Some(Span { first: base + first, last: base + last })
}

/// The cost of a block itself: its struct, its place among the others, the scratch row of the
/// matrix, and the four elements that a vector allocates at least.
const BLOCK_OVERHEAD_BYTES: usize = 1024;

/// The cost of an equation beside its payload: its struct and a row, twice, as memory doubles.
const EQUATION_OVERHEAD_BYTES: usize = 640;

/// The cost of a known symbol beside its bytes: its entry, twice for the same reason.
const KNOWN_OVERHEAD_BYTES: usize = 80;

const _: () = {
    const ROW_BYTES: usize = 2 * BITS;
    let elements = 4 * (size_of::<Equation>() + size_of::<Known>() + size_of::<(u8, u8)>());
    let place = 2 * size_of::<(FullId, Box<Block>)>();
    assert!(BLOCK_OVERHEAD_BYTES >= size_of::<Block>() + place + ROW_BYTES + elements);
    assert!(EQUATION_OVERHEAD_BYTES >= 2 * (size_of::<Equation>() + ROW_BYTES));
    assert!(KNOWN_OVERHEAD_BYTES >= 2 * size_of::<Known>());
};
