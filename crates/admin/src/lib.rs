//! The roadweave-admin binary: tools for the people who run a server or a box.
//!
//! `roadweave doctor`, `hooks`, `modems`, `peer`, `qlog`, `report` and `top` run it. It is a
//! separate program so that the one on a box stays small.

#![allow(clippy::disallowed_methods, reason = "a program at the edge: files and the local socket")]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod doctor;
mod hooks;
mod modems;
mod peer;
mod qlog;
mod report;
mod top;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use roadweave_terminal::VERSION;
use roadweave_terminal::command_line::{LogOption, finish, refuse};

/// Commands for operating a server and a running box
#[derive(Debug, Parser)]
#[command(name = "roadweave-admin", bin_name = "roadweave", max_term_width = 100)]
#[command(version = VERSION)]
struct Arguments {
    #[command(flatten)]
    log: LogOption,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Doctor(doctor::DoctorArgs),
    Hooks(hooks::HooksArgs),
    Modems(modems::ModemsArgs),
    Peer(Box<peer::PeerArgs>),
    Qlog(qlog::QlogArgs),
    Report(report::ReportArgs),
    Top(top::TopArgs),
}

/// The whole command line.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command line.
pub fn main() -> ExitCode {
    finish(match Arguments::try_parse() {
        Ok(Arguments { log, command }) => log.run(|| match command {
            Command::Doctor(args) => args.run(),
            Command::Hooks(args) => args.run(),
            Command::Modems(args) => args.run(),
            Command::Peer(args) => args.run(),
            Command::Qlog(args) => args.run(),
            Command::Report(args) => args.run(),
            Command::Top(args) => args.run(),
        }),
        Err(error) => refuse(&error),
    })
}

#[cfg(test)]
mod tests;
