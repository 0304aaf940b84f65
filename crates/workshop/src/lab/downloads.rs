//! `roadweave lab downloads`: how much of the links does a download as a stream get, and is it
//! ever slower than by TCP?

mod ratios;
mod results;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_emulate::{Drive, DuplexLink, LENGTH_MAX};
use roadweave_lab::class::Class;
use roadweave_lab::downloads::{Download, Size, links_of_drive};
use roadweave_lab::profiles::{Over, PROFILES, Profile};
use roadweave_lab::tcp::Algorithm;
use roadweave_quic::CongestionControl;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use roadweave_tunnel::{LaneConfig, Strategy, StreamsConfig};
use roadweave_types::Rate;

use self::ratios::Kind;
use self::results::{ByTcp, Measured, Results, Run};
use super::drives;
use super::workers::work_all;

/// Measures how much of the links a download as a stream gets
///
/// On each of the 16 pairs of links of `lab profiles`, or on each drive of a directory, a client
/// downloads over each link alone and over all of them. Of a link's capacity, TCP without a tunnel
/// could get 96.5 %: that is what is called possible here. A model of TCP downloads the same, over
/// each link without a tunnel, and through the tunnel over all. Equal arguments give equal results.
#[derive(Debug, clap::Args)]
pub struct DownloadsArgs {
    /// Measure the recorded drives of this directory instead, for `--seconds` each
    #[arg(long, value_name = "DIR")]
    drives: Option<PathBuf>,
    /// Measure only these profiles or drives, separated by commas
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    only: Vec<String>,
    /// What a download over a profile carries, MiB
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    mebibytes: u16,
    /// How long a download over a drive lasts, seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=600))]
    seconds: u16,
    /// The strategy of the lane of streams; default: that of the product
    #[arg(long, value_name = "NAME")]
    strategy: Option<Strategy>,
    /// The congestion control of every path
    #[arg(long, value_name = "NAME", default_value_t = CongestionControl::Bbr)]
    congestion: CongestionControl,
    /// Let the session carry a download before the one that counts
    #[arg(long)]
    warm: bool,
    /// TCP by which congestion controls stands beside the streams: cubic, bbr, or none of them
    #[arg(long, value_name = "NAME,..", default_value = "cubic,bbr")]
    tcp: Algorithms,
    /// How many seeds everything is run with
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    seeds: u16,
    /// How many runs at a time; default: one per core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    jobs: Option<u16>,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

/// One run: of which conditions, over which links, with which seed.
#[derive(Clone, Copy, Debug)]
struct Job {
    at: usize,
    over: Over,
    seed: u64,
}

/// What is downloaded over.
#[derive(Debug)]
struct Conditions {
    name: String,
    links: Links,
}

#[derive(Debug)]
enum Links {
    Profile(usize),
    Drive(Drive),
}

/// The congestion controls of TCP, each once.
#[derive(Clone, Debug)]
struct Algorithms(Vec<Algorithm>);

impl DownloadsArgs {
    /// Measures.
    ///
    /// # Errors
    /// [`BadInput`] for an unknown profile or drive; else when a run fails or was interrupted.
    pub fn run(&self) -> anyhow::Result<()> {
        let all = self.conditions()?;
        let mut jobs = Vec::new();
        for (at, conditions) in all.iter().enumerate() {
            let singles = (0..conditions.links(1).len()).map(Over::One);
            for over in singles.chain([Over::All]) {
                jobs.extend((1..=self.seeds.into()).map(|seed| Job { at, over, seed }));
            }
        }
        let name = |job: usize| format!("{}: {:?}", all[jobs[job].at].name, jobs[job].over);
        let work = |job: usize| {
            let Job { at, over, seed } = jobs[job];
            self.measure(&all[at], over, seed).context("the links make no world")
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = self.jobs.map_or(cores, usize::from);
        let done = work_all(workers, jobs.len(), name, work)?;
        let Some(done) = done.into_iter().collect::<Option<Vec<Run>>>() else {
            bail!("interrupted");
        };
        let results = Results::new(self.seeds, gather(&all, done, self.seeds.into())?);
        if self.json { out::json(&results) } else { Ok(out::print(results.in_words())?) }
    }

    /// A stream, and TCP over the same: without a tunnel over a link alone, else through it.
    fn measure(&self, conditions: &Conditions, over: Over, seed: u64) -> anyhow::Result<Run> {
        let download = self.download(conditions, over, seed);
        let mbps = |algorithm| match over {
            Over::One(_) => Ok(download.by_links(algorithm)[0].goodput_mbps()),
            Over::All => download.by_tunnel(algorithm).map(|fetched| fetched.goodput_mbps()),
        };
        let by_tcp =
            |&congestion| mbps(congestion).map(|it| ByTcp { congestion, goodput_mbps: it });
        let tcp = self.tcp.0.iter().map(by_tcp).collect::<Result<_, _>>()?;
        Ok(Run { stream: download.run()?, tcp })
    }

    fn download(&self, conditions: &Conditions, over: Over, seed: u64) -> Download {
        let size = match conditions.links {
            Links::Profile(_) => Size::Bytes(u64::from(self.mebibytes) << 20),
            Links::Drive(_) => Size::Time(Duration::from_secs(self.seconds.into())),
        };
        let lane = self.strategy.clone().map(|strategy| {
            let lane = StreamsConfig::default().lane;
            LaneConfig { strategy, ..lane }
        });
        let (congestion, is_warm) = (self.congestion, self.warm);
        let links = over.pick(conditions.links(seed).into_iter());
        Download { lane, congestion, is_warm, ..Download::new(links, size, seed) }
    }

    fn conditions(&self) -> anyhow::Result<Vec<Conditions>> {
        let mut all: Vec<Conditions> = match &self.drives {
            None => {
                let named = |(at, profile): (usize, &Profile)| Conditions {
                    name: profile.name.into(),
                    links: Links::Profile(at),
                };
                PROFILES.iter().enumerate().map(named).collect()
            }
            Some(directory) => drives::read(directory)?
                .into_iter()
                .map(|it| Conditions { name: it.name, links: Links::Drive(it.drive) })
                .collect(),
        };
        let is_known = |name: &&String| all.iter().any(|conditions| conditions.name == **name);
        if let Some(unknown) = self.only.iter().find(|name| !is_known(name)) {
            let names: Vec<_> = all.iter().map(|conditions| &*conditions.name).collect();
            let names = names.join(", ");
            return Err(
                BadInput::new(format!("--only: there is no `{unknown}`, but {names}")).into()
            );
        }
        all.retain(|conditions| self.only.is_empty() || self.only.contains(&conditions.name));
        Ok(all)
    }
}

impl Conditions {
    fn links(&self, seed: u64) -> Vec<DuplexLink> {
        match &self.links {
            Links::Profile(at) => PROFILES[*at].world_links(seed),
            Links::Drive(drive) => links_of_drive(&drive.links, seed),
        }
    }

    fn class(&self) -> Kind {
        match &self.links {
            Links::Profile(at) if PROFILES[*at].is_clean() => Kind::Clean,
            Links::Profile(_) => Kind::Rough,
            Links::Drive(drive) => {
                let links: Vec<_> = drive.links.iter().map(|link| &link.up).collect();
                let length = drive.length().map_or(Duration::from_secs(1), |it| it.min(LENGTH_MAX));
                Kind::Drive(Class::of(&links, CLASSED_AT, length))
            }
        }
    }
}

impl FromStr for Algorithms {
    type Err = String;

    fn from_str(names: &str) -> Result<Self, Self::Err> {
        let mut all = Vec::new();
        for name in names.split(',').filter(|_| names != "none") {
            let algorithm = name.parse().map_err(|error: String| format!("{error}, or none"))?;
            if !all.contains(&algorithm) {
                all.push(algorithm);
            }
        }
        Ok(Self(all))
    }
}

/// The results of all jobs, in their order, by conditions.
fn gather(all: &[Conditions], done: Vec<Run>, seeds: usize) -> anyhow::Result<Vec<Measured>> {
    let mut by_link = done.chunks(seeds).map(<[Run]>::to_vec);
    let measured = all.iter().map(|conditions| {
        let links: Vec<String> = conditions.links(1).into_iter().map(|link| link.name).collect();
        let alone = by_link.by_ref().take(links.len()).collect();
        let all = by_link.next().context("all links follow the single ones")?;
        let (name, class) = (conditions.name.clone(), conditions.class());
        Ok(Measured { name, class, links, alone, all })
    });
    measured.collect()
}

/// The class of a drive is that for a video of this rate, which `roadweave lab compare` sends by
/// default.
const CLASSED_AT: Rate = Rate::from_kbps(30_000);
