//! The operations that a kernel needs from an instruction set.
//!
//! ```text
//! x > load > operand   \
//!                        multiply_add > sum > store
//! coefficient > factor /
//! ```
//!
//! A value of a type that implements [`Isa`] is a token: it proves that the processor has the
//! instructions, so every method is safe to call. The `loops` are written once for all instruction
//! sets and inlined into functions that are compiled for each.

/// The vector operations of one instruction set; a value proves that the processor has it.
pub(super) trait Isa: Copy {
    /// [`Isa::WIDTH`] bytes.
    type Vector: Copy;
    /// A vector prepared for multiplication by any number of coefficients.
    type Operand: Copy;
    /// A coefficient prepared for multiplication of any number of vectors.
    type Factor: Copy;

    const WIDTH: usize;
    /// Whether [`Isa::multiply_add_pair`] is better than two times [`Isa::multiply_add`].
    const HAS_PAIRS: bool = false;

    fn zero(self) -> Self::Vector;

    /// Loads the first [`Isa::WIDTH`] bytes; panics if there are fewer.
    fn load(self, bytes: &[u8]) -> Self::Vector;

    /// Stores to the first [`Isa::WIDTH`] bytes; panics if there are fewer.
    fn store(self, bytes: &mut [u8], vector: Self::Vector);

    fn factor(self, coefficient: u8) -> Self::Factor;

    fn operand(self, x: Self::Vector) -> Self::Operand;

    fn multiply_add(
        self,
        sum: Self::Vector,
        factor: Self::Factor,
        x: Self::Operand,
    ) -> Self::Vector;

    #[inline(always)]
    fn multiply_add_pair(
        self,
        sum: Self::Vector,
        [(factor, x), (factor_next, next)]: [(Self::Factor, Self::Operand); 2],
    ) -> Self::Vector {
        self.multiply_add(self.multiply_add(sum, factor, x), factor_next, next)
    }

    /// Adds `coefficient * x` to `y`, of the same length, below [`Isa::WIDTH`].
    #[inline(always)]
    fn mul_add_rest(self, y: &mut [u8], coefficient: u8, x: &[u8]) {
        super::portable::mul_add_bytes(y, coefficient, x);
    }
}

/// Within an `impl Isa`: its vectors, and the instructions that make, load and store one. The
/// features of the token include these instructions, which take bytes aligned or not.
macro_rules! vectors {
    ($vector:ty, $width:literal, $zero:expr, $load:path, $store:path) => {
        type Vector = $vector;

        const WIDTH: usize = $width;

        #[inline(always)]
        fn zero(self) -> $vector {
            // SAFETY: the token proves the instruction.
            unsafe { $zero }
        }

        #[inline(always)]
        fn load(self, bytes: &[u8]) -> $vector {
            assert!(bytes.len() >= Self::WIDTH);
            // SAFETY: so many bytes are there, aligned or not; the token proves the instruction.
            unsafe { $load(bytes.as_ptr().cast()) }
        }

        #[inline(always)]
        fn store(self, bytes: &mut [u8], vector: $vector) {
            assert!(bytes.len() >= Self::WIDTH);
            // SAFETY: so many bytes are there, aligned or not; the token proves the instruction.
            unsafe { $store(bytes.as_mut_ptr().cast(), vector) }
        }
    };
}
pub(super) use vectors;

/// Gives a token its kernel: the `loops`, compiled for its instruction set.
///
/// `dot`: vectors of the output summed at once; `combine`: outputs, and vectors of each.
///
/// A function compiled with further features may only be called where the token proves them.
macro_rules! entry_points {
    ($isa:ident, $features:literal, dot: $dot:literal, combine: $group:literal x $vectors:literal) => {
        impl $isa {
            #[inline]
            pub(in crate::kernel) fn mul_add(self, y: &mut [u8], coefficient: u8, x: &[u8]) {
                #[target_feature(enable = $features)]
                fn compiled(isa: $isa, y: &mut [u8], coefficient: u8, x: &[u8]) {
                    crate::kernel::loops::mul_add(isa, y, coefficient, x);
                }
                // SAFETY: the token proves the features.
                unsafe { compiled(self, y, coefficient, x) }
            }

            #[inline]
            pub(in crate::kernel) fn add_rows(self, y: &mut [u8], factors: &[u8], rows: &[u8]) {
                #[target_feature(enable = $features)]
                fn compiled(isa: $isa, y: &mut [u8], factors: &[u8], rows: &[u8]) {
                    crate::kernel::loops::add_rows(isa, y, factors, rows);
                }
                // SAFETY: the token proves the features.
                unsafe { compiled(self, y, factors, rows) }
            }

            #[inline]
            pub(in crate::kernel) fn clear_column(self, rows: &mut [u8], column: usize, x: &[u8]) {
                #[target_feature(enable = $features)]
                fn compiled(isa: $isa, rows: &mut [u8], column: usize, x: &[u8]) {
                    crate::kernel::loops::clear_column(isa, rows, column, x);
                }
                // SAFETY: the token proves the features.
                unsafe { compiled(self, rows, column, x) }
            }

            #[inline]
            pub(in crate::kernel) fn dot(self, y: &mut [u8], terms: &[crate::kernel::Term<'_>]) {
                #[target_feature(enable = $features)]
                fn compiled(isa: $isa, y: &mut [u8], terms: &[crate::kernel::Term<'_>]) {
                    let length = y.len();
                    crate::kernel::loops::combine::<_, _, 1, $dot>(isa, &mut [y], terms, length);
                }
                // SAFETY: the token proves the features.
                unsafe { compiled(self, y, terms) }
            }

            #[inline]
            pub(in crate::kernel) fn combine(
                self,
                outputs: &mut [&mut [u8]],
                terms: crate::kernel::terms::Rows<'_>,
                length: usize,
            ) {
                #[target_feature(enable = $features)]
                fn compiled(
                    isa: $isa,
                    outputs: &mut [&mut [u8]],
                    terms: crate::kernel::terms::Rows<'_>,
                    length: usize,
                ) {
                    crate::kernel::loops::combine::<_, _, $group, $vectors>(
                        isa, outputs, terms, length,
                    );
                }
                // SAFETY: the token proves the features.
                unsafe { compiled(self, outputs, terms, length) }
            }
        }
    };
}
pub(super) use entry_points;
