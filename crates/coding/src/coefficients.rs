//! The coefficients of a coded packet, from its seed.
//!
//! A coded packet over p_k .. p_{k+n-1} is p_k + sum of g_s(i) * p_{k+i}, i = 1 .. n-1: the first
//! coefficient is 1, which saves a multiplication and costs no randomness (CellFusion appendix A).
//! The others are independent and uniform over 1..=255.
//!
//! g_s is defined completely by this, for any implementation of the protocol:
//!
//! ```text
//! state = s                                    64 bits, s the 32-bit seed
//! word:   state += 0x9e3779b97f4a7c15          all arithmetic modulo 2^64
//!         z = state
//!         z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
//!         z = (z ^ (z >> 27)) * 0x94d049bb133111eb
//!         z ^ (z >> 31)
//! g_s(1), g_s(2), ...: the bytes of word after word, the lowest byte of a word first, zeros skipped
//! ```
//!
//! The words are those of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
//! generators", OOPSLA 2014): short, without tables or state, and well mixed for consecutive seeds
//! too. Skipping zeros keeps the other 255 values equally likely.

use roadweave_proto::SplitMix64;

/// Writes the coefficients of `seed` to `out`, the leading 1 included.
///
/// `out: [u8; n]`, n the number of packets that the coded packet covers.
pub fn fill(seed: u32, out: &mut [u8]) {
    let Some((first, mut rest)) = out.split_first_mut() else { return };
    *first = 1;
    let mut words = SplitMix64::new(seed.into());
    while !rest.is_empty() {
        let word = words.next_u64();
        let filled = if has_zero_byte(word) { put_nonzero(word, rest) } else { put(word, rest) };
        rest = &mut rest[filled..];
    }
}

/// Writes one row of coefficients for each of `seeds`.
///
/// `out: [u8; seeds.len() * n]`, row after row: the matrix that [`Kernel::combine`] takes.
///
/// # Panics
/// If `out` has no room for equal rows.
///
/// [`Kernel::combine`]: crate::kernel::Kernel::combine
pub fn fill_rows(seeds: &[u32], out: &mut [u8]) {
    let Some(count) = out.len().checked_div(seeds.len()) else { return };
    assert_eq!(count * seeds.len(), out.len(), "a row for each seed");
    for (row, seed) in seeds.iter().enumerate() {
        fill(*seed, &mut out[row * count..][..count]);
    }
}

/// Writes as many bytes of `word` as fit; returns the number.
fn put(word: u64, out: &mut [u8]) -> usize {
    if let Some(out) = out.first_chunk_mut() {
        *out = word.to_le_bytes();
        return out.len();
    }
    for (coefficient, byte) in out.iter_mut().zip(word.to_le_bytes()) {
        *coefficient = byte;
    }
    out.len()
}

/// Writes the non-zero bytes of `word` that fit; returns the number. One word in 32 has zeros.
#[cold]
fn put_nonzero(word: u64, out: &mut [u8]) -> usize {
    let bytes = word.to_le_bytes().into_iter().filter(|byte| *byte != 0);
    out.iter_mut().zip(bytes).map(|(coefficient, byte)| *coefficient = byte).count()
}

/// Whether one of the eight bytes is 0: subtracting 1 everywhere turns the top bit of a byte from 0
/// to 1 only if it is 0, or if a lower byte that is 0 borrowed from it.
fn has_zero_byte(word: u64) -> bool {
    const ONES: u64 = u64::MAX / 0xff;
    const TOPS: u64 = ONES << 7;
    word.wrapping_sub(ONES) & !word & TOPS != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coefficients(seed: u32, count: usize) -> Vec<u8> {
        let mut out = vec![0; count];
        fill(seed, &mut out);
        out
    }

    fn reference(seed: u32, count: usize) -> Vec<u8> {
        let mut random = SplitMix64::new(seed.into());
        let words = std::iter::repeat_with(|| random.next_u64());
        let bytes = words.flat_map(u64::to_le_bytes).filter(|byte| *byte != 0);
        std::iter::once(1).chain(bytes).take(count).collect()
    }

    /// Of 20,000 words about 620 contain a zero, and about two dozen several.
    #[test]
    fn words_with_and_without_zeros_follow_the_definition() {
        let mut with_zeros = 0;
        for seed in 0..20_000 {
            with_zeros += u32::from(has_zero_byte(SplitMix64::word(seed.into(), 0)));
            let count = seed as usize % 65;
            assert_eq!(coefficients(seed, count), reference(seed, count), "seed {seed}, {count}");
        }
        assert!((500..800).contains(&with_zeros), "{with_zeros}");
    }

    #[test]
    fn rows_are_those_of_their_seeds() {
        let seeds = [7, 0, u32::MAX, 0xdead_beef];
        for count in 0..=64 {
            let mut rows = vec![0; seeds.len() * count];
            fill_rows(&seeds, &mut rows);
            let expected: Vec<u8> =
                seeds.iter().flat_map(|seed| coefficients(*seed, count)).collect();
            assert_eq!(rows, expected);
        }
        fill_rows(&[], &mut []);
    }
}
