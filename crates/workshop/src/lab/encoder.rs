//! `roadweave lab encoder`: a live encoder that does what the tunnel tells it, over many drives.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_emulate::DuplexLink;
use roadweave_lab::bound::Foresight;
use roadweave_lab::class::Class;
use roadweave_lab::closed_loop::{ClosedLoop, Encoder, Seen, by_frame, by_rate, foreseen};
use roadweave_lab::compare::BEST_SINGLE;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use roadweave_tunnel::Strategy;
use roadweave_types::Rate;
use serde::Serialize;

use super::drives::{self, NamedDrive};
use super::workers::work_all;
use crate::rate::parse_video;
use crate::table;

/// Lets a model of a live encoder do what the tunnel tells it, over recorded drives
///
/// A way is a strategy, whose encoder is told the size of each next frame; `STRATEGY@rate`, whose
/// encoder is only told a rate; or `STRATEGY@8M`, whose encoder always has that rate. `best-single`
/// is an encoder on each link alone, of which the best by SSIM counts. `foresight` is a bound: the
/// encoder knows what the links will carry by each frame's deadline; `foresight-exact`: and makes
/// frames exactly as large as it wants. Equal arguments give equal results.
#[derive(Debug, clap::Args)]
pub struct EncoderArgs {
    /// The directory of the drives
    #[arg(long, value_name = "DIR")]
    drives: PathBuf,
    /// Run only these drives, separated by commas
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    only: Vec<String>,
    /// The ways to be compared, separated by commas
    #[arg(
        long,
        value_name = "WAY,..",
        value_delimiter = ',',
        default_value = "lola,xnc,xnc@rate,xnc@8M,best-single,foresight,foresight-exact"
    )]
    ways: Vec<Way>,
    /// Use only so many links of each drive, the first ones
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u8).range(1..=64))]
    links: u8,
    /// The most that the encoder makes
    #[arg(long, value_name = "RATE", default_value = "30M", value_parser = parse_video)]
    bitrate_max: Rate,
    /// The deadline of the lane, milliseconds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=2_000))]
    deadline_ms: u64,
    /// Frames per second
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=120))]
    fps: u32,
    /// How long each video lasts, seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// How many seeds everything is run with
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    seeds: u16,
    /// How many runs at a time; default: one per core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    jobs: Option<u16>,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

/// A way to carry a live video.
#[derive(Clone, Debug)]
struct Way {
    name: String,
    over: Over,
    follows: Follows,
}

#[derive(Clone, Debug)]
enum Over {
    All(Strategy),
    /// Each link alone.
    Each,
    /// Nothing: who knows the future needs no tunnel.
    Foresight {
        is_exact: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Follows {
    Frame,
    Rate,
    Nothing(Rate),
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (strategy, follows) = match text.split_once('@') {
            None => (text, Follows::Frame),
            Some((strategy, "rate")) => (strategy, Follows::Rate),
            Some((strategy, rate)) => (strategy, Follows::Nothing(parse_video(rate)?)),
        };
        let over = match strategy {
            BEST_SINGLE => Over::Each,
            "foresight" | "foresight-exact" if text.contains('@') => {
                return Err(format!("`{strategy}` knows the future, and needs to be told nothing"));
            }
            "foresight" => Over::Foresight { is_exact: false },
            "foresight-exact" => Over::Foresight { is_exact: true },
            name => Over::All(name.parse::<Strategy>().map_err(|error| error.to_string())?),
        };
        Ok(Self { name: text.to_owned(), over, follows })
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Job {
    drive: usize,
    way: usize,
    seed: u64,
}

/// What one way brought on the drives of one class.
#[derive(Debug, Default, Serialize)]
struct Pooled {
    class: String,
    way: String,
    runs: usize,
    /// Means over the runs.
    ssim_db: f64,
    in_time_db: f64,
    undamaged: f64,
    stall_ratio: f64,
    /// The most of a run.
    stall_ratio_max: f64,
    /// Runs without a stall.
    without_stall: usize,
    sent_mbps: f64,
    redundancy: f64,
    /// Of all frames of all runs.
    frame_delay_ms: FrameDelay,
}

#[derive(Debug, Default, Serialize)]
struct FrameDelay {
    mean: f64,
    p5: f64,
    p25: f64,
    p50: f64,
    p75: f64,
    p95: f64,
    p99: f64,
}

impl EncoderArgs {
    /// Measures.
    ///
    /// # Errors
    /// [`BadInput`] when the drives cannot be read; else when a run fails or was interrupted.
    pub fn run(&self) -> anyhow::Result<()> {
        let mut all = drives::read(&self.drives)?;
        if let Some(unknown) =
            self.only.iter().find(|name| !all.iter().any(|drive| drive.name == **name))
        {
            return Err(BadInput::new(format!("--only: there is no drive `{unknown}`")).into());
        }
        if self.seconds * self.fps > FRAMES_MAX {
            let problem = format!("--seconds times --fps is above {FRAMES_MAX} frames");
            return Err(BadInput::new(problem).into());
        }
        all.retain(|drive| self.only.is_empty() || self.only.contains(&drive.name));
        let mut jobs = Vec::new();
        for drive in 0..all.len() {
            for way in 0..self.ways.len() {
                jobs.extend((1..=self.seeds.into()).map(|seed| Job { drive, way, seed }));
            }
        }
        let name = |job: usize| {
            format!("{}: {}", all[jobs[job].drive].name, self.ways[jobs[job].way].name)
        };
        let work = |job: usize| {
            self.measure(&all[jobs[job].drive], jobs[job]).context("the links make no world")
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let done = work_all(self.jobs.map_or(cores, usize::from), jobs.len(), name, work)?;
        let mut groups: BTreeMap<(Class, usize), Vec<Seen>> = BTreeMap::new();
        for (job, seen) in jobs.iter().zip(done) {
            let Some(seen) = seen else { bail!("interrupted") };
            groups.entry((self.class(&all[job.drive]), job.way)).or_default().push(seen);
        }
        let pooled: Vec<Pooled> = groups
            .into_iter()
            .map(|((class, way), seen)| Pooled::new(class, &self.ways[way].name, &seen))
            .collect();
        if self.json { out::json(&pooled) } else { Ok(out::print(in_words(&pooled))?) }
    }

    fn measure(&self, drive: &NamedDrive, job: Job) -> anyhow::Result<Seen> {
        let way = &self.ways[job.way];
        let links = self.links(drive, job.seed);
        let encoder = match way.follows {
            Follows::Frame => by_frame(self.bitrate_max),
            Follows::Rate => by_rate(self.bitrate_max),
            Follows::Nothing(rate) => Encoder::Fixed(rate),
        };
        let run = |links: Vec<DuplexLink>, strategy: Strategy| {
            ClosedLoop {
                links,
                strategy,
                encoder,
                deadline: Duration::from_millis(self.deadline_ms),
                fps: self.fps,
                seconds: self.seconds,
                seed: job.seed,
            }
            .run()
        };
        match &way.over {
            Over::All(strategy) => return Ok(run(links, strategy.clone())?),
            Over::Foresight { is_exact } => {
                let foresight = Foresight {
                    fps: self.fps,
                    frames: (self.seconds * self.fps) as usize,
                    deadline: Duration::from_millis(self.deadline_ms),
                    most: self.bitrate_max.bytes_per_second() / f64::from(self.fps),
                };
                return Ok(foreseen(&links, &foresight, *is_exact));
            }
            Over::Each => {}
        }
        let mut best: Option<Seen> = None;
        for link in links {
            // Alone a link needs no scheduler: LoLa's loop, over one path.
            let seen = run(vec![link], "lola".parse().context("a strategy")?)?;
            if best.as_ref().is_none_or(|best| worth(&seen) > worth(best)) {
                best = Some(seen);
            }
        }
        best.context("a drive has links")
    }

    fn links(&self, drive: &NamedDrive, seed: u64) -> Vec<DuplexLink> {
        let links = drive.drive.links.iter().zip(0..).take(self.links.into());
        links.map(|(link, index)| DuplexLink::new(link, index, seed)).collect()
    }

    /// The class of a drive is that for a video of 30 Mbit/s, which `roadweave lab compare` sends.
    fn class(&self, drive: &NamedDrive) -> Class {
        let links: Vec<_> =
            drive.drive.links.iter().take(self.links.into()).map(|link| &link.up).collect();
        Class::of(&links, Rate::from_kbps(30_000), Duration::from_secs(self.seconds.into()))
    }
}

/// What a viewer would choose a link by.
fn worth(seen: &Seen) -> f64 {
    seen.ssim_db * seen.undamaged * (1.0 - seen.stall_ratio)
}

impl Pooled {
    fn new(class: Class, way: &str, runs: &[Seen]) -> Self {
        let mean = |of: fn(&Seen) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let mut delays: Vec<f64> =
            runs.iter().flat_map(|seen| seen.frame_delays_ms.iter().copied()).collect();
        delays.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (delays.len() as f64 * share).ceil() as usize;
            delays.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self {
            class: class.to_string(),
            way: way.to_owned(),
            runs: runs.len(),
            ssim_db: mean(|seen| seen.ssim_db),
            in_time_db: mean(|seen| seen.in_time_db),
            undamaged: mean(|seen| seen.undamaged),
            stall_ratio: mean(|seen| seen.stall_ratio),
            stall_ratio_max: runs.iter().map(|seen| seen.stall_ratio).fold(0.0, f64::max),
            without_stall: runs.iter().filter(|seen| seen.stalls == 0).count(),
            sent_mbps: mean(|seen| seen.sent_mbps),
            redundancy: mean(|seen| seen.redundancy),
            frame_delay_ms: FrameDelay {
                mean: delays.iter().sum::<f64>() / delays.len().max(1) as f64,
                p5: at(0.05),
                p25: at(0.25),
                p50: at(0.5),
                p75: at(0.75),
                p95: at(0.95),
                p99: at(0.99),
            },
        }
    }
}

/// The bound compares all runs of frames.
const FRAMES_MAX: u32 = 18_000;

fn in_words(pooled: &[Pooled]) -> String {
    let mut lines = table::bare();
    lines.set_header([
        "class",
        "way",
        "SSIM dB",
        "in time dB",
        "undamaged",
        "stalls",
        "no stall",
        "frame p50 ms",
        "p95",
        "p99",
        "Mbit/s",
        "copies",
    ]);
    for it in pooled {
        lines.add_row([
            it.class.clone(),
            it.way.clone(),
            format!("{:.2}", it.ssim_db),
            format!("{:.2}", it.in_time_db),
            format!("{:.2} %", it.undamaged * 100.0),
            format!("{:.2} %", it.stall_ratio * 100.0),
            format!("{} of {}", it.without_stall, it.runs),
            format!("{:.0}", it.frame_delay_ms.p50),
            format!("{:.0}", it.frame_delay_ms.p95),
            format!("{:.0}", it.frame_delay_ms.p99),
            format!("{:.1}", it.sent_mbps),
            format!("{:.1} %", it.redundancy * 100.0),
        ]);
    }
    table::right_aligned(lines, 2) + "\n"
}
