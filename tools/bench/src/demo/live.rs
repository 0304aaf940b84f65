//! A run with a live encoder: `roadweave-video` sends a film over the same links, and receives it.
//!
//! ```text
//!   vehicle: film ─► roadweave-video send ══ tunnel ══► roadweave-video receive :cloud
//!                      ▲ targets │ sent.jsonl              │ shown.jsonl, received.h264
//!                    client      └──────────────┬──────────┘
//!                                     FrameWindow::measure ─► LiveRun
//! ```
//!
//! The film begins two seconds before the measured part, so that the encoder has adapted when the
//! traces begin, and ends a second after it.

mod film;
mod logs;
mod program;
mod seen;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use roadweave_proto::Instant;
use rustix::process::Signal;

use super::clip::FPS;
use super::decode::{self, Decoder};
use super::sampler;
use super::setup::{Bridged, DRAIN, DemoSetup, LANE, LEAD_IN_FRAMES, Progress, SETTLE};
use super::ways::Live;
use super::world::VIEWER;
use crate::sandbox::clock;
use crate::sandbox::daemon::Daemon;

use self::logs::{LiveFrame, LiveLogs};
use self::seen::FrameWindow;

pub use self::film::{HEIGHT, WIDTH};
pub use self::program::find;
pub use self::seen::{LiveFigures, LiveRun, Rates};

const BEGIN_MOST: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
/// Frames after the measured ones, so that the sender still runs when these end.
const TAIL_FRAMES: u32 = FPS;

#[derive(Debug)]
pub struct LiveSetup {
    program: PathBuf,
    pub film: PathBuf,
}

impl LiveSetup {
    pub fn new(
        program: PathBuf,
        source: Option<&Path>,
        seconds: u32,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let film = directory.join("film.mp4");
        film::make(source, LEAD_IN_FRAMES + seconds * FPS + TAIL_FRAMES, &film)?;
        Ok(Self { program, film })
    }

    pub fn run(
        &self,
        setup: &DemoSetup,
        live: &Live,
        mut on_progress: impl FnMut(Progress),
    ) -> anyhow::Result<LiveRun> {
        let files = LiveLogs::of(&setup.directory);
        on_progress(Progress::Connecting);
        let mut bridged = setup.start_tunnel(&live.strategy)?;

        let mut viewer = self.start_viewer(setup, &files)?;
        let mut camera = self.start_camera(setup, &files, live, &bridged)?;
        let began = await_first_frame(&files, &mut camera, &mut viewer)?;
        let lead_in = Duration::from_secs((LEAD_IN_FRAMES / FPS).into());
        let window = FrameWindow {
            start: began + lead_in,
            first: LEAD_IN_FRAMES as usize,
            seconds: setup.seconds,
        };
        let start = on_our_clock(window.start);
        clock::sleep_until(start);
        bridged.emulator.signal(Signal::HUP)?;
        let cpu_before = camera.cpu_time()?;
        let (samples, client_cpu) = setup.watch(&mut bridged, start, &mut on_progress)?;
        let camera_cpu = camera.cpu_time()?.since(cpu_before).total();
        camera.wait(DRAIN * 2)?;
        clock::sleep_until(clock::now() + SETTLE);
        viewer.stop()?;
        bridged.stop()?;

        on_progress(Progress::Comparing);
        let frames = files.frames()?;
        let ssim = match setup.compare_pictures {
            true => Some(self.compare(&files, &frames, &window, &setup.directory)?),
            false => None,
        };
        let mut run = window.measure(&frames, ssim.as_deref(), &setup.player);
        let percent = |time: Duration| 100.0 * time.as_secs_f64() / f64::from(setup.seconds);
        run.figures.strategy.clone_from(&live.name);
        run.figures.redundancy = sampler::redundancy(&samples);
        run.figures.encoder_cpu_percent = percent(camera_cpu);
        run.figures.cpu_percent = percent(client_cpu);
        let uplinks = setup.scenario.uplinks();
        run.timeline = sampler::timeline(&samples, uplinks, start, setup.duration());
        if let Some(keep) = &setup.keep {
            keep.take(&live.name, &files.all())?;
        }
        for file in files.all() {
            fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
        Ok(run)
    }

    fn start_viewer(&self, setup: &DemoSetup, files: &LiveLogs) -> anyhow::Result<Daemon> {
        let mut command = setup.world.cloud.command(&self.program);
        command.args(["receive", "--json", "--listen", &VIEWER.to_string()]);
        command.arg("--frames").arg(&files.shown).arg("--write").arg(&files.received);
        Daemon::start("viewer", &mut command, &setup.directory)
    }

    fn start_camera(
        &self,
        setup: &DemoSetup,
        files: &LiveLogs,
        live: &Live,
        bridged: &Bridged,
    ) -> anyhow::Result<Daemon> {
        let mut command: Command = setup.world.vehicle.command(&self.program);
        command.args(["send", "--json", "--to", &VIEWER.to_string()]);
        command.arg("--source").arg(&self.film).arg("--frames").arg(&files.sent);
        command.args(["--size", &format!("{WIDTH}x{HEIGHT}"), "--fps", &FPS.to_string()]);
        match live.bitrate_bps {
            Some(bps) => command.args(["--bitrate", &bps.to_string()]),
            None => command.arg("--feedback").arg(&bridged.tunnel.socket).args(["--lane", LANE]),
        };
        Daemon::start("camera", &mut command, &setup.directory)
    }

    fn compare(
        &self,
        files: &LiveLogs,
        frames: &[LiveFrame],
        window: &FrameWindow,
        scratch: &Path,
    ) -> anyhow::Result<Vec<f32>> {
        let end = window.frames().end;
        let shown = frames.iter().filter(|it| it.shown_after.is_some() && it.index < end);
        let shown: Vec<usize> = shown.map(|frame| frame.index).collect();
        let (received, film) = (&files.received, &self.film);
        let decoder = Decoder::HidesDamage;
        Ok(decode::compare_shown(received, shown, decoder, film, end, scratch)?.ssim)
    }
}

fn await_first_frame(
    files: &LiveLogs,
    camera: &mut Daemon,
    viewer: &mut Daemon,
) -> anyhow::Result<Duration> {
    let deadline = clock::now() + BEGIN_MOST;
    loop {
        viewer.check_running()?;
        camera.check_running()?;
        if let Some(began) = files.began() {
            return Ok(began);
        }
        if clock::now() > deadline {
            bail!("the camera sends no packets{}", camera.last_words());
        }
        clock::sleep_until(clock::now() + POLL);
    }
}

fn on_our_clock(unix: Duration) -> Instant {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    match unix.checked_sub(now) {
        Some(ahead) => clock::now() + ahead,
        None => clock::now() - (now - unix),
    }
}
