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
//! generators", OOPSLA 2014): short, without multiplication tables or state to keep, and well mixed
//! also for seeds that follow one another. Skipping zeros keeps the other 255 values equally likely.

/// Writes the coefficients that belong to `seed`, the leading 1 included, into `out`.
///
/// `out: [u8; n]`, n the number of packets that the coded packet covers.
pub fn fill(seed: u32, out: &mut [u8]) {
    let Some((first, mut rest)) = out.split_first_mut() else { return };
    *first = 1;
    let mut state = u64::from(seed);
    while !rest.is_empty() {
        for byte in next_word(&mut state).to_le_bytes() {
            if byte == 0 {
                continue;
            }
            let Some((coefficient, others)) = rest.split_first_mut() else { return };
            *coefficient = byte;
            rest = others;
        }
    }
}

fn next_word(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coefficients(seed: u32, count: usize) -> Vec<u8> {
        let mut out = vec![0; count];
        fill(seed, &mut out);
        out
    }

    /// The first output of SplitMix64 for the seeds 0 and 1234567, as other implementations give it.
    #[test]
    fn words_are_those_of_splitmix64() {
        assert_eq!(next_word(&mut 0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(next_word(&mut 1_234_567), 6_457_827_717_110_365_317);
    }

    #[test]
    fn the_first_coefficient_is_one() {
        assert_eq!(coefficients(7, 0), []);
        assert_eq!(coefficients(7, 1), [1]);
        assert_eq!(coefficients(0, 9), [1, 0xaf, 0xcd, 0x1d, 0x7b, 0x39, 0xa8, 0x20, 0xe2]);
    }

    #[test]
    fn more_coefficients_do_not_change_the_first_ones() {
        let long = coefficients(0xdead_beef, 64);
        for count in 0..64 {
            assert_eq!(coefficients(0xdead_beef, count), long[..count]);
        }
    }

    /// Chi-square with 254 degrees of freedom: mean 254, standard deviation 22.5.
    #[test]
    fn coefficients_are_uniform_over_the_nonzero_bytes() {
        let mut seen = [0u32; 256];
        for seed in 0..40_000 {
            for coefficient in &coefficients(seed, 11)[1..] {
                seen[usize::from(*coefficient)] += 1;
            }
        }
        assert_eq!(seen[0], 0);
        let expected = 400_000.0 / 255.0;
        let chi_square: f64 =
            seen[1..].iter().map(|n| (f64::from(*n) - expected).powi(2) / expected).sum();
        assert!((160.0..370.0).contains(&chi_square), "chi-square {chi_square}");
    }
}
