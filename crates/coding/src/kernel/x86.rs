//! The instruction sets of x86-64, one file for each way to multiply.

mod gfni;
mod shuffle;

pub(super) use gfni::{GfniAvx2, GfniAvx512};
pub(super) use shuffle::{Avx2, Ssse3};
