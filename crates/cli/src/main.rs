//! The roadweave binary: one tunnel over several unreliable uplinks.

#![allow(
    clippy::disallowed_methods,
    reason = "the command line starts processes, reads the clock and opens sockets"
)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod bench;
mod config;
mod demo;
mod emulate;
mod exit;
mod init;
mod lab;
mod logging;
mod out;
mod qoe;
mod rate;
mod record;
mod release;
mod run;
mod sandbox;
mod set;
mod show;
mod table;
mod trace;

use std::process::ExitCode;

use clap::Parser;

/// Fuses several unreliable uplinks of a vehicle into one dependable, low-latency tunnel.
#[derive(Debug, Parser)]
#[command(name = "roadweave", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// What to log: error, warn, info, debug or trace, also by module (roadweave_tunnel=debug)
    #[arg(
        long,
        global = true,
        default_value = logging::DEFAULT,
        env = "ROADWEAVE_LOG",
        value_name = "LEVEL"
    )]
    log: String,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Init(init::InitArgs),
    Keygen(init::KeygenArgs),
    Client(run::ClientArgs),
    Server(run::ServerArgs),
    Router(run::RouterArgs),
    Release(release::ReleaseArgs),
    Show(show::ShowArgs),
    Set(set::SetArgs),
    Emulate(emulate::EmulateArgs),
    Demo(demo::DemoArgs),
    Lab(lab::LabArgs),
    Qoe(qoe::QoeArgs),
    Record(record::RecordArgs),
    Trace(trace::TraceArgs),
    Bench(bench::BenchArgs),
    #[command(hide = true)]
    BenchEcho(bench::EchoArgs),
    #[command(hide = true)]
    DemoSource(demo::SourceArgs),
    #[command(hide = true)]
    DemoSink(demo::SinkArgs),
}

fn main() -> ExitCode {
    let code = match Arguments::try_parse() {
        Ok(arguments) => run(arguments),
        Err(error) => {
            let opened = logging::open().map(|_| exit::report_arguments(&error));
            opened.unwrap_or_else(|error| exit::report(&error))
        }
    };
    out::flush();
    code
}

fn run(arguments: Arguments) -> ExitCode {
    let result = logging::start(&arguments.log).and_then(|()| match arguments.command {
        Command::Init(args) => args.run(),
        Command::Keygen(args) => args.run(),
        Command::Client(args) => args.run(),
        Command::Server(args) => args.run(),
        Command::Router(args) => args.run(),
        Command::Release(args) => args.run(),
        Command::Show(args) => args.run(),
        Command::Set(args) => args.run(),
        Command::Demo(args) => args.run(),
        Command::Lab(args) => args.run(),
        Command::Qoe(args) => args.run(),
        Command::Record(args) => args.run(),
        Command::Trace(args) => args.run(),
        Command::Bench(args) => args.run(),
        Command::BenchEcho(args) => args.run(),
        Command::DemoSource(args) => args.run(),
        Command::DemoSink(args) => args.run(),
        Command::Emulate(args) => args.run(),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
