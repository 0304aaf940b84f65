//! `roadweave bench clients`: one server, thousands of clients, and what they cost.
//!
//! ```text
//!   clients namespace                               server namespace
//!   threads of this process: a Client for each, ═══  roadweave server = rw1 ── sink: streams' delays
//!   an address for each of its paths
//!                     all join ─► all idle ─► some stream ─► the server is killed and started again
//! ```
//!
//! The server is the product, as a process. The clients are the product's as well, without devices
//! and all in one process, so that the figures are the server's. Where there are cores enough the
//! server has its own ([`cores`]); what both sides use of theirs, and what their sockets have no
//! room for, is told for each part, since a figure says something of the server only where the
//! clients had time left.

mod cores;
mod crowd;
mod group;
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

use self::cores::Cores;
use self::crowd::{Crowd, State};
use self::results::{Comings, Quiet, Results, Sides, Streaming, render};
use self::site::{CLIENTS_MAX, NoRoom, PATHS_MAX, ServerWord, Site, ask_server};
use self::stream::PAYLOAD;
use crate::sandbox::daemon::Daemon;
use crate::sandbox::exit_when_told;
use crate::sandbox::usage::{Usage, resident_bytes};

/// By so much the server's process is nicer than this one where both share their cores.
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
    /// Shards of the server; several numbers, with commas between, are measured in turn, and
    /// compared with the first
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: Vec<u16>,
    /// How often each is measured
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
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
                // What is measured goes before whatever else this machine does, if it may.
                let _ = rustix::process::setpriority_process(None, -NICER);
                let site = Site::build()?;
                let cores = Cores::share_out(self.shards.iter().copied().max().unwrap_or(1))?;
                cores.use_for_clients()?;
                let measure = |plan| Run::begin(self, &site, &cores, plan)?.finish();
                let results =
                    self.plans().into_iter().map(measure).collect::<anyhow::Result<Vec<_>>>()?;
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

    /// What is measured one after the other: every second round begins with the last shards, so
    /// that what changes with time is nobody's advantage.
    fn plans(&self) -> Vec<Plan> {
        let mut plans = Vec::new();
        for idle in &self.idle {
            for round in 1..=self.rounds {
                let mut shards = self.shards.clone();
                if round % 2 == 0 {
                    shards.reverse();
                }
                plans.extend(shards.into_iter().map(|shards| Plan { idle: *idle, shards, round }));
            }
        }
        plans
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// What is measured with a server of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    idle: usize,
    shards: u16,
    round: u32,
}

/// One number of clients, at a server of their own.
struct Run<'a> {
    args: &'a ClientsArgs,
    site: &'a Site,
    cores: &'a Cores,
    server: Daemon,
    crowd: Crowd,
    clients: usize,
    results: Results,
}

/// What was used up to a moment.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    server: Usage,
    clients: Usage,
    no_room: NoRoom,
}

/// What a time has cost.
struct Spent {
    time: Duration,
    server: Usage,
    sides: Sides,
}

impl<'a> Run<'a> {
    /// Starts a server, and lets all clients join it.
    fn begin(
        args: &'a ClientsArgs,
        site: &'a Site,
        cores: &'a Cores,
        plan: Plan,
    ) -> anyhow::Result<Self> {
        let Plan { idle, shards, round } = plan;
        let clients = idle + args.streams;
        out::note(format_args!("{clients} clients, {shards} shards, round {round}: they join"));
        let keys = site.prepare(clients, shards)?;
        let mut server = site.start_server(cores, nicer(cores))?;
        site.wait_for(&mut server)?;
        let empty = resident_bytes(server.id())?;
        let load_empty = resident_bytes(std::process::id())?;
        let crowd = Crowd::new(site, cores, keys, args.paths, args.streams)?;
        let results = Results {
            idle,
            streams: args.streams,
            paths: args.paths,
            shards,
            round,
            client_cores: cores.of_clients(),
            cores_shared: cores.are_shared(),
            ..Results::default()
        };
        let mut run = Self { args, site, cores, server, crowd, clients, results };
        let before = run.mark()?;
        run.crowd.begin()?;
        run.results.join = run.await_all(before)?;
        run.crowd.run_for(SETTLE)?;
        run.results.join.refusals = run.expect_sessions()?.refusals;
        let each = |id: u32, empty: u64| -> anyhow::Result<u64> {
            Ok(resident_bytes(id)?.saturating_sub(empty) / clients as u64)
        };
        run.results.memory_bytes_each = each(run.server.id(), empty)?;
        run.results.client_memory_bytes_each = each(std::process::id(), load_empty)?;
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
            sides: quiet.sides,
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
        self.crowd.stream(Some(rate * 1e6))?;
        self.crowd.run_for(WARM_UP)?;
        self.crowd.count_packets()?;
        let spent = self.spend(self.args.time())?;
        self.crowd.stream(None)?;
        self.crowd.run_for(STRAGGLERS)?;
        let sent = self.crowd.state()?.sent;
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
            sides: spent.sides,
        })
    }

    /// Kills the server and starts it again, while streams go on, and waits until all are back.
    fn restart(&mut self) -> anyhow::Result<()> {
        out::note("the server is killed and started again");
        self.crowd.stream(Some(self.args.rate * 1e6))?;
        self.crowd.run_for(WARM_UP)?;
        self.crowd.count_packets()?;
        let before = Mark { server: Usage::default(), ..self.mark()? };
        self.crowd.count_joins()?;
        self.server.kill()?;
        self.server = self.site.start_server(self.cores, nicer(self.cores))?;
        self.results.restart = self.await_all(before)?;
        self.crowd.run_for(AFTERWARDS)?;
        let gap = self.crowd.arrived().gap_max.as_secs_f64();
        self.results.restart_gap_seconds = (self.args.streams > 0).then_some(gap);
        self.crowd.stream(None)?;
        self.results.restart.refusals = self.expect_sessions()?.refusals;
        Ok(())
    }

    /// Waits until all have joined since `before` and have all their paths.
    fn await_all(&mut self, before: Mark) -> anyhow::Result<Comings> {
        let all = self.clients;
        let is_done = |state: &State| state.joins.len() >= all && state.without_paths == 0;
        let state = loop {
            let state = self.crowd.run_until(CHECK, is_done)?;
            if is_done(&state) {
                break state;
            }
            self.server.check_running()?;
            if self.crowd.now() > before.at + JOIN_MAX {
                let (missing, without) = (all - state.joins.len(), state.without_paths);
                let sides = self.since(before)?.sides;
                let words = self.server.last_words();
                bail!(
                    "{missing} of {all} clients stay away, {without} have too few paths; {sides}{words}"
                );
            }
        };
        let spent = self.since(before)?;
        let after = |rank: usize| state.joins[rank.saturating_sub(1)].as_secs_f64();
        Ok(Comings {
            half_seconds: after(all.div_ceil(2)),
            all_seconds: after(all),
            per_second: all as f64 / after(all),
            paths_seconds: spent.time.as_secs_f64(),
            cpu_seconds: spent.server.cpu.as_secs_f64(),
            sides: spent.sides,
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
        let before = self.mark()?;
        self.crowd.run_for(time)?;
        self.since(before)
    }

    fn mark(&self) -> anyhow::Result<Mark> {
        Ok(Mark {
            at: self.crowd.now(),
            server: Usage::of(self.server.id())?,
            clients: Usage::of(std::process::id())?,
            no_room: self.site.no_room()?,
        })
    }

    fn since(&self, before: Mark) -> anyhow::Result<Spent> {
        let now = self.mark()?;
        let (time, server) = (now.at - before.at, now.server.since(before.server));
        let percent = |usage: Usage| usage.cpu.as_secs_f64() / time.as_secs_f64() * 100.0;
        let sides = Sides {
            server_cpu_percent: percent(server),
            clients_cpu_percent: percent(now.clients.since(before.clients)),
            no_room: now.no_room.since(before.no_room),
        };
        Ok(Spent { time, server, sides })
    }
}

/// By how much the server's process is nicer than this one. Boxes have processors of their own:
/// what is here in their place goes first where it has none.
fn nicer(cores: &Cores) -> i32 {
    if cores.are_shared() { NICER } else { 0 }
}

impl Spent {
    /// CPU time of the server, of one core's.
    fn cpu_share(&self) -> f64 {
        self.server.cpu.as_secs_f64() / self.time.as_secs_f64()
    }

    fn sleeps_per_second(&self) -> f64 {
        self.server.sleeps as f64 / self.time.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_round_begins_with_the_last() {
        let args = ClientsArgs {
            json: false,
            idle: vec![1, 100],
            streams: 4,
            rate: 8.0,
            paths: 4,
            shards: vec![1, 2],
            rounds: 2,
            seconds: 1,
        };
        let plans: Vec<_> =
            args.plans().into_iter().map(|plan| (plan.idle, plan.round, plan.shards)).collect();
        let of = |idle| [(idle, 1, 1), (idle, 1, 2), (idle, 2, 2), (idle, 2, 1)];
        assert_eq!(plans, [of(1), of(100)].concat());
    }
}
