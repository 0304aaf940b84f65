//! `roadweave report`: a folder with what a maintainer needs, without secrets.
//!
//! ```text
//! configuration ─► known fields, without keys and comments ─► config.toml
//! doctor ───────────────────────────────────────────────────► doctor.json
//! running instance ─────────────────────────────────────────► show.json, or why it is missing
//! log ─► its last lines, without what looks like a secret ──► log.txt
//! ```

mod redact;

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use roadweave_node::local;
use roadweave_terminal::VERSION;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use rustix::fs::{CWD, Mode, OFlags, fstat, mkdir, open, openat};
use serde_json::Value;

use crate::doctor;

/// Collects what a maintainer needs in a folder, without secrets
///
/// Contains the configuration of a client or a server without keys and comments, the output of
/// `doctor` and of `show --json`, and the end of a log. Check it before you send it: it contains
/// names and addresses.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// The configuration file of a client or a server
    #[arg(value_name = "FILE")]
    config: PathBuf,
    /// The socket of the running client or server
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// A file with the log, whose end is included
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// The folder to create; it must not exist yet
    #[arg(long, value_name = "FOLDER", default_value = "roadweave-report")]
    out: PathBuf,
}

const LOG_MAX: u64 = 256 << 10;
const CONFIG_MAX: u64 = 16 << 20;

impl ReportArgs {
    pub fn run(&self) -> Result<()> {
        if let Ok(there) = fs::metadata(&self.config)
            && !(there.is_file() && there.len() <= CONFIG_MAX)
        {
            let path = self.config.display();
            return Err(BadInput::new(format!("{path} is not a configuration file")).into());
        }
        let config = read(&self.config);
        if let Err(why) = &config {
            out::note(format_args!("{why}; the report continues without it"));
        }
        let folder = make(&self.out)?;
        for (name, text) in self.parts(&config) {
            write(&folder, name, &text)
                .with_context(|| format!("cannot write into {}", self.out.display()))?;
        }
        out::line(format_args!(
            "wrote {}. Check it before you send it: it contains names and addresses",
            self.out.display()
        ))?;
        Ok(())
    }

    fn parts(&self, config: &Result<String, String>) -> Vec<(&'static CStr, String)> {
        let lines = |value: Value| format!("{:#}\n", redact::json(value));
        let status = local::request(&self.socket, "status", &Value::Null);
        let error = |error: local::RequestError| serde_json::json!({ "error": error.to_string() });
        let mut parts = vec![
            (c"version.txt", version()),
            (c"config.toml", redact::config(config)),
            (c"doctor.json", lines(without_quotations(doctor::found(&self.config)))),
            (c"show.json", lines(status.unwrap_or_else(error))),
        ];
        if let Some(log) = &self.log_file {
            parts.push((c"log.txt", tail(log)));
        }
        parts
    }
}

/// Makes a folder for this user alone and holds its descriptor: its parent's owner may replace it.
fn make(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = mkdir(path, Mode::RWXU).and_then(|()| open(path, flags, Mode::empty()));
    let folder =
        made.map_err(|error| BadInput::new(format!("cannot make {}: {error}", path.display())))?;
    let there = fstat(&folder)?;
    let is_ours = there.st_uid == rustix::process::geteuid().as_raw() && there.st_mode & 0o077 == 0;
    ensure!(is_ours, "{} was replaced while the report was written", path.display());
    Ok(folder)
}

fn write(folder: &OwnedFd, name: &CStr, text: &str) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
    File::from(file).write_all(text.as_bytes())?;
    Ok(())
}

fn version() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "roadweave-admin {VERSION}\nkernel {}\narchitecture {}\n",
        kernel.trim(),
        std::env::consts::ARCH
    )
}

fn without_quotations(mut found: Value) -> Value {
    for check in found["checks"].as_array_mut().into_iter().flatten() {
        if check["name"] == "config"
            && let Some(what) = check["what"].as_str()
        {
            check["what"] = redact::unquoted(what.lines().next().unwrap_or_default()).into();
        }
    }
    found
}

fn regular(path: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags, Mode::empty()).context("cannot be opened")?);
    ensure!(file.metadata()?.is_file(), "is not a file");
    Ok(file)
}

fn read(path: &Path) -> Result<String, String> {
    let text = || -> Result<String> {
        let mut text = String::new();
        regular(path)?.take(CONFIG_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    text().map_err(|error| format!("{} {error:#}", path.display()))
}

fn tail(path: &Path) -> String {
    let read = || -> Result<String> {
        let mut file = regular(path)?;
        let begin = file.metadata()?.len().saturating_sub(LOG_MAX);
        file.seek(SeekFrom::Start(begin))?;
        let mut bytes = Vec::new();
        file.take(LOG_MAX).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        // The first line may be cut, and with it the word that marks a secret.
        let whole = match begin {
            0 => &*text,
            _ => text.split_once('\n').map_or("", |(_, rest)| rest),
        };
        Ok(redact::log(whole))
    };
    read().unwrap_or_else(|error| format!("{} {error:#}\n", path.display()))
}

#[cfg(test)]
mod tests;
