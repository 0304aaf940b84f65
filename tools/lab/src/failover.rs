//! What a viewer sees of a failover: a video from a vehicle, and a server fault in the middle.
//!
//! ```text
//! Failover ─► Servers with two servers, 30 Mbit/s ─► 5 s later the fault ─► Seen: gap, frames lost
//! ```

use std::time::Duration;

use roadweave_emulate::{Direction, DuplexLink, LinkSettings, Trace};
use roadweave_proto::{Instant, Rate, SplitMix64};
use roadweave_tunnel::{LaneConfig, default_lanes};

use crate::traffic::{Detail, TrafficSpec};
use crate::world::WorldError;
use crate::world::servers::{Fault, Servers, ServersConfig};

/// A video during a fault of its server.
#[derive(Clone, Debug)]
pub struct Failover {
    /// The links.
    pub links: Vec<DuplexLink>,
    /// The fault.
    pub fault: Fault,
    /// The rate of the video.
    pub bitrate: Rate,
    /// The lanes of both ends.
    pub lanes: Vec<LaneConfig>,
    /// Seed of the time of the fault and all other randomness.
    pub seed: u64,
}

/// What the viewer saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The longest time between two complete frames, from half a second before the fault on.
    pub gap_ms: f64,
    /// Frames that never became complete.
    pub frames_lost: usize,
    /// Number of moves to another server.
    pub moves: usize,
}

impl Failover {
    /// 30 Mbit/s over three links with round trips of 50 to 70 ms, with the product's defaults.
    pub fn new(fault: Fault, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let link = |name: &str, rate: u64, delay: u64| {
            let trace = Trace::constant(Rate::from_kbps(rate), Duration::from_millis(delay));
            let settings = |way| LinkSettings::new(trace.clone(), seed << 8 | way);
            DuplexLink { name: name.into(), up: settings(1), down: settings(2) }
        };
        let mut vary = |rate: u64| rate + random.below(rate as usize / 2) as u64;
        let (a, b, c) = (vary(20_000), vary(20_000), vary(15_000));
        let links = vec![link("wwan0", a, 25), link("wwan1", b, 30), link("wwan2", c, 35)];
        let bitrate = Rate::from_kbps(30_000);
        Self { links, fault, bitrate, lanes: default_lanes(), seed }
    }

    /// Servers at these sites, in the client's order; `to_anchor` is their distance from the egress
    /// in ms, if given. Fails if a client or server cannot be created.
    pub fn fleet(&self, sites: &[&str], to_anchor: &[u64]) -> Result<Servers, WorldError> {
        Servers::new(&ServersConfig {
            links: self.links.clone(),
            sites: sites.iter().map(|site| (*site).to_owned()).collect(),
            to_anchor: to_anchor.iter().map(|ms| Duration::from_millis(*ms)).collect(),
            lanes_up: self.lanes.clone(),
            lanes_down: self.lanes.clone(),
            seed: self.seed,
        })
    }

    /// Runs the video and the fault; fails if a client or server cannot be created.
    pub fn run(&self) -> Result<Seen, WorldError> {
        let mut fleet = self.fleet(&["here", "there"], &[])?;
        fleet.run_until(VIDEO_BEGINS);
        let mut video = TrafficSpec::video(self.bitrate, LASTS).build(VIDEO_BEGINS, self.seed);
        let jitter = SplitMix64::word(self.seed, 7) % 1_000_000_000;
        let mut fault = Some(VIDEO_BEGINS + FAULT_AFTER + Duration::from_nanos(jitter));
        let (faulted, end) = (fault.unwrap_or_default(), VIDEO_BEGINS + LASTS + SETTLES);
        while fleet.now() < end {
            let next = [fleet.poll_timeout(), video.poll_timeout(), fault, Some(end)];
            let next = next.into_iter().flatten().min().unwrap_or(end).max(fleet.now());
            fleet.run_until(next.min(end));
            while let Some((direction, packet)) = video.poll_transmit(fleet.now()) {
                fleet.handle_inner(direction, &packet);
            }
            if fault.take_if(|at| *at <= fleet.now()).is_some() {
                fleet.befall(fleet.home(), self.fault);
            }
            fleet.flush();
            while let Some(arrival) = fleet.poll_arrival() {
                video.handle_arrival(arrival.at, Direction::Up, &arrival.packet);
            }
        }
        let report = video.report(end);
        let Detail::Video(seen) = report.detail else { unreachable!("it is a video") };
        let mut completed: Vec<Instant> =
            seen.playout.frames.iter().filter_map(|frame| frame.completed).collect();
        completed.sort_unstable();
        let looked_at = completed.windows(2).filter(|it| it[1] + BEFORE >= faulted);
        let gap = looked_at.map(|it| it[1].since(it[0])).max().unwrap_or(LASTS);
        Ok(Seen {
            gap_ms: gap.as_secs_f64() * 1e3,
            frames_lost: seen.playout.frames.len() - completed.len(),
            moves: fleet.moves(),
        })
    }
}

const VIDEO_BEGINS: Instant = Instant::from_millis(6_000);
const LASTS: Duration = Duration::from_secs(12);
/// Time from the beginning of the video to the fault, plus up to a second.
const FAULT_AFTER: Duration = Duration::from_secs(5);
const SETTLES: Duration = Duration::from_secs(3);
const BEFORE: Duration = Duration::from_millis(500);
