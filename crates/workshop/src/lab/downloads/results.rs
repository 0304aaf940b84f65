//! What downloads have got of their links, as a table.

use comfy_table::Table;
use roadweave_lab::downloads::Downloaded;
use serde::Serialize;

use crate::table::{bare, right_aligned};

/// The downloads over some links.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) links: Vec<String>,
    /// By link, then by seed.
    pub(super) alone: Vec<Vec<Downloaded>>,
    /// By seed.
    pub(super) all: Vec<Downloaded>,
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
        let goodput = |runs: &[Downloaded]| median(runs, |run| run.goodput_mbps);
        let possible =
            |runs: &[Downloaded]| median(runs, |run| run.goodput_mbps / run.possible_mbps());
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
            redundant: median(&measured.all, |run| run.redundant),
        }
    }
}

/// The table of all, and the geometric means.
pub(super) fn in_words(measured: &[Measured], seeds: u16) -> String {
    let rows: Vec<Row> = measured.iter().map(Row::of).collect();
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
    for row in &rows {
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
    let mean = |of: fn(&Row) -> f64| {
        let sum: f64 = rows.iter().map(|row| of(row).max(1e-3).ln()).sum();
        (sum / rows.len().max(1) as f64).exp()
    };
    let means = format!(
        "geometric means: best alone by possible {:.3}, all by best {:.3}, by possible {:.3}\n",
        mean(|row| row.best.2),
        mean(|row| row.by_best),
        mean(|row| row.by_possible),
    );
    let table = right_aligned(table, 2);
    format!("medians of {seeds} seeds\n{table}\n{means}")
}

/// The middle one, of an even number the lower one.
fn median(runs: &[Downloaded], of: impl Fn(&Downloaded) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}
