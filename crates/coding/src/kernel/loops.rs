//! The loops of all kernels but the portable one, for any instruction set.
//!
//! ```text
//!            strip: V vectors
//! x_1       |---------|- - - -        loaded once per group of outputs, the later times from the
//! x_2       |---------|- - - -        first-level cache, times c_ij, added to the sums
//! ...
//! y_1..y_G  |---------|- - - -        G * V sums in registers; stored once, never read
//! ```
//!
//! Single vectors cover the rest after the last strip. The last vector ends with the last byte and
//! overlaps its predecessor: its sums are stored twice, which is harmless since they are set, not
//! added. So packets of equal length never take a slow path. A source that ends within a strip is
//! left out of it and added afterwards: padding it would force the sums out of their registers.

use std::array;

use super::isa::Isa;
use super::terms::Terms;

/// Adds `coefficient * x` to `y`; both have the same length.
#[inline(always)]
pub(super) fn mul_add<I: Isa>(isa: I, y: &mut [u8], coefficient: u8, x: &[u8]) {
    let factor = isa.factor(coefficient);
    let mut y_vectors = y.chunks_exact_mut(I::WIDTH);
    let mut x_vectors = x.chunks_exact(I::WIDTH);
    for (y, x) in y_vectors.by_ref().zip(x_vectors.by_ref()) {
        let sum = isa.multiply_add(isa.load(y), factor, isa.operand(isa.load(x)));
        isa.store(y, sum);
    }
    let rest = x_vectors.remainder();
    if !rest.is_empty() {
        isa.mul_add_rest(y_vectors.into_remainder(), coefficient, rest);
    }
}

/// Adds `factors[i]` times the row `i` to `y`; rows are as long as `y`.
#[inline(always)]
pub(super) fn add_rows<I: Isa>(isa: I, y: &mut [u8], factors: &[u8], rows: &[u8]) {
    let length = y.len();
    let mut offset = 0;
    while offset + I::WIDTH <= length {
        let mut sum = isa.load(&y[offset..]);
        for (index, factor) in factors.iter().enumerate() {
            let x = isa.operand(isa.load(&rows[index * length + offset..]));
            sum = isa.multiply_add(sum, isa.factor(*factor), x);
        }
        isa.store(&mut y[offset..], sum);
        offset += I::WIDTH;
    }
    if offset < length {
        for (factor, row) in factors.iter().zip(rows.chunks_exact(length)) {
            isa.mul_add_rest(&mut y[offset..], *factor, &row[offset..]);
        }
    }
}

/// Adds `row[column] * x` to every row; rows are as long as `x`.
#[inline(always)]
pub(super) fn clear_column<I: Isa>(isa: I, rows: &mut [u8], column: usize, x: &[u8]) {
    for row in rows.chunks_exact_mut(x.len()) {
        let coefficient = row[column];
        mul_add(isa, row, coefficient, x);
    }
}

/// Sets the first `length` bytes of every output to its combination. `length` is that of the
/// longest source, and no output is shorter. `GROUP`, 1..=[`GROUP_MAX`]: outputs processed at once;
/// `V`: vectors of each.
#[inline(always)]
pub(super) fn combine<I: Isa, T: Terms, const GROUP: usize, const V: usize>(
    isa: I,
    outputs: &mut [&mut [u8]],
    terms: T,
    length: usize,
) {
    const { assert!(1 <= GROUP && GROUP <= GROUP_MAX) };
    if length < I::WIDTH {
        outputs.iter_mut().for_each(|y| y[..length].fill(0));
        return add_endings(isa, outputs, terms, 0, I::WIDTH);
    }
    let mut offset = 0;
    while offset < length {
        let is_wide = length - offset >= V * I::WIDTH;
        let (start, end) = if is_wide {
            (offset, offset + V * I::WIDTH)
        } else {
            let start = offset.min(length - I::WIDTH);
            (start, start + I::WIDTH)
        };
        let has_short = if is_wide {
            strip::<I, T, GROUP, V>(isa, outputs, terms, start)
        } else {
            strip::<I, T, GROUP, 1>(isa, outputs, terms, start)
        };
        if has_short {
            add_endings(isa, outputs, terms, start, end);
        }
        offset = end;
    }
}

/// Sets one strip of all outputs, in similar groups; returns whether a source ended within it.
#[inline(always)]
fn strip<I: Isa, T: Terms, const GROUP: usize, const V: usize>(
    isa: I,
    outputs: &mut [&mut [u8]],
    terms: T,
    offset: usize,
) -> bool {
    let mut done = 0;
    let mut has_short = false;
    for groups_left in (1..=outputs.len().div_ceil(GROUP)).rev() {
        let size = (outputs.len() - done).div_ceil(groups_left);
        let group = &mut outputs[done..done + size];
        has_short |= match size {
            1 => tile::<I, T, 1, V>(isa, group, terms, done, offset),
            2 if GROUP >= 2 => tile::<I, T, 2, V>(isa, group, terms, done, offset),
            3 if GROUP >= 3 => tile::<I, T, 3, V>(isa, group, terms, done, offset),
            4 if GROUP >= 4 => tile::<I, T, 4, V>(isa, group, terms, done, offset),
            GROUP_MAX if GROUP >= GROUP_MAX => {
                tile::<I, T, GROUP_MAX, V>(isa, group, terms, done, offset)
            }
            _ => unreachable!("a group has 1 to {GROUP} outputs"),
        };
        done += size;
    }
    has_short
}

/// Sets `V` vectors, from `offset` on, of `G` outputs from number `first` on; returns like `strip`.
#[inline(always)]
fn tile<I: Isa, T: Terms, const G: usize, const V: usize>(
    isa: I,
    outputs: &mut [&mut [u8]],
    terms: T,
    first: usize,
    offset: usize,
) -> bool {
    let rows: [T::Row; G] = array::from_fn(|output| terms.row(first + output));
    let mut sums = [[isa.zero(); V]; G];
    let mut has_short = false;
    let mut index = 0;
    while index < terms.count() {
        let Some(x) = operands::<I, T, V>(isa, terms, index, offset) else {
            has_short = true;
            index += 1;
            continue;
        };
        let next =
            if I::HAS_PAIRS { operands::<I, T, V>(isa, terms, index + 1, offset) } else { None };
        for (sums, row) in sums.iter_mut().zip(rows) {
            let factor = isa.factor(T::coefficient(row, index));
            if let Some(next) = next {
                let factor_next = isa.factor(T::coefficient(row, index + 1));
                for vector in 0..V {
                    let pair = [(factor, x[vector]), (factor_next, next[vector])];
                    sums[vector] = isa.multiply_add_pair(sums[vector], pair);
                }
            } else {
                for vector in 0..V {
                    sums[vector] = isa.multiply_add(sums[vector], factor, x[vector]);
                }
            }
        }
        index += if next.is_some() { 2 } else { 1 };
    }
    for (y, sums) in outputs.iter_mut().zip(sums) {
        let y = &mut y[offset..offset + V * I::WIDTH];
        for (y, sum) in y.chunks_exact_mut(I::WIDTH).zip(sums) {
            isa.store(y, sum);
        }
    }
    has_short
}

/// A strip of a source, ready for multiplication; `None` if the source ends before it or is absent.
#[inline(always)]
fn operands<I: Isa, T: Terms, const V: usize>(
    isa: I,
    terms: T,
    index: usize,
    offset: usize,
) -> Option<[I::Operand; V]> {
    if index >= terms.count() {
        return None;
    }
    let x = terms.source(index).get(offset..offset + V * I::WIDTH)?;
    let mut operands = [isa.operand(isa.zero()); V];
    for (operand, x) in operands.iter_mut().zip(x.chunks_exact(I::WIDTH)) {
        *operand = isa.operand(isa.load(x));
    }
    Some(operands)
}

/// Adds to the strip `start..end` of the outputs the sources that end within it.
#[inline(always)]
fn add_endings<I: Isa, T: Terms>(
    isa: I,
    outputs: &mut [&mut [u8]],
    terms: T,
    start: usize,
    end: usize,
) {
    for index in 0..terms.count() {
        let x = terms.source(index);
        if x.len() <= start || end <= x.len() {
            continue;
        }
        let ending = &x[start..];
        for (output, y) in outputs.iter_mut().enumerate() {
            let y = &mut y[start..x.len()];
            mul_add(isa, y, T::coefficient(terms.row(output), index), ending);
        }
    }
}

/// The most outputs processed at once.
pub(super) const GROUP_MAX: usize = 5;
