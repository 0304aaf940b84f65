//! Vectors times coefficients, at the speed that the processor allows.
//!
//! ```text
//! mul_add   y ^= c * x                       eliminates one coefficient
//! dot_add   y ^= c_1*x_1 + ... + c_n*x_n     one coded packet, or one repaired packet; fused:
//!                                            a strip of y stays in registers for all x_i
//! ```
//!
//! Inputs shorter than `y` count as padded with zeros. All kernels give the same bytes; which one
//! runs is decided once per process ([`Kernel::detect`]).

use std::sync::OnceLock;

use crate::gf256;

/// An implementation of the vector operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kernel {
    /// Tables and plain Rust, on any processor.
    Portable,
}

impl Kernel {
    /// The fastest kernel of this processor.
    #[must_use]
    pub fn detect() -> Self {
        static FASTEST: OnceLock<Kernel> = OnceLock::new();
        *FASTEST.get_or_init(|| *Self::available().last().expect("portable is always there"))
    }

    /// The kernels that this processor can run, the slowest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        vec![Self::Portable]
    }

    /// The name that reports use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
        }
    }

    /// Adds `coefficient * x` to `y`.
    ///
    /// # Panics
    /// If `x` is longer than `y`.
    pub fn mul_add(self, y: &mut [u8], coefficient: u8, x: &[u8]) {
        assert!(x.len() <= y.len(), "{} bytes do not fit {}", x.len(), y.len());
        mul_add_portable(y, coefficient, x);
    }

    /// Adds the sum of `coefficient * x` over all `terms` to `y`.
    ///
    /// # Panics
    /// If an `x` is longer than `y`.
    pub fn dot_add(self, y: &mut [u8], terms: &[Term<'_>]) {
        for (coefficient, x) in terms {
            self.mul_add(y, *coefficient, x);
        }
    }
}

/// A coefficient and the vector that it multiplies.
pub type Term<'a> = (u8, &'a [u8]);

fn mul_add_portable(y: &mut [u8], coefficient: u8, x: &[u8]) {
    let (low, high) = gf256::products(coefficient).split_at(16);
    for (y, x) in y.iter_mut().zip(x) {
        *y ^= low[usize::from(x & 15)] ^ high[usize::from(x >> 4)];
    }
}
