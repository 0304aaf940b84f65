//! `scenario.toml`: its fields, and errors that name the place and the fix.
//!
//! Every field has its unit in its name and a line in docs/lab.md, which a test checks. Links are
//! described as for `roadweave emulate`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roadweave_config::{Fault, FileError};
use roadweave_emulate::{
    Capacity, Drive, DuplexLink, LinkError, LinkFields, Timeline, Trace, TraceError,
};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{LaneConfig, Strategy, default_lanes};
use serde::{Deserialize, Deserializer, Serialize};

use super::fields::{CrossFields, EventFields, TrafficFields};
use super::lane::{self, ScenarioLane};
use super::{DRAIN, Scenario};
use crate::strategies;
use crate::world::Machine;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {source}", file.display())]
    Trace { file: PathBuf, source: TraceError },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioFile {
    name: Option<String>,
    #[serde(default, deserialize_with = "read_strategy")]
    strategy: Option<Strategy>,
    #[serde(default)]
    congestion: CongestionControl,
    #[serde(default)]
    machine: Machine,
    #[serde(default = "one")]
    seed: u64,
    #[serde(default = "half_a_minute")]
    seconds: u32,
    drive: Option<PathBuf>,
    #[serde(default, rename = "link")]
    links: Vec<LinkFields>,
    #[serde(rename = "lanes")]
    preset: Option<LanePreset>,
    #[serde(default, rename = "lane")]
    lanes: Vec<ScenarioLane>,
    #[serde(default)]
    traffic: Vec<TrafficFields>,
    #[serde(default, rename = "event")]
    events: Vec<EventFields>,
    #[serde(default)]
    cross: Vec<CrossFields>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LanePreset {
    Default,
}

pub(super) enum Problem {
    Fault(Fault),
    Trace(TraceError),
}

impl ScenarioFile {
    pub(super) fn resolve(
        self,
        name: impl FnOnce() -> String,
        dir: &Path,
    ) -> Result<Scenario, Problem> {
        let seconds = self.seconds;
        if !(1..=SECONDS_MAX).contains(&seconds) {
            let message = format!("seconds: {seconds}; must be 1 to {SECONDS_MAX}");
            return Err(Fault::new("seconds", message).into());
        }
        let duration = Duration::from_secs(seconds.into());
        let links = self.resolve_links(dir)?;
        check_changes(&links, duration)?;
        let lanes = self.resolve_lanes(&links)?;
        let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
        let mut traffic = Vec::new();
        for (index, fields) in self.traffic.iter().enumerate() {
            traffic.push(fields.resolve(index, &traffic, duration, dir)?);
        }
        if traffic.is_empty() {
            let message = "no traffic; write [[traffic]] with kind = \"video\", \"constant\", ...";
            return Err(Fault::new("traffic", message).into());
        }
        let events = self.events.iter().enumerate();
        let events = events.map(|(index, event)| event.resolve(index, &names, duration));
        let events = events.collect::<Result<_, _>>()?;
        let cross = self.cross.iter().enumerate();
        let cross = cross.map(|(index, cross)| cross.resolve(index, &names, duration));
        Ok(Scenario {
            name: self.name.clone().unwrap_or_else(name),
            cross: cross.collect::<Result<_, _>>()?,
            links,
            lanes,
            congestion: self.congestion,
            traffic,
            events,
            learned: BTreeMap::new(),
            machine: self.machine,
            seed: self.seed,
            seconds,
        })
    }

    fn resolve_links(&self, dir: &Path) -> Result<Vec<DuplexLink>, Problem> {
        match (&self.drive, self.links.is_empty()) {
            (Some(_), false) => {
                let message =
                    "drive: there are [[link]] tables too; a scenario has one or the other";
                Err(Fault::new("drive", message).into())
            }
            (None, true) => {
                let message = "no link; write drive = \"DIRECTORY\" or [[link]] tables";
                Err(Fault::new("link", message).into())
            }
            (Some(drive), true) => {
                let drive = Drive::read(&dir.join(drive)).map_err(Problem::Trace)?;
                let links = drive.links.iter().zip(0..);
                Ok(links.map(|(link, index)| DuplexLink::new(link, index, self.seed)).collect())
            }
            (None, false) => {
                DuplexLink::of_fields(&self.links, self.seed, dir).map_err(|error| match error {
                    LinkError::Trace(error) => Problem::Trace(error),
                    LinkError::Field { link, field, problem, cure } => Fault::new(
                        format!("link.{}.{field}", link - 1),
                        format!("link {link}: {field}: {problem}; {cure}"),
                    )
                    .into(),
                    other => Fault::new("link", other.to_string()).into(),
                })
            }
        }
    }

    fn resolve_lanes(&self, links: &[DuplexLink]) -> Result<Vec<LaneConfig>, Problem> {
        if let (Some(_), false) = (&self.strategy, self.lanes.is_empty()) {
            let message = "strategy: there are [[lane]] tables, each with a strategy of its own";
            return Err(Fault::new("strategy", message).into());
        }
        if self.preset.is_some() {
            if self.strategy.is_some() || !self.lanes.is_empty() {
                let message =
                    "lanes: there is a strategy or [[lane]] tables; a scenario has one of them";
                return Err(Fault::new("lanes", message).into());
            }
            return Ok(default_lanes());
        }
        let known = |strategy: &Strategy| {
            strategy.uplink().is_none_or(|uplink| links.iter().any(|link| link.name == uplink))
        };
        let names = || links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
        if self.lanes.is_empty() {
            let strategy = self.strategy.clone().unwrap_or_else(Strategy::xnc);
            if !known(&strategy) {
                let message =
                    format!("strategy: no link of \"{strategy}\"; there are: {}", names());
                return Err(Fault::new("strategy", message).into());
            }
            return Ok(vec![LaneConfig::new("default", strategy)]);
        }
        if let Some(index) = self.lanes.iter().position(|lane| !known(&lane.strategy)) {
            let lane = &self.lanes[index];
            let message =
                format!("strategy: no link of \"{}\"; there are: {}", lane.strategy, names());
            return Err(Fault::new(format!("lane.{index}.strategy"), message).into());
        }
        Ok(lane::resolve(&self.lanes)?)
    }
}

/// Rejects recordings that change too often, since each change is kept in memory.
fn check_changes(links: &[DuplexLink], duration: Duration) -> Result<(), Fault> {
    let end = duration + DRAIN;
    for link in links {
        let most = [&link.up, &link.down].map(|way| changes_of(&way.trace, end));
        if let Some(changes) = most.into_iter().find(|&changes| changes > CHANGES_MAX) {
            let message = format!(
                "link {}: its recording changes {changes} times in {} s; {CHANGES_MAX} times are \
                 possible",
                link.name,
                end.as_secs()
            );
            return Err(Fault::new("link", message));
        }
    }
    Ok(())
}

/// Partial passes count as complete.
fn changes_of(trace: &Trace, end: Duration) -> u128 {
    fn of<V: Copy>(timeline: &Timeline<V>, end: Duration) -> u128 {
        let passes = timeline.length().map_or(1, |length| passes(length, end));
        passes.saturating_mul(timeline.iter().count() as u128)
    }
    let capacity = match &**trace.capacity() {
        Capacity::Rates(rates) => of(rates, end),
        Capacity::Opportunities(opportunities) => {
            let mut times: Vec<_> = opportunities.iter().map(|(at, _)| at).collect();
            times.dedup();
            passes(opportunities.period(), end).saturating_mul(times.len() as u128)
        }
    };
    capacity + of(trace.delay(), end) + of(trace.loss(), end)
}

fn passes(length: Duration, end: Duration) -> u128 {
    end.as_nanos().div_ceil(length.as_nanos().max(1))
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

fn read_strategy<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Strategy>, D::Error> {
    strategies::deserialize(from).map(Some)
}

fn one() -> u64 {
    1
}

fn half_a_minute() -> u32 {
    30
}

const SECONDS_MAX: u32 = 3_600;
const CHANGES_MAX: u128 = 10_000_000;

#[cfg(test)]
mod tests;
