//! The sums as the loops see them, for `dot` and `combine`.

use super::Term;

/// Coefficients and what they multiply: one or several combinations of the same sources.
pub(super) trait Terms: Copy {
    type Row: Copy;

    fn count(self) -> usize;

    /// The source at `index`, below [`Terms::count`].
    fn source(&self, index: usize) -> &[u8];

    fn row(self, output: usize) -> Self::Row;

    fn coefficient(row: Self::Row, index: usize) -> u8;
}

/// One combination; `output` is 0.
impl<'a> Terms for &'a [Term<'a>] {
    type Row = Self;

    #[inline(always)]
    fn count(self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn source(&self, index: usize) -> &[u8] {
        self[index].1
    }

    #[inline(always)]
    fn row(self, _output: usize) -> Self {
        self
    }

    #[inline(always)]
    fn coefficient(row: Self, index: usize) -> u8 {
        row[index].0
    }
}

/// Several combinations.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// A row of `sources.len()` for each output.
    pub(super) coefficients: &'a [u8],
    pub(super) sources: &'a [&'a [u8]],
}

impl<'a> Terms for Rows<'a> {
    type Row = &'a [u8];

    #[inline(always)]
    fn count(self) -> usize {
        self.sources.len()
    }

    #[inline(always)]
    fn source(&self, index: usize) -> &[u8] {
        self.sources[index]
    }

    #[inline(always)]
    fn row(self, output: usize) -> &'a [u8] {
        &self.coefficients[output * self.sources.len()..][..self.sources.len()]
    }

    #[inline(always)]
    fn coefficient(row: &'a [u8], index: usize) -> u8 {
        row[index]
    }
}
