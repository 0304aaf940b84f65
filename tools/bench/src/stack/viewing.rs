//! A stream from a box's camera to its viewer, and what the viewer saw.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use roadweave_lab::figures::Timeline;
use roadweave_lab::video::quality::{Percentiles, Player};
use roadweave_proto::Instant;
use serde::Serialize;

use super::Times;
use super::world::{BOXES, StackWorld, viewer};
use crate::demo::clip;
use crate::demo::sampler::{self, StatusSample};
use crate::demo::scenario::OPERATORS;
use crate::qoe::{Logs, View};
use crate::sandbox::daemon::Daemon;

const DRAIN: Duration = Duration::from_secs(2);
/// Gaps within this time after the kill belong to the failover.
const CHANGE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct BoxStream {
    logs: Logs,
    camera: Daemon,
    viewer: Daemon,
}

#[derive(Debug, Serialize)]
pub struct BoxView {
    pub name: String,
    pub proxy_before: String,
    pub proxy_after: String,
    /// The longest time without a packet around the kill.
    pub gap_ms: f64,
    pub packets: usize,
    pub packets_lost: usize,
    pub frames: usize,
    pub frames_incomplete: usize,
    pub fps: f64,
    pub stall_ratio: f64,
    pub delay_ms: Percentiles,
    #[serde(skip)]
    pub timeline: Timeline,
    #[serde(skip)]
    pub stalls: Vec<(Duration, Duration)>,
}

impl BoxStream {
    pub fn start(
        world: &StackWorld,
        number: usize,
        program: &Path,
        clip: &Path,
        (start, duration): (Instant, Duration),
    ) -> anyhow::Result<Self> {
        let directory = clip.parent().unwrap_or(clip).join(NAMES[number]);
        std::fs::create_dir_all(&directory).context("cannot create a directory")?;
        let (logs, to) = (Logs::of(&directory), viewer(number).to_string());
        let mut command = world.cloud.command(program);
        command.args(["demo-sink", "--listen", &to, "--out"]).arg(&logs.arrived);
        command.arg("--until-ns").arg((start + duration + DRAIN).as_nanos().to_string());
        let viewer = Daemon::start("viewer", &mut command, &directory)?;
        let mut command = world.vehicles[number].camera.command(program);
        command.arg("demo-source").arg(clip).args(["--to", &to, "--out"]).arg(&logs.sent);
        command.arg("--start-ns").arg(start.as_nanos().to_string());
        command.arg("--frames").arg((duration.as_secs() * u64::from(clip::FPS)).to_string());
        let camera = Daemon::start("camera", &mut command, &directory)?;
        Ok(Self { logs, camera, viewer })
    }

    /// Waits for the end. `samples`: the box's counters; `proxies`: before and after the kill.
    pub fn seen(
        self,
        number: usize,
        proxies: (String, String),
        samples: &[StatusSample],
        (start, duration, killed_at): Times,
    ) -> anyhow::Result<BoxView> {
        self.camera.wait(DRAIN)?;
        self.viewer.wait(DRAIN * 2)?;
        let player = Player::default();
        let view = View::of(&self.logs, Some(&player))?;
        let View { stream, arrivals, quality, delay_ms, .. } = view;
        let uplinks = OPERATORS.into_iter();
        let mut timeline = sampler::timeline(samples, uplinks, start, duration);
        sampler::count_missing(&stream.log, &arrivals.first, &player, start, &mut timeline);
        Ok(BoxView {
            name: NAMES[number].to_owned(),
            proxy_before: proxies.0,
            proxy_after: proxies.1,
            gap_ms: longest_gap(&arrivals.first, start + killed_at).as_secs_f64() * 1e3,
            packets: stream.log.packets.len(),
            packets_lost: arrivals.first.iter().filter(|arrival| arrival.is_none()).count(),
            frames: quality.frames,
            frames_incomplete: quality.frames - quality.frames_complete,
            fps: quality.fps,
            stall_ratio: quality.stall_ratio,
            delay_ms,
            timeline,
            stalls: quality.stalls,
        })
    }
}

/// The longest time without an arrival that ends between `killed` and [`CHANGE_MAX`] later. A
/// stream that never returns has at least that gap.
fn longest_gap(arrivals: &[Option<Instant>], killed: Instant) -> Duration {
    let end = killed + CHANGE_MAX;
    let mut moments: Vec<Instant> = arrivals.iter().flatten().copied().collect();
    moments.push(end);
    moments.sort_unstable();
    let gap = |pair: &[Instant]| pair[1].min(end) - pair[0];
    let around = moments.windows(2).filter(|pair| pair[1] >= killed && pair[0] <= end);
    around.map(gap).max().unwrap_or(CHANGE_MAX)
}

const NAMES: [&str; BOXES] = ["box 1", "box 2"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_is_that_of_the_change() {
        let at = |ms: &u64| Some(Instant::from_millis(*ms));
        let gap = |arrivals: &[u64], killed: u64| {
            let arrivals: Vec<_> = arrivals.iter().map(at).chain([None]).collect();
            longest_gap(&arrivals, Instant::from_millis(killed)).as_millis()
        };
        let rest: Vec<u64> = (1_600..9_000).step_by(30).collect();
        let with = |first: &[u64]| [first, &rest].concat();
        // Gaps before the kill do not count; packets arrive in any order.
        assert_eq!(gap(&with(&[700, 1_000, 100, 1_030]), 1_040), 570);
        assert_eq!(gap(&with(&[1_000, 1_030, 1_580]), 1_040), 550);
        assert_eq!(gap(&[1_000, 1_030], 1_040), 5_010, "it never came back");
        assert_eq!(gap(&[], 1_040), 5_000);
    }
}
