//! RAVEN's evaluation: response times in a vehicle at each confidence, and their cost in bytes.
//!
//! ```text
//! recordings ─► routes of several minutes ─► learn on all others ─► speech, music, recommender on each
//!                                                                   ├─ response times      (table 2)
//!                                                                   └─ bytes sent twice    (figure 6)
//! transfers and loads of 1 kB to 50 MB ─► share of them that was sent twice                (section 5.6)
//! ```
//!
//! A recording of half a minute is short for a request every twenty seconds, so recordings of equal
//! links are joined. As in the paper, a strategy learns the networks on other routes than those it
//! is measured on.
//!
//! Source: RAVEN sections 5.1 to 5.6.

pub mod loads;

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_emulate::{
    AddedLoss, AtEnd, Capacity, Direction, Drive, DriveLink, DuplexLink, Timeline, TimelineError,
    Trace,
};
use roadweave_proto::{Instant, Rate};
use roadweave_schedule::{Raven, RavenConfig, Scheduler as _};
use roadweave_tunnel::{SessionStatus, Strategy};
use serde::Serialize;

use crate::inner;
use crate::run::{TrafficWorld, warm_up};
use crate::scenario::{DRAIN, Scenario};
use crate::traffic::{App, Detail, FIRST_PORT, TrafficKind, TrafficSpec};
use crate::video::quality::Percentiles;
use crate::world::{World, WorldError};

/// A route, and the loss that is added to its links.
#[derive(Clone, Copy, Debug)]
pub struct RavenRoute<'a> {
    pub name: &'a str,
    pub drive: &'a Drive,
    pub loss: Option<AddedLoss>,
}

/// Why routes cannot be made of recordings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    #[error("{0} recordings are not enough for {1} routes")]
    TooFew(usize, usize),
    #[error("the links of {name} differ from those of {first}")]
    OtherLinks { name: String, first: String },
    #[error("{name}: {source}")]
    Empty { name: String, source: TimelineError },
}

/// Results of one application with one strategy on one route.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Answered {
    pub route: String,
    /// The application: `speech`, `music` or `recommender`.
    pub app: String,
    pub strategy: String,
    /// Requests made.
    pub asked: u64,
    /// Requests answered in time.
    pub answered: u64,
    /// Time from a request to its last answer, or [`REQUEST_TIMEOUT`] without an answer.
    pub response_ms: Percentiles,
    /// Bytes of further copies relative to the first copies of each packet, both ways.
    pub extra_bytes: f64,
    /// Response times of answered requests, ascending.
    #[serde(skip)]
    pub responses: Vec<Duration>,
    /// Bytes of first copies of packets.
    #[serde(skip)]
    pub source_bytes: u64,
    /// Bytes of further copies.
    #[serde(skip)]
    pub further_bytes: u64,
}

/// How much of transfers of one size was sent more than once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transferred {
    pub bytes: u64,
    /// Copies sent, as a share of those sent if all packets used all paths, 0..1.
    pub redundant: f64,
}

/// Joins recordings of equal links to `count` routes, each recording as long as its shortest link.
/// All links have [`CAPACITY`].
pub fn routes(recordings: &[(String, Drive)], count: usize) -> Result<Vec<Drive>, RouteError> {
    let Some((first, drive)) = recordings.first().filter(|_| recordings.len() >= count) else {
        return Err(RouteError::TooFew(recordings.len(), count));
    };
    let names = |drive: &Drive| -> Vec<String> {
        drive.links.iter().map(|link| link.name.clone()).collect()
    };
    if let Some((name, _)) = recordings.iter().find(|(_, other)| names(other) != names(drive)) {
        return Err(RouteError::OtherLinks { name: name.clone(), first: first.clone() });
    }
    let part = |route: usize| {
        &recordings[recordings.len() * route / count..recordings.len() * (route + 1) / count]
    };
    (0..count).map(|route| join(part(route))).collect()
}

fn join(recordings: &[(String, Drive)]) -> Result<Drive, RouteError> {
    let length = |drive: &Drive| {
        let lengths = drive.links.iter().filter_map(|link| link.up.length());
        lengths.min().unwrap_or(PIECE)
    };
    let link = |(index, name): (usize, &String)| {
        let (mut delays, mut losses, mut begin) = (Vec::new(), Vec::new(), Duration::ZERO);
        for (_, drive) in recordings {
            let trace = &drive.links[index].up;
            let end = begin + length(drive);
            delays.extend(steps(trace.delay(), begin, end));
            losses.extend(steps(trace.loss(), begin, end));
            begin = end;
        }
        let empty = |source| RouteError::Empty { name: name.clone(), source };
        let delay = Timeline::new(delays, begin, AtEnd::Repeat).map_err(empty)?;
        let loss = Timeline::new(losses, begin, AtEnd::Repeat).map_err(empty)?;
        let trace = Trace::new(Capacity::constant(CAPACITY), delay, loss);
        Ok(DriveLink::symmetric(name, trace))
    };
    let names: Vec<String> = recordings[0].1.links.iter().map(|link| link.name.clone()).collect();
    let links = names.iter().enumerate().map(link).collect::<Result<_, _>>()?;
    Ok(Drive { links })
}

fn steps<V: Copy>(timeline: &Timeline<V>, begin: Duration, end: Duration) -> Vec<(Duration, V)> {
    let mut at = begin;
    let mut steps = Vec::new();
    for (lasts, value) in timeline.iter() {
        if at < end {
            steps.push((at, value));
        }
        at += lasts;
    }
    steps
}

/// What RAVEN learns on these routes, from a probe each [`PROBE_INTERVAL`] that is not lost.
pub fn learn<'a>(routes: impl IntoIterator<Item = &'a Drive>) -> String {
    let mut raven = Raven::new(RavenConfig::default());
    for link in routes.into_iter().flat_map(|route| &route.links) {
        let end = link.up.length().unwrap_or(PIECE);
        let times = (0..).map(|probe| PROBE_INTERVAL * probe).take_while(|at| *at < end);
        let answered = times.filter(|at| link.up.loss().at(*at) < 0.5);
        let sample = |at| (Instant::ZERO + at, 2 * link.up.delay().at(at));
        raven.learn(&link.name, answered.map(sample));
    }
    raven.learned().unwrap_or_default()
}

/// Runs `app` on `route`, once per seed; `learned` is the strategy's knowledge of the networks.
/// Fails if the world cannot be created.
pub fn ask(
    route: RavenRoute<'_>,
    app: App,
    strategy: &Strategy,
    learned: &str,
    seeds: std::ops::Range<u64>,
) -> Result<Answered, WorldError> {
    let mut all = Answered {
        route: route.name.to_owned(),
        app: app.name().to_owned(),
        strategy: strategy.to_string(),
        ..Answered::default()
    };
    for seed in seeds {
        let length = route.drive.length().unwrap_or(PIECE);
        let scenario = Scenario {
            seconds: length.as_secs() as u32,
            seed,
            learned: BTreeMap::from([(LANE.to_owned(), learned.to_owned())]),
            traffic: vec![TrafficSpec {
                name: all.app.clone(),
                direction: Direction::Up,
                port: FIRST_PORT,
                begin: Duration::ZERO,
                lasting: length.saturating_sub(REQUEST_TIMEOUT),
                kind: TrafficKind::Requests(app),
            }],
            ..Scenario::new(route.name, route.links(seed), strategy.clone())
        };
        all.add(&scenario)?;
    }
    all.settle();
    Ok(all)
}

impl Answered {
    fn settle(&mut self) {
        self.responses.sort_unstable();
        let mut responses = self.responses.clone();
        responses.resize(self.asked as usize, REQUEST_TIMEOUT);
        self.response_ms = Percentiles::of_sorted(&responses);
        self.extra_bytes = self.further_bytes as f64 / self.source_bytes.max(1) as f64;
    }

    fn add(&mut self, scenario: &Scenario) -> Result<(), WorldError> {
        let mut traffic_world = TrafficWorld::new(scenario.world()?);
        warm_up(&mut traffic_world, scenario);
        let start = traffic_world.world.now();
        traffic_world.world.restart_links(scenario.links.clone());
        let before = sent(&traffic_world.world);
        for spec in &scenario.traffic {
            traffic_world.traffic.push(spec.build(start, scenario.seed));
        }
        let end = start + scenario.duration() + DRAIN;
        traffic_world.run_until(end);
        let after = sent(&traffic_world.world);
        self.source_bytes += after.0.saturating_sub(before.0);
        self.further_bytes += after.1.saturating_sub(before.1);
        for traffic in &traffic_world.traffic {
            if let Detail::Requests(requests) = traffic.report(end).detail {
                self.asked += requests.asked;
                self.answered += requests.answered;
                self.responses.extend(requests.responses);
            }
        }
        Ok(())
    }
}

/// Sends [`TRANSFERS`] transfers of `bytes` bytes from the vehicle, half a minute apart, on all
/// paths while the strategy considers them small. Fails if the world cannot be created.
pub fn transfer(route: RavenRoute<'_>, bytes: u64, seed: u64) -> Result<Transferred, WorldError> {
    let strategy: Strategy = "raven:100".parse().expect("it is one of the strategies");
    let scenario = Scenario { seed, ..Scenario::new("transfers", route.links(seed), strategy) };
    let mut traffic_world = TrafficWorld::new(scenario.world()?);
    warm_up(&mut traffic_world, &scenario);
    traffic_world.world.restart_links(scenario.links.clone());
    let (mut source, mut further) = (0, 0);
    for _ in 0..TRANSFERS {
        let before = sent_up(&traffic_world.world);
        for at in (0..bytes).step_by(PART) {
            let payload = vec![0; (bytes - at).min(PART as u64) as usize];
            traffic_world
                .world
                .handle_inner(Direction::Up, &inner::udp(Direction::Up, FIRST_PORT, &payload));
        }
        traffic_world.world.flush();
        traffic_world.run_until(traffic_world.world.now() + PAUSE);
        let after = sent_up(&traffic_world.world);
        source += after.0 - before.0;
        further += after.1 - before.1;
    }
    let everything = source.max(1) * (route.drive.links.len() as u64 - 1);
    Ok(Transferred { bytes, redundant: further as f64 / everything as f64 })
}

impl RavenRoute<'_> {
    fn links(&self, seed: u64) -> Vec<DuplexLink> {
        let links = (0..).zip(&self.drive.links);
        let links = links.map(|(index, link)| DuplexLink::new(link, index, seed));
        links.map(|link| self.loss.into_iter().fold(link, DuplexLink::with_loss)).collect()
    }
}

fn sent(world: &World) -> (u64, u64) {
    let [up, down] = both_ways(world);
    (up.0 + down.0, up.1 + down.1)
}

fn both_ways(world: &World) -> [(u64, u64); 2] {
    let of = |status: &[SessionStatus]| {
        let lanes = status.iter().flat_map(|status| &status.stats.lanes);
        lanes.fold((0, 0), |(source, further), lane| {
            let sent = &lane.sent;
            (source + sent.source_bytes, further + sent.duplicate_bytes + sent.coded_bytes)
        })
    };
    [of(world.client_status().as_slice()), of(&world.server_status())]
}

fn sent_up(world: &World) -> (u64, u64) {
    let status = world.client_status();
    let lanes = status.iter().flat_map(|status| &status.stats.lanes);
    lanes.fold((0, 0), |(source, further), lane| {
        (source + lane.sent.source_datagrams, further + lane.sent.duplicate_datagrams)
    })
}

const LANE: &str = "default";
/// Capacity of every link: far more than these applications need.
pub const CAPACITY: Rate = Rate::from_kbps(50_000);
/// Time after which a request counts as unanswered.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of probes on the routes that are learned on.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(600);
pub const TRANSFERS: u32 = 10;
const PIECE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(30);
const PART: usize = 1_200;

#[cfg(test)]
mod tests;
