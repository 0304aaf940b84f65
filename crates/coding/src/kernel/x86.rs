//! The kernels for x86-64: AVX2 with shuffle tables, and GFNI, whose multiplication is our field's.
//!
//! ```text
//! y     |<-- strip: 128 bytes in 4 registers -->|<-- strip -->| ... | vectors of 32 | rest |
//! x_1   |  * c_1, added                         |
//! x_n   |  * c_n, added, then stored            |
//! ```
//!
//! Both differ only in how a vector is multiplied; the macro writes the loops for each, because
//! functions for different processor features cannot share a generic body and stay inlined.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_gf2p8mul_epi8,
    _mm256_loadu_si256, _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_srli_epi16,
    _mm256_storeu_si256, _mm256_xor_si256,
};

use super::Term;
use crate::gf256;

const VECTOR: usize = 32;
const LANES: usize = 4;
const STRIP: usize = LANES * VECTOR;

/// Writes a module with the loops for one way to multiply.
macro_rules! loops {
    ($module:ident, $features:literal, $factor:path, $product:path) => {
        mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            pub(super) fn mul_add(y: &mut [u8], coefficient: u8, x: &[u8]) {
                let factor = $factor(coefficient);
                let y = &mut y[..x.len()];
                let (y_vectors, y_rest) = y.as_chunks_mut::<VECTOR>();
                let (x_vectors, x_rest) = x.as_chunks::<VECTOR>();
                for (y, x) in y_vectors.iter_mut().zip(x_vectors) {
                    store(y, _mm256_xor_si256(load(y), $product(factor, load(x))));
                }
                if !x_rest.is_empty() {
                    let mut padded = [0; VECTOR];
                    padded[..x_rest.len()].copy_from_slice(x_rest);
                    let product = $product(factor, load(&padded));
                    store(&mut padded, product);
                    y_rest.iter_mut().zip(padded).for_each(|(y, product)| *y ^= product);
                }
            }

            #[target_feature(enable = $features)]
            pub(super) fn dot_add(y: &mut [u8], terms: &[Term<'_>]) {
                let (strips, _) = y.as_chunks_mut::<STRIP>();
                for (index, strip) in strips.iter_mut().enumerate() {
                    let (y_vectors, _) = strip.as_chunks_mut::<VECTOR>();
                    let mut sums: [__m256i; LANES] = [
                        load(&y_vectors[0]),
                        load(&y_vectors[1]),
                        load(&y_vectors[2]),
                        load(&y_vectors[3]),
                    ];
                    for (coefficient, x) in terms {
                        let Some(x) = x.as_chunks::<STRIP>().0.get(index) else { continue };
                        let factor = $factor(*coefficient);
                        for (sum, x) in sums.iter_mut().zip(x.as_chunks::<VECTOR>().0) {
                            *sum = _mm256_xor_si256(*sum, $product(factor, load(x)));
                        }
                    }
                    for (y, sum) in y_vectors.iter_mut().zip(sums) {
                        store(y, sum);
                    }
                }
                for (coefficient, x) in terms {
                    let whole = x.len() - x.len() % STRIP;
                    mul_add(&mut y[whole..], *coefficient, &x[whole..]);
                }
            }
        }
    };
}

loops!(avx2, "avx2", shuffle_tables, shuffle_product);
loops!(gfni, "avx2,gfni", broadcast, gfni_product);

/// `Kernel::mul_add`; only for processors with AVX2.
pub(super) fn mul_add_avx2(y: &mut [u8], coefficient: u8, x: &[u8]) {
    // SAFETY: `Kernel::available` gives this kernel out only where the processor has AVX2.
    unsafe { avx2::mul_add(y, coefficient, x) }
}

/// `Kernel::dot_add`; only for processors with AVX2.
pub(super) fn dot_add_avx2(y: &mut [u8], terms: &[Term<'_>]) {
    // SAFETY: `Kernel::available` gives this kernel out only where the processor has AVX2.
    unsafe { avx2::dot_add(y, terms) }
}

/// `Kernel::mul_add`; only for processors with AVX2 and GFNI.
pub(super) fn mul_add_gfni(y: &mut [u8], coefficient: u8, x: &[u8]) {
    // SAFETY: `Kernel::available` gives this kernel out only where the processor has AVX2 and GFNI.
    unsafe { gfni::mul_add(y, coefficient, x) }
}

/// `Kernel::dot_add`; only for processors with AVX2 and GFNI.
pub(super) fn dot_add_gfni(y: &mut [u8], terms: &[Term<'_>]) {
    // SAFETY: `Kernel::available` gives this kernel out only where the processor has AVX2 and GFNI.
    unsafe { gfni::dot_add(y, terms) }
}

/// The products of a coefficient with all low and with all high nibbles.
#[target_feature(enable = "avx2")]
#[inline]
fn shuffle_tables(coefficient: u8) -> (__m256i, __m256i) {
    let ([low, high], _) = gf256::products(coefficient).as_chunks::<16>() else {
        unreachable!("32 bytes are two chunks of 16")
    };
    (broadcast_table(low), broadcast_table(high))
}

#[target_feature(enable = "avx2")]
#[inline]
fn shuffle_product((low, high): (__m256i, __m256i), x: __m256i) -> __m256i {
    let nibble = _mm256_set1_epi8(0x0f);
    let low_nibbles = _mm256_and_si256(x, nibble);
    let high_nibbles = _mm256_and_si256(_mm256_srli_epi16::<4>(x), nibble);
    _mm256_xor_si256(_mm256_shuffle_epi8(low, low_nibbles), _mm256_shuffle_epi8(high, high_nibbles))
}

#[target_feature(enable = "avx2")]
#[inline]
fn broadcast(coefficient: u8) -> __m256i {
    _mm256_set1_epi8(coefficient.cast_signed())
}

#[target_feature(enable = "avx2,gfni")]
#[inline]
fn gfni_product(factor: __m256i, x: __m256i) -> __m256i {
    _mm256_gf2p8mul_epi8(x, factor)
}

#[target_feature(enable = "avx2")]
#[inline]
fn broadcast_table(table: &[u8; 16]) -> __m256i {
    // SAFETY: the array has the 16 bytes that are read; the load needs no alignment.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}

#[target_feature(enable = "avx2")]
#[inline]
fn load(bytes: &[u8; VECTOR]) -> __m256i {
    // SAFETY: the array has the 32 bytes that are read; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store(bytes: &mut [u8; VECTOR], vector: __m256i) {
    // SAFETY: the array has the 32 bytes that are written; the store needs no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}
