//! Commands of other programs: `roadweave X` runs `roadweave-lab X` (tools), `roadweave-admin X`,
//! `roadweave-manual X`, and `roadweave-X` for any other, as git and cargo do.
//!
//! ```text
//! X is a name? ─► a tool's?       ─► roadweave-lab X   ─┬► beside this program or in PATH: it takes
//!                 administration? ─► roadweave-admin X ─┤  over this process
//!                 the manual?     ─► roadweave-manual X ┤
//!                 any other       ─► roadweave-X       ─┘
//!                 neither is there: the package that has it, or the likely command
//! ```

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use clap::Parser;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::{ADMIN, MANUAL, TOOLS, program};

/// Commands that have a program and a package of their own, and the crate that it is built from.
const OTHERS: [(&str, &str); 2] = [("fleet", "roadweave-control"), ("web", "roadweave-web")];

const FAR_END: [&str; 4] = ["server", "proxy", "anchor", "drain"];

type Log = [(&'static str, Option<String>); 2];

#[derive(Debug, Parser)]
#[command(disable_help_flag = true, disable_version_flag = true)]
#[command(disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: External,
    #[arg(long, env = "ROADWEAVE_LOG")]
    log: Option<String>,
    #[arg(long, env = "ROADWEAVE_LOG_FORMAT")]
    log_format: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum External {
    #[command(external_subcommand)]
    Words(Vec<OsString>),
}

/// Replaces this process. Returns `Ok` without such a program, or for wrong arguments of `ours`.
pub fn run(ours: &[&str]) -> Result<()> {
    let Ok(Arguments { command: External::Words(words), log, log_format }) = Arguments::try_parse()
    else {
        return Ok(());
    };
    let log = [("ROADWEAVE_LOG", log), ("ROADWEAVE_LOG_FORMAT", log_format)];
    let mut names = words.iter().map(|word| word.to_str().unwrap_or_default());
    let first = names.next().unwrap_or_default();
    let name = if first == "help" { names.next().unwrap_or_default() } else { first };
    for (commands, program, package, source) in [
        (&TOOLS[..], "roadweave-lab", "roadweave-lab", "roadweave-bench"),
        (&ADMIN[..], "roadweave-admin", "roadweave-admin", "roadweave-admin"),
        (&MANUAL[..], "roadweave-manual", "roadweave-admin", "roadweave-manual"),
    ] {
        if commands.iter().any(|(known, _)| *known == name) {
            return match program::find(program) {
                Some(program) => Err(take_over(&program, &words, log)),
                None => Err(missing(name, program, package, source)),
            };
        }
    }
    if FAR_END.contains(&name) && !ours.contains(&name) {
        let why = format!("{name}: this roadweave was built for boxes, without the feature server");
        return Err(BadInput::new(why).into());
    }
    if !is_name(first) || ours.contains(&first) {
        return Ok(());
    }
    match program::find(&format!("roadweave-{first}")) {
        Some(program) => Err(take_over(&program, &words[1..], log)),
        None => match OTHERS.iter().find(|(known, _)| *known == name) {
            Some((_, source)) => {
                let program = format!("roadweave-{name}");
                Err(missing(name, &program, &program, source))
            }
            None => Ok(()),
        },
    }
}

fn missing(name: &str, program: &str, package: &str, source: &str) -> anyhow::Error {
    BadInput::new(format!(
        "{name} is a command of {program}, which is neither beside this program nor in PATH. \
         Install the package {package}, or build it from source: cargo build --package {source}"
    ))
    .into()
}

fn is_name(word: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !word.starts_with('-') && !word.is_empty() && word.chars().all(good)
}

/// Returns only when the program cannot be started.
fn take_over(program: &Path, words: &[OsString], log: Log) -> anyhow::Error {
    let error = Command::new(program)
        .args(words)
        .envs(log.into_iter().filter_map(|(name, value)| Some((name, value?))))
        .exec();
    anyhow::Error::new(error).context(format!("cannot start {}", program.display()))
}
