//! Multiplication by table: the products of a coefficient with all low and with all high nibbles
//! are two tables of 16 bytes, in which a byte shuffle looks up a vector of nibbles at once.

#![allow(unsafe_code)]

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{
    __m128i, __m256i, _mm_and_si128, _mm_loadu_si128, _mm_set1_epi8, _mm_setzero_si128,
    _mm_shuffle_epi8, _mm_srli_epi16, _mm_storeu_si128, _mm_xor_si128, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setzero_si256,
    _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_storeu_si256, _mm256_xor_si256,
};

use crate::gf256;
use crate::kernel::isa::{Isa, entry_points, vectors};

/// A value for the low and one for the high nibbles.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Nibbles<V> {
    low: V,
    high: V,
}

/// Byte shuffles with the vectors of AVX2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel) struct Avx2(());

impl Avx2 {
    pub(in crate::kernel) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    /// AVX2 includes SSSE3.
    #[inline(always)]
    const fn half(self) -> Ssse3 {
        Ssse3(())
    }
}

entry_points!(Avx2, "avx2", dot: 4, combine: 4 x 2);

impl Isa for Avx2 {
    vectors!(__m256i, 32, _mm256_setzero_si256(), _mm256_loadu_si256, _mm256_storeu_si256);

    type Operand = Nibbles<__m256i>;
    type Factor = Nibbles<__m256i>;

    #[inline(always)]
    fn factor(self, coefficient: u8) -> Nibbles<__m256i> {
        let Nibbles { low, high } = self.half().factor(coefficient);
        // SAFETY: the token proves AVX2.
        unsafe {
            Nibbles {
                low: _mm256_broadcastsi128_si256(low),
                high: _mm256_broadcastsi128_si256(high),
            }
        }
    }

    #[inline(always)]
    fn operand(self, x: __m256i) -> Nibbles<__m256i> {
        // SAFETY: the token proves AVX2.
        unsafe {
            let mask = _mm256_set1_epi8(0x0f);
            Nibbles {
                low: _mm256_and_si256(x, mask),
                high: _mm256_and_si256(_mm256_srli_epi16::<4>(x), mask),
            }
        }
    }

    #[inline(always)]
    fn multiply_add(self, sum: __m256i, factor: Nibbles<__m256i>, x: Nibbles<__m256i>) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe {
            let low = _mm256_shuffle_epi8(factor.low, x.low);
            let high = _mm256_shuffle_epi8(factor.high, x.high);
            _mm256_xor_si256(_mm256_xor_si256(sum, low), high)
        }
    }

    #[inline(always)]
    fn mul_add_rest(self, y: &mut [u8], coefficient: u8, x: &[u8]) {
        crate::kernel::loops::mul_add(self.half(), y, coefficient, x);
    }
}

/// Byte shuffles with the vectors of SSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel) struct Ssse3(());

impl Ssse3 {
    pub(in crate::kernel) fn detect() -> Option<Self> {
        is_x86_feature_detected!("ssse3").then_some(Self(()))
    }
}

entry_points!(Ssse3, "ssse3", dot: 4, combine: 4 x 2);

impl Isa for Ssse3 {
    vectors!(__m128i, 16, _mm_setzero_si128(), _mm_loadu_si128, _mm_storeu_si128);

    type Operand = Nibbles<__m128i>;
    type Factor = Nibbles<__m128i>;

    #[inline(always)]
    fn factor(self, coefficient: u8) -> Nibbles<__m128i> {
        let (low, high) = gf256::products(coefficient).split_at(Self::WIDTH);
        Nibbles { low: self.load(low), high: self.load(high) }
    }

    #[inline(always)]
    fn operand(self, x: __m128i) -> Nibbles<__m128i> {
        // SAFETY: the token proves SSSE3.
        unsafe {
            let mask = _mm_set1_epi8(0x0f);
            Nibbles {
                low: _mm_and_si128(x, mask),
                high: _mm_and_si128(_mm_srli_epi16::<4>(x), mask),
            }
        }
    }

    #[inline(always)]
    fn multiply_add(self, sum: __m128i, factor: Nibbles<__m128i>, x: Nibbles<__m128i>) -> __m128i {
        // SAFETY: the token proves SSSE3.
        unsafe {
            let low = _mm_shuffle_epi8(factor.low, x.low);
            let high = _mm_shuffle_epi8(factor.high, x.high);
            _mm_xor_si128(_mm_xor_si128(sum, low), high)
        }
    }
}
