//! `roadweave hooks`: runs programs when the tunnel has joined, has ended, or an uplink changes.
//!
//! ```text
//! client ◄─ status, once a second ─ changes ─► FOLDER/join, leave, uplink: one at a time
//! ```
//!
//! It is not part of the client, since programs that a daemon starts have its rights and its filter
//! of system calls. It compares states, so a restart of either side loses no event.

mod changes;
pub(crate) mod program;

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use roadweave_linux::{Signal, Signals, wait_readable};
use roadweave_node::local::{self, RequestError};
use roadweave_proto::peer_text;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use self::changes::{Changes, HookChange, HookSession};
use self::program::HookOutcome;

const INTERVAL: Duration = Duration::from_secs(1);

/// Runs programs when the tunnel comes up, goes down, or an uplink changes
///
/// Runs the programs `join`, `leave` and `uplink` in FOLDER, if they exist, with these variables:
/// ROADWEAVE_EVENT, ROADWEAVE_TUN, ROADWEAVE_SERVER, ROADWEAVE_ADDRESSES, ROADWEAVE_UPLINK,
/// ROADWEAVE_UPLINK_STATE. If the client is not running, it waits for it.
#[derive(Debug, clap::Args)]
pub struct HooksArgs {
    /// The folder with the programs; only root and this user may have write access to it
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The socket of the client
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// Seconds after which a program and its children are killed
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

impl HooksArgs {
    pub fn run(&self) -> Result<()> {
        let folder = program::folder(&self.folder).map_err(BadInput::new)?;
        let mut signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate, Signal::Hangup])?;
        let mut changes = Changes::default();
        let mut is_quiet = false;
        let began = Instant::now();
        while signals.take().is_none() {
            let read = Instant::now();
            match local::status(&self.socket) {
                Ok(status) => {
                    is_quiet = false;
                    if !changes.take(began.elapsed(), Some(&status)) {
                        let role = status.role.name();
                        return Err(BadInput::new(format!("this is a {role}, not a client")).into());
                    }
                }
                Err(RequestError::NotRunning { .. }) => _ = changes.take(began.elapsed(), None),
                Err(error @ RequestError::NoPermission { .. }) => return Err(error.into()),
                Err(error) if !is_quiet => {
                    is_quiet = true;
                    out::note(format_args!("{error}; trying again"));
                }
                Err(_) => {}
            }
            while let Some(change) = changes.next() {
                if !self.run_programs(&folder, &change, &mut signals) {
                    return Ok(());
                }
                // Read the state again before reporting changes that may no longer hold.
                if read.elapsed() >= INTERVAL {
                    break;
                }
            }
            let left = INTERVAL.saturating_sub(read.elapsed());
            if wait_readable(&signals, left).is_err() {
                sleep(left);
            }
        }
        Ok(())
    }

    fn run_programs(&self, folder: &Path, change: &HookChange, signals: &mut Signals) -> bool {
        let name = match change {
            HookChange::Join(_) => "join",
            HookChange::Leave(_) => "leave",
            HookChange::Uplink(..) => "uplink",
        };
        let (facts, path) = match (facts(change), program::find(folder, name)) {
            (Ok(facts), Ok(Some(path))) => (facts, path),
            (_, Ok(None)) => return true,
            (Err(why), _) | (_, Err(why)) => {
                out::note(format_args!("cannot run {name}: {why}"));
                return true;
            }
        };
        let time = Duration::from_secs(self.timeout);
        match program::run(&path, &facts, time, || signals.take().is_some()) {
            Ok(HookOutcome::Ended(status)) if status.success() => {}
            Ok(HookOutcome::Ended(status)) => {
                out::note(format_args!("{}: {status}", path.display()))
            }
            Ok(HookOutcome::Killed) => {
                let seconds = self.timeout;
                out::note(format_args!("killed {} after {seconds} s", path.display()));
            }
            Ok(HookOutcome::Interrupted) => return false,
            Err(error) => out::note(format_args!("cannot run {}: {error}", path.display())),
        }
        true
    }
}

/// The environment of a program; fails if a name is not a plain interface name.
fn facts(change: &HookChange) -> Result<Vec<(&'static str, String)>, String> {
    Ok(match change {
        HookChange::Join(session) => {
            let mut facts = of_session("join", session)?;
            let addresses: Vec<_> = session.addresses.iter().map(ToString::to_string).collect();
            facts.push(("ADDRESSES", addresses.join(" ")));
            facts.extend(session.server.map(|server| ("SERVER", server.to_string())));
            facts
        }
        HookChange::Leave(session) => of_session("leave", session)?,
        HookChange::Uplink(uplink, state) => vec![
            ("EVENT", "uplink".to_owned()),
            ("UPLINK", interface(uplink)?),
            ("UPLINK_STATE", state.name().to_owned()),
        ],
    })
}

fn of_session(event: &str, session: &HookSession) -> Result<Vec<(&'static str, String)>, String> {
    Ok(vec![("EVENT", event.to_owned()), ("TUN", interface(&session.tun)?)])
}

/// Accepts a name that is no option, no path and has no meaning to a shell.
fn interface(name: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "_.:@-".contains(c);
    let is_good = name.chars().all(good) && !name.starts_with(['-', '.']) && !name.is_empty();
    match is_good && name.len() <= NAME_MAX {
        true => Ok(name.to_owned()),
        false => Err(format!("\"{}\" is not an interface name", peer_text(name.as_bytes()))),
    }
}

/// IFNAMSIZ without the final zero byte.
const NAME_MAX: usize = 15;

#[cfg(test)]
mod tests;
