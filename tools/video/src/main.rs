//! The roadweave-video binary: sends a vehicle's camera as RTP, with each frame as large as the
//! tunnel can carry in time, and the receiver that shows it.
//!
//! `roadweave video ...` runs it.

#![allow(clippy::disallowed_methods, reason = "a program at the edge: sockets, threads, the clock")]

mod budget;
mod encoder;
mod feedback;
mod gap_wait;
mod log_file;
mod network;
mod numbers;
mod options;
mod pace;
mod plugins;
mod receive;
mod rtp;
mod run;
mod send;
mod sizing;
mod source;
mod srt;
mod stamp;
mod statistics;
mod strangers;
mod supersede;

use std::process::ExitCode;

use clap::Parser;
use roadweave_terminal::VERSION;
use roadweave_terminal::command_line::{LogOption, finish, refuse};

use crate::options::Command;

/// Sends a vehicle's cameras through the tunnel, and shows them at the other end
#[derive(Parser)]
#[command(name = "roadweave-video", bin_name = "roadweave video", max_term_width = 100)]
#[command(version = VERSION, after_help = EXIT_CODES)]
struct VideoArguments {
    #[command(flatten)]
    log: LogOption,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes:
  0    the source ended, the time is over, or it was interrupted
  1    failed while running: for example, a camera disconnected
  2    the command must be changed: an option, a missing file, a plugin that is not installed
  141  the reader of the output has closed it";

fn main() -> ExitCode {
    let code = match VideoArguments::try_parse() {
        Ok(VideoArguments { log, command }) => log.run(|| match command {
            Command::Send(options) => send::run(options),
            Command::Receive(options) => receive::run(options),
        }),
        Err(error) => refuse(&error),
    };
    finish(code)
}
