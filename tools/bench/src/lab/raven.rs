//! `roadweave lab raven`: RAVEN's table 2, figure 6 and sections 5.6 to 5.8.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use roadweave_emulate::Drive;
use roadweave_lab::raven::loads::{self, LinkLoad, Loaded};
use roadweave_lab::raven::{self, Answered, RavenRoute, Transferred};
use roadweave_lab::strategies;
use roadweave_lab::traffic::App;
use roadweave_terminal::exit::BadInput;
use roadweave_tunnel::Strategy;
use serde::Serialize;

use super::drives;
use super::losses::Losses;
use super::workers::Runs;
use crate::table::{self, Column};

/// Measures response times at each confidence of RAVEN, and their cost
///
/// The recordings of DIR, which need round trips and losses only, are joined to routes of several
/// minutes. On each route people speak, look for songs and ask for places over every link alone,
/// over `minrtt`, and over `raven` at 0, 50, 90, 99 and 100 %, with what it learns on the other
/// routes. Then transfers of 1 kB to 1 MB show which part of them is sent twice. Equal arguments
/// give equal results.
#[derive(Debug, clap::Args)]
pub struct RavenArgs {
    /// A directory with a directory per recording, in each a file LINK.csv per link
    #[arg(long, value_name = "DIR")]
    traces: PathBuf,
    /// The number of routes that the recordings are joined to
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    routes: u16,
    /// How often people ask for places on each route, since they ask rarely
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    repeats: u16,
    /// Instead, load these over connections that are carried as streams, separated by commas:
    /// video, unbroken
    #[arg(long, value_name = "LOAD,..", value_delimiter = ',')]
    loads: Vec<LinkLoad>,
    /// Only these strategies over all links, separated by commas, and no transfers
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = strategies::strategy)]
    strategies: Vec<Strategy>,
    #[command(flatten)]
    losses: Losses,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Debug, Serialize)]
struct RavenResults {
    answers: Vec<Answered>,
    transfers: Vec<Transferred>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    loads: Vec<Loaded>,
}

#[derive(Debug)]
enum RavenJob {
    Ask { route: usize, app: App, strategy: Strategy },
    Transfer { bytes: u64 },
    Load { route: usize, load: LinkLoad, strategy: Strategy },
}

enum Done {
    Answered(Answered),
    Transferred(Transferred),
    Loaded(Loaded),
}

impl RavenArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let routes = read(&self.traces, self.routes.into())?;
        let others = |route: usize| {
            routes.iter().enumerate().filter(move |(at, _)| *at != route).map(|(_, other)| other)
        };
        let learned: Vec<String> = (0..routes.len()).map(|at| raven::learn(others(at))).collect();
        let jobs = self.jobs(&routes)?;
        let names: Vec<String> = (0..routes.len()).map(route_name).collect();
        let loss = self.losses.get()?;
        let on = |at: usize| RavenRoute { name: &names[at], drive: &routes[at], loss };
        let work = |job: usize| match &jobs[job] {
            RavenJob::Ask { route, app, strategy } => {
                let repeats = if *app == App::Recommender { u64::from(self.repeats) } else { 1 };
                let (route, learned) = (on(*route), &learned[*route]);
                Ok(Done::Answered(raven::ask(route, *app, strategy, learned, 1..1 + repeats)?))
            }
            RavenJob::Load { route, load, strategy } => {
                let (route, learned) = (on(*route), &learned[*route]);
                Ok(Done::Loaded(loads::load(route, *load, strategy, learned, 1)?))
            }
            RavenJob::Transfer { bytes } => {
                Ok(Done::Transferred(raven::transfer(on(0), *bytes, 1)?))
            }
        };
        let done = self.runs.finish(jobs.len(), |job| jobs[job].name(), work)?;
        self.runs.print(&RavenResults::of(done), RavenResults::in_words)
    }

    /// Every size of a transfer, and every application by route and strategy; or only what is asked
    /// for.
    fn jobs(&self, routes: &[Drive]) -> anyhow::Result<Vec<RavenJob>> {
        let mut jobs = Vec::new();
        let mut strategies = self.strategies.clone();
        let known = |name: &str| name.parse().expect("it is one of the strategies");
        if strategies.is_empty() && !self.loads.is_empty() {
            strategies = LOADED.map(known).to_vec();
        } else if strategies.is_empty() {
            let links = routes[0].links.iter().map(|link| format!("single:{}", link.name).parse());
            let links = links.collect::<Result<Vec<Strategy>, _>>();
            strategies = links.context("a link's name is not valid in a strategy")?;
            strategies.extend(STRATEGIES.map(known));
            jobs.extend(SIZES.map(|bytes| RavenJob::Transfer { bytes }));
        }
        let mut add = |job: &dyn Fn(usize, Strategy) -> RavenJob| {
            for route in 0..routes.len() {
                jobs.extend(strategies.iter().map(|strategy| job(route, strategy.clone())));
            }
        };
        if self.loads.is_empty() {
            for app in [App::Speech, App::Music, App::Recommender] {
                add(&|route, strategy| RavenJob::Ask { route, app, strategy });
            }
        }
        for load in self.loads.iter().copied() {
            add(&|route, strategy| RavenJob::Load { route, load, strategy });
        }
        Ok(jobs)
    }
}

fn read(directory: &Path, count: usize) -> anyhow::Result<Vec<Drive>> {
    let recordings: Vec<(String, Drive)> =
        drives::read(directory)?.into_iter().map(|named| (named.name, named.drive)).collect();
    let routes = raven::routes(&recordings, count);
    routes.map_err(|error| BadInput::new(format!("--traces: {error}")).into())
}

fn route_name(route: usize) -> String {
    format!("R{}", route + 1)
}

impl RavenJob {
    fn name(&self) -> String {
        match self {
            Self::Ask { route, app, strategy } => {
                format!("{} with {strategy} on {}", app.name(), route_name(*route))
            }
            Self::Transfer { bytes } => format!("transfers of {bytes} bytes"),
            Self::Load { route, load, strategy } => {
                format!("{} with {strategy} on {}", load.name(), route_name(*route))
            }
        }
    }
}

impl RavenResults {
    fn of(done: Vec<Done>) -> Self {
        let mut results = Self { answers: vec![], transfers: vec![], loads: vec![] };
        for done in done {
            match done {
                Done::Answered(answered) => results.answers.push(answered),
                Done::Transferred(transferred) => results.transfers.push(transferred),
                Done::Loaded(loaded) => results.loads.push(loaded),
            }
        }
        results
    }

    fn in_words(&self) -> String {
        let mut text = String::new();
        if !self.answers.is_empty() {
            let table = table::of(ANSWERS, &self.answers, 3);
            text += &format!("response times, ms\n{table}\n\n");
        }
        if !self.loads.is_empty() {
            text += &format!("loads\n{}\n", table::of(LOADS, &self.loads, 3));
        }
        if !self.transfers.is_empty() {
            text += "transfers with raven:100\n";
        }
        for transferred in &self.transfers {
            let share = transferred.redundant * 100.0;
            text += &format!("{} bytes: {share:.1} % sent to all paths\n", transferred.bytes);
        }
        text
    }
}

const ANSWERS: &[Column<Answered>] = &[
    ("app", |it| it.app.clone()),
    ("route", |it| it.route.clone()),
    ("strategy", |it| it.strategy.clone()),
    ("median", |it| millis(it.response_ms.p50)),
    ("95 %", |it| millis(it.response_ms.p95)),
    ("99 %", |it| millis(it.response_ms.p99)),
    ("asked", |it| it.asked.to_string()),
    ("unanswered", |it| (it.asked - it.answered).to_string()),
    ("extra bytes", |it| format!("{:.2}", it.extra_bytes)),
];
const LOADS: &[Column<Loaded>] = &[
    ("load", |it| it.load.to_owned()),
    ("route", |it| it.route.clone()),
    ("strategy", |it| it.strategy.clone()),
    ("median ms", |it| format!("{:.0}", it.took_ms.p50)),
    ("99 %", |it| format!("{:.0}", it.took_ms.p99)),
    ("whole", |it| format!("{} of {}", it.whole, it.parts)),
    ("copies %: all", |it| format!("{:.2}", it.copies * 1e2)),
    ("to the vehicle", |it| format!("{:.2}", it.copies_down * 1e2)),
    ("from it", |it| format!("{:.2}", it.copies_up * 1e2)),
];

/// A missing answer is shown as in the paper.
fn millis(ms: f64) -> String {
    if ms >= raven::REQUEST_TIMEOUT.as_secs_f64() * 1e3 {
        "T/O".to_owned()
    } else {
        format!("{ms:.0}")
    }
}

const STRATEGIES: [&str; 6] = ["minrtt", "raven:0", "raven:50", "raven", "raven:99", "raven:100"];
/// `minrtt` shows plain copies, `raven` copies that are repairs.
const LOADED: [&str; 2] = ["minrtt", "raven"];
const SIZES: [u64; 5] = [1_000, 10_000, 50_000, 100_000, 1_000_000];
