//! The tools beside the product: video demo, benches, experiments in virtual time, and recording,
//! drawing and emulation of links.
//!
//! They start the product, `roadweave`, like a user.

#![allow(
    clippy::disallowed_methods,
    reason = "the command line starts processes, reads the clock and opens sockets"
)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod bench;
mod demo;
mod emulate;
mod lab;
mod product;
mod qoe;
mod rate;
mod record;
mod sandbox;
mod stack;
mod table;
mod trace;
mod writable;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use roadweave_terminal::VERSION;
use roadweave_terminal::command_line::{LogOption, finish, refuse};

/// Tools beside the product: the demo, benches, experiments and recordings
///
/// `roadweave COMMAND` also runs these commands.
#[derive(Debug, Parser)]
#[command(name = "roadweave-lab", bin_name = "roadweave", propagate_version = true)]
#[command(version = VERSION)]
struct LabArguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    log: LogOption,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Emulate(emulate::EmulateArgs),
    Demo(demo::DemoArgs),
    Lab(lab::LabArgs),
    Qoe(qoe::QoeArgs),
    Record(record::RecordArgs),
    Stack(stack::StackArgs),
    Trace(trace::TraceArgs),
    Bench(bench::BenchArgs),
    #[command(hide = true)]
    BenchEcho(bench::EchoArgs),
    #[command(hide = true)]
    DemoSource(demo::SourceArgs),
    #[command(hide = true)]
    DemoSink(demo::SinkArgs),
}

/// The command line, for help and completions.
pub fn command() -> clap::Command {
    LabArguments::command()
}

/// Runs the command line.
pub fn main() -> ExitCode {
    finish(match LabArguments::try_parse() {
        Ok(arguments) => run(arguments),
        Err(error) => refuse(&error),
    })
}

fn run(arguments: LabArguments) -> ExitCode {
    arguments.log.run(|| match arguments.command {
        Command::Demo(args) => args.run(),
        Command::Lab(args) => args.run(),
        Command::Qoe(args) => args.run(),
        Command::Record(args) => args.run(),
        Command::Stack(args) => args.run(),
        Command::Trace(args) => args.run(),
        Command::Bench(args) => args.run(),
        Command::BenchEcho(args) => args.run(),
        Command::DemoSource(args) => args.run(),
        Command::DemoSink(args) => args.run(),
        Command::Emulate(args) => args.run(),
    })
}
