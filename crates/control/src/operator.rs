//! The roadweave-fleet binary, run as `roadweave fleet`: operates a fleet over its controller's
//! REST interface.

mod account;
mod client;
mod commands;
mod show;
mod sign_in;
mod trust;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use roadweave_terminal::VERSION;
use roadweave_terminal::command_line::{LogOption, finish, refuse};

use crate::operator::account::Access;
use crate::operator::commands::Command;

/// Manages a fleet: boxes, tokens, proxies, pools, configurations, users
#[derive(Parser)]
#[command(name = "roadweave-fleet", bin_name = "roadweave fleet", max_term_width = 100)]
#[command(version = VERSION, after_help = EXIT_CODES)]
struct Arguments {
    #[command(flatten)]
    log: LogOption,
    #[command(flatten)]
    access: Access,
    /// Print the controller's answer as JSON; errors too, on standard error (RFC 9457)
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes:
  0    done
  1    failed, and may succeed later: the controller is away or has too many requests, a name is
       taken, or another user changed the same record
  2    the command must be changed: an option, an unknown name, or the login
  141  the reader of the output has closed it";

/// The command line's definition.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let code = match Arguments::try_parse() {
        Ok(Arguments { log, access, json, command }) => {
            let report = |error: &anyhow::Error| client::report(error, json);
            log.run_reporting(|| commands::run(command, &access, json), report)
        }
        Err(error) => refuse(&error),
    };
    finish(code)
}
