//! The common look of reports: page, colours, tables, legends, number formats.
//!
//! Colours are from Okabe and Ito's colour-blind safe palette; beyond its size, lines are also
//! dashed. Links have their own shades of blue and grey, unlike strategies. A class names a colour;
//! the style sheet defines it for light pages and paper, and for dark pages.

/// The beginning of a page, with its heading; `subtitle` is one sentence.
pub fn begin(title: &str, subtitle: &str) -> String {
    let (title, subtitle) = (escape(title), escape(subtitle));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n\
         <h1>{title}</h1><p class=\"muted\">{subtitle}</p>\n"
    )
}

pub const END: &str = "</body></html>\n";

/// Class of a strategy's colour; `index`: its position.
pub fn strategy_class(index: usize) -> String {
    match index / STRATEGY_COLORS {
        0 => format!("s{index}"),
        round => format!("s{} dash{}", index % STRATEGY_COLORS, (round - 1) % DASHES),
    }
}

pub const BOUND_CLASS: &str = "bound";

/// Class of a link's colour; `index`: its position.
pub fn link_class(index: usize) -> String {
    format!("k{}", index % LINK_COLORS)
}

/// A legend. `entries`: class and name, in the order of display.
pub fn legend<'a>(entries: impl IntoIterator<Item = (String, &'a str)>) -> String {
    let entry = |(class, name): (String, &str)| {
        format!("<span class=\"key\">{}{}</span> ", swatch(&class), escape(name))
    };
    let entries: String = entries.into_iter().map(entry).collect();
    format!("<p class=\"legend\">{entries}</p>\n")
}

/// A colour sample.
pub fn swatch(class: &str) -> String {
    format!(
        "<svg class=\"swatch\" viewBox=\"0 0 20 10\" aria-hidden=\"true\">\
         <path class=\"line thick {class}\" d=\"M0 5h20\"/></svg>"
    )
}

/// A table whose first column is a heading. `headings` are plain text; `rows` are HTML cells, one
/// per heading.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let heading = |text: &&str| format!("<th scope=\"col\">{}</th>", escape(text));
    let row = |cells: &Vec<String>| {
        let (first, rest) = cells.split_first().map_or(("", &[][..]), |(a, b)| (a, b));
        let rest: String = rest.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        format!("<tr><th scope=\"row\">{first}</th>{rest}</tr>\n")
    };
    let (headings, rows): (String, String) =
        (headings.iter().map(heading).collect(), rows.iter().map(row).collect());
    format!(
        "<div class=\"wide\" tabindex=\"0\"><table><thead><tr>{headings}</tr></thead>\n\
         <tbody>{rows}</tbody></table></div>\n"
    )
}

/// A definition list.
pub fn definitions<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let pair = |(word, text): (&str, &str)| {
        format!("<dt>{}</dt><dd>{}</dd>\n", escape(word), escape(text))
    };
    format!("<dl>{}</dl>\n", pairs.into_iter().map(pair).collect::<String>())
}

/// A drawing with a legible minimum size.
pub fn drawing(svg: &str) -> String {
    format!("<div class=\"wide\" tabindex=\"0\">{svg}</div>\n")
}

/// A drawing as its own file, with the colours of a light page. `svg` is from `Svg::finish`.
/// Colours are written out because not every viewer supports variables.
pub fn standalone(svg: &str) -> String {
    let light = STYLE.split('}').next().unwrap_or_default();
    let variables = light.split(['{', ';', '\n']).filter_map(|pair| pair.split_once(':'));
    let colours: Vec<(String, &str)> = variables
        .filter(|(name, _)| name.starts_with("--"))
        .map(|(name, colour)| (format!("var({name})"), colour))
        .collect();
    // In the style sheet, rules for drawings follow those for the page.
    let rules = STYLE.find("svg text{").map_or("", |at| &STYLE[at..]);
    let rules = rules.find("details{").map_or(rules, |at| &rules[..at]);
    let style =
        colours.iter().fold(rules.replace("svg text{", "text{"), |style, (name, colour)| {
            style.replace(name, colour)
        });
    // The size is in the viewBox, the first attribute: 0 0 WIDTH HEIGHT.
    let mut size = svg.split('"').nth(1).unwrap_or_default().split(' ').skip(2);
    let (width, height) = (size.next().unwrap_or("100%"), size.next().unwrap_or("100%"));
    let head =
        format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" ");
    let paper = "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>";
    svg.replacen("<svg ", &head, 1).replacen('>', &format!("><style>{style}</style>{paper}"), 1)
}

/// Escapes `text` for HTML content and attributes.
pub fn escape(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            // HTML allows no control characters.
            control if control.is_control() => html.push('\u{fffd}'),
            other => html.push(other),
        }
    }
    html
}

pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        small if small < 0.005 => "below 0.01 %".to_owned(),
        small if small < 1.0 => format!("{small:.2} %"),
        _ => format!("{percent:.1} %"),
    }
}

pub fn millis(millis: f64) -> String {
    if millis < 100.0 { format!("{millis:.1} ms") } else { format!("{millis:.0} ms") }
}

/// Placeholder for an absent figure.
pub const NOTHING: &str = "\u{2013}";

const STRATEGY_COLORS: usize = 7;
const LINK_COLORS: usize = 6;
const DASHES: usize = 3;

const STYLE: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_of_its_own_has_its_colours_and_needs_nothing_else() {
        let mut svg = crate::report::svg::Svg::new((10.0, 5.0), "a > b");
        svg.line("line k1", (0.0, 0.0), (1.0, 1.0));
        let alone = standalone(&svg.finish());
        let begin = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"10\" height=\"5\" viewBox";
        assert!(alone.starts_with(begin), "{alone}");
        assert!(alone.contains(".k1{color:#9cc9e3}") && alone.contains(".stall{fill:#dc2626"));
        assert!(alone.contains("text{font:13px system-ui,sans-serif;fill:#5a6474}"), "{alone}");
        assert!(!alone.contains("var(") && !alone.contains("body") && !alone.contains("details"));
        assert!(alone.contains("aria-label=\"a &gt; b\"><style>"), "{alone}");
    }
}
