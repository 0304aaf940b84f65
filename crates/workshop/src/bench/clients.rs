//! `roadweave bench clients`: one server, thousands of clients, and what they cost.
//!
//! ```text
//!   clients namespace                               server namespace
//!   this process: a Client for each, a socket  ═══  roadweave server = rw1 ── sink: streams' delays
//!   for each path, an address for each path
//!                     all join ─► all idle ─► some stream ─► the server is killed and started again
//! ```
//!
//! The server is the product, as a process. The clients are the product's as well, without devices
//! and in one process, so that the figures are the server's. Both share the cores of this machine.

mod crowd;
mod results;
mod site;
mod stream;

use std::time::Duration;

use anyhow::bail;
use roadweave_device::netns::Sandbox;
use roadweave_terminal::exit::{self, BadInput};
use roadweave_terminal::out;
use roadweave_types::Instant;
use serde_json::Value;

use self::crowd::Crowd;
use self::results::{Comings, Quiet, Results, Streaming, render};
use self::site::{CLIENTS_MAX, PATHS_MAX, ServerWord, Site, ask_server};
use self::stream::PAYLOAD;
use crate::sandbox::daemon::Daemon;
use crate::sandbox::exit_when_told;
use crate::sandbox::usage::{Usage, resident_bytes};

/// By so much the server's process is nicer than this one.
const NICER: i32 = 5;
/// For so long clients may take to join, or to come back, with all their paths.
const JOIN_MAX: Duration = Duration::from_secs(300);
/// After that for so long nothing is measured: what a beginning leaves to do is done then.
const SETTLE: Duration = Duration::from_secs(3);
/// How often it is looked whether the server still runs.
const CHECK: Duration = Duration::from_secs(1);
/// For so long streams find their pace.
const WARM_UP: Duration = Duration::from_secs(2);
/// Within this time comes what was under way.
const STRAGGLERS: Duration = Duration::from_millis(500);
/// A stream that has begun again goes on for so long.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// Measures a server with many clients: joins, memory, CPU while they are idle and beside streams,
/// the streams' delay, and a restart
#[derive(Debug, clap::Args)]
pub struct ClientsArgs {
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    /// Clients that stay idle; several numbers, with commas between, are measured one after the
    /// other
    #[arg(long, value_delimiter = ',', default_value = "1000")]
    idle: Vec<usize>,
    /// Clients that stream, besides
    #[arg(long, default_value_t = 60)]
    streams: usize,
    /// The rate of each stream, Mbit/s
    #[arg(long, default_value_t = 8.0)]
    rate: f64,
    /// Paths of each client
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=i64::from(PATHS_MAX)))]
    paths: u8,
    /// How long the server is measured while all are idle, and again beside streams
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
}

impl ClientsArgs {
    /// Runs the bench.
    ///
    /// # Errors
    /// When something is missing, with the cure, a part fails, with what it said, or a client stays
    /// away.
    pub fn run(&self) -> anyhow::Result<()> {
        self.check()?;
        match Sandbox::enter()? {
            Sandbox::Ended(code) => exit::now(code),
            Sandbox::Inside => {
                exit_when_told()?;
                // Boxes have processors of their own: what is here in their place goes first, if it
                // may.
                let _ = rustix::process::setpriority_process(None, -NICER);
                let site = Site::build()?;
                let measure = |idle: &usize| Run::begin(self, &site, *idle)?.finish();
                let results = self.idle.iter().map(measure).collect::<anyhow::Result<Vec<_>>>()?;
                if self.json { out::json(&results) } else { Ok(out::line(render(&results))?) }
            }
        }
    }

    fn check(&self) -> Result<(), BadInput> {
        let most = CLIENTS_MAX.saturating_sub(self.streams);
        let within = |idle: &usize| *idle <= most && *idle + self.streams > 0;
        if !self.idle.iter().all(within) {
            let message = format!("--idle and --streams: 1 to {CLIENTS_MAX} clients together");
            return Err(BadInput::new(message));
        }
        if !(0.01..=1_000.0).contains(&self.rate) {
            return Err(BadInput::new("--rate: from 0.01 to 1000 Mbit/s"));
        }
        Ok(())
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// One number of clients, at a server of their own.
struct Run<'a> {
    args: &'a ClientsArgs,
    site: &'a Site,
    server: Daemon,
    crowd: Crowd,
    clients: usize,
    results: Results,
}

/// What a time has cost the server.
struct Spent {
    time: Duration,
    usage: Usage,
}

impl<'a> Run<'a> {
    /// Starts a server, and lets all clients join it.
    fn begin(args: &'a ClientsArgs, site: &'a Site, idle: usize) -> anyhow::Result<Self> {
        let clients = idle + args.streams;
        out::note(format_args!("{clients} clients: they join"));
        let keys = site.prepare(clients)?;
        let mut server = site.start_server(NICER)?;
        site.wait_for(&mut server)?;
        let empty = resident_bytes(server.id())?;
        let crowd = Crowd::new(site, keys, args.paths, args.streams)?;
        let results =
            Results { idle, streams: args.streams, paths: args.paths, ..Results::default() };
        let mut run = Self { args, site, server, crowd, clients, results };
        let before = Usage::of(run.server.id())?;
        let begin = run.crowd.begin();
        run.results.join = run.await_all(begin, before)?;
        run.crowd.run_for(SETTLE)?;
        run.results.join.refusals = run.expect_sessions()?.refusals;
        let grown = resident_bytes(run.server.id())?.saturating_sub(empty);
        run.results.memory_bytes_each = grown / clients as u64;
        Ok(run)
    }

    /// Measures everything else.
    fn finish(mut self) -> anyhow::Result<Results> {
        out::note("all are idle");
        let quiet = self.spend(self.args.time())?;
        self.results.quiet = Quiet {
            cpu_percent: quiet.cpu_share() * 100.0,
            cpu_us_each: quiet.cpu_share() * 1e6 / self.clients as f64,
            sleeps_per_second: quiet.sleeps_per_second(),
        };
        if self.args.streams > 0 {
            self.results.streaming = Some(self.stream(&quiet)?);
        }
        self.restart()?;
        self.server.stop()?;
        Ok(self.results)
    }

    /// Measures what streams cost, and how they fare.
    fn stream(&mut self, quiet: &Spent) -> anyhow::Result<Streaming> {
        let (streams, rate) = (self.args.streams, self.args.rate);
        out::note(format_args!("{streams} stream {rate} Mbit/s each"));
        self.crowd.stream(Some(rate * 1e6));
        self.crowd.run_for(WARM_UP)?;
        self.crowd.count_packets();
        let load = Usage::of(std::process::id())?;
        let spent = self.spend(self.args.time())?;
        let load = Usage::of(std::process::id())?.since(load);
        let sent = self.crowd.packets_sent();
        self.crowd.stream(None);
        self.crowd.run_for(STRAGGLERS)?;
        let arrived = self.crowd.arrived();
        let beyond = (spent.cpu_share() - quiet.cpu_share()) * spent.time.as_secs_f64();
        Ok(Streaming {
            goodput_bps: (arrived.packets * PAYLOAD as u64 * 8) as f64 / spent.time.as_secs_f64(),
            lost: 1.0 - arrived.packets as f64 / sent.max(1) as f64,
            cpu_percent: spent.cpu_share() * 100.0,
            cpu_us_per_packet: beyond * 1e6 / sent.max(1) as f64,
            sleeps_per_second: spent.sleeps_per_second(),
            delay_ms: arrived.delay_ms,
            delay_max_ms: arrived.delay_max_ms,
            load_cpu_percent: load.cpu.as_secs_f64() / spent.time.as_secs_f64() * 100.0,
        })
    }

    /// Kills the server and starts it again, while streams go on, and waits until all are back.
    fn restart(&mut self) -> anyhow::Result<()> {
        out::note("the server is killed and started again");
        self.crowd.stream(Some(self.args.rate * 1e6));
        self.crowd.run_for(WARM_UP)?;
        self.crowd.count_packets();
        let begin = self.crowd.count_joins();
        self.server.kill()?;
        self.server = self.site.start_server(NICER)?;
        self.results.restart = self.await_all(begin, Usage::default())?;
        self.crowd.run_for(AFTERWARDS)?;
        let gap = self.crowd.arrived().gap_max.as_secs_f64();
        self.results.restart_gap_seconds = (self.args.streams > 0).then_some(gap);
        self.crowd.stream(None);
        self.results.restart.refusals = self.expect_sessions()?.refusals;
        Ok(())
    }

    /// Waits until all have joined since `begin` and have all their paths.
    fn await_all(&mut self, begin: Instant, before: Usage) -> anyhow::Result<Comings> {
        let all = self.clients;
        while !self.crowd.run_until(CHECK, Crowd::all_joined)? {
            self.server.check_running()?;
            if self.crowd.now() > begin + JOIN_MAX {
                let missing = all - self.crowd.joins().len();
                bail!("{missing} of {all} clients stay away{}", self.server.last_words());
            }
        }
        let without = self.crowd.run_until_complete(JOIN_MAX)?;
        if without > 0 {
            let words = self.server.last_words();
            bail!("{without} of {all} clients have too few paths{words}");
        }
        let time = self.crowd.now() - begin;
        let joins = self.crowd.joins();
        let after = |rank: usize| joins[rank.saturating_sub(1)].as_secs_f64();
        Ok(Comings {
            half_seconds: after(all.div_ceil(2)),
            all_seconds: after(all),
            per_second: all as f64 / after(all),
            paths_seconds: time.as_secs_f64(),
            cpu_seconds: Usage::of(self.server.id())?.since(before).cpu.as_secs_f64(),
            refusals: Value::Null,
        })
    }

    /// What the server says, which has to have a session with each client.
    fn expect_sessions(&mut self) -> anyhow::Result<ServerWord> {
        let said = ask_server()?;
        if said.sessions != self.clients as u64 {
            let (has, all) = (said.sessions, self.clients);
            bail!("the server has {has} sessions with {all} clients{}", self.server.last_words());
        }
        Ok(said)
    }

    /// Lets `time` pass.
    fn spend(&mut self, time: Duration) -> anyhow::Result<Spent> {
        let (begin, before) = (self.crowd.now(), Usage::of(self.server.id())?);
        self.crowd.run_for(time)?;
        let usage = Usage::of(self.server.id())?.since(before);
        Ok(Spent { time: self.crowd.now() - begin, usage })
    }
}

impl Spent {
    /// CPU time, of one core's.
    fn cpu_share(&self) -> f64 {
        self.usage.cpu.as_secs_f64() / self.time.as_secs_f64()
    }

    fn sleeps_per_second(&self) -> f64 {
        self.usage.sleeps as f64 / self.time.as_secs_f64()
    }
}
