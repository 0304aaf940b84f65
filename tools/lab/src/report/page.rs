//! The common look of reports: page, colours, tables, legends, number formats.
//!
//! Colours are from Okabe and Ito's colour-blind safe palette; beyond its size, lines are also
//! dashed. Links have their own shades of blue and grey, to differ from strategies. A class names a
//! colour; the style sheet has one set for light pages and paper, another for dark ones.

/// The beginning of a page with its heading; `subtitle` is one sentence.
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

/// The end of a page.
pub const END: &str = "</body></html>\n";

/// Class of a strategy's colour; `index`: its position.
pub fn strategy_class(index: usize) -> String {
    match index / STRATEGY_COLORS {
        0 => format!("s{index}"),
        round => format!("s{} dash{}", index % STRATEGY_COLORS, (round - 1) % DASHES),
    }
}

/// Class of the bound's colour.
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

/// A sample of a colour.
pub fn swatch(class: &str) -> String {
    format!(
        "<svg class=\"swatch\" viewBox=\"0 0 20 10\" aria-hidden=\"true\">\
         <path class=\"line thick {class}\" d=\"M0 5h20\"/></svg>"
    )
}

/// A table whose first column names the rows. `headings` are plain text; `rows` are HTML cells, as
/// many as there are headings.
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

/// A drawing that keeps a legible minimum size.
pub fn drawing(svg: &str) -> String {
    format!("<div class=\"wide\" tabindex=\"0\">{svg}</div>\n")
}

/// A drawing as its own file, with the colours of a light page. `svg`: from
/// [`Svg::finish`](super::svg::Svg::finish). Colours are written out, since not every viewer knows
/// variables.
pub fn standalone(svg: &str) -> String {
    let light = STYLE.split('}').next().unwrap_or_default();
    let variables = light.split(['{', ';', '\n']).filter_map(|pair| pair.split_once(':'));
    let colours: Vec<(String, &str)> = variables
        .filter(|(name, _)| name.starts_with("--"))
        .map(|(name, colour)| (format!("var({name})"), colour))
        .collect();
    // The style sheet's rules for drawings follow those for the page.
    let rules = STYLE.find("svg text{").map_or("", |at| &STYLE[at..]);
    let rules = rules.find("details{").map_or(rules, |at| &rules[..at]);
    let style =
        colours.iter().fold(rules.replace("svg text{", "text{"), |style, (name, colour)| {
            style.replace(name, colour)
        });
    // The size is that of the viewBox, the first attribute: 0 0 WIDTH HEIGHT.
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

/// A share of 0..1 as percent.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        small if small < 0.005 => "below 0.01 %".to_owned(),
        small if small < 1.0 => format!("{small:.2} %"),
        _ => format!("{percent:.1} %"),
    }
}

/// A time in milliseconds.
pub fn millis(millis: f64) -> String {
    if millis < 100.0 { format!("{millis:.1} ms") } else { format!("{millis:.0} ms") }
}

/// A ratio, or a dash if absent.
pub fn times(ratio: Option<f64>) -> String {
    match ratio {
        Some(ratio) if ratio >= 100.0 => format!("{ratio:.0}\u{d7}"),
        Some(ratio) => format!("{ratio:.2}\u{d7}"),
        None => NOTHING.to_owned(),
    }
}

/// Placeholder for an absent figure.
pub const NOTHING: &str = "\u{2013}";

/// Colours `s0`, `s1` and so on, of the style sheet.
const STRATEGY_COLORS: usize = 7;
/// Colours `k0`, `k1` and so on.
const LINK_COLORS: usize = 6;
const DASHES: usize = 3;

const STYLE: &str = "
:root{--ink:#1c2430;--soft:#5a6474;--rule:#e0e4ea;--paper:#fff;--tint:#f5f7fa;
--s0:#0072b2;--s1:#e69f00;--s2:#009e73;--s3:#cc79a7;--s4:#56b4e9;--s5:#d55e00;--s6:#787878;
--k0:#1f4e79;--k1:#9cc9e3;--k2:#5b8db8;--k3:#c3cad4;--k4:#6b7280;--k5:#d4e6f1;
--c0:#5b8ff9;--c1:#ee8866;--c2:#44bb99;--c3:#e3cf57;--c4:#b9bfc9;--c5:#b3261e;
--lane:#b7791f;--sent:#a5dcc9;--recovered:#00795a;--missing:#b3261e;--late:#f0a59f;--stall:#dc2626}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e3e8ef;--soft:#9aa5b5;--rule:#313a47;
--paper:#12161c;--tint:#1a2029;--s0:#4ba3e3;--s1:#f0b429;--s2:#2cc295;--s3:#dc93ba;--s4:#8fd0f7;
--s5:#f07b2e;--s6:#a0a6ae;--k0:#3f78b5;--k1:#b5dcf0;--k2:#74a7d3;--k3:#8b96a5;--k4:#5c6675;
--k5:#dbe9f2;--c3:#d8c23c;--c4:#7c8593;--c5:#f0645a;--lane:#e0a03c;--sent:#2f6b58;
--recovered:#3fd1a5;--missing:#f0645a;--late:#7a3d3a;--stall:#f0645a}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1180px;
margin:2.5rem auto;padding:0 1.5rem}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.25rem;margin:2.6rem 0 .4rem}
h3{font-size:1rem;margin:1.8rem 0 .3rem}p{margin:.3rem 0;max-width:52rem}
.whole,.legend{max-width:none}
.muted,dt,thead th{color:var(--soft)}
code{font:13px/1.5 ui-monospace,monospace;background:var(--tint);padding:.1rem .3rem;
overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;margin:.6rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .35rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap;
font-size:.86rem}
th{font-weight:600}thead th{font-size:.78rem;white-space:normal;vertical-align:bottom}
th:first-child{text-align:left}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1.2rem;margin:.4rem 0}
dd{margin:0;max-width:48rem;overflow-wrap:anywhere}
.wide{overflow-x:auto}.wide>svg{display:block;width:100%;min-width:640px;height:auto}
.legend{margin:.5rem 0 .2rem}.key{white-space:nowrap;margin-right:1.1em;font-size:.86rem}
.swatch{width:20px;height:10px;margin-right:.4em}
svg text{font:13px system-ui,sans-serif;fill:var(--soft)}
svg .name{fill:var(--ink)}
.line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}.line.thick{stroke-width:6}
.grid{fill:none;stroke:var(--rule)}.axis{fill:none;stroke:var(--soft)}
.mark{fill:none;stroke:var(--ink);stroke-dasharray:5 4}
.area{fill:currentColor;stroke:none}.box{fill:currentColor;fill-opacity:.3;stroke:currentColor}
.whisker{fill:none;stroke:currentColor;stroke-width:1.5}.median{fill:none;stroke:currentColor;
stroke-width:3}.mean{fill:var(--paper);stroke:currentColor;stroke-width:1.5}
.stall{fill:var(--stall);fill-opacity:.22}
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}.s4{color:var(--s4)}
.s5{color:var(--s5)}.s6{color:var(--s6)}.k0{color:var(--k0)}.k1{color:var(--k1)}.k2{color:var(--k2)}
.k3{color:var(--k3)}.k4{color:var(--k4)}.k5{color:var(--k5)}.c0{color:var(--c0)}.c1{color:var(--c1)}
.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}
.stalled{color:var(--stall);opacity:.35}
.lane{color:var(--lane)}.sent{color:var(--sent)}.recovered{color:var(--recovered)}
.missing{color:var(--missing)}.late{color:var(--late)}.bound{color:var(--ink)}
.line.bound{stroke-dasharray:7 3}.line.dash0{stroke-dasharray:9 3}.line.dash1{stroke-dasharray:3 3}
.line.dash2{stroke-dasharray:9 3 2 3}.thick.line{stroke-dasharray:none}
.line.thick.bound{stroke-width:3;stroke-dasharray:5 2}
details{border-bottom:1px solid var(--rule)}
summary{cursor:pointer;list-style:none;padding:.35rem 0 .35rem 1.3em;position:relative;font-variant-numeric:tabular-nums;font-size:.86rem}
summary::-webkit-details-marker{display:none}
summary::before{content:\"\\25b8\";position:absolute;left:.2em}
details[open]>summary::before{content:\"\\25be\"}
summary:hover{background:var(--tint)}
.row{display:grid;gap:.6rem;
grid-template-columns:minmax(9rem,2fr) repeat(var(--columns),minmax(4rem,1fr))}
.row>*{text-align:right;overflow-wrap:anywhere}.row>:first-child{text-align:left;font-weight:600}
.head{color:var(--soft);font-size:.78rem;font-weight:600;padding-left:1.43em}
@media print{body{max-width:none;margin:0;font-size:12px}figure,svg,tr{break-inside:avoid}
.wide{overflow:visible}}
";

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
