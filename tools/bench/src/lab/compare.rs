//! `roadweave lab compare`: many drives under many strategies.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use roadweave_lab::bound::{Bound, Curve};
use roadweave_lab::compare::{Compared, Comparison, Contestant, Measured, Setting};
use roadweave_lab::run;
use roadweave_lab::scenario::Scenario;
use roadweave_lab::traffic::TrafficSpec;
use roadweave_lab::world::Machine;
use roadweave_proto::Rate;
use roadweave_quic::CongestionControl;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use roadweave_tunnel::Strategy;

use super::drives::{self, NamedDrive};
use super::losses::Losses;
use super::pictures::Pictures;
use super::saved_runs::{Key, SavedRuns};
use super::table;
use super::workers::work_all;
use crate::rate;

/// Runs every strategy on every drive, in virtual time, and compares what a viewer sees
///
/// Besides the tunnel's strategies, `single:*` is each link of a drive by itself, and `best-single`
/// the best of them. Equal arguments give equal results, to the byte, on any number of cores.
#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// A directory with a directory per drive, in each a file LINK.csv per link, or Mahimahi files
    /// LINK.up and LINK.down
    #[arg(long, value_name = "DIR")]
    drives: PathBuf,
    /// Strategies; the others are compared with the first
    #[arg(long, value_delimiter = ',', default_value = "best-single,minrtt,xnc")]
    strategies: Vec<String>,
    /// Rate of the video, bit/s, as in 30M or 800k
    #[arg(long, default_value = "30M", value_parser = rate::parse_video)]
    bitrate: Rate,
    /// Duration of the stream on each drive, seconds
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, counting up from --seed; each drive runs once per seed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    seeds: u32,
    /// Congestion control of every path: bbr or cubic
    #[arg(long, default_value_t)]
    congestion: CongestionControl,
    /// The machine that both ends run on: punctual, or one that wakes late:
    /// idle, busy or crowded
    #[arg(long, default_value_t)]
    machine: Machine,
    #[command(flatten)]
    losses: Losses,
    /// Let strategies that resend until a packet arrives deliver in order, as a QUIC stream does
    #[arg(long)]
    rivals_in_order: bool,
    /// The number of parallel runs; default: one per core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    jobs: Option<u16>,
    /// Write each result to FILE as soon as it is ready, and reuse the results in FILE
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Decode what arrives with ffmpeg and compare the pictures; much slower
    #[arg(long)]
    ssim: bool,
    /// Print the comparison as one JSON object
    #[arg(long)]
    json: bool,
    /// With --json: also delays and time lines of each run, as `lab report` needs them
    #[arg(long, requires = "json")]
    details: bool,
}

struct Plan {
    setting: Setting,
    drives: Vec<NamedDrive>,
    cases: Vec<Case>,
    contestants: Vec<Contestant>,
    pictures: Option<Pictures>,
    video: TrafficSpec,
    saved: Option<SavedRuns>,
    program: String,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    drive: usize,
    seed: u64,
}

#[derive(Clone, Debug)]
enum CompareJob {
    Bound { case: usize },
    Run { case: usize, strategy: Strategy },
}

enum Done {
    Bound(Box<(Bound, Curve)>),
    Run(Box<Measured>),
}

impl CompareArgs {
    /// Compares; [`BadInput`] for wrong arguments and recordings.
    pub fn run(&self) -> anyhow::Result<()> {
        let plan = self.plan()?;
        let jobs = plan.jobs();
        let name = |job: usize| plan.name(&jobs[job]);
        let done = work_all(self.jobs, jobs.len(), name, |job| plan.work(&jobs[job]))?;

        let missing = done.iter().filter(|done| done.is_none()).count();
        let comparison = plan.put_together(&jobs, done);
        if missing == 0 || !comparison.drives.is_empty() {
            self.print(comparison)?;
        }
        if missing > 0 {
            let hint = match &self.resume {
                Some(file) => format!("{} has the finished runs", file.display()),
                None => "--resume FILE saves finished runs".to_owned(),
            };
            bail!("interrupted with {missing} of {} runs left; {hint}", jobs.len());
        }
        Ok(())
    }

    fn plan(&self) -> anyhow::Result<Plan> {
        if self.details && self.seeds > 1 {
            let why = "--details: a report shows one seed; omit --seeds".to_owned();
            return Err(BadInput::new(why).into());
        }
        let names = self.strategies.iter().map(String::as_str);
        let contestants = Contestant::parse_all(names).map_err(|error| {
            BadInput::new(format!("--strategies: {error}, single:*, best-single"))
        })?;
        let setting = Setting {
            bitrate_bps: self.bitrate.as_bps(),
            seconds: self.seconds,
            seed: self.seed,
            congestion: self.congestion,
            machine: self.machine,
            loss: self.losses.get()?,
            rivals_in_order: self.rivals_in_order,
        };
        let drives = drives::read(&self.drives)?;
        check_links(&contestants, &drives)?;
        let seeds = || (0..u64::from(self.seeds)).map(|number| self.seed.wrapping_add(number));
        let of_drive = |drive| seeds().map(move |seed| Case { drive, seed });
        let cases = (0..drives.len()).flat_map(of_drive).collect();
        let saved = self.resume.as_deref().map(SavedRuns::open).transpose()?;
        let pictures = self.ssim.then(|| Pictures::prepare(&setting)).transpose()?;
        let video = match &pictures {
            Some(pictures) => pictures.video(&setting),
            None => setting.video(),
        };
        let program = std::env::current_exe().context("cannot find this program")?;
        let program = drives::digest_of_file(&program)?;
        Ok(Plan { setting, drives, cases, contestants, pictures, video, saved, program })
    }

    fn print(&self, comparison: Comparison) -> anyhow::Result<()> {
        match (self.json, self.details) {
            (false, _) => Ok(out::print(table::render(&comparison))?),
            (true, true) => out::json_line(&comparison),
            (true, false) => out::json(&comparison.without_details()),
        }
    }
}

impl Plan {
    fn jobs(&self) -> Vec<CompareJob> {
        let of_case = |(case, of): (usize, &Case)| {
            let strategies =
                Contestant::strategies(&self.contestants, &self.drives[of.drive].drive);
            let runs =
                strategies.into_iter().map(move |strategy| CompareJob::Run { case, strategy });
            std::iter::once(CompareJob::Bound { case }).chain(runs)
        };
        self.cases.iter().enumerate().flat_map(of_case).collect()
    }

    fn name(&self, job: &CompareJob) -> String {
        let drive = |case: &usize| &self.drives[self.cases[*case].drive].name;
        match job {
            CompareJob::Bound { case } => format!("bound on {}", drive(case)),
            CompareJob::Run { case, strategy } => format!("{strategy} on {}", drive(case)),
        }
    }

    fn work(&self, job: &CompareJob) -> anyhow::Result<Done> {
        match job {
            CompareJob::Bound { case } => {
                // The bound does not depend on the strategy.
                let scenario = self.scenario(self.cases[*case], &Strategy::xnc());
                let bound = Bound::of_scenario(&scenario).context("this drive has no bound")?;
                Ok(Done::Bound(Box::new(bound)))
            }
            CompareJob::Run { case, strategy } => self
                .measure(self.cases[*case], strategy)
                .map(|measured| Done::Run(Box::new(measured))),
        }
    }

    fn measure(&self, case: Case, strategy: &Strategy) -> anyhow::Result<Measured> {
        let drive = &self.drives[case.drive];
        let key = Key {
            drive: drive.name.clone(),
            strategy: strategy.as_str().to_owned(),
            setting: self.setting(case),
            clip: self.pictures.as_ref().map(|pictures| pictures.fingerprint.clone()),
            recordings: drive.fingerprint.clone(),
            program: self.program.clone(),
        };
        if let Some(measured) = self.saved.as_ref().and_then(|saved| saved.find(&key)) {
            return Ok(measured.clone());
        }
        let outcome = run::run(&self.scenario(case, strategy))?;
        let mut measured = Measured::new(&outcome);
        if let Some(pictures) = &self.pictures {
            let name = format!("{strategy} on {}", drive.name);
            measured.figures.ssim = Some(pictures.ssim(&name, &outcome)?);
        }
        if let Some(saved) = &self.saved {
            saved.keep(&key, &measured)?;
        }
        Ok(measured)
    }

    fn setting(&self, case: Case) -> Setting {
        Setting { seed: case.seed, ..self.setting.clone() }
    }

    fn scenario(&self, case: Case, strategy: &Strategy) -> Scenario {
        let NamedDrive { name, drive, .. } = &self.drives[case.drive];
        self.setting(case).scenario(name, drive, strategy.clone(), &self.video)
    }

    fn put_together(&self, jobs: &[CompareJob], done: Vec<Option<Done>>) -> Comparison {
        let mut bounds = vec![None; self.cases.len()];
        let mut measured: Vec<Option<Vec<Measured>>> = vec![Some(Vec::new()); self.cases.len()];
        for (job, done) in jobs.iter().zip(done) {
            match (job, done) {
                (CompareJob::Bound { case }, Some(Done::Bound(bound))) => {
                    bounds[*case] = Some(*bound)
                }
                (CompareJob::Run { case, .. }, Some(Done::Run(run))) => {
                    measured[*case].iter_mut().for_each(|runs| runs.push((*run).clone()));
                }
                (CompareJob::Bound { case } | CompareJob::Run { case, .. }, _) => {
                    measured[*case] = None
                }
            }
        }
        let compared = self.cases.iter().zip(bounds).zip(measured);
        let compared = compared.filter_map(|((case, bound), measured)| {
            let NamedDrive { name, drive, .. } = &self.drives[case.drive];
            let class = self.setting.class(drive);
            let (bound, measured) = (bound?, measured?);
            let compared = Compared::new(name, class, bound, &self.contestants, drive, &measured);
            Some(Compared { seed: case.seed, ..compared })
        });
        Comparison::new(env!("CARGO_PKG_VERSION"), self.setting.clone(), compared.collect())
    }
}

fn check_links(contestants: &[Contestant], drives: &[NamedDrive]) -> Result<(), BadInput> {
    for contestant in contestants {
        let Contestant::Strategy(strategy) = contestant else { continue };
        let Some(wanted) = strategy.as_str().strip_prefix("single:") else { continue };
        for NamedDrive { name, drive, .. } in drives {
            let links: Vec<&str> = drive.links.iter().map(|link| link.name.as_str()).collect();
            if !links.contains(&wanted) {
                return Err(BadInput::new(format!(
                    "--strategies: {strategy}: drive {name} has no link {wanted}; it has {}",
                    links.join(", ")
                )));
            }
        }
    }
    Ok(())
}
