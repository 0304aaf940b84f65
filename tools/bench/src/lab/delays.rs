//! `roadweave lab delays`: how much propagation delays change, and how long they stay constant.

use std::collections::BTreeMap;
use std::path::PathBuf;

use roadweave_lab::delays::{Rise, bins, differences, persistence, rises};
use roadweave_terminal::out;
use serde::Serialize;

use super::drives;
use super::spread::Spread;
use crate::table::{self, Column};

/// Studies the propagation delays of recordings: LoLa's figures 3, 4 and 6
///
/// For each link: the lowest one-way delay of each second, how much it differs from the second
/// before, and for how long it stays within 2 ms. One-way is half of the idle round trip. Also how
/// a change of the delay looks in a replay, at full rate and on and off.
#[derive(Debug, clap::Args)]
pub struct DelaysArgs {
    /// The directory with the recordings
    #[arg(long, value_name = "DIR")]
    traces: PathBuf,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Studied {
    link: String,
    recordings: usize,
    seconds: usize,
    least_ms: Spread,
    difference_ms: Spread,
    /// Share of larger differences, 0..1.
    above_2_ms: f64,
    above_10_ms: f64,
    /// How long the delay stays within 2 ms.
    stays_s: Spread,
    at_least_5_s: f64,
    at_least_10_s: f64,
    /// Share of the time in periods of at least 5 s, 0..1.
    time_in_at_least_5_s: f64,
    without_change: usize,
}

#[derive(Debug, Serialize)]
struct Study {
    links: Vec<Studied>,
    rises: Vec<Rise>,
}

impl DelaysArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let mut links: BTreeMap<String, Vec<Vec<Option<f64>>>> = BTreeMap::new();
        for drive in drives::read(&self.traces)? {
            for link in drive.drive.links {
                links.entry(link.name).or_default().push(bins(&link.up));
            }
        }
        let links = links.into_iter().map(|(link, recordings)| Studied::of(link, &recordings));
        let study = Study { links: links.collect(), rises: rises() };
        if self.json { out::json(&study) } else { Ok(out::print(in_words(&study))?) }
    }
}

impl Studied {
    fn of(link: String, recordings: &[Vec<Option<f64>>]) -> Self {
        let least: Vec<f64> = recordings.iter().flatten().flatten().copied().collect();
        let changes: Vec<f64> = recordings.iter().flat_map(|bins| differences(bins)).collect();
        let stays: Vec<Vec<usize>> = recordings.iter().map(|bins| persistence(bins)).collect();
        let seconds: Vec<f64> = stays.iter().flatten().map(|stay| *stay as f64).collect();
        let share = |values: &[f64], least: f64| {
            values.iter().filter(|value| **value >= least).count() as f64
                / values.len().max(1) as f64
        };
        let long: f64 = seconds.iter().filter(|stay| **stay >= 5.0).sum();
        Self {
            link,
            recordings: recordings.len(),
            seconds: recordings.iter().map(Vec::len).sum(),
            above_2_ms: share(&changes, 2.0),
            above_10_ms: share(&changes, 10.0),
            at_least_5_s: share(&seconds, 5.0),
            at_least_10_s: share(&seconds, 10.0),
            time_in_at_least_5_s: long / seconds.iter().sum::<f64>().max(1.0),
            without_change: stays.iter().filter(|stays| stays.len() == 1).count(),
            least_ms: Spread::of(least),
            difference_ms: Spread::of(changes),
            stays_s: Spread::of(seconds),
        }
    }
}

fn in_words(study: &Study) -> String {
    let mut spread = table::bare();
    spread.set_header(["link", "of", "min", "p5", "p25", "p50", "p75", "p95", "max"]);
    for it in &study.links {
        let of = [
            ("lowest one-way delay of a second, ms", &it.least_ms),
            ("difference from the second before, ms", &it.difference_ms),
            ("stays within 2 ms for, s", &it.stays_s),
        ];
        for (name, of_link) in of {
            let Spread { min, p5, p25, p50, p75, p95, max, .. } = of_link;
            let row = [min, p5, p25, p50, p75, p95, max].map(|value| format!("{value:.1}"));
            spread.add_row([it.link.clone(), name.to_owned()].into_iter().chain(row));
        }
    }
    let mut rises = table::bare();
    rises.set_header(["sender", "replay of", "before, ms", "at the change", "a second later"]);
    for it in &study.rises {
        let sender = if it.full_throttle { "full rate" } else { "on and off" };
        let replay = if it.has_delays { "opportunities and delays" } else { "opportunities alone" };
        let figures = [it.before_ms, it.peak_ms, it.after_ms].map(|ms| format!("{ms:.1}"));
        rises.add_row([sender.to_owned(), replay.to_owned()].into_iter().chain(figures));
    }
    let [spread, rises] = [spread, rises].map(|table| table::right_aligned(table, 2));
    format!("{spread}\n{}\n{rises}\n", table::of(SHARES, &study.links, 1))
}

const SHARES: &[Column<Studied>] = &[
    ("link", |it| it.link.clone()),
    ("recordings", |it| it.recordings.to_string()),
    ("seconds", |it| it.seconds.to_string()),
    ("differs by 2 ms", |it| percent(it.above_2_ms)),
    ("by 10 ms", |it| percent(it.above_10_ms)),
    ("stays 5 s", |it| percent(it.at_least_5_s)),
    ("10 s", |it| percent(it.at_least_10_s)),
    ("time in stays of 5 s", |it| percent(it.time_in_at_least_5_s)),
    ("without a change", |it| it.without_change.to_string()),
];

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
