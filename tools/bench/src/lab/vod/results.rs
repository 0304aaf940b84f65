//! Tables and JSON of all viewers.

use std::collections::VecDeque;

use roadweave_lab::vod::summary::{Figure, Figures, Interval, Viewings};
use roadweave_lab::vod::{
    Chosen, Pair, ProgramKind, STANDS_STILL, ServerTraffic, Setting, Viewing, Way,
};
use serde::Serialize;

use super::Viewers;
use crate::table::{self, Column, bare, right_aligned};

#[derive(Debug, Serialize)]
pub(super) struct VodResults {
    seconds: u64,
    seeds: u16,
    congestion: String,
    pairs: Vec<PairResult>,
    ways: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct PairResult {
    name: String,
    links: Vec<String>,
    bitrate_kbps: u64,
    /// The link with the least rebuffering alone, and its share of the playing time.
    best: String,
    rebuffering_alone: f64,
    /// Whether the rebuffering is within [`STANDS_STILL`]; other pairs do not count.
    counts: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    kind: ProgramKind,
    way: String,
    viewings: usize,
    figures: Figures,
    /// The share by which each figure is below that of the best link alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    below_best_link: Option<Figures>,
}

impl VodResults {
    /// `seen` is in the order of the jobs.
    pub(super) fn new(
        setting: Setting,
        pairs: &[Pair],
        chosen: &[Chosen],
        ways: &[Way],
        seen: Vec<(Viewing, ServerTraffic)>,
    ) -> Self {
        let mut seen = VecDeque::from(seen);
        let mut next = || -> Viewers { seen.drain(..usize::from(setting.seeds)).collect() };
        let (mut long, mut short) = (Columns::new(ways), Columns::new(ways));
        for (pair, chosen) in pairs.iter().zip(chosen) {
            let counts = STANDS_STILL.contains(&chosen.stands_still);
            let of_ways: Vec<Viewers> = ways.iter().map(|_| next()).collect();
            long.add(counts, &chosen.alone, chosen.best, of_ways);
            let alone: Vec<Viewers> = pair.links.iter().map(|_| next()).collect();
            let of_ways = ways.iter().map(|_| next()).collect();
            short.add(counts, &alone, quickest(&alone), of_ways);
        }
        let measured = |(pair, chosen): (&Pair, &Chosen)| PairResult {
            name: pair.name.clone(),
            links: pair.links.iter().map(|link| link.name.clone()).collect(),
            bitrate_kbps: chosen.bitrate.as_bps() / 1_000,
            best: pair.links[chosen.best].name.clone(),
            rebuffering_alone: chosen.stands_still,
            counts: STANDS_STILL.contains(&chosen.stands_still),
        };
        let rows = [(ProgramKind::Long, long), (ProgramKind::Short, short)];
        Self {
            seconds: setting.lasting.as_secs(),
            seeds: setting.seeds,
            congestion: setting.congestion.to_string(),
            pairs: pairs.iter().zip(chosen).map(measured).collect(),
            ways: rows.into_iter().flat_map(|(kind, columns)| columns.rows(kind)).collect(),
        }
    }

    pub(super) fn in_words(&self) -> String {
        let mut text = self.pairs_in_words();
        for (kind, what) in
            [(ProgramKind::Long, "one long video"), (ProgramKind::Short, "short videos, swiped")]
        {
            let rows: Vec<&Row> = self.ways.iter().filter(|row| row.kind == kind).collect();
            text += &format!("\n{what}\n{}\n", figures_in_words(&rows));
            text += &format!(
                "\n{what}: below the best link alone, % (95 % interval over pairs)\n{}\n",
                below_in_words(&rows)
            );
        }
        text
    }

    fn pairs_in_words(&self) -> String {
        let columns: &[Column<PairResult>] = &[
            ("pair", |pair| pair.name.clone()),
            ("best link", |pair| pair.best.clone()),
            ("Mbit/s", |pair| format!("{:.2}", pair.bitrate_kbps as f64 / 1e3)),
            ("it stands still", |pair| format!("{:.1} %", pair.rebuffering_alone * 1e2)),
            ("counts", |pair| (if pair.counts { "yes" } else { "no" }).to_owned()),
        ];
        table::of(columns, &self.pairs, 2) + "\n"
    }
}

#[derive(Debug)]
struct Columns {
    names: Vec<String>,
    viewers: Vec<Vec<Viewers>>,
}

impl Columns {
    fn new(ways: &[Way]) -> Self {
        let names = [BEST_LINK, FIRST_LINK].map(str::to_owned).into_iter();
        let names: Vec<String> = names.chain(ways.iter().map(Way::to_string)).collect();
        Self { viewers: names.iter().map(|_| Vec::new()).collect(), names }
    }

    fn add(&mut self, counts: bool, alone: &[Viewers], best: usize, of_ways: Vec<Viewers>) {
        if counts {
            let all = [alone[best].clone(), alone[0].clone()].into_iter().chain(of_ways);
            self.viewers.iter_mut().zip(all).for_each(|(column, viewers)| column.push(viewers));
        }
    }

    fn rows(self, kind: ProgramKind) -> Vec<Row> {
        let all: Vec<Viewings> = self.viewers.iter().map(|pairs| Viewings::new(pairs)).collect();
        let row = |((way, viewers), viewings): ((String, &Vec<Viewers>), &Viewings)| Row {
            kind,
            viewings: viewers.iter().map(Vec::len).sum(),
            figures: viewings.figures(),
            below_best_link: (way != BEST_LINK).then(|| viewings.below(&all[0])),
            way,
        };
        self.names.into_iter().zip(&self.viewers).zip(&all).map(row).collect()
    }
}

fn quickest(alone: &[Viewers]) -> usize {
    let mean = |viewers: &Viewers| {
        let frames = || viewers.iter().flat_map(|(seen, _)| &seen.first_frames);
        let sum: f64 = frames().map(|took| took.as_secs_f64()).sum();
        sum / frames().count().max(1) as f64
    };
    (0..alone.len()).min_by(|a, b| mean(&alone[*a]).total_cmp(&mean(&alone[*b]))).unwrap_or(0)
}

fn figures_in_words(rows: &[&Row]) -> String {
    let mut table = bare();
    let mut heading = vec!["way"];
    heading.extend(SHOWN.iter().map(|(_, name, _)| *name));
    table.set_header(heading);
    for row in rows {
        let cell = |(figure, _, unit): &(Figure, &str, Unit)| {
            unit.show(row.figures.get(figure).and_then(|it| it.value))
        };
        table.add_row(std::iter::once(row.way.clone()).chain(SHOWN.iter().map(cell)));
    }
    right_aligned(table, 1)
}

fn below_in_words(rows: &[&Row]) -> String {
    let mut table = bare();
    table.set_header(["way", "request p50", "p95", "p99", "first frame p99", "rebuffering"]);
    for row in rows {
        let Some(below) = &row.below_best_link else { continue };
        let cell = |figure: &Figure| below.get(figure).map_or_else(String::new, percent);
        table.add_row(std::iter::once(row.way.clone()).chain(COMPARED.iter().map(cell)));
    }
    let paper = ["XLINK's paper", "2.3 to 8.9", "9.4 to 34", "19 to 50", "above 32", "24 to 68"];
    table.add_row(paper);
    right_aligned(table, 1)
}

fn percent(interval: &Interval) -> String {
    let show = |value: Option<f64>| value.map_or("-".to_owned(), |it| format!("{:.0}", it * 1e2));
    let ends = interval.low.zip(interval.high);
    let ends = ends.map(|(low, high)| format!(" ({} to {})", show(Some(low)), show(Some(high))));
    show(interval.value) + &ends.unwrap_or_default()
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Millis,
    Percent,
}

impl Unit {
    fn show(self, value: Option<f64>) -> String {
        match (self, value) {
            (_, None) => "-".to_owned(),
            (Self::Millis, Some(ms)) => format!("{ms:.0}"),
            (Self::Percent, Some(share)) => format!("{:.1}", share * 1e2),
        }
    }
}

const BEST_LINK: &str = "best link alone";
const FIRST_LINK: &str = "first link alone";
const SHOWN: [(Figure, &str, Unit); 10] = [
    (Figure::RequestP50, "request ms p50", Unit::Millis),
    (Figure::RequestP95, "p95", Unit::Millis),
    (Figure::RequestP99, "p99", Unit::Millis),
    (Figure::FirstFrameP50, "first frame p50", Unit::Millis),
    (Figure::FirstFrameP99, "p99", Unit::Millis),
    (Figure::Rebuffering, "rebuffering %", Unit::Percent),
    (Figure::BufferP1, "buffer p1", Unit::Millis),
    (Figure::BufferDanger, "below 50 ms %", Unit::Percent),
    (Figure::Copies, "copies %", Unit::Percent),
    (Figure::Reinjected, "reinjected %", Unit::Percent),
];
const COMPARED: [Figure; 5] = [
    Figure::RequestP50,
    Figure::RequestP95,
    Figure::RequestP99,
    Figure::FirstFrameP99,
    Figure::Rebuffering,
];
