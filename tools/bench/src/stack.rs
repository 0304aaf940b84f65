//! `roadweave stack`: a local fleet, and what two viewers see when a proxy dies.
//!
//! ```text
//!                                  controller: members and their addresses
//!   camera ─ box 1 ═ 4 links ═╗                 ╔═ proxy A ─ backhaul ─╗
//!                             ╠═ the Internet ══╣                      ╠═ anchor ─ viewers
//!   camera ─ box 2 ═ 4 links ═╝                 ╚═ proxy B ─ backhaul ─╝
//!
//!   members: all join ─► all stand by ─► two streams ─► kill the controller, and then the proxy
//!                                              │        with most sessions
//!                                              └─► viewing: arrivals ─► table, report, JSON
//! ```
//!
//! The kernel removes the sandbox with the program. The run is in [`StackArgs::stream`].

mod controller;
mod members;
mod report;
mod viewing;
mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use indicatif::ProgressBar;
use roadweave_proto::{Instant, Rate};
use roadweave_terminal::out;
use serde::Serialize;

use self::members::Members;
use self::viewing::{BoxStream, BoxView};
use self::world::StackWorld;
use crate::demo::clip::ClipSpec;
use crate::demo::ffmpeg;
use crate::demo::sampler::StatusSample;
use crate::product;
use crate::rate;
use crate::sandbox::{self, clock};
use crate::writable;

const DIRECTORY: &str = "/run/roadweave-stack";
const SETTLE: Duration = Duration::from_millis(500);
/// The controller dies this long before the proxy, so that the failover works without it.
const CONTROLLER_AHEAD: Duration = Duration::from_secs(2);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Starts a fleet with two boxes and video on this machine, and kills its controller and a proxy
#[derive(Debug, clap::Args)]
pub struct StackArgs {
    /// Duration of the streams, seconds; the proxy is killed in the middle
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(6..=600))]
    seconds: u32,
    /// Rate of each video, as 8M or 800k; 8 is 8M
    #[arg(long, value_name = "RATE", default_value = "8M", value_parser = rate::parse_video)]
    bitrate: Rate,
    /// Seed of the links
    #[arg(long, default_value_t = 10)]
    seed: u64,
    /// The file to write the report to
    #[arg(long, value_name = "FILE", default_value = "roadweave-stack.html")]
    report: PathBuf,
    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct StackResults {
    seed: u64,
    seconds: u32,
    killed: String,
    killed_at_ms: f64,
    boxes: Vec<BoxView>,
}

impl StackArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        writable::check("--report", &self.report)?;
        ffmpeg::check()?;
        sandbox::enter()?;
        let directory = Path::new(DIRECTORY);
        fs::create_dir_all(directory).context("cannot create a directory")?;
        let bar = ProgressBar::new_spinner();
        let tell = |text: &str| match bar.is_hidden() {
            true => out::note(text),
            false => bar.set_message(text.to_owned()),
        };
        tell("encoding the clip");
        let bitrate_bps = self.bitrate.as_bps();
        let spec = ClipSpec { source: None, seconds: self.seconds, bitrate_bps };
        let clip = directory.join("clip.h264");
        spec.encode(&clip, |_| bar.tick())?;
        tell("starting a controller; an anchor, two proxies and two boxes join");
        let world = StackWorld::build(self.seed)?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut members = Members::start(&world, directory, &product::program()?, &program)?;
        bar.enable_steady_tick(SAMPLE_INTERVAL);
        let results = self.stream(&world, &mut members, &program, &clip, tell)?;
        bar.finish_and_clear();
        fs::write(&self.report, report::render(&results))
            .with_context(|| format!("cannot write the report {}", self.report.display()))?;
        if self.json {
            out::json(&results)?;
        } else {
            out::line(report::table(&results))?;
        }
        out::note(format_args!("The time lines are in {}", self.report.display()));
        Ok(())
    }

    fn stream(
        &self,
        world: &StackWorld,
        members: &mut Members,
        program: &Path,
        clip: &Path,
        tell: impl Fn(&str),
    ) -> anyhow::Result<StackResults> {
        tell("waiting until both boxes have a session, and another proxy stands by");
        members.wait_until_all_stand_by()?;
        let start = clock::now() + SETTLE;
        let duration = Duration::from_secs(self.seconds.into());
        let streams: anyhow::Result<Vec<BoxStream>> = (0..world::BOXES)
            .map(|number| BoxStream::start(world, number, program, clip, (start, duration)))
            .collect();
        tell(&format!("streaming for {} s", self.seconds));
        let (mut samples, mut killed) = (vec![Vec::new(); world::BOXES], None);
        let before = members.proxies_of_boxes()?;
        let (mut next, end) = (start, start + duration);
        while next <= end {
            clock::sleep_until(next);
            let now = clock::now();
            for (number, samples) in samples.iter_mut().enumerate() {
                let status = members.status_of_box(number);
                samples.extend(status.and_then(|status| StatusSample::parse(now, &status)));
            }
            if now >= start + duration / 2 - CONTROLLER_AHEAD {
                members.kill_controller();
            }
            if killed.is_none() && now >= start + duration / 2 {
                let name = members.kill_busiest_proxy()?;
                tell(&format!("killed {name}"));
                killed = Some((name, clock::now() - start));
            }
            members.check_running()?;
            next += SAMPLE_INTERVAL;
        }
        let (killed, killed_at) = killed.context("the streams ended too early")?;
        let after = members.proxies_of_boxes()?;
        let mut boxes = Vec::new();
        for (number, stream) in streams?.into_iter().enumerate() {
            let names = (before[number].clone(), after[number].clone());
            let times = (start, duration, killed_at);
            boxes.push(stream.seen(number, names, &samples[number], times)?);
        }
        Ok(StackResults {
            seed: self.seed,
            seconds: self.seconds,
            killed,
            killed_at_ms: killed_at.as_secs_f64() * 1e3,
            boxes,
        })
    }
}

/// Start of the streams, their length, and the time of the kill since the start.
type Times = (Instant, Duration, Duration);
