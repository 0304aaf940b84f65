//! `roadweave lab applications`: calls and transfers through the tunnel and over single links.

mod results;

use anyhow::Context as _;
use roadweave_emulate::DuplexLink;
use roadweave_lab::applications::{AppFigures, Application, ApplicationRun, Way};

use self::results::{AppResults, AppRun};
use super::drives::{DriveOptions, NamedDrive};
use super::losses::Losses;
use super::workers::Runs;

/// Runs applications with a congestion control of their own, over recorded drives
///
/// Each runs through the tunnel over all links of a drive, and over each link without a tunnel. The
/// best of these in hindsight is what each way is compared with. `call` is a WebRTC call of up to
/// 16 Mbit/s, `cubic` and `bbr` are TCP uploads without end. Equal arguments give equal results.
#[derive(Debug, clap::Args)]
pub struct ApplicationsArgs {
    #[command(flatten)]
    drives: DriveOptions,
    /// The applications, separated by commas
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', default_value = "call,cubic,bbr")]
    applications: Vec<Application>,
    /// The ways through the tunnel, separated by commas: `default` lanes, or one lane of a strategy
    #[arg(
        long,
        value_name = "WAY,..",
        value_delimiter = ',',
        default_value = "default,minrtt,redundant"
    )]
    ways: Vec<Way>,
    /// How long each runs, seconds
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
struct AppJob {
    drive: usize,
    application: Application,
    way: Way,
    seed: u64,
}

impl ApplicationsArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        self.losses.get()?;
        let drives = self.drives.read()?;
        let mut jobs = Vec::new();
        for (drive, named) in drives.iter().enumerate() {
            let links = (0..named.drive.links.len()).map(Way::Link);
            let ways: Vec<Way> = links.chain(self.ways.iter().cloned()).collect();
            for &application in &self.applications {
                for way in &ways {
                    jobs.extend((1..=self.seeds.into()).map(|seed| AppJob {
                        drive,
                        application,
                        way: way.clone(),
                        seed,
                    }));
                }
            }
        }
        let name = |job: usize| {
            let AppJob { drive, application, way, .. } = &jobs[job];
            format!("{}: {application}, {way}", drives[*drive].name)
        };
        let work = |job: usize| {
            let job = &jobs[job];
            self.measure(&drives[job.drive], job).context("the links are invalid")
        };
        let done = self.runs.finish(jobs.len(), name, work)?;
        let runs = jobs.iter().zip(done).map(|(job, figures)| AppRun {
            drive: drives[job.drive].name.clone(),
            application: job.application,
            way: match job.way {
                Way::Link(at) => drives[job.drive].drive.links[at].name.clone(),
                ref way => way.to_string(),
            },
            is_link: matches!(job.way, Way::Link(_)),
            seed: job.seed,
            figures,
        });
        let results = AppResults::of(runs.collect());
        self.runs.print(&results, AppResults::in_words)
    }

    fn measure(&self, drive: &NamedDrive, job: &AppJob) -> anyhow::Result<AppFigures> {
        let links = drive.drive.links.iter().zip(0..);
        let links = links.map(|(link, index)| DuplexLink::new(link, index, job.seed));
        let run = ApplicationRun {
            application: job.application,
            links: links.map(|link| self.losses.on(link)).collect(),
            seconds: self.seconds,
            seed: job.seed,
        };
        Ok(run.over(&job.way)?)
    }
}
