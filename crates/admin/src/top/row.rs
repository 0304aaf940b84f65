//! A row of cells of fixed widths, in terminal columns.

use ratatui::text::Span;

/// Cells are (text, width, whether it is at the right), cut or filled to their width.
pub(super) fn row(cells: &[(&str, u16, bool)]) -> String {
    let filled = cells.iter().map(|(text, width, is_right)| {
        let width = usize::from(*width);
        let text = cut(text, width);
        let spaces = " ".repeat(width.saturating_sub(Span::raw(text).width()));
        if *is_right { spaces + text } else { text.to_owned() + &spaces }
    });
    filled.collect::<Vec<_>>().join(" ")
}

fn cut(text: &str, width: usize) -> &str {
    let ends = text.char_indices().map(|(at, letter)| at + letter.len_utf8());
    let fits = ends.take_while(|end| Span::raw(&text[..*end]).width() <= width);
    &text[..fits.last().unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_keep_their_columns_whatever_is_in_them() {
        let check = |text: &str, expected: &str| {
            let cells = [(text, 5, false), (text, 4, true), ("|", 1, false)];
            assert_eq!(row(&cells), expected);
        };
        check("", "           |");
        check("ab", "ab      ab |");
        check("wwan0-5g", "wwan0 wwan |");
        check("車車車", "車車  車車 |");
        check("e\u{301}e", "e\u{301}e      e\u{301}e |");
    }
}
