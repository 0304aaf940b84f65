//! Seeded chance: equal seeds give equal draws.

/// The generator SplitMix64: one word of state, good enough to choose among packets, paths and
/// moments, and nothing that must be hard to guess.
///
/// The coefficients of coded packets are its words (docs/wire.md), so that both ends must agree on
/// it bit for bit.
///
/// Source: Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// What the state grows by from word to word: 2^64 by the golden ratio, made odd.
    pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

    /// A generator whose state is `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Word `index`, counted from 0, of the generator that begins with `seed`: equal parts of
    /// different seeds, and different parts of one seed, are unrelated.
    pub const fn word(seed: u64, index: u64) -> u64 {
        Self::mix(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(Self::GAMMA)))
    }

    /// The finalizer: turns states that are alike into words that are not.
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

    /// The first words for the seeds 0 and 1234567, as other implementations give them.
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
