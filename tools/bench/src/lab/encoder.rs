//! `roadweave lab encoder`: a live encoder that follows the tunnel's targets, over many drives.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use roadweave_emulate::DuplexLink;
use roadweave_lab::class::Class;
use roadweave_lab::closed_loop::{ClosedLoop, Encoder, ViewerFigures};
use roadweave_lab::strategies;
use roadweave_proto::Rate;
use roadweave_terminal::exit::BadInput;
use roadweave_tunnel::Strategy;

use self::pooled::Pooled;
use super::drives::{DriveOptions, NamedDrive};
use super::losses::Losses;
use super::workers::Runs;
use crate::rate::parse_video;

mod pooled;

/// Runs a model of a live encoder that follows the tunnel's targets, over recorded drives
///
/// A way is a strategy, whose encoder gets the size of each next frame; or `STRATEGY@8M`, whose
/// encoder has that constant rate. `each-single` is an encoder on each link alone. Equal arguments
/// give equal results.
#[derive(Debug, clap::Args)]
pub struct EncoderArgs {
    #[command(flatten)]
    drives: DriveOptions,
    /// The ways to compare, separated by commas
    #[arg(
        long,
        value_name = "WAY,..",
        value_delimiter = ',',
        default_value = "lola,xnc,xnc@8M,each-single"
    )]
    ways: Vec<EncoderSetup>,
    /// Use only these links of each drive, separated by commas
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    uplinks: Vec<String>,
    /// How long each video lasts, seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// The number of seeds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    seeds: u16,
    #[command(flatten)]
    losses: Losses,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Clone, Debug)]
struct EncoderSetup {
    name: String,
    over: EncoderLinks,
    encoder: Encoder,
}

#[derive(Clone, Debug)]
enum EncoderLinks {
    All(Strategy),
    /// Stands for a way over each link alone.
    Each,
    Alone(String),
}

impl FromStr for EncoderSetup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (strategy, encoder) = match text.split_once('@') {
            None => (text, Encoder::Adaptive(RATE_MAX)),
            Some((strategy, rate)) => (strategy, Encoder::Fixed(parse_video(rate)?)),
        };
        let over = match strategy {
            EACH_SINGLE => EncoderLinks::Each,
            name => {
                EncoderLinks::All(strategies::strategy(name).map_err(|error| error.to_string())?)
            }
        };
        Ok(Self { name: text.to_owned(), over, encoder })
    }
}

#[derive(Clone, Copy, Debug)]
struct EncoderJob {
    drive: usize,
    way: usize,
    seed: u64,
}

impl EncoderArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let mut all = self.drives.read()?;
        self.losses.get()?;
        self.choose_links(&mut all)?;
        let ways = self.ways_over(&all);
        let mut jobs = Vec::new();
        for drive in 0..all.len() {
            for way in 0..ways.len() {
                jobs.extend((1..=self.seeds.into()).map(|seed| EncoderJob { drive, way, seed }));
            }
        }
        let name =
            |job: usize| format!("{}: {}", all[jobs[job].drive].name, ways[jobs[job].way].name);
        let work = |job: usize| {
            let EncoderJob { drive, way, seed } = jobs[job];
            self.measure(&all[drive], &ways[way], seed).context("the links are invalid")
        };
        let done = self.runs.finish(jobs.len(), name, work)?;
        // Sorted so that all classes together come last.
        let mut groups: BTreeMap<(bool, Option<Class>, usize), Vec<ViewerFigures>> =
            BTreeMap::new();
        for (job, seen) in jobs.iter().zip(done) {
            // The drive lacks the way's link.
            let Some(seen) = seen else { continue };
            let class = self.class(&all[job.drive]);
            for class in [Some(class), None] {
                let runs = groups.entry((class.is_none(), class, job.way)).or_default();
                runs.push(seen.clone());
            }
        }
        let pooled = groups.into_iter();
        let pooled: Vec<Pooled> = pooled
            .map(|((_, class, way), runs)| Pooled::new(class, &ways[way].name, &runs))
            .collect();
        self.runs.print(&pooled, |pooled| pooled::in_words(pooled))
    }

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
        }
        Ok(())
    }

    fn ways_over(&self, drives: &[NamedDrive]) -> Vec<EncoderSetup> {
        let links = drives.iter().flat_map(|drive| &drive.drive.links);
        let names: BTreeSet<&str> = links.map(|link| link.name.as_str()).collect();
        let alone = |way: &EncoderSetup, name: &str| EncoderSetup {
            name: format!("{name} alone"),
            over: EncoderLinks::Alone(name.to_owned()),
            ..way.clone()
        };
        let ways = self.ways.iter().flat_map(|way| match way.over {
            EncoderLinks::Each => names.iter().map(|name| alone(way, name)).collect(),
            _ => vec![way.clone()],
        });
        ways.collect()
    }

    /// `None` for a drive that lacks the way's link.
    fn measure(
        &self,
        drive: &NamedDrive,
        way: &EncoderSetup,
        seed: u64,
    ) -> anyhow::Result<Option<ViewerFigures>> {
        let links = drive.drive.links.iter().zip(0..);
        let links = links.filter(|(link, _)| match &way.over {
            EncoderLinks::Alone(name) => link.name == *name,
            EncoderLinks::All(_) | EncoderLinks::Each => true,
        });
        let links = links.map(|(link, index)| DuplexLink::new(link, index, seed));
        let links: Vec<_> = links.map(|link| self.losses.on(link)).collect();
        if links.is_empty() {
            return Ok(None);
        }
        // A single link needs no scheduler: it uses LoLa's loop over one path.
        let strategy = match &way.over {
            EncoderLinks::All(strategy) => strategy.clone(),
            EncoderLinks::Alone(_) | EncoderLinks::Each => "lola".parse()?,
        };
        let closed_loop = ClosedLoop {
            links,
            strategy,
            encoder: way.encoder,
            deadline: DEADLINE,
            fps: FPS,
            seconds: self.seconds,
            seed,
        };
        Ok(Some(closed_loop.run()?))
    }

    /// The class for a video of 30 Mbit/s, the rate of `roadweave lab compare`.
    fn class(&self, drive: &NamedDrive) -> Class {
        let links: Vec<_> = drive.drive.links.iter().map(|link| &link.up).collect();
        Class::of(&links, RATE_MAX, Duration::from_secs(self.seconds.into()))
    }
}

const EACH_SINGLE: &str = "each-single";
const RATE_MAX: Rate = Rate::from_kbps(30_000);
const DEADLINE: Duration = Duration::from_millis(100);
const FPS: u32 = 30;
