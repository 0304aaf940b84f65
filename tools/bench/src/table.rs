//! Tables of the measuring commands.

use comfy_table::{CellAlignment, Table, TableComponent, presets};

/// A table with horizontal lines around it and under the heading.
pub fn bare() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.remove_style(TableComponent::HorizontalLines);
    table.remove_style(TableComponent::MiddleIntersections);
    table
}

/// The table as text, as wide as necessary, right-aligned from column `first_number` on.
pub fn right_aligned(mut table: Table, first_number: usize) -> String {
    for column in table.column_iter_mut().skip(first_number) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
