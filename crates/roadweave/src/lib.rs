//! The roadweave binary: one tunnel over several unreliable uplinks.

#![allow(
    clippy::disallowed_methods,
    reason = "the command line starts processes, reads the clock and opens sockets"
)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

#[cfg(feature = "server")]
mod drain;
mod encoder_feedback;
mod external;
#[cfg(test)]
#[path = "../../../scripts/golden.rs"]
mod golden;
mod init;
mod join;
mod member;
mod release;
mod reload;
mod run;
#[cfg(feature = "server")]
mod serving;
mod set;
mod show;
mod speedtest;
mod uplink;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser};
use roadweave_config::ClientFile;
#[cfg(feature = "server")]
use roadweave_config::{AnchorFile, ProxyFile, ServerFile};
use roadweave_terminal::command_line::{LogOption, finish, refuse};
use roadweave_terminal::{ADMIN, MANUAL, TOOLS, VERSION, exit, logging};

use crate::member::MemberArgs;

/// Fuses several unreliable uplinks of a vehicle into one dependable, low-latency tunnel.
#[derive(Debug, Parser)]
#[command(name = "roadweave", propagate_version = true, after_help = help_of_others())]
#[command(version = VERSION)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    log: LogOption,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Init(init::InitArgs),
    Join(join::JoinArgs),
    Keygen(init::KeygenArgs),
    Pubkey(init::PubkeyArgs),
    /// Runs the client, in the vehicle.
    Client(MemberArgs<ClientFile>),
    /// Runs the server.
    #[cfg(feature = "server")]
    Server(MemberArgs<ServerFile>),
    Router(run::RouterArgs),
    /// Runs a proxy: terminates the tunnels of boxes, and forwards inner packets to the anchors of
    /// their tenants. Needs no network privileges.
    #[cfg(feature = "server")]
    Proxy(MemberArgs<ProxyFile>),
    /// Runs an anchor: holds the inner addresses of a tenant's clients, whichever proxies they use.
    #[cfg(feature = "server")]
    Anchor(MemberArgs<AnchorFile>),
    #[cfg(feature = "server")]
    Drain(drain::DrainArgs),
    Release(release::ReleaseArgs),
    Reload(reload::ReloadArgs),
    Show(show::ShowArgs),
    Set(set::SetArgs),
    Uplink(uplink::UplinkArgs),
    Speedtest(speedtest::SpeedtestArgs),
    EncoderFeedback(encoder_feedback::EncoderFeedbackArgs),
}

fn help_of_others() -> String {
    let lines = |commands: &[(&str, &str)]| {
        let lines = commands.iter().map(|(name, about)| format!("  {name:<8}  {about}"));
        lines.collect::<Vec<_>>().join("\n")
    };
    format!(
        "Commands of the package roadweave-admin:\n{}\n\nCommand of the package \
         roadweave-fleet:\n  fleet     Manages a fleet: boxes, tokens, proxies, configurations, \
         users\n\nCommand of the package roadweave-web:\n  web       Shows a running client on a \
         web page, for a crew's phone\n\nCommands of the package roadweave-lab:\n{}",
        lines(&[&ADMIN[..], &MANUAL[..]].concat()),
        lines(&TOOLS)
    )
}

/// The command line, for completions and man pages.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command line.
pub fn main() -> ExitCode {
    finish(match Arguments::try_parse() {
        Ok(arguments) => run(arguments),
        Err(error) if error.kind() == ErrorKind::InvalidSubcommand => run_external(&error),
        Err(error) => refuse(&error),
    })
}

fn run(arguments: Arguments) -> ExitCode {
    arguments.log.run(|| match arguments.command {
        Command::Init(args) => args.run(),
        Command::Join(args) => args.run(),
        Command::Keygen(args) => args.run(),
        Command::Pubkey(args) => args.run(),
        Command::Client(args) => args.run(),
        #[cfg(feature = "server")]
        Command::Server(args) => args.run(),
        Command::Router(args) => args.run(),
        #[cfg(feature = "server")]
        Command::Proxy(args) => args.run(),
        #[cfg(feature = "server")]
        Command::Anchor(args) => args.run(),
        #[cfg(feature = "server")]
        Command::Drain(args) => args.run(),
        Command::Release(args) => args.run(),
        Command::Reload(args) => args.run(),
        Command::Show(args) => args.run(),
        Command::Set(args) => args.run(),
        Command::Uplink(args) => args.run(),
        Command::Speedtest(args) => args.run(),
        Command::EncoderFeedback(args) => args.run(),
    })
}

fn run_external(unknown: &clap::Error) -> ExitCode {
    let ours = Arguments::command();
    let names: Vec<&str> =
        ours.get_subcommands().map(clap::Command::get_name).chain(["help"]).collect();
    match external::run(&names) {
        Ok(()) => {
            // A similar command may be another program's.
            let all = ours.clone().subcommands(TOOLS.map(|(name, _)| clap::Command::new(name)));
            refuse(all.try_get_matches().as_ref().err().unwrap_or(unknown))
        }
        Err(error) => match logging::open() {
            Ok(_) => exit::report(&error),
            Err(other) => exit::report(&other),
        },
    }
}
