//! `roadweave doctor`: what is wrong on this machine for one configuration, and how to mend it.
//!
//! ```text
//! gather: files, kernel, uplinks, probes ─► Facts ─► judge ─► a line for each check
//! ```
//!
//! Nothing is changed, and nothing but probes leaves the machine.

mod facts;
mod firewall;
mod gather;
mod judge;
mod marks;
mod reach;

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use roadweave_terminal::out;
use serde::Serialize;

/// Checks this machine against a configuration, and says how to fix each problem
///
/// Takes the configuration file of a client or a server. Run it as root, to see everything. It
/// changes nothing. The exit code is 0 unless a check fails.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// The configuration file of a client or a server
    #[arg(value_name = "FILE")]
    config: PathBuf,
    /// Print the checks as one JSON object
    #[arg(long)]
    json: bool,
}

roadweave_proto::named! {
    Verdict {
        Ok = "ok",
        Warn = "warn",
        Fail = "fail",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    name: String,
    verdict: Verdict,
    what: String,
    mend: Option<String>,
}

impl Check {
    fn ok(name: impl Into<String>, what: impl Into<String>) -> Self {
        Self { name: name.into(), verdict: Verdict::Ok, what: what.into(), mend: None }
    }

    fn warn(name: impl Into<String>, what: impl Into<String>, mend: impl Into<String>) -> Self {
        let (name, what, mend) = (name.into(), what.into(), Some(mend.into()));
        Self { name, verdict: Verdict::Warn, what, mend }
    }

    fn fail(name: impl Into<String>, what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, what, mend) }
    }

    fn line(&self) -> String {
        let Self { name, verdict, what, mend } = self;
        let mend = mend.as_ref().map(|mend| format!("; {mend}")).unwrap_or_default();
        harmless(&format!("{:<4} {name}: {what}{mend}", verdict.name()))
    }
}

impl DoctorArgs {
    pub fn run(&self) -> Result<()> {
        let checks = judge::judge(&gather::gather(&self.config));
        if self.json {
            out::json(&checks_json(&checks))?;
        } else {
            checks.iter().try_for_each(|check| out::line(check.line()))?;
        }
        match checks.iter().filter(|check| check.verdict == Verdict::Fail).count() {
            0 => Ok(()),
            failed => Err(anyhow!("{failed} of {} checks failed", checks.len())),
        }
    }
}

pub(crate) fn found(path: &Path) -> serde_json::Value {
    checks_json(&judge::judge(&gather::gather(path)))
}

fn checks_json(checks: &[Check]) -> serde_json::Value {
    serde_json::json!({ "checks": checks })
}

fn harmless(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "|");
    let joined = lines.collect::<Vec<_>>().join(" ");
    let pieces = joined.split(' ').map(|word| roadweave_proto::peer_text(word.as_bytes()));
    pieces.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
