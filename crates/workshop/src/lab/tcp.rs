//! `roadweave lab tcp`: the lab's TCP beside the kernel's.
//!
//! ```text
//! Setting ─┬─ roadweave emulate between namespaces, kernel sockets ─► rounds ─┐
//!          └─ the same link in virtual time, model ────────────────► seeds ──┴─► apart by a share
//! ```

mod kernel;
mod results;
mod settings;

use std::time::Duration;

use anyhow::Context as _;
use roadweave_device::netns::Sandbox;
use roadweave_emulate::{Direction, DuplexLink, Jitter};
use roadweave_lab::tcp::fetch::fetch;
use roadweave_lab::tcp::{Algorithm, SocketConfig};
use roadweave_terminal::exit::{self, BadInput};
use roadweave_terminal::out;
use roadweave_types::SplitMix64;

use self::kernel::Kernel;
use self::results::{Results, Row};
use self::settings::{SETTINGS, Setting, Task};
use super::workers::work_all;

/// Holds the lab's TCP against the kernel's, over the same emulated links
///
/// Downloads for some seconds, and of 32 kB, 200 kB and 2 MB, by cubic and bbr: by the kernel
/// between two network namespaces in real time, and by the model in virtual time. It wants a
/// machine that does little else: what is late there is late for the kernel alone.
#[derive(Debug, clap::Args)]
pub struct TcpArgs {
    /// How often the kernel does each
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    rounds: u16,
    /// How often the model does each
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    seeds: u16,
    /// How long a download without an end lasts, seconds
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=600))]
    seconds: u16,
    /// Measure only these settings, separated by commas; they are called as in the table
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    only: Vec<String>,
    /// On so many links at a time, each with one connection
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    links: u16,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

impl TcpArgs {
    /// Measures.
    ///
    /// # Errors
    /// [`BadInput`] for a setting that is not there; else when the system refuses namespaces, or a
    /// connection breaks.
    pub fn run(&self) -> anyhow::Result<()> {
        let settings = self.settings()?;
        match Sandbox::enter()? {
            Sandbox::Ended(code) => exit::now(code),
            Sandbox::Inside => {
                // Who may not is late more often.
                let _ = rustix::process::setpriority_process(None, URGENT);
                let rows = self.measure(&settings)?;
                let results = Results::new(rows);
                if self.json { out::json(&results) } else { Ok(out::print(results.in_words())?) }
            }
        }
    }

    fn settings(&self) -> anyhow::Result<Vec<Setting>> {
        let name = |setting: &Setting| setting.to_string();
        if let Some(unknown) =
            self.only.iter().find(|it| SETTINGS.iter().all(|at| name(at) != **it))
        {
            let known: Vec<String> = SETTINGS.iter().map(name).collect();
            let problem =
                format!("--only: no setting \"{unknown}\"; there are {}", known.join(", "));
            return Err(BadInput::new(problem).into());
        }
        let is_asked =
            |setting: &&Setting| self.only.is_empty() || self.only.contains(&setting.to_string());
        Ok(SETTINGS.iter().filter(is_asked).copied().collect())
    }

    fn measure(&self, settings: &[Setting]) -> anyhow::Result<Vec<Row>> {
        let fields: Vec<_> = (0..).zip(settings).map(|(at, it)| it.fields(at)).collect();
        let links = DuplexLink::of_fields(&fields, 1, std::path::Path::new("."))?;
        let kernel = Kernel::start(&fields)?;
        let by_kernel = |at: usize| {
            self.all(|algorithm, task| {
                let rounds = 0..self.rounds;
                rounds.map(|_| kernel.fetch(at, algorithm, task, self.time(task))).collect()
            })
        };
        let name = |at: usize| format!("{} by the kernel", settings[at]);
        let kernels = work_all(self.links.into(), settings.len(), name, by_kernel)?;
        let by_model = |at: usize| {
            self.all(|algorithm, task| {
                let seeds = 1..=u64::from(self.seeds);
                Ok(seeds.map(|seed| self.model(&links[at], algorithm, task, seed)).collect())
            })
        };
        let name = |at: usize| format!("{} by the model", settings[at]);
        let models = work_all(2, settings.len(), name, by_model)?;
        let mut rows = Vec::new();
        for ((setting, kernel), model) in settings.iter().zip(kernels).zip(models) {
            let kernel = kernel.context("interrupted")?;
            let model = model.context("interrupted")?;
            for ((algorithm, task, kernel), (.., model)) in kernel.into_iter().zip(model) {
                rows.push(Row::new(setting, algorithm, task, &kernel, &model));
            }
        }
        Ok(rows)
    }

    /// The figures of every algorithm and task.
    fn all(
        &self,
        work: impl Fn(Algorithm, Task) -> anyhow::Result<Vec<f64>>,
    ) -> anyhow::Result<Vec<(Algorithm, Task, Vec<f64>)>> {
        let each = Algorithm::ALL.into_iter().flat_map(|it| Task::ALL.map(|task| (it, task)));
        each.map(|(algorithm, task)| Ok((algorithm, task, work(algorithm, task)?))).collect()
    }

    fn time(&self, task: Task) -> Duration {
        match task {
            Task::Bulk => Duration::from_secs(self.seconds.into()),
            Task::Bytes(_) => TIME_MAX,
        }
    }

    /// Mbit/s, or seconds of a task with an end.
    fn model(&self, link: &DuplexLink, algorithm: Algorithm, task: Task, seed: u64) -> f64 {
        let mut link = link.clone();
        for (way, word) in [(&mut link.up, 0), (&mut link.down, 1)] {
            way.seed = SplitMix64::word(seed, word);
            way.jitter.get_or_insert(LATENESS);
        }
        let config = SocketConfig { algorithm, mtu: 1_500, seed };
        let fetched = fetch(&link, &config, (Direction::Down, task.bytes()), self.time(task));
        match task {
            Task::Bulk => fetched.goodput_mbps(),
            Task::Bytes(_) => fetched.took.as_secs_f64(),
        }
    }
}

/// The most urgent that a process may be.
const URGENT: i32 = -20;
/// What a machine is late by: without it all seeds would meet a full queue with the same segment.
const LATENESS: Jitter = Jitter { deviation: Duration::from_micros(50), reorders: false };
/// A task with an end is over by then.
const TIME_MAX: Duration = Duration::from_secs(60);
