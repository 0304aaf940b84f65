//! `roadweave lab vod`: XLINK's evaluation, video on demand over streams.

mod pairs;
mod results;

use std::path::PathBuf;
use std::time::Duration;

use roadweave_lab::vod::{
    self, Chosen, Over, Pair, ProgramKind, ServerTraffic, Setting, Viewing, Way,
};
use roadweave_quic::CongestionControl;
use roadweave_terminal::exit::BadInput;

use self::results::VodResults;
use super::workers::Runs;

/// Measures what viewers of video on demand see when it comes as streams
///
/// On each pair of links it searches for a bitrate at which the better link alone stalls for 1 to
/// 10 % of the playing time. Then viewers watch one long video, and short ones that they swipe,
/// over each link alone and over both, with one strategy after the other. Equal arguments give
/// equal results.
#[derive(Debug, clap::Args)]
pub struct VodArgs {
    /// Recorded pairs: NAME_wifi.csv with NAME_cellular.csv, and every two of NAME_down.mm with
    /// NAME_up.mm, in this directory and its subdirectories; default: synthetic pairs
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// The number of synthetic pairs
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pairs: u16,
    /// Measure only these pairs, separated by commas
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    only: Vec<String>,
    /// How the video is carried over all links: strategies of streams, separated by commas. With
    /// `+first` behind its name, a strategy sends the first frame before everything else.
    /// tunnel:cubic and tunnel:bbr are TCP through the tunnel
    #[arg(long, value_name = "WAY,..", value_delimiter = ',')]
    ways: Vec<Way>,
    /// The number of viewers of each kind on each pair
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=100))]
    seeds: u16,
    /// How long each viewer watches, seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u16).range(5..=3_600))]
    seconds: u16,
    /// The congestion control of every path
    #[arg(long, default_value_t = CongestionControl::default())]
    congestion: CongestionControl,
    #[command(flatten)]
    runs: Runs,
}

/// By seed.
type Viewers = Vec<(Viewing, ServerTraffic)>;

#[derive(Debug)]
struct VodJob<'a> {
    pair: &'a Pair,
    chosen: &'a Chosen,
    kind: ProgramKind,
    over: Over,
    seed: u16,
}

impl VodArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let pairs = self.pairs()?;
        let ways = if self.ways.is_empty() { Way::all() } else { self.ways.clone() };
        let setting = Setting {
            lasting: Duration::from_secs(self.seconds.into()),
            seeds: self.seeds,
            congestion: self.congestion,
        };
        let choose = |at: usize| Ok(vod::choose(&pairs[at], setting)?);
        let name = |at: usize| format!("bitrate for {}", pairs[at].name);
        let chosen = self.runs.finish(pairs.len(), name, choose)?;
        let jobs = jobs(&pairs, &chosen, &ways, self.seeds);
        let work = |at: usize| {
            let VodJob { pair, chosen, kind, over, seed } = &jobs[at];
            Ok(pair.view(over, (*kind, chosen.bitrate), setting, *seed)?)
        };
        let name = |at: usize| format!("{} on {}", jobs[at].over, jobs[at].pair.name);
        let seen = self.runs.finish(jobs.len(), name, work)?;
        let results = VodResults::new(setting, &pairs, &chosen, &ways, seen);
        self.runs.print(&results, VodResults::in_words)
    }

    fn pairs(&self) -> anyhow::Result<Vec<Pair>> {
        let mut pairs = match &self.traces {
            Some(directory) => pairs::read(directory)?,
            None => (1..=self.pairs.into()).map(Pair::synthetic).collect(),
        };
        if let Some(unknown) =
            self.only.iter().find(|name| pairs.iter().all(|pair| pair.name != **name))
        {
            let known: Vec<&str> = pairs.iter().map(|pair| &pair.name[..]).collect();
            let problem = format!("--only: no pair \"{unknown}\"; there are {}", known.join(", "));
            return Err(BadInput::new(problem).into());
        }
        pairs.retain(|pair| self.only.is_empty() || self.only.contains(&pair.name));
        Ok(pairs)
    }
}

/// By pair, by kind, over each link alone (known already for long videos) and by each way, by seed.
fn jobs<'a>(pairs: &'a [Pair], chosen: &'a [Chosen], ways: &[Way], seeds: u16) -> Vec<VodJob<'a>> {
    let mut jobs = Vec::new();
    for (pair, chosen) in pairs.iter().zip(chosen) {
        for kind in [ProgramKind::Long, ProgramKind::Short] {
            let alone = if kind == ProgramKind::Long { 0 } else { pair.links.len() };
            let all = ways.iter().cloned().map(Over::All);
            for over in (0..alone).map(Over::One).chain(all) {
                let job = |seed| VodJob { pair, chosen, kind, over: over.clone(), seed };
                jobs.extend((1..=seeds).map(job));
            }
        }
    }
    jobs
}
