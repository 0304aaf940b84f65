//! `roadweave router`, and what all roles do with their files.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use roadweave_config::{RouterFile, Validate};
use roadweave_node::run_router;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

/// Runs a redundant router: sends every packet over every link, not encrypted; both sides run one.
#[derive(Debug, clap::Args)]
pub struct RouterArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/roadweave/router.toml")]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
}

/// Fields whose change needs a restart. No private keys: memory holds none; the caller compares.
pub(crate) fn ignored<T: Validate + serde::Serialize>(
    started: &T,
    now: &T,
    other_key: bool,
) -> Vec<String> {
    let is_read = |field: &String| {
        T::RELOADED.iter().any(|name| {
            field.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let mut ignored: Vec<String> = roadweave_config::differing(started, now)
        .into_iter()
        .filter(|field| !is_read(field))
        .collect();
    if other_key {
        ignored.push("private_key".to_owned());
    }
    ignored
}

pub(crate) fn warnings(file: &impl Validate) -> Vec<String> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    file.warnings(since_1970.as_secs())
}

pub(crate) fn in_order(path: &Path, file: &impl Validate) -> Result<()> {
    for warning in warnings(file) {
        out::note(format_args!("warning: {}: {warning}", path.display()));
    }
    Ok(out::line(format_args!("{} is valid", path.display()))?)
}

impl RouterArgs {
    pub fn run(&self) -> Result<()> {
        let file: RouterFile = roadweave_config::load(&self.config).map_err(BadInput::new)?;
        if self.check {
            return in_order(&self.config, &file);
        }
        Ok(run_router(file)?)
    }
}
