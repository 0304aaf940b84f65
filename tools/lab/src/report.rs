//! The report of a comparison: one HTML file that needs nothing else.
//!
//! ```text
//!   Comparison ──> head: what was run, how to repeat it         report.rs
//!              ──> all drives, then each class:                 report/group.rs, pooled.rs
//!                    table, delays, box plots, causes           report/charts.rs
//!              ──> each drive: figures and time lines           report/drives.rs, strips.rs, timeline.rs
//!                                                 page.rs: style, tables;  svg.rs: drawing
//! ```
//!
//! Pure: equal data give equal bytes. No scripts, fonts or network requests; folding is done by the
//! browser. 59 drives with time lines of three strategies take about 10 MB.

pub mod charts;
mod drives;
mod group;
pub mod page;
mod pooled;
pub mod strips;
pub mod svg;
pub mod timeline;
pub mod trade;

use crate::compare::{Compared, Comparison, EVERY_SINGLE, Entry};

/// Options of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Strategies with time lines; default: all but single links.
    pub timelines: Option<Vec<String>>,
}

/// The whole report as HTML.
pub fn render(comparison: &Comparison, options: &Options) -> String {
    let names: Vec<&str> = comparison.pooled.iter().map(|pooled| name(&pooled.figures)).collect();
    let report = Report { comparison, names, timelines: options.timelines.as_deref() };
    let all: Vec<&Compared> = comparison.drives.iter().collect();
    let mut html = report.head();
    html +=
        &group::render(&report, &format!("All drives: {}", all.len()), &all, &comparison.pooled);
    for pool in &comparison.classes {
        let drives: Vec<&Compared> =
            all.iter().copied().filter(|drive| drive.class == pool.class).collect();
        let title = format!("{} drives: {}", capitalized(pool.class.as_str()), pool.drives);
        html += &group::render(&report, &title, &drives, &pool.pooled);
    }
    html += &drives::render(&report);
    html += "<h2>What the figures mean</h2>\n";
    html += &page::definitions(MEANINGS);
    html += page::END;
    html
}

#[derive(Debug)]
struct Report<'a> {
    comparison: &'a Comparison,
    names: Vec<&'a str>,
    timelines: Option<&'a [String]>,
}

impl Report<'_> {
    fn class(&self, strategy: &str) -> String {
        let singles = self.names.iter().filter(|name| is_single(name));
        let mut names = self.names.iter().filter(|name| !is_single(name)).chain(singles);
        let index = names.position(|name| *name == strategy);
        page::strategy_class(index.unwrap_or(self.names.len()))
    }

    fn has_timeline(&self, strategy: &str) -> bool {
        match self.timelines {
            Some(wanted) => wanted.iter().any(|name| name == strategy),
            None => !is_single(strategy),
        }
    }

    fn is_detailed(&self) -> bool {
        let mut entries = self.comparison.drives.iter().flat_map(|drive| &drive.strategies);
        entries.any(|entry| entry.measured.detail.is_some())
    }

    fn head(&self) -> String {
        let Comparison { version, setting, drives, .. } = self.comparison;
        let mbps = setting.bitrate_bps as f64 / 1e6;
        let subtitle = format!(
            "{} drives under {} strategies, {} s of video at {mbps} Mbit/s on each, in virtual time",
            drives.len(),
            self.names.len(),
            setting.seconds,
        );
        let mut html = page::begin("Roadweave lab: a comparison", &subtitle);
        let classes: Vec<String> = self
            .comparison
            .classes
            .iter()
            .map(|pool| format!("{} {}", pool.drives, pool.class))
            .collect();
        let seed = setting.seed.to_string();
        let congestion = setting.congestion.to_string();
        html += &page::definitions([
            ("program", format!("roadweave {version}").as_str()),
            ("strategies", &self.names.join(", ")),
            ("drives", &classes.join(", ")),
            ("seed", &seed),
            ("congestion control", &congestion),
        ]);
        html +=
            "<p>To repeat it, with DIR the directory of the drives:</p>\n<p class=\"whole\"><code>";
        html += &page::escape(&self.command());
        html += "</code></p>\n";
        if !self.is_detailed() {
            html += "<p>The results came without details, so there are no delay curves and no time \
                     lines here: <code>lab compare --json --details</code> keeps them.</p>\n";
        }
        html
    }

    fn command(&self) -> String {
        let setting = &self.comparison.setting;
        let has_pictures = self.comparison.pooled.iter().any(|p| p.figures.ssim.is_some());
        format!(
            "roadweave lab compare --drives DIR --strategies '{}' --bitrate {} --seconds {} --seed {} \
             --congestion {} {}--json --details > results.json; roadweave lab report results.json",
            self.named_strategies().join(","),
            bitrate(setting.bitrate_bps),
            setting.seconds,
            setting.seed,
            setting.congestion,
            if has_pictures { "--ssim " } else { "" },
        )
    }

    /// The strategies as on the command line; single links are all written as `single:*`.
    fn named_strategies(&self) -> Vec<&str> {
        let has_every = |drive: &Compared| {
            let singles =
                drive.strategies.iter().filter(|entry| is_single(strategy(entry))).count();
            let links = drive.strategies.iter().filter_map(|entry| entry.measured.detail.as_ref());
            links.map(|detail| detail.links.len()).next() == Some(singles)
        };
        let every = self.comparison.drives.iter().all(has_every);
        let mut named: Vec<&str> = Vec::new();
        for name in &self.names {
            let name = if every && is_single(name) { EVERY_SINGLE } else { name };
            if !named.contains(&name) {
                named.push(name);
            }
        }
        named
    }
}

fn name(figures: &crate::figures::Figures) -> &str {
    &figures.strategy
}

fn strategy(entry: &Entry) -> &str {
    name(&entry.measured.figures)
}

fn bitrate(bps: u64) -> String {
    match bps % 100_000 {
        0 => format!("{}M", bps as f64 / 1e6),
        _ => bps.to_string(),
    }
}

fn is_single(name: &str) -> bool {
    name.starts_with("single:")
}

fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

const MEANINGS: [(&str, &str); 9] = [
    (
        "easy, decisive",
        "One link is enough 99 % of the time; all together are 98 % of the time, and none alone",
    ),
    ("tight, starved", "All links together are enough 90 % of the time; less often"),
    (
        "bound",
        "What no scheduler can beat, even one that knows every future delivery opportunity, delay and \
        loss; each of its figures for itself, so that no single schedule needs to reach all of them",
    ),
    (
        "reachable",
        "What one schedule reaches that knows the future: each packet, in order, on the path of its \
        earliest arrival",
    ),
    (
        "fps",
        "Frames shown per second whose packets all arrived, as did those of every frame back to the last \
        IDR frame",
    ),
    ("stall", "Sum of the gaps between shown frames above 200 ms, by the stream time"),
    (
        "delay",
        "From the application that sends to the one that receives, of all packets sent: one that never \
        arrives, or after the deadline, counts as the deadline",
    ),
    ("residual loss", "Packets that never arrived, or after the deadline"),
    ("redundancy", "Bytes sent in the tunnel beyond the distinct packets, by the bytes of these"),
];

#[cfg(test)]
mod tests;
