//! `roadweave-controller approve`: signs a configuration on the machine that holds an approver's
//! key.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use roadweave_fleet::Waiting;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use crate::controller::folder::{identity, replace};

/// What is to be approved.
#[derive(clap::Args)]
pub struct Options {
    /// What waits, as roadweave fleet config approval prints it
    file: PathBuf,
    /// The approver's key, which signs; without it what waits is shown and nothing else
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Where the approval is written, for roadweave fleet config approve --signed
    #[arg(long, default_value = "approved.json", value_name = "FILE")]
    out: PathBuf,
}

pub fn run(options: &Options) -> Result<()> {
    let bad = |error: &dyn std::fmt::Display| {
        BadInput::new(format!("{}: {error}", options.file.display()))
    };
    let text = fs::read_to_string(&options.file).map_err(|error| bad(&error))?;
    let waiting: Waiting = serde_json::from_str(&text).map_err(|error| bad(&error))?;
    // Unchanged, except for control characters, which could steer the terminal.
    out::line(waiting.shown())?;
    let Some(key) = &options.key else { return Ok(()) };
    let signed = waiting.sign(&identity(key)?).map_err(|error| bad(&error))?;
    replace(&options.out, &format!("{}\n", serde_json::to_string(&signed)?))?;
    let out = options.out.display();
    Ok(out::line(format_args!(
        "approved: bring it by roadweave fleet config approve NAME --signed {out}"
    ))?)
}
