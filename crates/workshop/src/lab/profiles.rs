//! `roadweave lab profiles`: never worse than the best link?

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use comfy_table::Table;
use roadweave_lab::profiles::{
    Compared, Load, Over, PROFILES, Profile, lane_alone, measure, scenario_of_drive,
};
use roadweave_lab::scenario::Scenario;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use roadweave_tunnel::{LaneConfig, default_lanes};
use serde::Serialize;

use super::drives::{self, NamedDrive};
use super::workers::work_all;
use crate::table::{bare, right_aligned};

/// Measures whether several links together are ever worse than the best one of them
///
/// On each of 16 pairs of links, which mqvpn publishes results of, or on each drive of a directory,
/// a QUIC transfer rides on each link alone and on all, and in runs of its own a paced flow on the
/// lane of real-time traffic, with the lanes of a product without configuration. Equal arguments
/// give equal results.
#[derive(Debug, clap::Args)]
pub struct ProfilesArgs {
    /// Measure the recorded drives of this directory instead; transfers last as long as paced flows
    /// then
    #[arg(long, value_name = "DIR")]
    drives: Option<PathBuf>,
    /// Measure only these profiles or drives, separated by commas
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    only: Vec<String>,
    /// Let both loads ride on this lane of the default ones, alone: real-time, interactive, tcp or
    /// other
    #[arg(long, value_name = "NAME")]
    lane: Option<String>,
    /// What each transfer carries, MiB
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    mebibytes: u16,
    /// How long each paced flow lasts, seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=600))]
    seconds: u16,
    /// How many seeds everything is run with
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    seeds: u16,
    /// How many runs at a time; default: one per core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    jobs: Option<u16>,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

/// Everything that is measured.
#[derive(Debug, Serialize)]
struct Results {
    seeds: u16,
    profiles: Vec<Measured>,
}

/// One profile or drive.
#[derive(Debug, Serialize)]
struct Measured {
    name: String,
    links: Vec<String>,
    goodput_mbps: Compared,
    delay_p99_ms: Compared,
    #[serde(skip_serializing_if = "Option::is_none")]
    rival_single_mbps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rival_bond_mbps: Option<f64>,
}

/// The links that it is measured on.
#[derive(Debug)]
enum Conditions {
    Profile(&'static Profile),
    Drive(NamedDrive),
}

/// One run.
#[derive(Debug)]
struct Job<'a> {
    conditions: &'a Conditions,
    load: Load,
    over: Over,
    seed: u64,
}

impl ProfilesArgs {
    /// Measures.
    ///
    /// # Errors
    /// [`BadInput`] for an unknown profile, drive or lane; else when a run fails or was
    /// interrupted.
    pub fn run(&self) -> anyhow::Result<()> {
        let all = self.conditions()?;
        let [transfer_lanes, paced_lanes] = self.lanes()?;
        let loads = self.loads();
        let mut jobs = Vec::new();
        for conditions in &all {
            for load in loads {
                let singles = (0..conditions.links().len()).map(Over::One);
                for over in singles.chain([Over::All]) {
                    let seeds = 1..=u64::from(self.seeds);
                    jobs.extend(seeds.map(|seed| Job { conditions, load, over, seed }));
                }
            }
        }
        let work = |job: usize| {
            let Job { conditions, load, over, seed } = &jobs[job];
            let lanes = if load.is_goodput() { &transfer_lanes } else { &paced_lanes };
            let scenario = conditions.scenario(*over, lanes, *load, *seed);
            measure(&scenario).context("the lanes make no tunnel")
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = self.jobs.map_or(cores, usize::from);
        let done = work_all(workers, jobs.len(), |job| jobs[job].name(), work)?;
        let Some(done) = done.into_iter().collect::<Option<Vec<f64>>>() else {
            bail!("interrupted");
        };
        // In the order of the jobs: conditions, load, link, seed.
        let mut by_link = done.chunks(self.seeds.into());
        let mut next = |load, links| {
            let singles: Vec<&[f64]> = by_link.by_ref().take(links).collect();
            Compared::new(load, &singles, by_link.next().expect("all links follow the single ones"))
        };
        let measured = all.iter().map(|conditions| Measured {
            name: conditions.name().to_owned(),
            links: conditions.links(),
            goodput_mbps: next(loads[0], conditions.links().len()),
            delay_p99_ms: next(loads[1], conditions.links().len()),
            rival_single_mbps: conditions.profile().map(|profile| profile.rival_single_mbps),
            rival_bond_mbps: conditions.profile().map(|profile| profile.rival_bond_mbps),
        });
        print(&Results { seeds: self.seeds, profiles: measured.collect() }, self.json)
    }

    /// The transfer and the paced flow.
    fn loads(&self) -> [Load; 2] {
        let lasting = Duration::from_secs(self.seconds.into());
        let transfer = match self.drives {
            None => Load::Transfer(u64::from(self.mebibytes) << 20),
            Some(_) => Load::Endless(lasting),
        };
        [transfer, Load::Paced(lasting)]
    }

    fn conditions(&self) -> anyhow::Result<Vec<Conditions>> {
        let mut all: Vec<Conditions> = match &self.drives {
            None => PROFILES.iter().map(Conditions::Profile).collect(),
            Some(directory) => {
                drives::read(directory)?.into_iter().map(Conditions::Drive).collect()
            }
        };
        if let Some(unknown) =
            self.only.iter().find(|only| all.iter().all(|conditions| conditions.name() != *only))
        {
            let names: Vec<_> = all.iter().map(Conditions::name).collect();
            let names = names.join(", ");
            return Err(
                BadInput::new(format!("--only: there is no `{unknown}`, but {names}")).into()
            );
        }
        all.retain(|conditions| {
            self.only.is_empty() || self.only.iter().any(|only| only == conditions.name())
        });
        Ok(all)
    }

    /// The lanes of the transfer and of the paced flow.
    fn lanes(&self) -> anyhow::Result<[Vec<LaneConfig>; 2]> {
        let alone = |name: &str| {
            lane_alone(name).ok_or_else(|| {
                BadInput::new(format!("--lane: there is no lane `{name}` by default")).into()
            })
        };
        match &self.lane {
            Some(name) => alone(name).map(|lanes: Vec<LaneConfig>| [lanes.clone(), lanes]),
            None => alone(PACED_LANE).map(|paced| [default_lanes(), paced]),
        }
    }
}

impl Conditions {
    fn name(&self) -> &str {
        match self {
            Self::Profile(profile) => profile.name,
            Self::Drive(drive) => &drive.name,
        }
    }

    fn profile(&self) -> Option<&Profile> {
        match self {
            Self::Profile(profile) => Some(profile),
            Self::Drive(_) => None,
        }
    }

    /// What its links are called.
    fn links(&self) -> Vec<String> {
        match self {
            Self::Profile(_) => vec!["a".into(), "b".into()],
            Self::Drive(named) => named.drive.links.iter().map(|link| link.name.clone()).collect(),
        }
    }

    fn scenario(&self, over: Over, lanes: &[LaneConfig], load: Load, seed: u64) -> Scenario {
        match self {
            Self::Profile(profile) => profile.scenario(over, lanes, load, seed),
            Self::Drive(named) => {
                scenario_of_drive((&named.name, &named.drive), over, lanes, load, seed)
            }
        }
    }
}

impl Job<'_> {
    fn name(&self) -> String {
        let Self { conditions, load, over, .. } = self;
        let load = if load.is_goodput() { "transfer" } else { "paced flow" };
        let over = match over {
            Over::One(at) => conditions.links()[*at].clone(),
            Over::All => "all links".into(),
        };
        format!("{}: {load} on {over}", conditions.name())
    }
}

impl Results {
    fn in_words(&self) -> String {
        let table = match self.profiles.iter().all(|measured| measured.rival_bond_mbps.is_some()) {
            true => self.pairs(),
            false => self.drives(),
        };
        let table = right_aligned(table, 1);
        let seeds = self.seeds;
        format!("medians of {seeds} seeds; in brackets the range\n{table}\n{}", self.worst())
    }

    fn pairs(&self) -> Table {
        let heading = [
            "profile",
            "Mbit/s: a",
            "b",
            "both",
            "both by better",
            "mqvpn: better",
            "both",
            "p99 ms: a",
            "b",
            "both",
            "both by better",
        ];
        let row = |measured: &Measured| {
            let (goodput, delay) = (&measured.goodput_mbps, &measured.delay_p99_ms);
            [
                measured.name.clone(),
                tenths(goodput.singles[0]),
                tenths(goodput.singles[1]),
                tenths(goodput.all),
                in_brackets(goodput),
                tenths(measured.rival_single_mbps.unwrap_or(f64::NAN)),
                tenths(measured.rival_bond_mbps.unwrap_or(f64::NAN)),
                tenths(delay.singles[0]),
                tenths(delay.singles[1]),
                tenths(delay.all),
                in_brackets(delay),
            ]
        };
        let mut table = bare();
        table.set_header(heading).add_rows(self.profiles.iter().map(row));
        table
    }

    fn drives(&self) -> Table {
        let heading =
            ["drive", "Mbit/s: best", "all", "all by best", "p99 ms: best", "all", "all by best"];
        let row = |measured: &Measured| {
            let best = |compared: &Compared| {
                format!("{} {}", measured.links[compared.best], tenths(compared.single()))
            };
            let (goodput, delay) = (&measured.goodput_mbps, &measured.delay_p99_ms);
            [
                measured.name.clone(),
                best(goodput),
                tenths(goodput.all),
                in_brackets(goodput),
                best(delay),
                tenths(delay.all),
                in_brackets(delay),
            ]
        };
        let mut table = bare();
        table.set_header(heading).add_rows(self.profiles.iter().map(row));
        table
    }

    /// The places where all links were worse than the best one, the worst first.
    fn worst(&self) -> String {
        let list = |what: &str, of: fn(&Measured) -> &Compared, is_goodput: bool| {
            let loss = |ratio: f64| if is_goodput { ratio } else { 1.0 / ratio };
            let mut worse: Vec<_> = self
                .profiles
                .iter()
                .filter(|at| loss(of(at).ratio.median) < 1.0 - ROUNDING)
                .collect();
            worse.sort_by(|one, other| {
                loss(of(one).ratio.median).total_cmp(&loss(of(other).ratio.median))
            });
            let named: Vec<_> = worse
                .iter()
                .take(NAMED_MAX)
                .map(|at| format!("{} {:.2}", at.name, of(at).ratio.median))
                .collect();
            let more = if worse.len() > NAMED_MAX { ", .." } else { "" };
            let (count, named) = (worse.len(), named.join(", "));
            let colon = if count > 0 { ": " } else { "" };
            format!("worse {what}: {count} of {}{colon}{named}{more}\n", self.profiles.len())
        };
        list("goodput", |at| &at.goodput_mbps, true) + &list("p99", |at| &at.delay_p99_ms, false)
    }
}

fn tenths(value: f64) -> String {
    format!("{value:.1}")
}

fn in_brackets(compared: &Compared) -> String {
    let ratio = compared.ratio;
    format!("{:.2} ({:.2}-{:.2})", ratio.median, ratio.min, ratio.max)
}

fn print(results: &Results, json: bool) -> anyhow::Result<()> {
    if json { out::json(results) } else { Ok(out::print(results.in_words())?) }
}

/// The lane of calls and live video.
const PACED_LANE: &str = "real-time";
/// A ratio that is 1 when rounded is no worse.
pub(super) const ROUNDING: f64 = 0.005;
/// Places that are named, at most.
const NAMED_MAX: usize = 10;
