//! `roadweave lab failover`: what a viewer sees when a server is gone.

use std::num::NonZero;

use anyhow::{Context as _, Result};
use comfy_table::Table;
use roadweave_lab::failover::{Failover, Seen};
use roadweave_lab::world::servers::Fault;
use roadweave_terminal::out;
use serde::Serialize;

use super::workers::work_all;
use crate::table::{bare, right_aligned};

/// Measures what a viewer sees of a change of server
///
/// A video of 30 Mbit/s goes over three links with round trips of 50 to 70 ms through one of two
/// servers, which crashes, freezes, drains or loses its way out. Equal arguments give equal
/// results.
#[derive(Debug, clap::Args)]
pub struct FailoverArgs {
    /// How many seeds each fault is run with
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    seeds: u16,
    /// How many runs at a time; default: one per core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    jobs: Option<u16>,
    /// Print the results as one JSON array
    #[arg(long)]
    json: bool,
}

/// One fault with all seeds.
#[derive(Debug, Serialize)]
struct Measured {
    fault: &'static str,
    runs: usize,
    gap_p50_ms: f64,
    gap_p99_ms: f64,
    gap_max_ms: f64,
    frames_lost_mean: f64,
    frames_lost_max: usize,
    packets_twice_mean: f64,
    moves_max: usize,
}

impl FailoverArgs {
    /// # Errors
    /// When a world cannot be made, or the output not be written.
    pub fn run(&self) -> Result<()> {
        let faults = [
            ("crash", Fault::Crash),
            ("freeze", Fault::Freeze),
            ("cut from the egress", Fault::CutFromEgress),
            ("drain", Fault::Drain(0)),
        ];
        let mut rows = Vec::new();
        for (name, fault) in faults {
            let jobs: Vec<u64> = (1..=u64::from(self.seeds)).collect();
            let seen = self.all(&jobs, fault)?;
            rows.push(measured(name, &seen));
        }
        match self.json {
            true => out::line(serde_json::to_string_pretty(&rows)?)?,
            false => out::line(table(&rows))?,
        }
        Ok(())
    }
}

impl FailoverArgs {
    /// Runs `fault` with all seeds.
    fn all(&self, seeds: &[u64], fault: Fault) -> Result<Vec<Seen>> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let workers = self.jobs.map_or(cores, usize::from);
        let work = |job: usize| Ok(Failover::new(fault, seeds[job]).run()?);
        let name = |job: usize| format!("{fault:?}, seed {}", seeds[job]);
        let done = work_all(workers, seeds.len(), name, work)?;
        done.into_iter().collect::<Option<Vec<Seen>>>().context("interrupted")
    }
}

fn measured(fault: &'static str, seen: &[Seen]) -> Measured {
    let mut gaps: Vec<f64> = seen.iter().map(|seen| seen.gap_ms).collect();
    gaps.sort_by(f64::total_cmp);
    let percentile = |percent: usize| gaps[(gaps.len() * percent).div_ceil(100).max(1) - 1];
    let mean = |of: fn(&Seen) -> f64| seen.iter().map(of).sum::<f64>() / seen.len() as f64;
    Measured {
        fault,
        runs: seen.len(),
        gap_p50_ms: percentile(50),
        gap_p99_ms: percentile(99),
        gap_max_ms: percentile(100),
        frames_lost_mean: mean(|seen| seen.frames_lost as f64),
        frames_lost_max: seen.iter().map(|seen| seen.frames_lost).max().unwrap_or(0),
        packets_twice_mean: mean(|seen| seen.packets_twice as f64),
        moves_max: seen.iter().map(|seen| seen.moves).max().unwrap_or(0),
    }
}

fn table(rows: &[Measured]) -> String {
    let mut table: Table = bare();
    table.set_header([
        "fault",
        "runs",
        "gap p50 ms",
        "p99 ms",
        "max ms",
        "frames lost, mean",
        "max",
        "packets twice, mean",
        "moves, max",
    ]);
    for row in rows {
        table.add_row([
            row.fault.to_owned(),
            row.runs.to_string(),
            format!("{:.0}", row.gap_p50_ms),
            format!("{:.0}", row.gap_p99_ms),
            format!("{:.0}", row.gap_max_ms),
            format!("{:.1}", row.frames_lost_mean),
            row.frames_lost_max.to_string(),
            format!("{:.1}", row.packets_twice_mean),
            row.moves_max.to_string(),
        ]);
    }
    right_aligned(table, 1)
}
