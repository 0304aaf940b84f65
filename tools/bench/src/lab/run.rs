//! `roadweave lab run`: one scenario.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_lab::bound::Bound;
use roadweave_lab::compare::Measured;
use roadweave_lab::run::{self, LinkReport, RunOutcome};
use roadweave_lab::scenario::Scenario;
use roadweave_lab::strategies;
use roadweave_lab::traffic::{
    BulkReport, Detail, FrameSource, TcpReport, TrafficKind, TrafficReport,
};
use roadweave_lab::video::h264::AccessUnit;
use roadweave_lab::video::quality::{Percentiles, Quality};
use roadweave_lab::world::Machine;
use roadweave_proto::DropReason;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use roadweave_tunnel::Strategy;
use serde::Serialize;
use serde_json::Value;

use super::table;
use crate::demo::table::millis;
use crate::qoe::Logs;

/// Runs one scenario in virtual time and prints the results
///
/// A scenario is a TOML file of links, applications and events; `scenarios/` has some. Equal
/// scenarios give equal results, to the byte.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The scenario's file
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
    /// Use this strategy instead of the scenario's
    #[arg(long, value_parser = strategies::strategy)]
    strategy: Option<Strategy>,
    /// Use this seed instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// Use this machine instead of the scenario's: punctual, idle, busy or crowded
    #[arg(long)]
    machine: Option<Machine>,
    /// Write to DIR/STRATEGY what `roadweave qoe` reads of the judged video, which must have a
    /// `file`
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Only check the scenario's file
    #[arg(long)]
    check: bool,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
    /// With --json: also the delays and the time line
    #[arg(long, requires = "json")]
    details: bool,
}

#[derive(Debug, Serialize)]
struct RunReport {
    scenario: String,
    seed: u64,
    seconds: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<Bound>,
    strategies: [Measured; 1],
    #[serde(skip)]
    is_video: bool,
    traffic: Vec<TrafficReport>,
    /// Jain's index of the goodputs of several bulk transfers.
    #[serde(skip_serializing_if = "Option::is_none")]
    fairness: Option<f64>,
    links: Vec<LinkReport>,
    events: Vec<ToldEvent>,
    drops: Vec<ToldDrop>,
}

#[derive(Debug, Serialize)]
struct ToldEvent {
    at_ms: f64,
    event: String,
}

#[derive(Debug, Serialize)]
struct ToldDrop {
    reason: DropReason,
    packets: u64,
}

impl RunArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let scenario = self.read()?;
        if self.check {
            return Ok(out::line(format_args!("{} is right", self.scenario.display()))?);
        }
        let units = self.keep.as_ref().map(|_| clip_of(&scenario)).transpose()?;
        let outcome = run::run(&scenario).map_err(BadInput::new)?;
        if let (Some(directory), Some(units)) = (&self.keep, units) {
            keep(&scenario, &outcome, units, directory)
                .with_context(|| format!("--keep: cannot write to {}", directory.display()))?;
        }
        let report = self.report(&scenario, &outcome);
        match (self.json, report.is_video) {
            (false, _) => Ok(out::print(report.in_words())?),
            (true, true) => out::json(&report),
            (true, false) => out::json(&report.without_video()?),
        }
    }

    fn read(&self) -> anyhow::Result<Scenario> {
        let mut scenario = Scenario::read(&self.scenario).map_err(BadInput::new)?;
        if let Some(strategy) = &self.strategy {
            let [lane] = &mut scenario.lanes[..] else {
                bail!(BadInput::new(format!(
                    "--strategy: {} has several lanes; set their strategies in it",
                    self.scenario.display()
                )));
            };
            let known = |link: &str| scenario.links.iter().any(|known| known.name == link);
            if let Some(link) =
                strategy.as_str().strip_prefix("single:").filter(|link| !known(link))
            {
                bail!(BadInput::new(format!(
                    "--strategy {strategy}: {} has no link {link}",
                    self.scenario.display()
                )));
            }
            lane.strategy = strategy.clone();
        }
        scenario.seed = self.seed.unwrap_or(scenario.seed);
        scenario.machine = self.machine.unwrap_or(scenario.machine);
        Ok(scenario)
    }

    fn report(&self, scenario: &Scenario, outcome: &RunOutcome) -> RunReport {
        let mut measured = Measured::new(outcome);
        if !self.details {
            measured.detail = None;
        }
        let event = |(at, event): &(Duration, String)| ToldEvent {
            at_ms: at.as_secs_f64() * 1e3,
            event: event.clone(),
        };
        RunReport {
            scenario: scenario.name.clone(),
            seed: scenario.seed,
            seconds: scenario.seconds,
            bound: Bound::of_scenario(scenario).map(|(bound, _)| bound),
            strategies: [measured],
            is_video: scenario.judged().is_some_and(|index| scenario.traffic[index].is_video()),
            traffic: outcome.traffic.clone(),
            fairness: outcome.fairness,
            links: outcome.links.clone(),
            events: outcome.events.iter().map(event).collect(),
            drops: outcome
                .drops
                .iter()
                .map(|(reason, packets)| ToldDrop { reason: *reason, packets: *packets })
                .collect(),
        }
    }
}

fn clip_of(scenario: &Scenario) -> Result<&[AccessUnit], BadInput> {
    match scenario.judged().map(|index| &scenario.traffic[index].kind) {
        Some(TrafficKind::Video { frames: FrameSource::Clip(units), .. }) => Ok(units),
        _ => Err(BadInput::new("--keep: no video in the scenario has a `file`")),
    }
}

fn keep(
    scenario: &Scenario,
    outcome: &RunOutcome,
    units: &[AccessUnit],
    directory: &Path,
) -> anyhow::Result<()> {
    let report = scenario.judged().and_then(|index| outcome.traffic.get(index));
    let Some(Detail::Video(video)) = report.map(|report| &report.detail) else { return Ok(()) };
    let logs = Logs::of_run(directory, &scenario.strategy());
    if let Some(parent) = logs.sent.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut sent = BufWriter::new(File::create(&logs.sent)?);
    let mut arrived = BufWriter::new(File::create(&logs.arrived)?);
    video.write_logs(units, &mut sent, &mut arrived)?;
    Ok(sent.flush().and_then(|()| arrived.flush())?)
}

impl RunReport {
    fn without_video(&self) -> serde_json::Result<Value> {
        let mut json = serde_json::to_value(self)?;
        for figures in ["/strategies/0", "/bound", "/bound/reachable"] {
            for name in ["fps", "stall_ratio"] {
                if let Some(figure) = json.pointer_mut(&format!("{figures}/{name}")) {
                    *figure = Value::Null;
                }
            }
        }
        Ok(json)
    }

    fn in_words(&self) -> String {
        let mut text = format!(
            "{}, {} s, seed {}\n{}\n",
            self.scenario,
            self.seconds,
            self.seed,
            table::of_run(&self.strategies[0], self.bound.as_ref(), self.is_video)
        );
        for report in &self.traffic {
            text += &format!(
                "{}: {} of {} packets arrived, delay p50 {}, p99 {}\n",
                report.name,
                report.arrived_packets,
                report.sent_packets,
                millis(report.delay_ms.p50),
                millis(report.delay_ms.p99)
            );
            let detail = match &report.detail {
                Detail::Video(video) => frames_in_words(&video.quality),
                Detail::Bulk(bulk) => bulk_in_words(bulk),
                Detail::Tcp(tcp) => tcp_in_words(tcp),
                _ => continue,
            };
            text += &format!("{}: {detail}\n", report.name);
        }
        if let Some(fairness) = self.fairness {
            text += &format!(
                "fairness among bulk transfers: {fairness:.3} (Jain's index, 1 is best)\n"
            );
        }
        for link in &self.links {
            text += &format!(
                "link {}: {} packets, {} lost, {} found its queue full\n",
                link.name, link.pushed, link.lost, link.queue_full
            );
        }
        for drop in &self.drops {
            text += &format!("discarded: {} packets, {}\n", drop.packets, drop.reason.name());
        }
        for event in &self.events {
            text += &format!("at {:.1} s {}\n", event.at_ms / 1e3, event.event);
        }
        text
    }
}

fn frames_in_words(quality: &Quality) -> String {
    let Percentiles { p50, p95, p99, .. } = quality.frame_delay;
    format!(
        "{} frames, {} whole and {} of these in order; delay of whole ones p50 {}, p95 {}, p99 {}",
        quality.frames,
        quality.frames_complete,
        quality.frames_in_order,
        millis(p50),
        millis(p95),
        millis(p99)
    )
}

fn tcp_in_words(tcp: &TcpReport) -> String {
    let completion = tcp.completion_s.map(|seconds| format!(", complete after {seconds:.2} s"));
    format!(
        "{:.2} Mbit/s of goodput, {} segments retransmitted, {} recoveries and timeouts, {} of \
         them spurious{}",
        tcp.goodput_bps / 1e6,
        tcp.segments_again,
        tcp.recoveries + tcp.timeouts,
        tcp.undone,
        completion.unwrap_or_default()
    )
}

fn bulk_in_words(bulk: &BulkReport) -> String {
    let completion = match (bulk.completion_s, bulk.is_broken) {
        (Some(seconds), _) => format!(", complete after {seconds:.2} s"),
        (None, true) => ", its connection broke".to_owned(),
        (None, false) => String::new(),
    };
    format!(
        "{:.2} Mbit/s of goodput, {} packets declared lost{completion}",
        bulk.goodput_bps / 1e6,
        bulk.lost_packets
    )
}
