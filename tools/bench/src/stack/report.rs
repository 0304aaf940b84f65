//! What two viewers saw, as a table and as one self-contained HTML file.

use roadweave_lab::report::page::{self, escape, link_class};
use roadweave_lab::report::strips;

use super::StackResults;
use super::viewing::BoxView;
use crate::demo::report::time_line;
use crate::demo::scenario::OPERATORS;
use crate::demo::table::{millis, percent};
use crate::table::{self, Column};

const COLUMNS: &[Column<BoxView>] = &[
    ("box", |seen| seen.name.clone()),
    ("proxy", |seen| match seen.proxy_before == seen.proxy_after {
        true => seen.proxy_before.clone(),
        false => format!("{} \u{2192} {}", seen.proxy_before, seen.proxy_after),
    }),
    ("gap", |seen| millis(seen.gap_ms)),
    ("packets lost", |seen| format!("{} of {}", seen.packets_lost, seen.packets)),
    ("frames incomplete", |seen| format!("{} of {}", seen.frames_incomplete, seen.frames)),
    ("fps", |seen| format!("{:.1}", seen.fps)),
    ("stall", |seen| percent(seen.stall_ratio)),
    ("delay p50", |seen| millis(seen.delay_ms.p50)),
    ("p99", |seen| millis(seen.delay_ms.p99)),
];

pub fn table(results: &StackResults) -> String {
    format!("{}\n{}", what_happened(results), table::of(COLUMNS, &results.boxes, 2))
}

pub fn render(results: &StackResults) -> String {
    let mut html = page::begin("Roadweave stack", &what_happened(results));
    html += &table::html(COLUMNS, &results.boxes, |_| String::new());
    let links = OPERATORS.iter().enumerate().map(|(index, name)| (link_class(index), *name));
    let marks = strips::MARKS.iter().filter(|(class, _)| MARKS.contains(class));
    let marks = marks.map(|(class, name)| ((*class).to_owned(), *name));
    html += &page::legend(links.chain(marks));
    for seen in &results.boxes {
        html += &format!("<h2>{}</h2>\n", escape(&seen.name));
        html += &page::drawing(&time_line(&seen.name, &seen.timeline, &seen.stalls).draw());
    }
    html += "<h2>Meaning of the figures</h2>\n";
    html += &page::definitions(MEANINGS);
    html + page::END
}

fn what_happened(results: &StackResults) -> String {
    format!(
        "Two boxes with four links each, two proxies, an anchor; their controller was killed, and 2 s \
         later {}, after {:.1} of {} s, seed {}",
        results.killed,
        results.killed_at_ms / 1e3,
        results.seconds,
        results.seed
    )
}

const MARKS: [&str; 3] = ["sent", "missing", "stalled"];

const MEANINGS: [(&str, &str); 4] = [
    ("gap", "the longest time without a packet at the viewer, within 5 s of the kill"),
    ("packets lost", "packets of the stream that never arrived"),
    ("stall", "sum of the gaps between shown frames above 200 ms, by the stream time"),
    (
        "delay",
        "from the camera's socket to the viewer's, of all packets; a packet that never arrived, or \
         arrived after the deadline of 700 ms, counts as 700 ms",
    ),
];
