// Tables on a terminal.

/** Columns as wide as they need to be; the first is aligned to the left. */
export function table(head, rows) {
  const cells = [head, ...rows].map((row) => row.map(String));
  const widths = head.map((_, column) => Math.max(...cells.map((row) => row[column].length)));
  const pad = (text, column) => (column === 0 ? text.padEnd(widths[0]) : text.padStart(widths[column]));
  return cells.map((row) => row.map(pad).join('  ').trimEnd()).join('\n');
}

/** `value` with so many digits after the point; `-` when there is none. */
export const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : '-');
/** A share as percent. */
export const percent = (share, digits) => (Number.isFinite(share) ? `${(100 * share).toFixed(digits)} %` : '-');
