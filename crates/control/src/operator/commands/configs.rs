//! Configurations of boxes, and their roll-outs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Subcommand;
use roadweave_fleet::Waiting;
use roadweave_identity::Identity;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::{out, secret};
use serde_json::{Value, json};

use super::CommandContext;
use crate::files::bad;
use crate::operator::show;

/// What to do with configurations.
#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Create the next version from a file, and roll it out to boxes
    Push {
        /// Fields of a box's file, as TOML
        file: PathBuf,
        /// For boxes with this tag
        #[arg(long, conflicts_with = "device")]
        tag: Option<String>,
        /// For this box
        #[arg(long)]
        device: Option<String>,
        /// The share of boxes in a wave, such as 5%; may be repeated. Default: all at once
        #[arg(long, value_parser = share)]
        wave: Vec<u32>,
        /// How long a wave waits for silent boxes, seconds. The next wave begins sooner once all
        /// have answered, and never before half have confirmed
        #[arg(long, default_value_t = 600)]
        rest: u32,
        /// Its title
        #[arg(long, default_value = "")]
        title: String,
    },
    /// All versions
    List,
    /// One version
    Show { name: String },
    /// Print what a person reviews and signs to approve a version, for `roadweave-controller
    /// approve`
    Approval { name: String },
    /// Approve a waiting version, if the root key names approvers
    Approve {
        name: String,
        /// The approver's key; prints what it signs
        #[arg(long, value_name = "FILE", required_unless_present = "signed")]
        key: Option<PathBuf>,
        /// The output of `roadweave-controller approve`, if the key is on another machine
        #[arg(long, value_name = "FILE", conflicts_with = "key")]
        signed: Option<PathBuf>,
    },
}

/// What to do with roll-outs.
#[derive(Subcommand)]
pub enum RolloutCommand {
    /// All roll-outs
    List,
    /// Pause at the current wave
    Pause { name: String },
    /// Resume it
    Resume { name: String },
    /// Abort it, and restore the previous version
    Abort { name: String },
}

fn share(text: &str) -> Result<u32, String> {
    let share = text.trim_end_matches('%').parse().ok().filter(|share| (1..=100).contains(share));
    share.ok_or_else(|| format!("\"{text}\" is not a share; write 1% to 100%"))
}

pub fn config(command: ConfigCommand, context: &CommandContext) -> Result<()> {
    match command {
        ConfigCommand::Push { file, tag, device, wave, rest, title } => {
            let scope = match (tag, device) {
                (Some(tag), _) => json!({ "tag": tag }),
                (None, Some(device)) => json!({ "device": device }),
                (None, None) => json!("tenant"),
            };
            let body = json!({ "scope": scope, "title": title, "body": read(&file)? });
            let made = context.client.post("configs", &body)?;
            let name = show::at(&made, "id");
            let mut waves = wave;
            waves.sort_unstable();
            waves.dedup();
            if waves.last() != Some(&100) {
                waves.push(100);
            }
            let settings = json!({ "config": name, "waves": waves, "rest_s": rest });
            let body = json!({ "id": name, "settings": settings });
            let rollout = context.client.post("rollouts", &body)?;
            let first = waves.first().copied().unwrap_or(100);
            let answer = json!({ "config": made, "rollout": rollout });
            context.answer(&answer, format_args!("{name}, first to {first}% of the boxes"))
        }
        ConfigCommand::List => context.list("configs", CONFIGS),
        ConfigCommand::Show { name } => out::json(&context.client.get(&format!("configs/{name}"))?),
        ConfigCommand::Approval { name } => out::json(&context.client.get(&approval(&name))?),
        ConfigCommand::Approve { name, key, signed } => {
            let signature = match (key, signed) {
                (Some(key), _) => sign(context, &name, &key)?,
                (None, Some(file)) => read_text(&file)?,
                (None, None) => return Err(BadInput::new("give --key or --signed").into()),
            };
            let body = json!({ "signature": signature.trim() });
            let answer = context.client.post(&approval(&name), &body)?;
            context.answer(&answer, format_args!("{name} is approved"))
        }
    }
}

fn approval(name: &str) -> String {
    format!("configs/{name}/approval")
}

fn sign(context: &CommandContext, name: &str, key: &Path) -> Result<String> {
    let waiting: Waiting = serde_json::from_value(context.client.get(&approval(name))?)?;
    let approver = Identity::from_base64(&secret::read(key)?).map_err(|error| bad(key, error))?;
    if !context.json {
        out::line(waiting.shown())?;
    }
    let signed = waiting.sign(&approver).map_err(|why| BadInput::new(format!("{name}: {why}")))?;
    Ok(serde_json::to_string(&signed)?)
}

fn read_text(file: &Path) -> Result<String> {
    Ok(fs::read_to_string(file).map_err(|error| bad(file, error))?)
}

fn read(file: &Path) -> Result<Value> {
    let text = read_text(file)?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| bad(file, error))?;
    Ok(serde_json::to_value(table).map_err(|error| bad(file, error))?)
}

pub fn rollout(command: RolloutCommand, context: &CommandContext) -> Result<()> {
    let (name, state) = match command {
        RolloutCommand::List => {
            return context.list("rollouts", ROLLOUTS);
        }
        RolloutCommand::Pause { name } => (name, "paused"),
        RolloutCommand::Resume { name } => (name, "running"),
        RolloutCommand::Abort { name } => (name, "aborted"),
    };
    let path = format!("rollouts/{name}");
    let answer = context.client.settle(&path, |settings| settings["state"] = state.into())?;
    context.answer(&answer, format_args!("{name} is {state}"))
}

const CONFIGS: &str = "NAME=id, AUTHOR=author, WRITTEN=changed_ms, TITLE=settings.title";
const ROLLOUTS: &str =
    "NAME=id, CONFIGURATION=settings.config, STATE=settings.state, WAVE=wave, WAVES=settings.waves";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_one_to_a_hundred_per_cent() {
        assert_eq!((share("5%"), share("100")), (Ok(5), Ok(100)));
        for bad in ["0%", "101%", "x", "", "-5%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
