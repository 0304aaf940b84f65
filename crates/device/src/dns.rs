//! The resolvers of the machine for the time of a session, and those of before afterwards.
//!
//! ```text
//! joined ─► systemd-resolved (resolvectl) │ resolvconf │ /etc/resolv.conf     whichever the box has
//! left, stop, next start after a kill, release ─► as it was
//! ```
//!
//! The file is replaced as a whole, and what was there is kept in the state directory before: after
//! a crash or a power cut the next start, or `release`, puts it back. What somebody else has
//! written since is theirs, and stays. `/run/roadweave/NAME.dns` says where the state directory is.

mod file;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::program::{self, Failure};
use crate::{DeviceError, Instance, files};

use file::ResolvConf;
pub(crate) use file::{before, nameservers};

/// The resolvers of one client's sessions.
#[derive(Debug)]
pub(crate) struct Dns {
    instance: Instance,
    tun: String,
    servers: Vec<IpAddr>,
    state_directory: PathBuf,
    /// How they were set, while they are.
    backend: Option<DnsBackend>,
    /// A session is up that wants them.
    is_due: bool,
}

/// What keeps the machine's resolvers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DnsBackend {
    Resolved,
    Resolvconf,
    File,
}

impl Dns {
    /// Changes nothing yet; without `servers` it never does.
    pub(crate) fn new(
        instance: &Instance,
        tun: &str,
        servers: Vec<IpAddr>,
        state_directory: &Path,
    ) -> Self {
        let (instance, tun) = (instance.clone(), tun.to_owned());
        let state_directory = state_directory.to_owned();
        Self { instance, tun, servers, state_directory, backend: None, is_due: false }
    }

    /// Whether the file names resolvers.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.servers.is_empty()
    }

    /// Sets them.
    ///
    /// # Errors
    /// What a program or the system says; the resolvers are those of before then.
    pub(crate) fn set(&mut self) -> Result<(), DeviceError> {
        self.is_due = self.is_wanted();
        if !self.is_due || self.backend.is_some() {
            return Ok(());
        }
        let backend = DnsBackend::of_this_machine();
        self.note_directory()?;
        match backend {
            DnsBackend::Resolved => {
                let servers: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
                let mut words = vec!["dns", self.tun.as_str()];
                words.extend(servers.iter().map(String::as_str));
                run("resolvectl", &words, "")?;
                run("resolvectl", &["domain", &self.tun, "~."], "")?;
            }
            DnsBackend::Resolvconf => {
                let text = file::text(&self.servers, "");
                run("resolvconf", &["-a", &self.tun, "-m", "0", "-x"], &text)?;
            }
            DnsBackend::File => self.file().set(&self.servers)?,
        }
        tracing::info!(servers = ?self.servers, by = backend.name(), "resolvers of the session are set");
        self.backend = Some(backend);
        Ok(())
    }

    /// Puts back what was there before.
    ///
    /// # Errors
    /// What a program or the system says.
    pub(crate) fn unset(&mut self) -> Result<(), DeviceError> {
        self.is_due = false;
        match self.backend {
            None => return Ok(()),
            Some(DnsBackend::Resolved) => run("resolvectl", &["revert", &self.tun], "")?,
            Some(DnsBackend::Resolvconf) => run("resolvconf", &["-d", &self.tun, "-f"], "")?,
            Some(DnsBackend::File) => self.file().restore().map(drop)?,
        }
        self.backend = None;
        // Where it is left, the next start finds nothing to do.
        let _ = fs::remove_file(self.instance.dns_path());
        Ok(())
    }

    /// Sets them if that could not be done before, or again if another program has changed the
    /// file; returns whether one had.
    ///
    /// # Errors
    /// As [`Dns::set`].
    pub(crate) fn mend(&mut self) -> Result<bool, DeviceError> {
        if self.is_due && self.backend.is_none() {
            return self.set().map(|()| false);
        }
        if self.backend != Some(DnsBackend::File) || self.file().is_ours() {
            return Ok(false);
        }
        self.file().set(&self.servers)?;
        Ok(true)
    }

    fn file(&self) -> ResolvConf {
        ResolvConf::new(self.instance.name(), Path::new(RESOLV_CONF), &self.state_directory)
    }

    fn note_directory(&self) -> Result<(), DeviceError> {
        let path = self.instance.dns_path();
        files::replace(&path, self.state_directory.as_os_str().as_encoded_bytes(), 0o600)
            .map_err(|error| DeviceError::system(format!("write {}", path.display()), error))
    }
}

impl DnsBackend {
    fn of_this_machine() -> Self {
        // A stub that nobody is behind is no way.
        let is_resolved = fs::canonicalize(RESOLV_CONF)
            .is_ok_and(|path| path.starts_with("/run/systemd/resolve"))
            || nameservers(Path::new(RESOLV_CONF)).contains(&IpAddr::from([127, 0, 0, 53]));
        if is_resolved && run("resolvectl", &["--no-pager", "dns"], "").is_ok() {
            Self::Resolved
        } else if is_program("resolvconf") {
            Self::Resolvconf
        } else {
            Self::File
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Resolved => "resolvectl",
            Self::Resolvconf => "resolvconf",
            Self::File => RESOLV_CONF,
        }
    }
}

/// Puts back what an instance that is not running has changed; that it has changed nothing is no
/// error. What it told systemd-resolved went with its TUN.
///
/// # Errors
/// What the system says.
pub(crate) fn restore(instance: &Instance) -> Result<(), DeviceError> {
    let note = instance.dns_path();
    let directory = match fs::read(&note) {
        // Any bytes are a path on Linux.
        Ok(bytes) => {
            if is_program("resolvconf") {
                // Named like its TUN. It says nothing of whether there was any.
                let _ = run("resolvconf", &["-d", instance.name(), "-f"], "");
            }
            PathBuf::from(OsString::from_vec(bytes))
        }
        Err(_) => PathBuf::from(STATE_DIRECTORY),
    };
    let file = ResolvConf::new(instance.name(), Path::new(RESOLV_CONF), &directory);
    if file.restore()? {
        tracing::info!("the resolvers of before are back in {RESOLV_CONF}");
    }
    match fs::remove_file(&note) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(DeviceError::system(format!("remove {}", note.display()), error))
        }
        _ => Ok(()),
    }
}

/// Gives the machine the resolvers back that it had before an earlier session, at a client's start:
/// it knows its state directory, and so what `/run` may have forgotten.
///
/// # Errors
/// As [`restore`].
pub(crate) fn restore_of(instance: &Instance, state_directory: &Path) -> Result<(), DeviceError> {
    ResolvConf::new(instance.name(), Path::new(RESOLV_CONF), state_directory).restore()?;
    restore(instance)
}

fn is_program(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(name).is_file())
}

/// Runs a program with `input`; what it says is told if it fails.
fn run(program: &str, words: &[&str], input: &str) -> Result<(), DeviceError> {
    let mut command = Command::new(program);
    program::run(command.args(words), input, LIMIT).map_err(|failure| match failure {
        Failure::NotStarted(error) => DeviceError::system(format!("run {program}"), error),
        Failure::Said(detail) => DeviceError::Program { program: program.to_owned(), detail },
    })
}

/// How long a program may take: the tunnel waits for it, and one that waits for a daemon may wait
/// long.
const LIMIT: Duration = Duration::from_secs(3);

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where clients keep their state unless told otherwise.
const STATE_DIRECTORY: &str = "/var/lib/roadweave";
