//! Runs one program of the hooks' folder, without a shell or arguments and with a time limit.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, geteuid, kill_process_group, waitid};

const TURN: Duration = Duration::from_millis(20);
const PREFIX: &str = "ROADWEAVE_";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum HookOutcome {
    Ended(ExitStatus),
    Killed,
    Interrupted,
}

/// The canonical folder; fails if others could have chosen it.
pub(crate) fn folder(path: &Path) -> Result<PathBuf, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let (given, folder) =
        (std::path::absolute(path).map_err(failed)?, fs::canonicalize(path).map_err(failed)?);
    if !folder.is_dir() {
        return Err(format!("{} is not a folder", path.display()));
    }
    check(&given)?;
    check(&folder)?;
    Ok(folder)
}

/// `None` if it does not exist; fails for a symbolic link, or if other users could have written it.
pub(super) fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>, String> {
    let path = folder.join(name);
    match fs::symlink_metadata(&path) {
        Ok(there) if there.is_file() => {}
        Ok(_) => return Err(format!("{} is not a file", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    }
    check(&path)?;
    Ok(Some(path))
}

fn check(path: &Path) -> Result<(), String> {
    for part in path.ancestors() {
        let there = fs::metadata(part).map_err(|error| format!("{}: {error}", part.display()))?;
        if !is_safe(&there) {
            let part = part.display();
            return Err(format!("{part}: users other than root and this user can write to it"));
        }
    }
    Ok(())
}

fn is_safe(there: &Metadata) -> bool {
    let is_sticky = there.is_dir() && there.mode() & 0o1000 != 0;
    let is_ours = there.uid() == 0 || there.uid() == geteuid().as_raw();
    is_ours && (is_sticky || there.mode() & 0o022 == 0)
}

/// Runs the program and then kills its process group.
pub(super) fn run(
    path: &Path,
    facts: &[(&str, String)],
    time: Duration,
    mut is_over: impl FnMut() -> bool,
) -> io::Result<HookOutcome> {
    let mut command = Command::new(path);
    // Remove inherited variables of ours, which are not facts.
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            command.env_remove(name);
        }
    }
    let facts = facts.iter().map(|(name, value)| (format!("{PREFIX}{name}"), value));
    command.envs(facts).current_dir("/").stdin(Stdio::null()).process_group(0);
    let mut child = command.spawn()?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let group = group.ok_or_else(|| io::Error::other("it has no process ID"))?;
    let end = Instant::now() + time;
    let outcome = loop {
        // `NOWAIT` leaves a zombie until the group is killed, so that its ID is not reused.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(group), options) {
            Ok(Some(_)) => break None,
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if is_over() {
            break Some(HookOutcome::Interrupted);
        }
        if Instant::now() >= end {
            break Some(HookOutcome::Killed);
        }
        sleep(TURN);
    };
    let _ = kill_process_group(group, Signal::KILL);
    let status = child.wait()?;
    Ok(outcome.unwrap_or(HookOutcome::Ended(status)))
}
