//! `scenario.toml`: what may stand in it, and errors that say where it is wrong and what would be
//! right.
//!
//! Every field has its unit in its name and a line in docs/lab.md, which a test holds against these
//! types. Links are described as for `roadweave emulate`.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roadweave_emulate::{
    Capacity, Drive, EmulateFile, EmulationError, LinkFields, Place, Timeline, Trace, TraceError,
};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{FlowClass, LANES_MAX, LaneConfig, LaneRule, Strategy, default_lanes};
use roadweave_types::{Order, Pacing};
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fields::{CrossFields, EventFields, Fault, TrafficFields};
use super::{DRAIN, Scenario};
use crate::world::WorldLink;

/// Why a file is no scenario.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no TOML, or a field in it is unknown or has a value that cannot be.
    #[error("{}: {message}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// Line, field, and what would be right.
        message: String,
    },
    /// A recording that it names cannot be used.
    #[error("{}: {source}", file.display())]
    Trace {
        /// The scenario's file.
        file: PathBuf,
        /// Which recording, and why.
        source: TraceError,
    },
}

/// The file as it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    name: Option<String>,
    strategy: Option<Strategy>,
    #[serde(default)]
    congestion: CongestionControl,
    #[serde(default = "one")]
    seed: u64,
    #[serde(default = "half_a_minute")]
    seconds: u32,
    drive: Option<PathBuf>,
    #[serde(default, rename = "link")]
    links: Vec<LinkFields>,
    /// `lanes = "default"`: those of the product.
    #[serde(rename = "lanes")]
    preset: Option<LanePreset>,
    #[serde(default, rename = "lane")]
    lanes: Vec<LaneFields>,
    #[serde(default)]
    traffic: Vec<TrafficFields>,
    #[serde(default, rename = "event")]
    events: Vec<EventFields>,
    #[serde(default)]
    cross: Vec<CrossFields>,
}

/// Lanes that need no description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LanePreset {
    /// Those of a configuration of the product that names none.
    Default,
}

/// A lane; what is absent is as in the product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LaneFields {
    name: String,
    strategy: Strategy,
    classes: Option<Vec<FlowClass>>,
    ports: Option<[u16; 2]>,
    dscp: Option<Vec<u8>>,
    rank: Option<u8>,
    pacing: Option<Pacing>,
    ordering: Option<String>,
    max_buffer_ms: Option<u64>,
    deadline_ms: Option<u64>,
    expire_after_ms: Option<u64>,
    queue_bytes: Option<usize>,
}

impl Scenario {
    /// Reads a scenario; its recordings are looked for from its own directory on.
    ///
    /// # Errors
    /// [`ScenarioError`] with the file, the line, the field and what would be right.
    pub fn read(file: &Path) -> Result<Self, ScenarioError> {
        let text = fs::read_to_string(file)
            .map_err(|source| ScenarioError::Read { file: file.into(), source })?;
        Self::parse(file, &text)
    }

    /// The scenario of `text`; `file` is what errors call it, and where recordings are looked for.
    ///
    /// # Errors
    /// As [`Scenario::read`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, ScenarioError> {
        let invalid = |message: String| ScenarioError::Invalid { file: file.into(), message };
        let parsed: ScenarioFile = toml::from_str(text)
            .map_err(|error| invalid(error.to_string().trim_end().to_owned()))?;
        let default_name = || file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let dir = file.parent().unwrap_or(Path::new(""));
        parsed.resolve(default_name, dir).map_err(|problem| match problem {
            Problem::Fault(fault) => invalid(match line_of(text, &fault.field) {
                Some(line) => format!("line {line}: {}", fault.message),
                None => fault.message,
            }),
            Problem::Trace(source) => ScenarioError::Trace { file: file.into(), source },
        })
    }
}

/// Why a file that could be read makes no scenario.
enum Problem {
    Fault(Fault),
    Trace(TraceError),
}

impl ScenarioFile {
    fn resolve(self, name: impl FnOnce() -> String, dir: &Path) -> Result<Scenario, Problem> {
        let seconds = self.seconds;
        if !(1..=SECONDS_MAX).contains(&seconds) {
            let message = format!("seconds: {seconds}; a stream lasts 1 to {SECONDS_MAX}");
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
            seed: self.seed,
            seconds,
        })
    }

    fn resolve_links(&self, dir: &Path) -> Result<Vec<WorldLink>, Problem> {
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
                Ok(links.map(|(link, index)| WorldLink::new(link, index, self.seed)).collect())
            }
            (None, false) => {
                let file = EmulateFile {
                    seed: self.seed,
                    place: Place::default(),
                    links: self.links.clone(),
                };
                let emulation = file.resolve(dir).map_err(|error| match error {
                    EmulationError::Trace(error) => Problem::Trace(error),
                    EmulationError::Field { link, field, problem, cure } => Fault::new(
                        format!("link.{}.{field}", link - 1),
                        format!("link {link}: {field}: {problem}; {cure}"),
                    )
                    .into(),
                    other => Fault::new("link", other.to_string()).into(),
                })?;
                let link = |link: roadweave_emulate::EmulatedLink| WorldLink {
                    name: link.name,
                    up: link.up,
                    down: link.down,
                };
                Ok(emulation.links.into_iter().map(link).collect())
            }
        }
    }

    fn resolve_lanes(&self, links: &[WorldLink]) -> Result<Vec<LaneConfig>, Problem> {
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
        if self.lanes.len() > LANES_MAX {
            let message = format!("{} lanes; at most {LANES_MAX} are possible", self.lanes.len());
            return Err(Fault::new("lane", message).into());
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
        let lanes = self.lanes.iter().enumerate().map(|(index, fields)| {
            if !known(&fields.strategy) {
                let field = format!("lane.{index}.strategy");
                let strategy = &fields.strategy;
                let message =
                    format!("strategy: no link of \"{strategy}\"; there are: {}", names());
                return Err(Fault::new(field, message).into());
            }
            fields.check(index, &self.lanes[..index])?;
            Ok(fields.resolve())
        });
        lanes.collect()
    }
}

impl LaneFields {
    /// Refuses what a configuration of the product may not have either; `before`: the lanes above.
    fn check(&self, index: usize, before: &[Self]) -> Result<(), Fault> {
        let fault = |field: &str, message: String| Err(Fault::at("lane", index, field, message));
        if self.name.is_empty() || before.iter().any(|other| other.name == self.name) {
            let message = format!("\"{}\"; a name that no other lane has is needed", self.name);
            return fault("name", message);
        }
        if let Some([first, last]) = self.ports.filter(|[first, last]| first > last) {
            return fault("ports", format!("[{first}, {last}]; write the lower port first"));
        }
        if let Some(code) = self.dscp.iter().flatten().find(|code| **code > DSCP_MAX) {
            return fault("dscp", format!("{code}; code points go from 0 to {DSCP_MAX}"));
        }
        for (field, millis, possible) in [
            ("deadline_ms", self.deadline_ms, DEADLINE_MS),
            ("expire_after_ms", self.expire_after_ms, EXPIRY_MS),
        ] {
            if let Some(millis) = millis.filter(|millis| !possible.contains(millis)) {
                return fault(field, format!("{millis}; 1 to {} ms", possible.end()));
            }
        }
        let longest = Order::MAX_BUFFER.as_millis() as u64;
        if let Some(millis) = self.max_buffer_ms.filter(|millis| !(1..=longest).contains(millis)) {
            return fault("max_buffer_ms", format!("{millis}; 1 to {longest} ms"));
        }
        if let Some(name) = self.ordering.as_ref().filter(|name| !Order::NAMES.contains(&&***name))
        {
            let names = Order::NAMES.join(", ");
            return fault("ordering", format!("no \"{name}\"; there are: {names}"));
        }
        match self.queue_bytes.filter(|bytes| !QUEUE_BYTES.contains(bytes)) {
            Some(bytes) => {
                let (min, max) = (QUEUE_BYTES.start(), QUEUE_BYTES.end());
                fault("queue_bytes", format!("{bytes}; {min} to {max} bytes"))
            }
            None => Ok(()),
        }
    }

    fn resolve(&self) -> LaneConfig {
        let mut lane = LaneConfig::new(&*self.name, self.strategy.clone());
        lane.rule = LaneRule {
            classes: self.classes.clone(),
            dscp: self.dscp.clone(),
            ports: self.ports.map(|[first, last]| first..=last),
            ..LaneRule::default()
        };
        if let Some(millis) = self.deadline_ms {
            lane.deadline = Duration::from_millis(millis);
        }
        if let Some(millis) = self.expire_after_ms {
            lane.expire_after = Some(Duration::from_millis(millis));
        }
        let max_buffer = self.max_buffer_ms.map_or(Order::DEFAULT_BUFFER, Duration::from_millis);
        let order = self.ordering.as_ref().and_then(|name| Order::by_name(name, max_buffer));
        lane.order = order.unwrap_or(lane.order);
        lane.rank = self.rank.unwrap_or(lane.rank);
        lane.pacing = self.pacing.unwrap_or(lane.pacing);
        lane.queue_bytes_max = self.queue_bytes.unwrap_or(lane.queue_bytes_max);
        lane
    }
}

/// Refuses recordings that would change too often until the end: each change is kept.
fn check_changes(links: &[WorldLink], duration: Duration) -> Result<(), Fault> {
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

/// How often a trace changes until `end`, passes cut off counted whole.
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

/// The line of `text`, a TOML file, with a field (names, and numbers from 0, divided by dots), or
/// with the innermost part of its path that is there. `None` if nothing of it is.
pub fn line_of(text: &str, field: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut steps = field.split('.');
    let mut value = find(table.get_ref(), steps.next()?)?;
    for step in steps {
        let inner = match value.get_ref() {
            DeValue::Table(table) => find(table, step),
            DeValue::Array(array) => step.parse().ok().and_then(|at: usize| array.get(at)),
            _ => None,
        };
        let Some(inner) = inner else { break };
        value = inner;
    }
    let before = text.get(..value.span().start)?;
    Some(before.matches('\n').count() + 1)
}

fn find<'a, 'i>(table: &'a DeTable<'i>, name: &str) -> Option<&'a Spanned<DeValue<'i>>> {
    table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value)
}

fn one() -> u64 {
    1
}

fn half_a_minute() -> u32 {
    30
}

/// The longest stream.
const SECONDS_MAX: u32 = 3_600;
/// How often a link may change until the end, by its recording.
const CHANGES_MAX: u128 = 10_000_000;
/// As in the product's configuration.
const DEADLINE_MS: RangeInclusive<u64> = 1..=60_000;
/// As in the product's configuration.
const EXPIRY_MS: RangeInclusive<u64> = 1..=10_000;
/// As in the product's configuration.
const QUEUE_BYTES: RangeInclusive<usize> = 10_000..=1_000_000_000;
const DSCP_MAX: u8 = 63;

#[cfg(test)]
mod tests;
