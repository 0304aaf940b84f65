//! NEON, on every aarch64: multiplication by table look-ups of 16 nibbles at once.

#![allow(unsafe_code)]

use std::arch::aarch64::{
    uint8x16_t, vandq_u8, vdupq_n_u8, veorq_u8, vld1q_u8, vqtbl1q_u8, vshrq_n_u8, vst1q_u8,
};
use std::arch::is_aarch64_feature_detected;

use super::isa::{Isa, entry_points, vectors};
use crate::gf256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neon(());

impl Neon {
    pub(super) fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

/// A value for the low and one for the high nibbles.
#[derive(Clone, Copy)]
pub(super) struct Nibbles {
    low: uint8x16_t,
    high: uint8x16_t,
}

entry_points!(Neon, "neon", dot: 4, combine: 4 x 3);

impl Isa for Neon {
    vectors!(uint8x16_t, 16, vdupq_n_u8(0), vld1q_u8, vst1q_u8);

    type Operand = Nibbles;
    type Factor = Nibbles;

    #[inline(always)]
    fn factor(self, coefficient: u8) -> Nibbles {
        let (low, high) = gf256::products(coefficient).split_at(Self::WIDTH);
        Nibbles { low: self.load(low), high: self.load(high) }
    }

    #[inline(always)]
    fn operand(self, x: uint8x16_t) -> Nibbles {
        // SAFETY: the token proves NEON.
        unsafe { Nibbles { low: vandq_u8(x, vdupq_n_u8(0x0f)), high: vshrq_n_u8::<4>(x) } }
    }

    #[inline(always)]
    fn multiply_add(self, sum: uint8x16_t, factor: Nibbles, x: Nibbles) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        unsafe {
            let low = vqtbl1q_u8(factor.low, x.low);
            let high = vqtbl1q_u8(factor.high, x.high);
            veorq_u8(veorq_u8(sum, low), high)
        }
    }
}
