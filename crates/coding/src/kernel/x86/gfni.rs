//! GFNI: the instruction GF2P8MULB multiplies in our field, 32 or 64 bytes at a time.
//!
//! With AVX-512 there is room for more sums in registers, one instruction (VPTERNLOGQ) adds two
//! products to a sum, and masks load and store what is shorter than a vector.

#![allow(unsafe_code)]

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{
    __m256i, __m512i, _mm_gf2p8mul_epi8, _mm_loadu_si128, _mm_set1_epi8, _mm_storeu_si128,
    _mm_xor_si128, _mm256_gf2p8mul_epi8, _mm256_loadu_si256, _mm256_set1_epi8,
    _mm256_setzero_si256, _mm256_storeu_si256, _mm256_xor_si256, _mm512_gf2p8mul_epi8,
    _mm512_loadu_si512, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8, _mm512_set1_epi8,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use crate::kernel::isa::{Isa, entry_points, vectors};
use crate::kernel::portable;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel) struct GfniAvx512(());

impl GfniAvx512 {
    pub(in crate::kernel) fn detect() -> Option<Self> {
        let is_there = is_x86_feature_detected!("gfni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw");
        is_there.then_some(Self(()))
    }

    /// The features detected for this token include those of the other.
    #[inline(always)]
    const fn half(self) -> GfniAvx2 {
        GfniAvx2(())
    }
}

entry_points!(GfniAvx512, "avx512f,avx512bw,gfni", dot: 4, combine: 5 x 4);

impl Isa for GfniAvx512 {
    vectors!(__m512i, 64, _mm512_setzero_si512(), _mm512_loadu_si512, _mm512_storeu_si512);

    type Operand = __m512i;
    type Factor = __m512i;

    const HAS_PAIRS: bool = true;

    #[inline(always)]
    fn factor(self, coefficient: u8) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_set1_epi8(coefficient.cast_signed()) }
    }

    #[inline(always)]
    fn operand(self, x: __m512i) -> __m512i {
        x
    }

    #[inline(always)]
    fn multiply_add(self, sum: __m512i, factor: __m512i, x: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512F and GFNI.
        unsafe { _mm512_xor_si512(sum, _mm512_gf2p8mul_epi8(x, factor)) }
    }

    #[inline(always)]
    fn multiply_add_pair(
        self,
        sum: __m512i,
        [(factor, x), (factor_next, next)]: [(__m512i, __m512i); 2],
    ) -> __m512i {
        // SAFETY: the token proves AVX-512F and GFNI.
        unsafe {
            let product = _mm512_gf2p8mul_epi8(x, factor);
            let product_next = _mm512_gf2p8mul_epi8(next, factor_next);
            _mm512_ternarylogic_epi64::<0x96>(sum, product, product_next)
        }
    }

    #[inline(always)]
    fn mul_add_rest(self, y: &mut [u8], coefficient: u8, x: &[u8]) {
        // A masked store is slower to load from than a whole one, and the decoder loads its short
        // rows again; so only pieces below 16 bytes are masked.
        let (y, x) = mul_add_pieces(self.half(), y, coefficient, x);
        if x.is_empty() {
            return;
        }
        assert!(x.len() == y.len() && x.len() < Self::WIDTH);
        let mask = (1 << x.len()) - 1;
        // SAFETY: the mask covers exactly the bytes read and written; the token proves AVX-512BW.
        unsafe {
            let sum = self.multiply_add(
                _mm512_maskz_loadu_epi8(mask, y.as_ptr().cast()),
                self.factor(coefficient),
                _mm512_maskz_loadu_epi8(mask, x.as_ptr().cast()),
            );
            _mm512_mask_storeu_epi8(y.as_mut_ptr().cast(), mask, sum);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel) struct GfniAvx2(());

impl GfniAvx2 {
    pub(in crate::kernel) fn detect() -> Option<Self> {
        let is_there = is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx2");
        is_there.then_some(Self(()))
    }
}

entry_points!(GfniAvx2, "avx2,gfni", dot: 4, combine: 5 x 2);

impl Isa for GfniAvx2 {
    vectors!(__m256i, 32, _mm256_setzero_si256(), _mm256_loadu_si256, _mm256_storeu_si256);

    type Operand = __m256i;
    type Factor = __m256i;

    #[inline(always)]
    fn factor(self, coefficient: u8) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_set1_epi8(coefficient.cast_signed()) }
    }

    #[inline(always)]
    fn operand(self, x: __m256i) -> __m256i {
        x
    }

    #[inline(always)]
    fn multiply_add(self, sum: __m256i, factor: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2 and GFNI.
        unsafe { _mm256_xor_si256(sum, _mm256_gf2p8mul_epi8(x, factor)) }
    }

    #[inline(always)]
    fn mul_add_rest(self, y: &mut [u8], coefficient: u8, x: &[u8]) {
        let (y, x) = mul_add_pieces(self, y, coefficient, x);
        portable::mul_add_bytes(y, coefficient, x);
    }
}

/// Adds `coefficient * x` to `y`, of the same length, in a piece of 32 and one of 16 bytes if there
/// are as many; returns the rest, below 16 bytes if there were fewer than 64.
#[inline(always)]
fn mul_add_pieces<'a>(
    isa: GfniAvx2,
    mut y: &'a mut [u8],
    coefficient: u8,
    mut x: &'a [u8],
) -> (&'a mut [u8], &'a [u8]) {
    if x.len() >= 32 {
        let sum = isa.multiply_add(isa.load(y), isa.factor(coefficient), isa.load(x));
        isa.store(y, sum);
        (y, x) = (&mut y[32..], &x[32..]);
    }
    if let (Some(y_piece), Some(x_piece)) = (y.first_chunk_mut::<16>(), x.first_chunk::<16>()) {
        // SAFETY: the 16 bytes are there, aligned or not; the token proves GFNI and AVX2.
        unsafe {
            let product = _mm_gf2p8mul_epi8(
                _mm_loadu_si128(x_piece.as_ptr().cast()),
                _mm_set1_epi8(coefficient.cast_signed()),
            );
            let sum = _mm_xor_si128(_mm_loadu_si128(y_piece.as_ptr().cast()), product);
            _mm_storeu_si128(y_piece.as_mut_ptr().cast(), sum);
        }
        (y, x) = (&mut y[16..], &x[16..]);
    }
    (y, x)
}
