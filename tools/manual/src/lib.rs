//! Completions and man pages for all commands, and a man page for the configuration files.
//!
//! ```text
//! roadweave            ┐                       ┌ roadweave completions SHELL
//! roadweave-admin      │ command() of each     │
//! roadweave-manual     ├──► one tree, as one ──┤
//! roadweave-fleet      │    types it           └ roadweave-manual pages FOLDER:
//! roadweave-web        │                           FOLDER/PROGRAM/man1/roadweave-peer.1 and so on
//! roadweave-lab        ┘
//! roadweave-controller ────► a tree of its own
//! tables of docs/ ─────────► FOLDER/roadweave/man5/roadweave.toml.5
//! ```
//!
//! A separate program, so that it takes no space on a vehicle's box.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod fields;
#[cfg(test)]
#[path = "../../../scripts/golden.rs"]
mod golden;
mod pages;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Command, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use roadweave_terminal::VERSION;
use roadweave_terminal::command_line::{LogOption, finish, refuse};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

/// Completions and man pages of all commands
#[derive(Debug, Parser)]
#[command(name = "roadweave-manual", bin_name = "roadweave", max_term_width = 100)]
#[command(version = VERSION)]
struct ManualArguments {
    #[command(flatten)]
    log: LogOption,
    #[command(subcommand)]
    command: Words,
}

#[derive(Debug, Subcommand)]
enum Words {
    Completions(CompletionsArgs),
    #[command(hide = true)]
    Pages(pages::PagesArgs),
}

/// Prints a completion script for a shell: bash, fish or zsh
///
/// For example: `roadweave completions bash > /etc/bash_completion.d/roadweave`. Packages install
/// them.
#[derive(Debug, clap::Args)]
struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
    /// The program to complete
    #[arg(long, default_value = PRODUCT)]
    program: String,
}

const PRODUCT: &str = "roadweave";

/// Programs that users call by their own names.
const CALLED: [&str; 2] = [PRODUCT, "roadweave-controller"];

/// Runs the command line.
pub fn main() -> ExitCode {
    finish(match ManualArguments::try_parse() {
        Ok(ManualArguments { log, command }) => log.run(|| match command {
            Words::Completions(args) => args.run(),
            Words::Pages(args) => args.run(),
        }),
        Err(error) => refuse(&error),
    })
}

impl CompletionsArgs {
    fn run(&self) -> Result<()> {
        let script = completions(&self.program, self.shell).ok_or_else(|| {
            let known = CALLED.join(", ");
            BadInput::new(format!("--program {}: must be one of {known}", self.program))
        })?;
        Ok(out::print(&script)?)
    }
}

/// The completions of one of [`CALLED`], for `shell`.
fn completions(program: &str, shell: Shell) -> Option<String> {
    let mut command = match program {
        PRODUCT => product(),
        "roadweave-controller" => roadweave_control::controller::command(),
        _ => return None,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, program, &mut script);
    Some(String::from_utf8_lossy(&script).into_owned())
}

/// `roadweave` with the commands of the programs that it runs.
fn product() -> Command {
    let fleet = roadweave_control::operator::command().name("fleet").bin_name("roadweave fleet");
    let web = roadweave_web::command().name("web").bin_name("roadweave web");
    let others =
        [roadweave_admin::command(), ManualArguments::command(), roadweave_bench::command()];
    others
        .into_iter()
        .flat_map(|program| program.get_subcommands().cloned().collect::<Vec<_>>())
        .filter(|command| !command.is_hide_set())
        .chain([fleet, web])
        .fold(roadweave_cli::command(), Command::subcommand)
}

/// The program with the command `name` of [`product`]; also the name of its package.
fn owner(name: &str) -> &'static str {
    let has = |commands: &[(&str, &str)]| commands.iter().any(|(known, _)| *known == name);
    match name {
        "fleet" => "roadweave-fleet",
        "web" => "roadweave-web",
        _ if has(&roadweave_terminal::TOOLS) => "roadweave-lab",
        _ if has(&roadweave_terminal::ADMIN) || has(&roadweave_terminal::MANUAL) => {
            "roadweave-admin"
        }
        _ => PRODUCT,
    }
}

#[cfg(test)]
mod tests {
    mod commands;
    mod links;

    use std::collections::BTreeMap;

    use clap::Arg;

    use super::*;
    use crate::golden::assert_golden;

    #[test]
    fn roadweave_runs_every_command_of_the_other_programs() {
        use roadweave_terminal::{ADMIN, MANUAL, TOOLS};
        for (program, known) in [
            (roadweave_admin::command(), &ADMIN[..]),
            (ManualArguments::command(), &MANUAL),
            (roadweave_bench::command(), &TOOLS),
        ] {
            let shown = program.get_subcommands().filter(|command| !command.is_hide_set());
            let about = |command: &Command| command.get_about().expect("told").to_string();
            let found = shown.map(|command| (command.get_name().to_owned(), about(command)));
            let known = known.iter().map(|(name, about)| ((*name).to_owned(), (*about).to_owned()));
            assert_eq!(found.collect::<BTreeMap<_, _>>(), known.collect::<BTreeMap<_, _>>());
        }
    }

    /// Appends the help of `command` and its subcommands; global options only for the first.
    fn add_help(text: &mut String, command: &Command, is_first: bool) {
        let hides = |arg: &Arg| !is_first && (arg.is_global_set() || arg.get_id() == "help");
        let mut shown = command.clone().term_width(100).mut_args(|arg| match hides(&arg) {
            true => arg.hide(true),
            false => arg,
        });
        let name = command.get_bin_name().unwrap_or(command.get_name());
        let help = shown.render_long_help().to_string();
        let help: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        *text += &format!("======== {name}\n{}\n", help.join("\n"));
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            add_help(text, below, false);
        }
    }

    #[test]
    fn the_help_of_each_program_is_in_its_golden_file() {
        for mut program in [
            roadweave_cli::command(),
            roadweave_admin::command(),
            roadweave_control::operator::command(),
            roadweave_web::command(),
            roadweave_bench::command(),
            roadweave_control::controller::command(),
            ManualArguments::command(),
        ] {
            program.build();
            let mut text = String::new();
            add_help(&mut text, &program, true);
            assert_golden(&format!("help-{}.txt", program.get_name()), &text);
        }
    }

    #[test]
    fn completions_know_commands_of_all_programs() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = completions(PRODUCT, shell).expect("known");
            for word in ["client", "peer", "completions", "emulate", "fleet", "device", "--config"]
            {
                let word = if shell == Shell::Fish { word.trim_start_matches('-') } else { word };
                assert!(script.contains(word), "{shell}: {word}");
            }
            assert!(!script.contains("demo-sink"), "{shell}: a command that is not for people");
        }
        assert!(completions("sh", Shell::Bash).is_none());
    }
}
