//! The coefficients of a block in reduced row echelon form, and how each row was made.
//!
//! ```text
//!            packets 5 ... 9        equations
//!            5  6  7  8  9          A  B  C
//! row 0      1  .  .  3  2          2  7  1       p5 + 3*p8 + 2*p9 = 2*A + 7*B + 1*C
//! row 1      .  .  1  8  1          .  4  1       p7 + 8*p8 + 1*p9 = 4*B + 1*C
//! row 2      .  1  .  .  4          9  .  5       p6 + 4*p9 = 9*A + 5*C
//!            `- coefficients -'     `recipe'
//! ```
//!
//! A row is one run of bytes, so that one vector operation works on both halves. Each row has a
//! *pivot*: a missing packet whose column is 1 there and 0 in every other row. Columns of known
//! packets are carried along, but are never pivots. So a row determines its pivot exactly when it
//! is zero in every missing column without a pivot; in the picture, row 2 once 9 is known.
//!
//! The equations stay independent: as many rows as equations, and the recipes are invertible.

use super::bits::{BITS, Bits};
use crate::gf256;
use crate::kernel::Kernel;

/// Rows over up to [`BITS`] packets, made of as many equations as there are rows.
#[derive(Debug)]
pub(super) struct Matrix {
    kernel: Kernel,
    /// Bytes of each half of a row; numbers of packets and equations are lower.
    width: usize,
    /// Row after row, `2 * width` bytes each.
    cells: Vec<u8>,
    pivots: Vec<u8>,
    pivot_set: Bits,
    scratch: Vec<u8>,
}

impl Matrix {
    pub(super) fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            width: WIDTH_MIN,
            cells: Vec::new(),
            pivots: Vec::new(),
            pivot_set: Bits::EMPTY,
            scratch: vec![0; 2 * WIDTH_MIN],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.pivots.len()
    }

    /// The coefficients of a row, by column, and its recipe, by equation.
    pub(super) fn halves(&self, row: usize) -> (&[u8], &[u8]) {
        let (coefficients, recipe) = self.row(row).split_at(self.width);
        (coefficients, &recipe[..self.len()])
    }

    pub(super) fn recipe(&self, row: usize) -> Bits {
        let (_, recipe) = self.halves(row);
        (0..recipe.len()).filter(|equation| recipe[*equation] != 0).collect()
    }

    /// Appends the solved rows with their pivots: `(pivot, row)`, ascending. `missing`: the columns
    /// of missing packets.
    pub(super) fn solved(&self, missing: Bits, solved: &mut Vec<(u8, u8)>) {
        let free = missing & !self.pivot_set;
        if let Some(first) = free.first() {
            // All rows nearly always have a coefficient in the first free column.
            let mut column =
                self.cells.get(first..).unwrap_or_default().iter().step_by(self.stride());
            if column.all(|coefficient| *coefficient != 0) {
                return;
            }
        }
        for (index, pivot) in self.pivots.iter().enumerate() {
            let row = self.row(index);
            if free.iter().all(|column| row[column] == 0) {
                solved.push((*pivot, index as u8));
            }
        }
        solved.sort_unstable();
    }

    /// Adds an equation unless it follows from the others; returns whether it was added.
    /// `coefficients`: of the columns from `first`. `missing`: with those of the new equation.
    pub(super) fn insert(&mut self, first: usize, coefficients: &[u8], missing: Bits) -> bool {
        let free = missing & !self.pivot_set;
        if free.is_empty() {
            return false;
        }
        self.scratch.fill(0);
        self.scratch[first..first + coefficients.len()].copy_from_slice(coefficients);
        self.scratch[self.width + self.pivots.len()] = 1;
        // Rows are zero at each other's pivots, so one pass with the original factors suffices.
        let mut factors = [0; BITS];
        for (factor, pivot) in factors.iter_mut().zip(&self.pivots) {
            let offset = usize::from(*pivot).wrapping_sub(first);
            *factor = coefficients.get(offset).copied().unwrap_or(0);
        }
        self.kernel.add_rows(&mut self.scratch, &factors[..self.pivots.len()], &self.cells);
        let Some(pivot) = free.iter().find(|column| self.scratch[*column] != 0) else {
            return false;
        };
        let rows = self.cells.len();
        self.cells.resize(rows + self.stride(), 0);
        let (others, row) = self.cells.split_at_mut(rows);
        let scale = gf256::invert(self.scratch[pivot]);
        self.kernel.mul_add(row, scale, &self.scratch);
        self.kernel.clear_column(others, pivot, row);
        self.pivots.push(pivot as u8);
        self.pivot_set.insert(pivot);
        true
    }

    /// Records that the packet of `column` became known. `missing`: without this column. Returns
    /// the row that has no missing packet left, if there is one; the caller must
    /// [remove](Self::remove) it.
    pub(super) fn release(&mut self, column: usize, missing: Bits) -> Option<usize> {
        if !self.pivot_set.has(column) {
            return None;
        }
        let index = self.pivots.iter().position(|pivot| usize::from(*pivot) == column)?;
        let free = missing & !self.pivot_set;
        let Some(pivot) = free.iter().find(|column| self.row(index)[*column] != 0) else {
            return Some(index);
        };
        self.scratch.fill(0);
        let stride = self.stride();
        let row = &mut self.cells[index * stride..][..stride];
        self.kernel.mul_add(&mut self.scratch, gf256::invert(row[pivot]), row);
        self.kernel.clear_column(&mut self.cells, pivot, &self.scratch);
        // That also cleared the row itself.
        self.cells[index * stride..][..stride].copy_from_slice(&self.scratch);
        self.pivots[index] = pivot as u8;
        self.pivot_set.remove(column);
        self.pivot_set.insert(pivot);
        None
    }

    /// Drops `equation`, which it first removes from the other rows, and `row`, which must use it.
    /// The other rows keep their pivots, and may get a coefficient in the dropped row's pivot
    /// column. The last equation takes the dropped number, as with [`Vec::swap_remove`].
    pub(super) fn remove(&mut self, row: usize, equation: usize) {
        let stride = self.stride();
        let last = self.cells.len() - stride;
        let (dropped, moved) = (self.cell_of(equation), self.cell_of(self.len() - 1));
        self.scratch.fill(0);
        let scale = gf256::invert(self.row(row)[dropped]);
        debug_assert!(scale != 0, "row {row} does not use equation {equation}");
        self.kernel.mul_add(&mut self.scratch, scale, &self.cells[row * stride..][..stride]);
        self.cells.copy_within(last.., row * stride);
        self.cells.truncate(last);
        let pivot = self.pivots.swap_remove(row);
        self.pivot_set.remove(usize::from(pivot));
        self.kernel.clear_column(&mut self.cells, dropped, &self.scratch);
        for other in self.cells.chunks_exact_mut(stride) {
            other.swap(dropped, moved);
        }
    }

    /// The lowest row that uses `equation`.
    pub(super) fn user_of(&self, equation: usize) -> Option<usize> {
        let cell = self.cell_of(equation);
        self.rows().position(|row| row[cell] != 0)
    }

    /// Makes room for `columns` columns, and as many rows.
    pub(super) fn widen(&mut self, columns: usize) {
        debug_assert!(columns <= BITS, "{columns} columns");
        if columns <= self.width {
            return;
        }
        let (before, width) = (self.width, columns.next_power_of_two());
        let mut cells = vec![0; self.len() * 2 * width];
        for (wide, row) in cells.chunks_exact_mut(2 * width).zip(self.rows()) {
            wide[..before].copy_from_slice(&row[..before]);
            wide[width..width + before].copy_from_slice(&row[before..]);
        }
        self.width = width;
        self.cells = cells;
        self.scratch = vec![0; 2 * width];
    }

    /// Adds `by`, which may be negative, to the number of every column; there must be room.
    pub(super) fn shift(&mut self, by: isize) {
        let (width, distance) = (self.width, by.unsigned_abs());
        for row in self.cells.chunks_exact_mut(2 * width) {
            let coefficients = &mut row[..width];
            // The coefficients that wrap around are zero.
            if by < 0 {
                coefficients.rotate_left(distance);
            } else {
                coefficients.rotate_right(distance);
            }
        }
        for pivot in &mut self.pivots {
            *pivot = pivot.wrapping_add_signed(by as i8);
        }
        self.pivot_set = self.pivot_set.shifted(by);
    }

    /// Appends the rows of another matrix over other missing packets; its equations come last.
    pub(super) fn append(&mut self, other: &Self) {
        let (before, width) = (self.len(), self.width);
        for (row, pivot) in other.rows().zip(&other.pivots) {
            let start = self.cells.len();
            self.cells.resize(start + 2 * width, 0);
            let (coefficients, recipe) = self.cells[start..].split_at_mut(width);
            let columns = width.min(other.width);
            coefficients[..columns].copy_from_slice(&row[..columns]);
            recipe[before..before + other.len()]
                .copy_from_slice(&row[other.width..][..other.len()]);
            self.pivots.push(*pivot);
        }
        self.pivot_set |= other.pivot_set;
    }

    pub(super) fn clear(&mut self) {
        self.cells.clear();
        self.pivots.clear();
        self.pivot_set = Bits::EMPTY;
    }

    /// Whether the rows are short enough that their memory is kept.
    pub(super) fn is_small(&self) -> bool {
        self.width == WIDTH_MIN
    }

    fn row(&self, row: usize) -> &[u8] {
        &self.cells[row * self.stride()..(row + 1) * self.stride()]
    }

    fn cell_of(&self, equation: usize) -> usize {
        self.width + equation
    }

    fn stride(&self) -> usize {
        2 * self.width
    }

    fn rows(&self) -> std::slice::ChunksExact<'_, u8> {
        self.cells.chunks_exact(self.stride())
    }
}

/// Room for an encode range of usual size: 10 packets.
const WIDTH_MIN: usize = 32;
