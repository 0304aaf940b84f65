//! One run: emulator, server, client, camera and viewer as processes, and results from their logs.
//!
//! ```text
//!   emulator, server, client --> every path usable --> two seconds of unmeasured video
//!     --> SIGHUP: traces from their beginning --> camera and viewer --> drain --> end all --> compare
//! ```
//!
//! The traces start with the first measured frame, at the same moment of the stream in every run.
//! The frames before it open the windows of the tunnel.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use roadweave_lab::figures::{Figures, Run};
use roadweave_lab::video::quality::{self, Player};
use roadweave_proto::Instant;
use rustix::process::Signal;

use super::clip;
use super::keep::KeepFolder;
use super::sampler::{self, StatusSample};
use super::scenario::Scenario;
use super::world::{self, DemoWorld, VIEWER};
use crate::qoe::{Logs, View};
use crate::sandbox::clock;
use crate::sandbox::daemon::Daemon;
use crate::sandbox::tunnel::{Testbed, Tunnel, TunnelSpec, start_emulator};

pub const LANE: &str = "video";
pub const LEAD_IN_FRAMES: u32 = 2 * clip::FPS;
/// Time between the last preparation and the first frame.
pub const SETTLE: Duration = Duration::from_millis(500);
/// Time for late packets after the stream.
pub const DRAIN: Duration = Duration::from_secs(2);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct DemoSetup {
    pub scenario: Scenario,
    pub world: DemoWorld,
    pub directory: PathBuf,
    pub clip: PathBuf,
    /// Without RTP headers.
    pub bitrate_bps: u64,
    pub seconds: u32,
    pub player: Player,
    pub compare_pictures: bool,
    pub keep: Option<KeepFolder>,
    pub program: PathBuf,
    pub product: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Connecting,
    Streaming(Duration),
    Comparing,
}

pub struct Bridged {
    pub emulator: Daemon,
    pub tunnel: Tunnel,
}

impl DemoSetup {
    pub fn run(
        &self,
        strategy: &str,
        mut on_progress: impl FnMut(Progress),
    ) -> anyhow::Result<Run> {
        let files = Logs::of(&self.directory);
        on_progress(Progress::Connecting);
        let mut bridged = self.start_tunnel(strategy)?;

        self.send_lead_in(&files)?;

        let start = clock::now() + SETTLE;
        let viewer = self.start_viewer(&files, start)?;
        let camera = self.start_camera(&files, start)?;
        clock::sleep_until(start);
        bridged.emulator.signal(Signal::HUP)?;
        let (samples, cpu_time) = self.watch(&mut bridged, start, &mut on_progress)?;
        camera.wait(DRAIN)?;
        viewer.wait(DRAIN * 2)?;
        bridged.stop()?;

        on_progress(Progress::Comparing);
        let mut run = self.measure(strategy, &files, &samples, start)?;
        run.figures.cpu_percent = Some(100.0 * cpu_time.as_secs_f64() / f64::from(self.seconds));
        if let Some(keep) = &self.keep {
            keep.take(strategy, &[&files.sent, &files.arrived])?;
        }
        fs::remove_file(&files.sent).and_then(|()| fs::remove_file(&files.arrived))?;
        Ok(run)
    }

    pub fn start_tunnel(&self, strategy: &str) -> anyhow::Result<Bridged> {
        let spec = TunnelSpec {
            uplinks: self.scenario.uplinks().collect(),
            server: world::SERVER,
            lane: LANE,
            strategy: strategy.parse()?,
            into_tunnel: world::CLOUD_NETWORK,
            behind_client: Some(world::VEHICLE_NETWORK),
        };
        let files = spec.write(&self.directory)?;
        let testbed = Testbed {
            program: &self.product,
            directory: &self.directory,
            server: &self.world.proxy,
            client: &self.world.vehicle_box,
        };
        let links = &self.scenario.file;
        let mut emulator = start_emulator("emulator", &self.program, links, &self.directory)?;
        let mut tunnel = Tunnel::start(testbed, &files)?;
        tunnel.wait_for_paths(spec.uplinks.len(), || emulator.check_running())?;
        Ok(Bridged { emulator, tunnel })
    }

    fn send_lead_in(&self, files: &Logs) -> anyhow::Result<()> {
        let nobody = SocketAddr::new(VIEWER.ip(), VIEWER.port() + 2);
        let mut command = self.camera_command(files, nobody);
        command.arg("--frames").arg(LEAD_IN_FRAMES.to_string());
        let timeout = Duration::from_secs((LEAD_IN_FRAMES / clip::FPS).into()) + DRAIN;
        Daemon::start("camera", &mut command, &self.directory)?.wait(timeout)
    }

    fn start_camera(&self, files: &Logs, start: Instant) -> anyhow::Result<Daemon> {
        let mut command = self.camera_command(files, VIEWER);
        command.arg("--start-ns").arg(start.as_nanos().to_string());
        command.arg("--frames").arg((self.seconds * clip::FPS).to_string());
        Daemon::start("camera", &mut command, &self.directory)
    }

    fn camera_command(&self, files: &Logs, to: SocketAddr) -> Command {
        let mut command = self.world.vehicle.command(&self.program);
        command.arg("demo-source").arg(&self.clip).arg("--to").arg(to.to_string());
        command.arg("--out").arg(&files.sent);
        command
    }

    fn start_viewer(&self, files: &Logs, start: Instant) -> anyhow::Result<Daemon> {
        let until = start + self.duration() + DRAIN;
        let mut command = self.world.cloud.command(&self.program);
        command.arg("demo-sink").arg("--listen").arg(VIEWER.to_string());
        command.arg("--out").arg(&files.arrived);
        command.arg("--until-ns").arg(until.as_nanos().to_string());
        Daemon::start("viewer", &mut command, &self.directory)
    }

    /// Samples the client's counters during the stream; also returns its CPU time.
    pub fn watch(
        &self,
        bridged: &mut Bridged,
        start: Instant,
        on_progress: &mut impl FnMut(Progress),
    ) -> anyhow::Result<(Vec<StatusSample>, Duration)> {
        let cpu_before = bridged.tunnel.client.cpu_time()?;
        let mut samples = Vec::new();
        let end = start + self.duration();
        let mut next = start;
        while next <= end {
            clock::sleep_until(next);
            let now = clock::now();
            bridged.check_running()?;
            samples.extend(
                bridged.tunnel.status().and_then(|status| StatusSample::parse(now, &status)),
            );
            on_progress(Progress::Streaming(now - start));
            next += SAMPLE_INTERVAL;
        }
        Ok((samples, bridged.tunnel.client.cpu_time()?.since(cpu_before).total()))
    }

    fn measure(
        &self,
        strategy: &str,
        files: &Logs,
        samples: &[StatusSample],
        start: Instant,
    ) -> anyhow::Result<Run> {
        let view = View::of(files, Some(&self.player))?;
        let ssim = match self.compare_pictures {
            true => {
                let comparison = view.compare(&self.clip, &self.directory)?;
                comparison.warn_of_nothing_decoded(strategy);
                Some(comparison.mean())
            }
            false => None,
        };
        let View { stream, arrivals, quality, delay_ms, .. } = view;
        let uplinks = self.scenario.uplinks();
        let mut timeline = sampler::timeline(samples, uplinks, start, self.duration());
        sampler::count_missing(&stream.log, &arrivals.first, &self.player, start, &mut timeline);
        Ok(Run {
            figures: Figures {
                strategy: strategy.to_owned(),
                fps: quality.fps,
                stall_ratio: quality.stall_ratio,
                ssim,
                residual_loss: quality.residual_loss(),
                late: quality.late,
                delay_ms,
                delay_arrived_ms: Some(quality.packet_delay),
                redundancy: sampler::redundancy(samples),
                ..Figures::default()
            },
            delays: quality::packet_delays(&stream.log, &arrivals.first),
            stalls: quality.stalls,
            timeline,
        })
    }

    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

impl Bridged {
    pub fn stop(self) -> anyhow::Result<()> {
        self.tunnel.stop()?;
        self.emulator.stop()
    }

    fn check_running(&mut self) -> anyhow::Result<()> {
        self.emulator.check_running()?;
        self.tunnel.check_running()
    }
}
