//! Vectors times coefficients, at the speed that the processor allows.
//!
//! ```text
//! mul_add   y ^= c * x                      eliminates one coefficient
//! dot       y = c_1*x_1 + ... + c_n*x_n     one coded packet, or one repaired packet
//! combine   y_j = sum over i of c_ji*x_i    several of them from the same sources
//!
//! add_rows, clear_column                    the two steps of Gauss-Jordan elimination, on a matrix
//!                                           whose rows lie one after the other
//! ```
//!
//! `dot` and `combine` keep sums in registers until they are complete: sources are only read,
//! outputs only written. Shorter inputs count as padded with zeros. All kernels give the same
//! bytes; the kernel is chosen once per process ([`Kernel::fastest`]).
//!
//! ```text
//! Kernel > token of an instruction set (isa) > loops, compiled for it > its multiplication (x86, neon)
//!        > portable
//! ```

#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod isa;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod loops;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod terms;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

use self::terms::Rows;

/// A coefficient and the vector that it multiplies.
pub type Term<'a> = (u8, &'a [u8]);

/// An implementation of the vector operations that this processor can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(KernelKind);

/// The tokens prove that the processor has the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelKind {
    Portable,
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
    #[cfg(target_arch = "x86_64")]
    Ssse3(x86::Ssse3),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    GfniAvx2(x86::GfniAvx2),
    #[cfg(target_arch = "x86_64")]
    GfniAvx512(x86::GfniAvx512),
}

/// Calls the method of the token, or the function of the portable kernel.
macro_rules! dispatch {
    ($kind:expr, $isa:ident => $call:expr, portable => $portable:expr) => {
        match $kind {
            KernelKind::Portable => $portable,
            #[cfg(target_arch = "aarch64")]
            KernelKind::Neon($isa) => $call,
            #[cfg(target_arch = "x86_64")]
            KernelKind::Ssse3($isa) => $call,
            #[cfg(target_arch = "x86_64")]
            KernelKind::Avx2($isa) => $call,
            #[cfg(target_arch = "x86_64")]
            KernelKind::GfniAvx2($isa) => $call,
            #[cfg(target_arch = "x86_64")]
            KernelKind::GfniAvx512($isa) => $call,
        }
    };
}

impl Kernel {
    /// The fastest kernel of this processor.
    #[must_use]
    pub fn fastest() -> Self {
        static FASTEST: OnceLock<Kernel> = OnceLock::new();
        *FASTEST.get_or_init(|| *Self::available().last().expect("the portable one is there"))
    }

    /// The kernels that this processor can run, the slowest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let all = [
            Some(KernelKind::Portable),
            #[cfg(target_arch = "aarch64")]
            neon::Neon::detect().map(KernelKind::Neon),
            #[cfg(target_arch = "x86_64")]
            x86::Ssse3::detect().map(KernelKind::Ssse3),
            #[cfg(target_arch = "x86_64")]
            x86::Avx2::detect().map(KernelKind::Avx2),
            #[cfg(target_arch = "x86_64")]
            x86::GfniAvx2::detect().map(KernelKind::GfniAvx2),
            #[cfg(target_arch = "x86_64")]
            x86::GfniAvx512::detect().map(KernelKind::GfniAvx512),
        ];
        all.into_iter().flatten().map(Self).collect()
    }

    /// The name that reports use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            KernelKind::Portable => "portable",
            #[cfg(target_arch = "aarch64")]
            KernelKind::Neon(_) => "neon",
            #[cfg(target_arch = "x86_64")]
            KernelKind::Ssse3(_) => "ssse3",
            #[cfg(target_arch = "x86_64")]
            KernelKind::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            KernelKind::GfniAvx2(_) => "gfni-avx2",
            #[cfg(target_arch = "x86_64")]
            KernelKind::GfniAvx512(_) => "gfni-avx512",
        }
    }

    /// Adds `coefficient * x` to `y`.
    ///
    /// # Panics
    /// If `x` is longer than `y`.
    #[inline]
    pub fn mul_add(self, y: &mut [u8], coefficient: u8, x: &[u8]) {
        let y = start(y, x.len());
        dispatch!(self.0,
            isa => isa.mul_add(y, coefficient, x),
            portable => portable::mul_add(y, coefficient, x))
    }

    /// Adds `factors[i]` times the row `i` to `y`.
    ///
    /// `rows`: one after the other, each as long as `y`, at least as many as `factors`.
    ///
    /// # Panics
    /// If there are fewer rows than factors.
    pub fn add_rows(self, y: &mut [u8], factors: &[u8], rows: &[u8]) {
        let rows = &rows[..factors.len() * y.len()];
        dispatch!(self.0,
            isa => isa.add_rows(y, factors, rows),
            portable => portable::add_rows(y, factors, rows))
    }

    /// Adds a multiple of `x` to every row so that its byte at `column` becomes zero.
    ///
    /// `rows`: one after the other, each as long as `x`. `x[column]` is 1.
    ///
    /// # Panics
    /// If `column` is not within a row, or the rows do not end with `rows`.
    pub fn clear_column(self, rows: &mut [u8], column: usize, x: &[u8]) {
        let is_whole = rows.len().is_multiple_of(x.len());
        assert!(column < x.len() && is_whole, "column {column} of rows of {} bytes", x.len());
        debug_assert_eq!(x[column], 1, "the coefficient that clears others");
        dispatch!(self.0,
            isa => isa.clear_column(rows, column, x),
            portable => portable::clear_column(rows, column, x))
    }

    /// Sets `y` to the sum of `coefficient * x` over all `terms`.
    ///
    /// # Panics
    /// If an `x` is longer than `y`.
    pub fn dot(self, y: &mut [u8], terms: &[Term<'_>]) {
        let length = terms.iter().map(|(_, x)| x.len()).max().unwrap_or(0);
        start(y, length);
        let (y, padding) = y.split_at_mut(length);
        padding.fill(0);
        dispatch!(self.0,
            isa => isa.dot(y, terms),
            portable => portable::combine(&mut [y], terms, length))
    }

    /// Sets every output to its own linear combination of the same sources.
    ///
    /// `coefficients`: a row of `sources.len()` for each output, so that `outputs[j]` becomes the
    /// sum over all `i` of `coefficients[j * sources.len() + i] * sources[i]`.
    ///
    /// # Panics
    /// If a source is longer than an output, or `coefficients` has not
    /// `outputs.len() * sources.len()` entries.
    pub fn combine(self, outputs: &mut [&mut [u8]], coefficients: &[u8], sources: &[&[u8]]) {
        assert_eq!(
            coefficients.len(),
            outputs.len() * sources.len(),
            "a coefficient for each output and source"
        );
        let length = sources.iter().map(|x| x.len()).max().unwrap_or(0);
        for y in outputs.iter_mut() {
            start(y, length);
            y[length..].fill(0);
        }
        let terms = Rows { coefficients, sources };
        dispatch!(self.0,
            isa => isa.combine(outputs, terms, length),
            portable => portable::combine(outputs, terms, length))
    }
}

/// The part of `y` that an input of `length` bytes affects.
#[inline]
fn start(y: &mut [u8], length: usize) -> &mut [u8] {
    assert!(length <= y.len(), "{length} bytes do not fit {}", y.len());
    &mut y[..length]
}
