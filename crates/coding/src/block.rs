//! A system of linear equations over a few missing packets.
//!
//! ```text
//!            columns: missing packets                equations, as they came
//!            5  7  8  9          recipe              5 7 8 9
//! row 1      1  .  .  3    =   2*A + 7*B + 1*C       A: coefficients | payload
//! row 2      .  1  .  8    =   0*A + 4*B + 1*C       B: coefficients | payload
//! row 3      .  .  1  6    =   9*A + 0*B + 5*C       C: coefficients | payload
//!            pivots ^
//! ```
//!
//! Elimination works on coefficients alone: a row is a combination of equations in which each pivot
//! column stands in one row only, and its recipe says which combination. A packet is determined
//! exactly when its row has no other column left; then one fused pass over the payloads of the
//! recipe yields it. So the payload of an equation that turns out to be useless is never read, and
//! that of a useful one once for each packet it helps to repair.
//!
//! The equations stay linearly independent, so there are as many rows as equations, the recipes are
//! an invertible matrix, and no more than one equation per column is ever kept.
//!
//! Source: CellFusion section 4.3.3; the recipes are ours.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_types::Instant;

use crate::gf256;
use crate::kernel::{Kernel, Term};
use crate::symbol::symbol_len;
use crate::window::Position;

/// Equations that share missing packets, and what follows from them.
#[derive(Debug)]
pub(crate) struct Block {
    kernel: Kernel,
    /// Ascending, never empty while there are equations.
    columns: Vec<Position>,
    equations: Vec<Equation>,
    rows: Vec<Row>,
}

/// A coded packet, less what is known of it.
#[derive(Debug)]
struct Equation {
    at: Instant,
    /// One per column.
    coefficients: Vec<u8>,
    payload: BytesMut,
}

/// A combination of equations.
#[derive(Debug)]
struct Row {
    /// The column that no other row has; its coefficient is 1.
    pivot: usize,
    /// One per column.
    coefficients: Vec<u8>,
    /// One per equation.
    recipe: Vec<u8>,
}

/// A determined packet contradicts its own prefix: an equation or a source packet was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contradiction;

impl Block {
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self { kernel, columns: Vec::new(), equations: Vec::new(), rows: Vec::new() }
    }

    /// How many packets are missing.
    pub(crate) fn columns(&self) -> usize {
        self.columns.len()
    }

    /// The first missing packet; none if the block is empty.
    pub(crate) fn first_column(&self) -> Option<Position> {
        self.columns.first().copied()
    }

    /// The last missing packet; none if the block is empty.
    pub(crate) fn last_column(&self) -> Option<Position> {
        self.columns.last().copied()
    }

    /// Whether `position` is one of the missing packets.
    pub(crate) fn has(&self, position: Position) -> bool {
        self.column(position).is_some()
    }

    /// Equations held.
    pub(crate) fn len(&self) -> usize {
        self.equations.len()
    }

    /// Bytes held, with an allowance for the coefficients of each equation.
    pub(crate) fn bytes(&self) -> usize {
        let payloads: usize = self.equations.iter().map(|equation| equation.payload.len()).sum();
        payloads + self.equations.len() * OVERHEAD_BYTES
    }

    /// Takes over another block, with which it has no column in common.
    pub(crate) fn merge(&mut self, mut other: Self) {
        if self.equations.is_empty() {
            *self = other;
            return;
        }
        let (columns, others) = (self.columns.clone(), other.columns.clone());
        self.widen(&others);
        other.widen(&columns);
        let (before, after) = (self.equations.len(), other.equations.len());
        for row in &mut self.rows {
            row.recipe.resize(before + after, 0);
        }
        for mut row in other.rows {
            row.recipe.splice(0..0, std::iter::repeat_n(0, before));
            self.rows.push(row);
        }
        self.equations.append(&mut other.equations);
    }

    /// Adds an equation if it tells something new, and returns whether it does.
    ///
    /// `terms`: missing packets, ascending, with their coefficients. `payload` is called only if the
    /// equation is kept; it gives the payload less all that is known.
    pub(crate) fn insert(
        &mut self,
        at: Instant,
        terms: &[(Position, u8)],
        payload: impl FnOnce() -> BytesMut,
    ) -> bool {
        let positions: Vec<Position> = terms.iter().map(|(position, _)| *position).collect();
        self.widen(&positions);
        let mut coefficients = vec![0; self.columns.len()];
        for (position, coefficient) in terms {
            let column = self.column(*position).expect("the block was widened to it");
            coefficients[column] = *coefficient;
        }
        let Some(row) = self.reduce(&coefficients) else { return false };
        for other in &mut self.rows {
            other.recipe.push(0);
            let factor = other.coefficients[row.pivot];
            other.add(self.kernel, factor, &row);
        }
        self.rows.push(row);
        self.equations.push(Equation { at, coefficients, payload: payload() });
        true
    }

    /// Takes note of a packet that became known, and returns how many equations contradict it,
    /// because they are shorter than it is; those are dropped.
    pub(crate) fn learn(&mut self, position: Position, symbol: &[u8]) -> usize {
        let Some(column) = self.column(position) else { return 0 };
        let shorter = |equation: &Equation| {
            equation.coefficients[column] != 0 && equation.payload.len() < symbol.len()
        };
        let contradicting = self.remove_equations(shorter);
        // The columns may have moved, and this one have gone.
        let Some(column) = self.column(position) else { return contradicting };
        for equation in &mut self.equations {
            let coefficient = equation.coefficients.remove(column);
            if coefficient != 0 {
                self.kernel.mul_add(&mut equation.payload, coefficient, symbol);
            }
        }
        self.columns.remove(column);
        let mut orphan = None;
        for (index, row) in self.rows.iter_mut().enumerate() {
            row.coefficients.remove(column);
            match row.pivot.cmp(&column) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => orphan = Some(index),
                std::cmp::Ordering::Greater => row.pivot -= 1,
            }
        }
        if let Some(index) = orphan {
            self.find_pivot(index);
        }
        contradicting
    }

    /// The packets that are determined, ascending, with their symbols.
    ///
    /// # Errors
    /// [`Contradiction`] if one of them is no symbol. Which equation is to blame cannot be told.
    pub(crate) fn solve(&self) -> Result<Vec<(Position, Bytes)>, Contradiction> {
        let mut solved: Vec<&Row> = self.rows.iter().filter(|row| row.is_solved()).collect();
        solved.sort_unstable_by_key(|row| row.pivot);
        solved
            .into_iter()
            .map(|row| {
                let mut symbol = self.evaluate(row);
                symbol.truncate(symbol_len(&symbol).ok_or(Contradiction)?);
                Ok((self.columns[row.pivot], Bytes::from(symbol)))
            })
            .collect()
    }

    /// Drops the equations older than `age_max`; returns how many.
    pub(crate) fn expire(&mut self, now: Instant, age_max: Duration) -> usize {
        self.remove_equations(|equation| now.since(equation.at) > age_max)
    }

    fn column(&self, position: Position) -> Option<usize> {
        self.columns.binary_search(&position).ok()
    }

    /// Adds the columns of `positions` that are not there yet, with zeros.
    fn widen(&mut self, positions: &[Position]) {
        for position in positions {
            let Err(column) = self.columns.binary_search(position) else { continue };
            self.columns.insert(column, *position);
            for equation in &mut self.equations {
                equation.coefficients.insert(column, 0);
            }
            for row in &mut self.rows {
                row.coefficients.insert(column, 0);
                row.pivot += usize::from(row.pivot >= column);
            }
        }
    }

    /// The row that a new equation makes, free of the pivots of the others; none if nothing is left.
    fn reduce(&self, coefficients: &[u8]) -> Option<Row> {
        let mut recipe = vec![0; self.equations.len() + 1];
        recipe[self.equations.len()] = 1;
        let mut reduced = coefficients.to_vec();
        for row in &self.rows {
            let factor = reduced[row.pivot];
            if factor != 0 {
                self.kernel.mul_add(&mut reduced, factor, &row.coefficients);
                self.kernel.mul_add(&mut recipe, factor, &row.recipe);
            }
        }
        let pivot = reduced.iter().position(|coefficient| *coefficient != 0)?;
        let mut row = Row { pivot, coefficients: reduced, recipe };
        row.normalise();
        Some(row)
    }

    /// Gives a row whose pivot column is gone another one, or drops it if it has no column left.
    fn find_pivot(&mut self, index: usize) {
        let row = &mut self.rows[index];
        let Some(pivot) = row.coefficients.iter().position(|coefficient| *coefficient != 0) else {
            let equation = row.recipe.iter().position(|factor| *factor != 0);
            self.remove_with_row(equation.expect("recipes are invertible"), index);
            self.prune_columns();
            return;
        };
        row.pivot = pivot;
        row.normalise();
        let row = self.rows.swap_remove(index);
        for other in &mut self.rows {
            let factor = other.coefficients[pivot];
            other.add(self.kernel, factor, &row);
        }
        self.rows.push(row);
    }

    fn remove_equations(&mut self, condemned: impl Fn(&Equation) -> bool) -> usize {
        let before = self.equations.len();
        for equation in (0..before).rev() {
            if condemned(&self.equations[equation]) {
                let row = self.rows.iter().position(|row| row.recipe[equation] != 0);
                self.remove_with_row(equation, row.expect("recipes are invertible"));
            }
        }
        if self.equations.len() < before {
            self.prune_columns();
        }
        before - self.equations.len()
    }

    /// Drops an equation together with a row that uses it, after freeing the other rows of it.
    ///
    /// The other rows may get the pivot column of the dropped row; theirs stay their own.
    fn remove_with_row(&mut self, equation: usize, row: usize) {
        let dropped = self.rows.swap_remove(row);
        let scale = gf256::invert(dropped.recipe[equation]);
        for other in &mut self.rows {
            let factor = gf256::mul(scale, other.recipe[equation]);
            other.add(self.kernel, factor, &dropped);
            other.recipe.swap_remove(equation);
        }
        self.equations.swap_remove(equation);
    }

    /// Drops the columns that no equation has any more.
    fn prune_columns(&mut self) {
        for column in (0..self.columns.len()).rev() {
            if self.equations.iter().any(|equation| equation.coefficients[column] != 0) {
                continue;
            }
            self.columns.remove(column);
            for equation in &mut self.equations {
                equation.coefficients.remove(column);
            }
            for row in &mut self.rows {
                row.coefficients.remove(column);
                row.pivot -= usize::from(row.pivot > column);
            }
        }
    }

    /// The payload of a row: the one place where payloads are combined.
    fn evaluate(&self, row: &Row) -> Vec<u8> {
        let terms: Vec<Term<'_>> = std::iter::zip(&row.recipe, &self.equations)
            .filter(|(factor, _)| **factor != 0)
            .map(|(factor, equation)| (*factor, &equation.payload[..]))
            .collect();
        let length = terms.iter().map(|(_, payload)| payload.len()).max().unwrap_or(0);
        let mut symbol = vec![0; length];
        self.kernel.dot_add(&mut symbol, &terms);
        symbol
    }
}

impl Row {
    /// Adds `factor * other`, coefficients and recipe.
    fn add(&mut self, kernel: Kernel, factor: u8, other: &Self) {
        if factor != 0 {
            kernel.mul_add(&mut self.coefficients, factor, &other.coefficients);
            kernel.mul_add(&mut self.recipe, factor, &other.recipe);
        }
    }

    /// Makes the coefficient of the pivot 1.
    fn normalise(&mut self) {
        let scale = gf256::invert(self.coefficients[self.pivot]);
        for byte in self.coefficients.iter_mut().chain(&mut self.recipe) {
            *byte = gf256::mul(scale, *byte);
        }
    }

    /// Whether the pivot is its only column.
    fn is_solved(&self) -> bool {
        self.coefficients.iter().filter(|coefficient| **coefficient != 0).count() == 1
    }
}

/// What an equation costs beside its payload: its coefficients, its row and their headers.
const OVERHEAD_BYTES: usize = 512;
