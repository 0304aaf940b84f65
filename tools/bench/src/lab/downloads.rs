//! `roadweave lab downloads`: goodput of a download as a stream over two links.

mod results;

use std::str::FromStr;

use anyhow::Context as _;
use roadweave_lab::downloads::Download;
use roadweave_lab::profiles::{Over, PROFILES, Profile};
use roadweave_lab::strategies;
use roadweave_quic::CongestionControl;
use roadweave_terminal::exit::BadInput;
use roadweave_tunnel::{LaneConfig, Strategy, StreamsConfig};

use self::results::{ByTcp, DownloadCase, DownloadResults, DownloadRun};
use super::losses::Losses;
use super::workers::Runs;

/// Measures how much of two links a download as a stream uses
///
/// On each of 16 pairs of links a client downloads over each link alone and over both. A model of
/// TCP downloads the same over each link, without a tunnel. Equal arguments give equal results.
#[derive(Debug, clap::Args)]
pub struct DownloadsArgs {
    /// Measure only these pairs, separated by commas
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    only: Vec<String>,
    /// The size of a download, MiB
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    mebibytes: u16,
    /// The strategy of the lane that carries streams; default: the product's
    #[arg(long, value_name = "NAME", value_parser = strategies::strategy)]
    strategy: Option<Strategy>,
    /// The congestion control of every path
    #[arg(long, value_name = "NAME", default_value_t = CongestionControl::Bbr)]
    congestion: CongestionControl,
    /// The congestion controls of TCP: cubic, bbr, or none
    #[arg(long, value_name = "NAME,..", default_value = "cubic,bbr")]
    tcp: Algorithms,
    /// The number of seeds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    seeds: u16,
    #[command(flatten)]
    losses: Losses,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Clone, Copy, Debug)]
struct DownloadJob {
    pair: &'static Profile,
    over: Over,
    seed: u64,
}

/// Without duplicates.
#[derive(Clone, Debug)]
struct Algorithms(Vec<CongestionControl>);

impl DownloadsArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        self.losses.get()?;
        let pairs = self.pairs()?;
        let mut jobs = Vec::new();
        for &pair in &pairs {
            for over in [Over::One(0), Over::One(1), Over::All] {
                jobs.extend((1..=self.seeds.into()).map(|seed| DownloadJob { pair, over, seed }));
            }
        }
        let name = |job: usize| format!("{}: {:?}", jobs[job].pair.name, jobs[job].over);
        let work = |job: usize| self.measure(jobs[job]).context("the links are invalid");
        let done = self.runs.finish(jobs.len(), name, work)?;
        let mut by_job = done.chunks(self.seeds.into()).map(<[DownloadRun]>::to_vec);
        let mut next = || by_job.next().context("a pair has three jobs");
        let cases = pairs.iter().map(|pair| {
            let name = pair.name.to_owned();
            Ok(DownloadCase { name, alone: [next()?, next()?], all: next()? })
        });
        let cases = cases.collect::<anyhow::Result<_>>()?;
        let results = DownloadResults { seeds: self.seeds, cases };
        self.runs.print(&results, DownloadResults::in_words)
    }

    fn measure(
        &self,
        DownloadJob { pair, over, seed }: DownloadJob,
    ) -> anyhow::Result<DownloadRun> {
        let lane = self.strategy.clone().map(|strategy| {
            let lane = StreamsConfig::default().lane;
            LaneConfig { strategy, ..lane }
        });
        let links = pair.world_links(over, seed).into_iter();
        let links = links.map(|link| self.losses.on(link)).collect();
        let bytes = u32::from(self.mebibytes) << 20;
        let congestion = self.congestion;
        let download = Download { lane, congestion, ..Download::new(links, bytes, seed) };
        let by_tcp = |&congestion| ByTcp { congestion, goodput_mbps: download.by_tcp(congestion) };
        let tcp = match over {
            Over::One(_) => self.tcp.0.iter().map(by_tcp).collect(),
            Over::All => Vec::new(),
        };
        Ok(DownloadRun { stream: download.run()?, tcp })
    }

    fn pairs(&self) -> anyhow::Result<Vec<&'static Profile>> {
        let is_known = |name: &&String| PROFILES.iter().any(|pair| pair.name == **name);
        if let Some(unknown) = self.only.iter().find(|name| !is_known(name)) {
            let names = PROFILES.each_ref().map(|pair| pair.name).join(", ");
            let problem = format!("--only: there is no `{unknown}`; there are {names}");
            return Err(BadInput::new(problem).into());
        }
        let is_asked =
            |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        Ok(PROFILES.iter().filter(|pair| is_asked(pair.name)).collect())
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
