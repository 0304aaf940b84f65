//! The roadweave-controller binary: manages a fleet, and serves boxes, proxies and people.

mod delegate;
mod file;
mod folder;
mod init;
mod run;
mod transfer;
mod trust;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use roadweave_terminal::VERSION;
use roadweave_terminal::command_line::{LogOption, finish, refuse};

/// Manages a fleet of boxes and proxies: its members, their configuration, and who may change it
#[derive(Parser)]
#[command(name = "roadweave-controller", version = VERSION, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    log: LogOption,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Creates a controller: keys, certificate, database, and the first owner
    Init(init::Options),
    /// Runs the controller until it is stopped
    Run(FolderOption),
    /// Writes the contents of the database to a file
    Backup(transfer::Backup),
    /// Reads a backup into an empty database
    Restore(transfer::Restore),
    /// Prints the controller's public key
    Key(FolderOption),
    /// Signs with a root key whom the fleet trusts: to keep that key elsewhere, or to change keys
    Trust(trust::Options),
    /// Signs a key that may sign other keys: for a token, a pool, or a person's machine
    Delegate(delegate::Options),
    /// Shows a configuration that waits for approval, and approves it with a key
    Approve(delegate::Approve),
    /// Generates a private key in a file, and prints its public key
    Keygen(delegate::Keygen),
}

/// Where the controller is.
#[derive(clap::Args)]
struct FolderOption {
    /// The folder that `init` created
    #[arg(
        long,
        default_value = "/var/lib/roadweave-controller",
        env = "ROADWEAVE_CONTROLLER",
        value_name = "FOLDER"
    )]
    folder: PathBuf,
}

/// The command line's definition.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let code = match Arguments::try_parse() {
        Ok(Arguments { log, command }) => log.run(|| match command {
            Command::Init(options) => init::run(&options),
            Command::Run(at) => run::run(&at.folder),
            Command::Backup(options) => transfer::backup(&options),
            Command::Restore(options) => transfer::restore(&options),
            Command::Key(at) => run::key(&at.folder),
            Command::Trust(options) => trust::run(&options),
            Command::Delegate(options) => delegate::run(&options),
            Command::Approve(options) => delegate::approve(&options),
            Command::Keygen(options) => delegate::keygen(&options),
        }),
        Err(error) => refuse(&error),
    };
    finish(code)
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}
