//! Vectors times coefficients, at the speed that the processor allows.
//!
//! ```text
//! mul_add   y ^= c * x                       eliminates one coefficient
//! dot_add   y ^= c_1*x_1 + ... + c_n*x_n     one coded packet, or one repaired packet; fused:
//!                                            a strip of y stays in registers for all x_i
//! ```
//!
//! Inputs shorter than `y` count as padded with zeros. All kernels give the same bytes; which one
//! runs is decided once per process ([`Kernel::fastest`]).

#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

use crate::gf256;

/// A coefficient and the vector that it multiplies.
pub type Term<'a> = (u8, &'a [u8]);

/// An implementation of the vector operations that this processor can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Kind);

/// Private, so that a kernel comes only from [`Kernel::available`], which asks the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    GfniAvx2,
}

impl Kind {
    /// The slowest first.
    const ALL: &[Self] = &[
        Self::Portable,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::GfniAvx2,
    ];

    fn is_supported(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => std::arch::is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::GfniAvx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("gfni")
            }
        }
    }
}

impl Kernel {
    /// The kernel of plain Rust, which runs on any processor.
    pub const PORTABLE: Self = Self(Kind::Portable);

    /// The fastest kernel of this processor.
    #[must_use]
    pub fn fastest() -> Self {
        static FASTEST: OnceLock<Kernel> = OnceLock::new();
        *FASTEST.get_or_init(|| *Self::available().last().expect("the portable one is there"))
    }

    /// The kernels that this processor can run, the slowest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Kind::ALL.iter().copied().filter(|kind| kind.is_supported()).map(Self).collect()
    }

    /// The name that reports use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::GfniAvx2 => "gfni-avx2",
        }
    }

    /// Adds `coefficient * x` to `y`.
    ///
    /// # Panics
    /// If `x` is longer than `y`.
    pub fn mul_add(self, y: &mut [u8], coefficient: u8, x: &[u8]) {
        assert!(x.len() <= y.len(), "{} bytes do not fit {}", x.len(), y.len());
        match self.0 {
            Kind::Portable => mul_add_portable(y, coefficient, x),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => x86::mul_add_avx2(y, coefficient, x),
            #[cfg(target_arch = "x86_64")]
            Kind::GfniAvx2 => x86::mul_add_gfni(y, coefficient, x),
        }
    }

    /// Sets `y` to the sum of `coefficient * x` over all `terms`.
    ///
    /// # Panics
    /// If an `x` is longer than `y`.
    pub fn dot(self, y: &mut [u8], terms: &[Term<'_>]) {
        y.fill(0);
        self.dot_add(y, terms);
    }

    /// Sets every output to its own linear combination of the same sources.
    ///
    /// `coefficients`: one row per output, `outputs[j]` becomes the sum over all `i` of
    /// `coefficients[j * sources.len() + i] * sources[i]`.
    ///
    /// # Panics
    /// If a source is longer than an output, or `coefficients` has not `outputs.len() * sources.len()` entries.
    pub fn combine(self, outputs: &mut [&mut [u8]], coefficients: &[u8], sources: &[&[u8]]) {
        assert_eq!(coefficients.len(), outputs.len() * sources.len(), "a coefficient per pair");
        for (row, y) in outputs.iter_mut().enumerate() {
            y.fill(0);
            for (column, x) in sources.iter().enumerate() {
                self.mul_add(y, coefficients[row * sources.len() + column], x);
            }
        }
    }

    /// Adds the sum of `coefficient * x` over all `terms` to `y`.
    ///
    /// # Panics
    /// If an `x` is longer than `y`.
    pub fn dot_add(self, y: &mut [u8], terms: &[Term<'_>]) {
        let longest = terms.iter().map(|(_, x)| x.len()).max().unwrap_or(0);
        assert!(longest <= y.len(), "{longest} bytes do not fit {}", y.len());
        match self.0 {
            Kind::Portable => {
                for (coefficient, x) in terms {
                    mul_add_portable(y, *coefficient, x);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => x86::dot_add_avx2(y, terms),
            #[cfg(target_arch = "x86_64")]
            Kind::GfniAvx2 => x86::dot_add_gfni(y, terms),
        }
    }
}

fn mul_add_portable(y: &mut [u8], coefficient: u8, x: &[u8]) {
    let (low, high) = gf256::products(coefficient).split_at(16);
    for (y, x) in y.iter_mut().zip(x) {
        *y ^= low[usize::from(x & 15)] ^ high[usize::from(x >> 4)];
    }
}
