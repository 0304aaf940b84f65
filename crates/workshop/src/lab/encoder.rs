//! `roadweave lab encoder`: a live encoder that does what the tunnel tells it, over many drives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_emulate::DuplexLink;
use roadweave_lab::bound::Foresight;
use roadweave_lab::class::Class;
use roadweave_lab::closed_loop::{ClosedLoop, Encoder, Seen, by_frame, by_rate, foreseen};
use roadweave_lab::compare::BEST_SINGLE;
use roadweave_lab::video::encoder::Pictures;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use roadweave_tunnel::Strategy;
use roadweave_types::Rate;

use self::pooled::Pooled;
use super::drives::{self, NamedDrive};
use super::workers::work_all;
use crate::rate::parse_video;

mod pooled;

/// Lets a model of a live encoder do what the tunnel tells it, over recorded drives
///
/// A way is a strategy, whose encoder is told the size of each next frame; `STRATEGY@rate`, whose
/// encoder is only told a rate; or `STRATEGY@8M`, whose encoder always has that rate. `best-single`
/// is an encoder on each link alone, of which the best by SSIM counts; `each-single` tells of each
/// of them. `foresight` is a bound: the
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
    /// Use only these links of each drive, separated by commas
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    uplinks: Vec<String>,
    /// Use only so many links of each drive, the first ones
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u8).range(1..=64))]
    links: u8,
    /// The most that the encoder makes
    #[arg(long, value_name = "RATE", default_value = "30M", value_parser = parse_video)]
    bitrate_max: Rate,
    /// The deadline of the lane, milliseconds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=2_000))]
    deadline_ms: u64,
    /// What is encoded: 1080 lines, or 720
    #[arg(long, value_name = "LINES", default_value = "1080", value_parser = parse_lines)]
    lines: Pictures,
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
    /// Each link alone, of which the best counts.
    Best,
    /// Each link alone, a way for each once their names are known.
    Each,
    /// This link alone.
    Alone(String),
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
            BEST_SINGLE => Over::Best,
            EACH_SINGLE => Over::Each,
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
        self.choose_links(&mut all)?;
        let ways = self.ways_over(&all);
        let mut jobs = Vec::new();
        for drive in 0..all.len() {
            for way in 0..ways.len() {
                jobs.extend((1..=self.seeds.into()).map(|seed| Job { drive, way, seed }));
            }
        }
        let name =
            |job: usize| format!("{}: {}", all[jobs[job].drive].name, ways[jobs[job].way].name);
        let work = |job: usize| {
            let Job { drive, way, seed } = jobs[job];
            self.measure(&all[drive], &ways[way], seed).context("the links make no world")
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let done = work_all(self.jobs.map_or(cores, usize::from), jobs.len(), name, work)?;
        // All classes together come last.
        let mut groups: BTreeMap<(bool, Option<Class>, usize), ByDrive> = BTreeMap::new();
        for (job, seen) in jobs.iter().zip(done) {
            let Some(seen) = seen else { bail!("interrupted") };
            // A drive need not have each link.
            let Some(seen) = seen else { continue };
            let class = self.class(&all[job.drive]);
            for class in [Some(class), None] {
                let drives = groups.entry((class.is_none(), class, job.way)).or_default();
                drives.entry(job.drive).or_default().push(seen.clone());
            }
        }
        let pooled = groups.into_iter().map(|((_, class, way), drives)| {
            let drives: Vec<Vec<Seen>> = drives.into_values().collect();
            Pooled::new(class, &ways[way].name, &drives)
        });
        let pooled: Vec<Pooled> = pooled.collect();
        if self.json { out::json(&pooled) } else { Ok(out::print(pooled::in_words(&pooled))?) }
    }

    /// Leaves of each drive only the links that are wanted.
    fn choose_links(&self, drives: &mut [NamedDrive]) -> anyhow::Result<()> {
        for drive in drives {
            let links = &mut drive.drive.links;
            let missing =
                self.uplinks.iter().find(|name| !links.iter().any(|it| it.name == **name));
            if let Some(missing) = missing {
                let problem = format!("--uplinks: {} has no link `{missing}`", drive.name);
                return Err(BadInput::new(problem).into());
            }
            links.retain(|link| self.uplinks.is_empty() || self.uplinks.contains(&link.name));
            links.truncate(self.links.into());
        }
        Ok(())
    }

    /// The ways, with one for each link in the place of `each-single`.
    fn ways_over(&self, drives: &[NamedDrive]) -> Vec<Way> {
        let links = drives.iter().flat_map(|drive| &drive.drive.links);
        let names: BTreeSet<&str> = links.map(|link| link.name.as_str()).collect();
        let alone = |way: &Way, name: &str| Way {
            name: format!("{name} alone"),
            over: Over::Alone(name.to_owned()),
            ..way.clone()
        };
        let ways = self.ways.iter().flat_map(|way| match way.over {
            Over::Each => names.iter().map(|name| alone(way, name)).collect(),
            _ => vec![way.clone()],
        });
        ways.collect()
    }

    /// What comes of `way`; `None` on a drive that lacks its link.
    fn measure(&self, drive: &NamedDrive, way: &Way, seed: u64) -> anyhow::Result<Option<Seen>> {
        let links = links(drive, seed);
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
                pictures: self.lines,
                deadline: Duration::from_millis(self.deadline_ms),
                fps: self.fps,
                seconds: self.seconds,
                seed,
            }
            .run()
        };
        // Alone a link needs no scheduler: LoLa's loop, over one path.
        let alone = |link: DuplexLink| anyhow::Ok(run(vec![link], "lola".parse()?)?);
        match &way.over {
            Over::All(strategy) => return Ok(Some(run(links, strategy.clone())?)),
            Over::Alone(name) => {
                let index = drive.drive.links.iter().position(|link| link.name == *name);
                return index.map(|index| alone(links[index].clone())).transpose();
            }
            Over::Foresight { is_exact } => {
                let foresight = Foresight {
                    fps: self.fps,
                    frames: (self.seconds * self.fps) as usize,
                    deadline: Duration::from_millis(self.deadline_ms),
                    most: self.bitrate_max.bytes_per_second() / f64::from(self.fps),
                };
                return Ok(Some(foreseen(&links, &foresight, self.lines, *is_exact)));
            }
            Over::Best | Over::Each => {}
        }
        let mut best: Option<Seen> = None;
        for link in links {
            let seen = alone(link)?;
            if best.as_ref().is_none_or(|best| worth(&seen) > worth(best)) {
                best = Some(seen);
            }
        }
        Ok(best)
    }

    /// The class of a drive is that for a video of 30 Mbit/s, which `roadweave lab compare` sends.
    fn class(&self, drive: &NamedDrive) -> Class {
        let links: Vec<_> = drive.drive.links.iter().map(|link| &link.up).collect();
        Class::of(&links, Rate::from_kbps(30_000), Duration::from_secs(self.seconds.into()))
    }
}

/// The runs of each drive.
type ByDrive = BTreeMap<usize, Vec<Seen>>;

fn links(drive: &NamedDrive, seed: u64) -> Vec<DuplexLink> {
    let links = drive.drive.links.iter().zip(0..);
    links.map(|(link, index)| DuplexLink::new(link, index, seed)).collect()
}

fn parse_lines(text: &str) -> Result<Pictures, String> {
    match text {
        "720" => Ok(Pictures::Hd720),
        "1080" => Ok(Pictures::Hd1080),
        _ => Err("720 or 1080".to_owned()),
    }
}

/// What a viewer would choose a link by.
fn worth(seen: &Seen) -> f64 {
    seen.ssim_db * seen.undamaged * (1.0 - seen.stall_ratio)
}

/// The way that stands for each link alone.
const EACH_SINGLE: &str = "each-single";
/// The bound compares all runs of frames.
const FRAMES_MAX: u32 = 18_000;
