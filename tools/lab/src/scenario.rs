//! A scenario: links, applications, a strategy, a seed, and events.
//!
//! ```text
//! scenario.toml ─┐
//! Drive ─────────┼─► Scenario ─► run ─► RunOutcome
//! code ──────────┘
//! ```

mod fields;
mod file;
mod lane;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use roadweave_config::read_text;
use roadweave_emulate::{Drive, DuplexLink};
use roadweave_proto::Rate;
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{LaneConfig, Strategy, default_lanes};

use self::file::{Problem, ScenarioError, ScenarioFile};
use crate::event::{CrossTraffic, ScriptEvent, apply_to_traces};
use crate::traffic::TrafficSpec;
use crate::world::{Machine, World, WorldConfig, WorldError};

/// A scenario. Equal scenarios have equal outcomes.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: String,
    /// The links, 1 to 64.
    pub links: Vec<DuplexLink>,
    /// The lanes from the vehicle, 1 to 8. The lanes to it are the same, but with the default `xnc`
    /// where a strategy names an uplink, since the server does not know uplinks.
    pub lanes: Vec<LaneConfig>,
    pub congestion: CongestionControl,
    /// The applications; the first video is judged, or else the first application.
    pub traffic: Vec<TrafficSpec>,
    pub events: Vec<ScriptEvent>,
    pub cross: Vec<CrossTraffic>,
    /// What strategies have learned before, as JSON by the lane's name.
    pub learned: BTreeMap<String, String>,
    pub machine: Machine,
    pub seed: u64,
    pub seconds: u32,
}

impl Scenario {
    /// A scenario on `links` without traffic.
    pub fn new(name: impl Into<String>, links: Vec<DuplexLink>, strategy: Strategy) -> Self {
        Self {
            name: name.into(),
            links,
            lanes: vec![LaneConfig::new("default", strategy)],
            congestion: CongestionControl::default(),
            traffic: Vec::new(),
            events: Vec::new(),
            cross: Vec::new(),
            learned: BTreeMap::new(),
            machine: Machine::default(),
            seed: 1,
            seconds: 30,
        }
    }

    /// A synthetic video of `bitrate` over the links of `drive`.
    pub fn of_drive(
        name: impl Into<String>,
        drive: &Drive,
        strategy: Strategy,
        bitrate: Rate,
        seconds: u32,
        seed: u64,
    ) -> Self {
        let links =
            drive.links.iter().zip(0..).map(|(link, index)| DuplexLink::new(link, index, seed));
        let video = TrafficSpec::video(bitrate, Duration::from_secs(seconds.into()));
        Self { traffic: vec![video], seconds, seed, ..Self::new(name, links.collect(), strategy) }
    }

    /// Reads a scenario, with recordings relative to its directory. Errors name the file, the line,
    /// the field and the fix.
    pub fn read(file: &Path) -> Result<Self, ScenarioError> {
        Self::parse(file, &read_text(file, false)?)
    }

    /// The scenario of `text`; `file` is its name in errors, and recordings are relative to its
    /// directory. Fails like [`Scenario::read`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, ScenarioError> {
        let parsed: ScenarioFile = roadweave_config::parse(file, text)?;
        let default_name = || file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let dir = file.parent().unwrap_or(Path::new(""));
        parsed.resolve(default_name, dir).map_err(|problem| match problem {
            Problem::Fault(fault) => fault.in_file(file, text).into(),
            Problem::Trace(source) => ScenarioError::Trace { file: file.into(), source },
        })
    }

    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    /// The strategy's name; those of several lanes joined by `+`, `default` for the default lanes.
    pub fn strategy(&self) -> String {
        if self.lanes == default_lanes() {
            return "default".into();
        }
        let names: Vec<&str> = self.lanes.iter().map(|lane| lane.strategy.as_str()).collect();
        names.join("+")
    }

    /// The links, with delay and capacity events applied to their traces.
    pub fn links_with_events(&self) -> Vec<DuplexLink> {
        let mut links = self.links.clone();
        apply_to_traces(&mut links, &self.events, self.duration() + DRAIN);
        links
    }

    /// Index in `traffic` of the judged application.
    pub fn judged(&self) -> Option<usize> {
        let video = self.traffic.iter().position(TrafficSpec::is_video);
        video.or((!self.traffic.is_empty()).then_some(0))
    }

    pub(crate) fn world(&self) -> Result<World, WorldError> {
        World::new(WorldConfig {
            lanes_down: self.lanes_down(),
            congestion: self.congestion,
            learned: self.learned.clone(),
            machine: self.machine,
            ..WorldConfig::plain(self.links.clone(), self.lanes.clone(), self.seed)
        })
    }

    fn lanes_down(&self) -> Vec<LaneConfig> {
        let mut lanes = self.lanes.clone();
        for lane in &mut lanes {
            if lane.strategy.uplink().is_some() {
                lane.strategy = Strategy::xnc();
            }
        }
        lanes
    }
}

/// How long to wait for packets after the stream.
pub const DRAIN: Duration = Duration::from_secs(2);
