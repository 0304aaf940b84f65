//! `roadweave lab profiles`: never worse than the better link?

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_lab::profiles::{Compared, Load, Over, PROFILES, Profile, lane_alone};
use roadweave_tunnel::{LaneConfig, default_lanes};
use serde::Serialize;

use super::workers::work_all;
use crate::exit::BadInput;
use crate::table::{bare, right_aligned};

/// Measures whether two links together are ever worse than the better one of them
///
/// On each of 16 pairs of links, which mqvpn publishes results of, a QUIC transfer rides on each link alone and
/// on both, and in runs of its own a paced flow on the lane of real-time traffic, with the lanes of a
/// product without configuration. Equal arguments give equal results.
#[derive(Debug, clap::Args)]
pub struct ProfilesArgs {
    /// Measure only these profiles, separated by commas
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    only: Vec<String>,
    /// Let both loads ride on this lane of the default ones, alone: real-time, interactive, tcp or other
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

/// One profile.
#[derive(Debug, Serialize)]
struct Measured {
    name: &'static str,
    goodput_mbps: Compared,
    delay_p99_ms: Compared,
    rival_single_mbps: f64,
    rival_bond_mbps: f64,
}

/// One run.
#[derive(Debug)]
struct Job<'a> {
    profile: &'a Profile,
    load: Load,
    over: Over,
    seed: u64,
}

impl ProfilesArgs {
    /// Measures.
    ///
    /// # Errors
    /// [`BadInput`] for an unknown profile or lane; else when a run fails or was interrupted.
    pub fn run(&self) -> anyhow::Result<()> {
        let profiles = self.profiles()?;
        let [transfer_lanes, paced_lanes] = self.lanes()?;
        let loads = [
            Load::Transfer(u64::from(self.mebibytes) << 20),
            Load::Paced(Duration::from_secs(self.seconds.into())),
        ];
        let mut jobs = Vec::new();
        for &profile in &profiles {
            for load in loads {
                for over in [Over::A, Over::B, Over::Both] {
                    let seeds = 1..=u64::from(self.seeds);
                    jobs.extend(seeds.map(|seed| Job { profile, load, over, seed }));
                }
            }
        }
        let work = |job: usize| {
            let Job { profile, load, over, seed } = &jobs[job];
            let lanes = match load {
                Load::Transfer(_) => &transfer_lanes,
                Load::Paced(_) => &paced_lanes,
            };
            profile.measure(*over, lanes, *load, *seed).context("the lanes make no tunnel")
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = self.jobs.map_or(cores, usize::from);
        let done = work_all(workers, jobs.len(), |job| jobs[job].name(), work)?;
        let Some(done) = done.into_iter().collect::<Option<Vec<f64>>>() else {
            bail!("interrupted");
        };
        // In the order of the jobs: profile, load, link, seed.
        let seeds = usize::from(self.seeds);
        let mut compared = done.chunks(3 * seeds).zip(loads.iter().cycle()).map(|(done, load)| {
            load.compare(&done[..seeds], &done[seeds..2 * seeds], &done[2 * seeds..])
        });
        let mut next = || compared.next().expect("two for each profile");
        let measured = profiles.iter().map(|profile| Measured {
            name: profile.name,
            goodput_mbps: next(),
            delay_p99_ms: next(),
            rival_single_mbps: profile.rival_single_mbps,
            rival_bond_mbps: profile.rival_bond_mbps,
        });
        print(&Results { seeds: self.seeds, profiles: measured.collect() }, self.json)
    }

    fn profiles(&self) -> anyhow::Result<Vec<&'static Profile>> {
        if self.only.is_empty() {
            return Ok(PROFILES.iter().collect());
        }
        let by_name = |name: &String| {
            PROFILES.iter().find(|profile| profile.name == name).ok_or_else(|| {
                let names: Vec<_> = PROFILES.iter().map(|profile| profile.name).collect();
                let names = names.join(", ");
                BadInput::new(format!("--only: there is no profile `{name}`, but {names}")).into()
            })
        };
        self.only.iter().map(by_name).collect()
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

impl Job<'_> {
    fn name(&self) -> String {
        let Self { profile, load, over, .. } = self;
        let load = match load {
            Load::Transfer(_) => "transfer",
            Load::Paced(_) => "paced flow",
        };
        let over = match over {
            Over::A => "a",
            Over::B => "b",
            Over::Both => "both links",
        };
        format!("{}: {load} on {over}", profile.name)
    }
}

impl Results {
    fn in_words(&self) -> String {
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
        let ratio = |compared: &Compared| {
            let ratio = compared.ratio;
            format!("{:.2} ({:.2}-{:.2})", ratio.median, ratio.min, ratio.max)
        };
        let row = |measured: &Measured| {
            let (goodput, delay) = (&measured.goodput_mbps, &measured.delay_p99_ms);
            let tenths = |value: f64| format!("{value:.1}");
            [
                measured.name.to_owned(),
                tenths(goodput.a),
                tenths(goodput.b),
                tenths(goodput.both),
                ratio(goodput),
                tenths(measured.rival_single_mbps),
                tenths(measured.rival_bond_mbps),
                tenths(delay.a),
                tenths(delay.b),
                tenths(delay.both),
                ratio(delay),
            ]
        };
        let mut table = bare();
        table.set_header(heading).add_rows(self.profiles.iter().map(row));
        let table = right_aligned(table, 1);
        format!("medians of {} seeds; in brackets the range\n{table}\n", self.seeds)
    }
}

fn print(results: &Results, json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, results)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", results.in_words())?;
    }
    Ok(())
}

/// The lane of calls and live video.
const PACED_LANE: &str = "real-time";
