//! What downloads have got of their links, as a table.

use comfy_table::Table;
use roadweave_lab::downloads::Downloaded;
use roadweave_lab::tcp::Algorithm;
use serde::Serialize;

use super::ratios::{Beside, Kind, Ratio, beside_in_words, ratios_in_words};
use crate::table::{bare, right_aligned};

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    seeds: u16,
    cases: Vec<Measured>,
    /// Streams by TCP.
    ratios: Vec<Ratio>,
}

/// The downloads over some links.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) class: Kind,
    pub(super) links: Vec<String>,
    /// By link, then by seed.
    pub(super) alone: Vec<Vec<Run>>,
    /// By seed.
    pub(super) all: Vec<Run>,
}

/// A stream, and TCP over the same links.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    pub(super) stream: Downloaded,
    /// Over one link without a tunnel, over all through it; in all runs by the same congestion
    /// controls.
    pub(super) tcp: Vec<ByTcp>,
}

/// What TCP by one congestion control got.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ByTcp {
    pub(super) congestion: Algorithm,
    pub(super) goodput_mbps: f64,
}

/// What is told of one row, medians over the seeds.
struct Row {
    name: String,
    /// The link whose download was the fastest, its Mbit/s, and that by what is possible.
    best: (String, f64, f64),
    /// The least that a link alone got of what is possible.
    least: f64,
    all: f64,
    by_best: f64,
    by_possible: f64,
    redundant: f64,
}

impl Row {
    fn of(measured: &Measured) -> Self {
        let goodput = |runs: &[Run]| median(runs, |run| run.stream.goodput_mbps);
        let share = |run: &Run| run.stream.goodput_mbps / run.stream.possible_mbps();
        let possible = |runs: &[Run]| median(runs, share);
        let best = measured.alone.iter().zip(&measured.links);
        let best = best.max_by(|(one, _), (other, _)| goodput(one).total_cmp(&goodput(other)));
        let best = best.map(|(runs, link)| (link.clone(), goodput(runs), possible(runs)));
        let best = best.unwrap_or_default();
        let least = measured.alone.iter().map(|runs| possible(runs)).fold(f64::INFINITY, f64::min);
        let all = goodput(&measured.all);
        Self {
            name: measured.name.clone(),
            by_best: all / best.1,
            best,
            least,
            all,
            by_possible: possible(&measured.all),
            redundant: median(&measured.all, |run| run.stream.redundant),
        }
    }
}

impl Results {
    pub(super) fn new(seeds: u16, cases: Vec<Measured>) -> Self {
        let ratios = Ratio::all_of(&beside(&cases));
        Self { seeds, cases, ratios }
    }

    /// The table of all and the geometric means, and of TCP if there is any.
    pub(super) fn in_words(&self) -> String {
        let rows: Vec<Row> = self.cases.iter().map(Row::of).collect();
        let (seeds, table, means) = (self.seeds, table(&rows), means(&rows));
        let mut text = format!("medians of {seeds} seeds\n{table}\n{means}");
        if !self.ratios.is_empty() {
            text += &format!("\n{}\n", beside_in_words(&beside(&self.cases)));
            text += &format!("geometric means of ratios\n{}\n", ratios_in_words(&self.ratios));
        }
        text
    }
}

fn beside(cases: &[Measured]) -> Vec<Beside<'_>> {
    cases.iter().flat_map(Beside::all_of).collect()
}

fn table(rows: &[Row]) -> String {
    let mut table: Table = bare();
    table.set_header([
        "links",
        "best alone",
        "Mbit/s",
        "by possible",
        "least alone by possible",
        "all: Mbit/s",
        "by best",
        "by possible",
        "redundant",
    ]);
    for row in rows {
        table.add_row([
            row.name.clone(),
            row.best.0.clone(),
            format!("{:.1}", row.best.1),
            format!("{:.2}", row.best.2),
            format!("{:.2}", row.least),
            format!("{:.1}", row.all),
            format!("{:.2}", row.by_best),
            format!("{:.2}", row.by_possible),
            format!("{:.1} %", 100.0 * row.redundant),
        ]);
    }
    right_aligned(table, 2)
}

fn means(rows: &[Row]) -> String {
    let mean = |of: fn(&Row) -> f64| geometric_mean(rows.iter().map(of));
    format!(
        "geometric means: best alone by possible {:.3}, all by best {:.3}, by possible {:.3}\n",
        mean(|row| row.best.2),
        mean(|row| row.by_best),
        mean(|row| row.by_possible),
    )
}

/// What is less than a thousandth counts as that.
pub(super) fn geometric_mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    (values.map(|value| value.max(1e-3).ln()).sum::<f64>() / count).exp()
}

/// The middle one, of an even number the lower one.
pub(super) fn median(runs: &[Run], of: impl Fn(&Run) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}
