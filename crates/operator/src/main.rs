//! The roadweave-fleet binary: a fleet from the command line, over its controller's REST interface.
//!
//! `roadweave fleet ...` runs it.

#![allow(clippy::disallowed_methods, reason = "a program at the edge: files, sockets, the clock")]

mod account;
mod client;
mod commands;
mod show;
mod sign_in;
mod trust;

use std::process::ExitCode;

use clap::Parser;
use roadweave_terminal::command_line::{LogOption, finish, refuse};

use crate::account::Access;
use crate::commands::Command;

/// Keeps a fleet: boxes, tokens, proxies, configurations, people
#[derive(Parser)]
#[command(name = "roadweave-fleet", bin_name = "roadweave fleet", version, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    log: LogOption,
    #[command(flatten)]
    access: Access,
    /// Print what the controller answers, as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let code = match Arguments::try_parse() {
        Ok(Arguments { log, access, json, command }) => {
            log.run(|| commands::run(command, &access, json))
        }
        Err(error) => refuse(&error),
    };
    finish(code)
}
