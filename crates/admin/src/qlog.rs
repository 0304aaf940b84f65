//! `roadweave qlog`: writes how the sessions and paths of a running instance do, as qlog.
//!
//! ```text
//! instance ◄─ status, ten times a second ─ trace of each session: what is new? ─► its file
//!                              full: the next file, which begins with the full state
//! ```
//!
//! It is not part of the instance, so no packet waits for a disk.

mod files;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use roadweave_linux::{Instance, Signal, Signals, wait_readable};
use roadweave_node::local::{self, RequestError};
use roadweave_node::status::{RoleStatus, Status};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use roadweave_terminal::seconds::parse_seconds;
use roadweave_tunnel::SessionStatus;

use self::files::{Files, TraceLimits, TracePart};
use self::trace::{About, Beginning, StatusReading, Trace, uplinks};

/// Writes qlog traces of the sessions and paths of a running client or server
///
/// Writes a file for each session, in JSON text sequences: paths that open, are validated, fall
/// silent and close, their round trips, congestion windows, bytes in flight, MTU and losses, and
/// the counters of lanes. If the instance is not running, it waits for it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct QlogArgs {
    /// The name of the instance, which is the name of its TUN device
    #[arg(value_name = "NAME", default_value = "rw0", conflicts_with = "socket")]
    name: String,
    /// The socket of the running instance, instead of its name
    #[arg(long)]
    socket: Option<PathBuf>,
    /// The folder for the files; it must exist, and only root and this user may have write access
    /// to it
    #[arg(long, value_name = "FOLDER")]
    folder: PathBuf,
    /// Only the session with this peer; at a server, the name of a client
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// Stop after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = |text: &str| parse_seconds(text, &(0.1..=1e8)))]
    seconds: Option<Duration>,
    /// The most bytes in a file; the session continues in another one
    #[arg(long, value_name = "NUMBER", default_value_t = 16 << 20,
          value_parser = clap::value_parser!(u64).range(200_000..))]
    bytes: u64,
    /// The most files in the folder; the oldest is deleted
    #[arg(long, value_name = "NUMBER", default_value_t = 64,
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    files: u64,
}

const EXAMPLES: &str = "\
Examples:
  roadweave qlog --folder /var/log/roadweave-qlog
  roadweave qlog rws --folder traces --peer bus-17 --seconds 600";

impl QlogArgs {
    pub fn run(&self) -> Result<()> {
        let socket = match &self.socket {
            Some(socket) => socket.clone(),
            None => Instance::new(&self.name).map_err(BadInput::new)?.socket_path(),
        };
        let limits = TraceLimits { bytes_max: self.bytes, files_max: self.files as usize };
        let files = Files::open(&self.folder, limits).map_err(BadInput::new)?;
        let mut signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate, Signal::Hangup])?;
        let mut log = Log::new(files, self.peer.clone(), SESSIONS_MAX.min(self.files as usize));
        let (began, mut is_quiet) = (Instant::now(), false);
        while signals.take().is_none() && self.seconds.is_none_or(|most| began.elapsed() < most) {
            let asked = Instant::now();
            let answer = local::status(&socket);
            let took = asked.elapsed();
            let now = Now { run: began.elapsed(), wall: SystemTime::now() };
            match answer {
                Ok(status) => {
                    is_quiet = false;
                    log.take(now, &status)?;
                }
                Err(error @ RequestError::NoPermission { .. }) => return Err(error.into()),
                Err(error) => {
                    if matches!(error, RequestError::NotRunning { .. }) {
                        log.instance_is_gone(now);
                    }
                    if !std::mem::replace(&mut is_quiet, true) {
                        out::note(format_args!("{error}; trying again"));
                    }
                }
            }
            log.files.notices().for_each(out::note);
            let left = INTERVAL.saturating_sub(asked.elapsed()).max(took * REST_FACTOR);
            if wait_readable(&signals, left).is_err() {
                sleep(left);
            }
        }
        match log.files.lost() {
            0 => Ok(()),
            lost => Err(anyhow!("{lost} readings could not be written and are missing")),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Now {
    run: Duration,
    wall: SystemTime,
}

struct Log {
    files: Files,
    peer: Option<String>,
    sessions_max: usize,
    sessions: BTreeMap<(String, String), Written>,
    /// Whether the instance has been read or found gone: sessions from then on are new.
    has_read: bool,
    is_excess_logged: bool,
}

struct Written {
    trace: Trace,
    part: Option<TracePart>,
    parts: u64,
    lost: u64,
}

impl Log {
    fn new(files: Files, peer: Option<String>, sessions_max: usize) -> Self {
        let sessions = BTreeMap::new();
        Self { files, peer, sessions_max, sessions, has_read: false, is_excess_logged: false }
    }

    fn take(&mut self, now: Now, status: &Status) -> Result<()> {
        let (role, sessions) = sessions(status)?;
        let wanted =
            |session: &&SessionStatus| self.peer.as_ref().is_none_or(|peer| *peer == session.peer);
        let by_peer: BTreeMap<_, &SessionStatus> = sessions
            .iter()
            .filter(wanted)
            .map(|session| ((session.peer.clone(), session.public_key.clone()), session))
            .collect();
        let is_over = |(key, written): (&(String, String), &Written)| {
            let goes_on = by_peer.get(key).is_some_and(|session| written.trace.is_of(session));
            (!goes_on).then(|| key.clone())
        };
        let over: Vec<_> = self.sessions.iter().filter_map(is_over).collect();
        for key in over {
            let reason = (!by_peer.contains_key(&key)).then(|| reason(status, &key)).flatten();
            self.end(now, &key, reason.as_deref());
        }
        let uplinks = uplinks(status);
        let mut left_out = 0;
        for (key, session) in by_peer {
            if !self.sessions.contains_key(&key) {
                if self.sessions.len() >= self.sessions_max {
                    left_out += 1;
                    continue;
                }
                let about = About { role, instance: status.name.clone(), is_new: self.has_read };
                let trace = Trace::new(about, session, now);
                let written = Written { trace, part: None, parts: 0, lost: 0 };
                self.sessions.insert(key.clone(), written);
            }
            if let Some(written) = self.sessions.get_mut(&key) {
                written.take(&mut self.files, now, &StatusReading { session, uplinks: &uplinks });
            }
        }
        if left_out > 0 && !std::mem::replace(&mut self.is_excess_logged, true) {
            let most = self.sessions_max;
            out::note(format_args!(
                "{left_out} sessions are not written: at most {most} at a time; --peer selects one"
            ));
        }
        self.has_read = true;
        Ok(())
    }

    fn instance_is_gone(&mut self, now: Now) {
        let keys: BTreeSet<_> = self.sessions.keys().cloned().collect();
        keys.iter().for_each(|key| self.end(now, key, Some("the instance has ended")));
        self.has_read = true;
    }

    fn end(&mut self, now: Now, key: &(String, String), reason: Option<&str>) {
        let Some(mut written) = self.sessions.remove(key) else { return };
        let records = written.trace.close(now, reason);
        if let Some(mut part) = written.part {
            self.files.append_last(now.run, &mut part, &records);
            self.files.end(part);
        }
    }
}

impl Written {
    fn take(&mut self, files: &mut Files, now: Now, reading: &StatusReading<'_>) {
        if let Some(mut part) = self.part.take() {
            let records = self.trace.updates(now, reading);
            if files.append(now.run, &mut part, &records) {
                self.part = Some(part);
                return;
            }
            files.end(part);
        }
        let how = Beginning { part: self.parts + 1, readings_lost: self.lost };
        let records = self.trace.begin(now, reading, how);
        let unix_ms = now.wall.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        self.part = files.begin(now.run, unix_ms, &reading.session.peer, &records);
        match self.part {
            Some(_) => (self.parts, self.lost) = (how.part, 0),
            None => self.lost += 1,
        }
    }
}

/// Also the side of the instance; fails for a role without sessions.
fn sessions(status: &Status) -> Result<(&'static str, &[SessionStatus])> {
    match &status.role {
        RoleStatus::Client(client) => Ok(("client", &client.sessions)),
        RoleStatus::Server(server) => Ok(("server", &server.sessions)),
        RoleStatus::Proxy(proxy) => Ok(("server", &proxy.sessions)),
        other => {
            let role = other.name();
            let why = format!("this instance is a {role}, which has no QUIC paths");
            Err(BadInput::new(why).into())
        }
    }
}

fn reason(status: &Status, (peer, public_key): &(String, String)) -> Option<String> {
    match &status.role {
        RoleStatus::Client(client) => client.no_session.clone(),
        RoleStatus::Server(server) => server
            .absent
            .iter()
            .find(|absent| absent.peer == *peer && absent.public_key == *public_key)
            .map(|absent| absent.reason.clone()),
        _ => None,
    }
}

const INTERVAL: Duration = Duration::from_millis(100);
const REST_FACTOR: u32 = 5;
const SESSIONS_MAX: usize = 64;

#[cfg(test)]
mod tests;
