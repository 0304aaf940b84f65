//! Tables of the measuring commands.

use std::borrow::Borrow;

use comfy_table::{CellAlignment, Table, TableComponent, presets};
use roadweave_lab::report::page::{self, escape};

pub type Column<T> = (&'static str, fn(&T) -> String);

pub fn of<T>(
    columns: &[Column<T>],
    rows: impl IntoIterator<Item = impl Borrow<T>>,
    first_number: usize,
) -> String {
    right_aligned(filled(bare(), columns, rows), first_number)
}

/// The rows as HTML; `mark` is inserted before the first cell of each row.
pub fn html<T>(
    columns: &[Column<T>],
    rows: impl IntoIterator<Item = impl Borrow<T>>,
    mark: impl Fn(usize) -> String,
) -> String {
    let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
    let mut all: Vec<Vec<String>> = Vec::new();
    for (index, row) in rows.into_iter().enumerate() {
        let cells = columns.iter().map(|(_, content)| escape(&content(row.borrow())));
        let mut cells: Vec<String> = cells.collect();
        cells[0].insert_str(0, &mark(index));
        all.push(cells);
    }
    page::table(&headings, &all)
}

pub fn filled<T>(
    mut table: Table,
    columns: &[Column<T>],
    rows: impl IntoIterator<Item = impl Borrow<T>>,
) -> Table {
    table.set_header(columns.iter().map(|(heading, _)| *heading));
    for row in rows {
        table.add_row(columns.iter().map(|(_, content)| content(row.borrow())));
    }
    table
}

pub fn plain() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table
}

pub fn bare() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.remove_style(TableComponent::HorizontalLines);
    table.remove_style(TableComponent::MiddleIntersections);
    table
}

pub fn right_aligned(mut table: Table, first_number: usize) -> String {
    for column in table.column_iter_mut().skip(first_number) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
