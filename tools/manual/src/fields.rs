//! `roadweave.toml(5)`: every field of every configuration file, from the tables of docs/.
//!
//! ```text
//! types of crates/config ─ a test ─► tables of docs/configuration.md, router.md, fleet.md
//!                                      └─► here: a paragraph for each row
//! ```

use clap_mangen::roff::{Inline, Roff, bold, italic, line_break, roman};

type Page = (&'static str, &'static str);

const CONFIGURATION: Page = ("configuration.md", include_str!("../../../docs/configuration.md"));
const ROUTER: Page = ("router.md", include_str!("../../../docs/router.md"));
const FLEET: Page = ("fleet.md", include_str!("../../../docs/fleet.md"));

/// Title, introduction, and the section of docs/ whose table follows.
const SECTIONS: [(&str, &str, Page, &str); 7] = [
    ("CLIENT.TOML", "What a client alone has.", CONFIGURATION, "## client.toml"),
    ("SERVER.TOML", "What a server alone has.", CONFIGURATION, "## server.toml"),
    (
        "CLIENT AND SERVER",
        "What both have; of lanes, transport and limits a proxy and an anchor too.",
        CONFIGURATION,
        "## Both",
    ),
    ("STRATEGIES", "What a lane's strategy may be.", CONFIGURATION, "## Strategies"),
    ("ROUTER.TOML", "All that a redundant router has.", ROUTER, "## router.toml"),
    ("PROXY.TOML", "What a proxy has beside that of both.", FLEET, "## `proxy.toml`"),
    ("ANCHOR.TOML", "What an anchor has beside that of both.", FLEET, "## `anchor.toml`"),
];

pub fn page() -> String {
    let mut page = Roff::new();
    let version = concat!("roadweave ", env!("CARGO_PKG_VERSION"));
    // No date: equal sources give equal pages.
    page.control("TH", ["roadweave.toml", "5", "\"\"", version]);
    section(&mut page, "NAME");
    page.text([roman("roadweave.toml - configuration files of roadweave")]);
    section(&mut page, "SYNOPSIS");
    let command = |file| [bold(format!("roadweave {file} --config {file}.toml")), line_break()];
    page.text(["client", "server", "router", "proxy", "anchor"].map(command).concat());
    section(&mut page, "DESCRIPTION");
    let told = "Files in TOML. `roadweave init` writes a pair of them that works; a command with \
                `--check` reads its file, says what is wrong with it and ends. A field \
                `section.field` is `field` below a line `[section]`; what may be repeated, such as \
                lanes or peers, is below a line `[[lanes]]` for each. Behind a field is its \
                default, or that it is required.";
    page.text(inlines(told, CONFIGURATION));
    for (title, first, source, heading) in SECTIONS {
        section(&mut page, title);
        page.text([roman(first)]);
        for [name, default, what] in rows(source.1, heading) {
            page.control("TP", []);
            let mut head = vec![bold(name)];
            // Columns of a strategy: its effect, and its purpose.
            let is_strategy = heading == "## Strategies";
            if !is_strategy {
                head.push(roman(" ("));
                head.extend(inlines(default, source));
                head.push(roman(")"));
            }
            page.text(head);
            let told =
                if is_strategy { format!("{default}. For: {what}") } else { what.to_owned() };
            page.text(inlines(&told, source));
        }
    }
    section(&mut page, "FILES");
    let files = "In `/etc/roadweave`: `client.toml.example` and `server.toml.example`. In \
                 `/usr/share/doc/roadweave`: `configuration.md.gz`, which describes most fields in \
                 more detail.";
    page.text(inlines(files, CONFIGURATION));
    section(&mut page, "SEE ALSO");
    for command in ["client", "server", "router", "proxy", "anchor", "init", "reload"] {
        let end = if command == "reload" { "(1)" } else { "(1), " };
        page.text([bold(format!("roadweave-{command}")), roman(end)]);
    }
    page.render()
}

fn section(page: &mut Roff, title: &str) {
    page.control("SH", [title]);
}

/// The rows of the tables between `heading` and the next heading of its level.
fn rows<'a>(text: &'a str, heading: &str) -> Vec<[&'a str; 3]> {
    let begin = format!("\n{heading}\n");
    let (_, below) = text.split_once(&begin).unwrap_or_else(|| panic!("no section {heading}"));
    let section = below.split_once("\n## ").map_or(below, |(section, _)| section);
    let cells = |line: &'a str| {
        let mut cells = line.strip_prefix("| `")?.strip_suffix(" |")?.splitn(3, " | ");
        let name = cells.next()?.strip_suffix('`')?;
        Some([name, cells.next()?, cells.next()?])
    };
    section.lines().filter_map(cells).collect()
}

/// Converts a line of Markdown: code becomes bold, links lose their targets. A link called "below"
/// becomes the heading that it refers to.
fn inlines(text: &str, (name, page): Page) -> Vec<Inline> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '[']) {
        let (plain, from) = rest.split_at(at);
        found.push(roman(plain));
        if let Some((code, after)) = from.strip_prefix('`').and_then(|it| it.split_once('`')) {
            found.push(bold(code));
            rest = after;
        } else if let Some((words, target, after)) = link(from) {
            match heading(page, target).filter(|_| words == "below") {
                Some(title) => found.extend([italic(title), roman(format!(" in {name}"))]),
                None => found.extend(inlines(words, (name, page))),
            }
            rest = after;
        } else {
            found.push(roman(&from[..1]));
            rest = &from[1..];
        }
    }
    found.push(roman(rest));
    found
}

/// Text and target of a link at the beginning of `text`, and the rest.
fn link(text: &str) -> Option<(&str, &str, &str)> {
    let (words, rest) = text.strip_prefix('[')?.split_once("](")?;
    let (target, rest) = rest.split_once(')')?;
    Some((words, target, rest))
}

fn heading<'a>(page: &'a str, target: &str) -> Option<&'a str> {
    let anchor = target.strip_prefix('#')?;
    let titles = page.lines().filter(|line| line.starts_with('#'));
    titles.map(|line| line.trim_start_matches('#').trim()).find(|it| slug(it) == anchor)
}

/// A heading as an anchor: lower case, without punctuation, with hyphens.
pub(crate) fn slug(title: &str) -> String {
    let kept = title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::assert_golden;

    #[test]
    fn the_page_is_its_golden_file_without_markdown() {
        let page = page();
        for left in ["](", "`"] {
            assert!(!page.contains(left), "{left} is left in\n{page}");
        }
        let version = format!("\"roadweave {}\"", env!("CARGO_PKG_VERSION"));
        assert_golden("roadweave.toml.5", &page.replace(&version, "\"roadweave VERSION\""));
    }
}
