//! Seeded random numbers.

/// The generator SplitMix64, with one word of state, not for secrets. Coefficients of coded packets
/// are its words (docs/wire.md), so both ends must agree on it bit for bit.
///
/// Source: Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Increment of the state: 2^64 divided by the golden ratio, made odd.
    pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

    /// A generator with state `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Word `index`, from 0, of the generator with this seed. Parts of different seeds, and
    /// different parts of one seed, are unrelated.
    pub const fn word(seed: u64, index: u64) -> u64 {
        Self::mix(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(Self::GAMMA)))
    }

    /// The finalizer: turns similar states into unrelated words.
    #[inline]
    pub const fn mix(state: u64) -> u64 {
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next word.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::GAMMA);
        Self::mix(self.0)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number below `end`, which is not 0.
    pub const fn below(&mut self, end: usize) -> usize {
        (self.next_u64() % end as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First words as other implementations give them.
    #[test]
    fn words_are_those_of_splitmix64() {
        assert_eq!(SplitMix64::new(0).next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(SplitMix64::new(1_234_567).next_u64(), 6_457_827_717_110_365_317);
    }

    #[test]
    fn a_word_by_its_index_is_the_one_that_comes_in_turn() {
        let mut random = SplitMix64::new(7);
        for index in 0..100 {
            assert_eq!(SplitMix64::word(7, index), random.next_u64(), "word {index}");
        }
        assert_ne!(SplitMix64::word(7, 1), SplitMix64::word(8, 0));
    }

    #[test]
    fn draws_are_within_their_bounds() {
        let mut random = SplitMix64::new(3);
        for end in 1..1000 {
            assert!((0.0..1.0).contains(&random.unit()));
            assert!(random.below(end) < end);
        }
    }
}
