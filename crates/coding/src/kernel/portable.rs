//! The kernel of plain Rust: bits of coefficients decide what is added, eight bytes to a word.
//!
//! ```text
//! sum(c_i * x_i) = sum(c_i7 * x_i) * x^7 + ... + sum(c_i1 * x_i) * x + sum(c_i0 * x_i)
//! ```
//!
//! By Horner's rule this takes seven doublings for all terms together, and additions: half a word
//! operation per byte and term, without tables, in a form that compilers can vectorise for any
//! processor. It serves processors without a kernel of their own, and is the model for the others.

use super::terms::Terms;
use crate::gf256;

/// Sixteen words are eight vectors of SSE2 or NEON, which stay in registers.
const WORDS: usize = 16;
const STRIP: usize = 8 * WORDS;

/// Bytes of a strip, eight to a word.
type Strip = [u64; WORDS];

/// Adds `coefficient * x` to `y`; both have the same length.
pub(super) fn mul_add(y: &mut [u8], coefficient: u8, x: &[u8]) {
    let (y_strips, y_rest) = y.as_chunks_mut::<STRIP>();
    let (x_strips, x_rest) = x.as_chunks::<STRIP>();
    for (y, x) in y_strips.iter_mut().zip(x_strips) {
        let mut sum = [0; WORDS];
        for bit in (0..8).rev() {
            double(&mut sum);
            if (coefficient >> bit) & 1 == 1 {
                add(&mut sum, x);
            }
        }
        add(&mut sum, y);
        store(y, &sum);
    }
    mul_add_bytes(y_rest, coefficient, x_rest);
}

/// Adds `coefficient * x` to `y`, byte by byte, from the products of nibbles: for a few bytes.
#[inline]
pub(super) fn mul_add_bytes(y: &mut [u8], coefficient: u8, x: &[u8]) {
    let (low, high) = gf256::products(coefficient).split_at(16);
    for (y, x) in y.iter_mut().zip(x) {
        *y ^= low[usize::from(x & 15)] ^ high[usize::from(x >> 4)];
    }
}

/// Adds `factors[i]` times the row `i` to `y`; rows are as long as `y`.
pub(super) fn add_rows(y: &mut [u8], factors: &[u8], rows: &[u8]) {
    for (index, factor) in factors.iter().enumerate() {
        mul_add(y, *factor, &rows[index * y.len()..][..y.len()]);
    }
}

/// Adds `row[column] * x` to every row; rows are as long as `x`.
pub(super) fn clear_column(rows: &mut [u8], column: usize, x: &[u8]) {
    for row in rows.chunks_exact_mut(x.len()) {
        let coefficient = row[column];
        mul_add(row, coefficient, x);
    }
}

/// Sets the first `length` bytes, the length of the longest source, of every output.
pub(super) fn combine<T: Terms>(outputs: &mut [&mut [u8]], terms: T, length: usize) {
    for offset in (0..length).step_by(STRIP) {
        // The last strip overlaps its predecessor instead of padding its sources.
        let offset = offset.min(length.saturating_sub(STRIP));
        for (output, y) in outputs.iter_mut().enumerate() {
            let sum = strip(terms, output, offset);
            match y[offset..length].first_chunk_mut() {
                Some(y) => store(y, &sum),
                None => {
                    let mut whole = [0; STRIP];
                    store(&mut whole, &sum);
                    y[..length].copy_from_slice(&whole[..length]);
                }
            }
        }
    }
}

fn strip<T: Terms>(terms: T, output: usize, offset: usize) -> Strip {
    let row = terms.row(output);
    let mut sum = [0; WORDS];
    for bit in (0..8).rev() {
        double(&mut sum);
        for index in 0..terms.count() {
            if (T::coefficient(row, index) >> bit) & 1 == 0 {
                continue;
            }
            let x = terms.source(index).get(offset..).unwrap_or_default();
            match x.first_chunk() {
                Some(x) => add(&mut sum, x),
                None => add(&mut sum, &padded(x)),
            }
        }
    }
    sum
}

/// Every byte times x: shifted, and reduced where a bit left it.
#[inline(always)]
fn double(strip: &mut Strip) {
    const LOW_BITS: u64 = 0x0101_0101_0101_0101;
    const REDUCER: u64 = (gf256::POLYNOMIAL & 0xff) as u64;
    for word in strip {
        let carries = (*word >> 7) & LOW_BITS;
        *word = ((*word ^ (carries << 7)) << 1) ^ (carries * REDUCER);
    }
}

#[inline(always)]
fn add(sum: &mut Strip, x: &[u8; STRIP]) {
    for (sum, x) in sum.iter_mut().zip(x.as_chunks::<8>().0) {
        *sum ^= u64::from_le_bytes(*x);
    }
}

#[inline(always)]
fn store(y: &mut [u8; STRIP], sum: &Strip) {
    for (y, sum) in y.as_chunks_mut::<8>().0.iter_mut().zip(sum) {
        *y = sum.to_le_bytes();
    }
}

/// A partial strip, padded with zeros.
fn padded(x: &[u8]) -> [u8; STRIP] {
    let mut padded = [0; STRIP];
    padded[..x.len()].copy_from_slice(x);
    padded
}
