//! Sets the machine's resolvers during a session through systemd-resolved, resolvconf or
//! `/etc/resolv.conf`, whichever the box has, and restores them afterwards.
//!
//! A thread does it, since these programs may block. The file is replaced atomically after its
//! contents are saved in the state directory, whose path is in `/run/roadweave/NAME.dns`. After a
//! crash the next start, or `release`, restores them, unless another program has written since.

mod file;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::program::{self, Failure};
use crate::threads::spawn;
use crate::{DeviceError, Instance, files};

use file::ResolvConf;
pub(crate) use file::before;
pub use file::nameservers;

/// The machine's name servers while a tunnel is up, set by a thread.
#[derive(Debug)]
pub struct Dns {
    servers: Vec<IpAddr>,
    /// Sends the thread whether a session is up; `None` without `servers`.
    due: Option<Sender<bool>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct DnsWorker {
    instance: Instance,
    tun: String,
    servers: Vec<IpAddr>,
    state_directory: PathBuf,
    backend: Option<DnsBackend>,
    is_due: bool,
    logged: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DnsBackend {
    Resolved,
    Resolvconf,
    File,
}

impl Dns {
    /// Changes nothing yet. Without `servers` no thread is started.
    pub fn start(
        instance: &Instance,
        tun: &str,
        servers: Vec<IpAddr>,
        state_directory: &Path,
    ) -> Result<Self, DeviceError> {
        if servers.is_empty() {
            return Ok(Self { servers, due: None, thread: None });
        }
        let mut worker = DnsWorker {
            instance: instance.clone(),
            tun: tun.to_owned(),
            servers: servers.clone(),
            state_directory: state_directory.to_owned(),
            backend: None,
            is_due: false,
            logged: String::new(),
        };
        let (due, wakes) = channel();
        let thread = spawn("resolvers", move || worker.run(&wakes))?;
        Ok(Self { servers, due: Some(due), thread: Some(thread) })
    }

    /// The name servers in the tunnel.
    pub fn servers(&self) -> &[IpAddr] {
        &self.servers
    }

    /// Sets the resolvers in the thread. Failures are logged and retried.
    pub fn set(&self) {
        self.ask(true);
    }

    /// Restores the former resolvers in the thread.
    pub fn unset(&self) {
        self.ask(false);
    }

    fn ask(&self, due: bool) {
        if let Some(thread) = &self.due {
            let _ = thread.send(due);
        }
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.due = None;
        self.thread.take().map(JoinHandle::join);
    }
}

impl DnsWorker {
    fn run(&mut self, due: &Receiver<bool>) {
        loop {
            let result = match due.recv_timeout(LOOK) {
                Ok(true) => self.set(),
                Ok(false) => self.unset(),
                Err(RecvTimeoutError::Timeout) => self.mend(),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let text = result.err().map(|error| error.to_string()).unwrap_or_default();
            if !text.is_empty() && text != self.logged {
                tracing::warn!("{text}");
            }
            self.logged = text;
        }
    }

    fn set(&mut self) -> Result<(), DeviceError> {
        self.is_due = true;
        if self.backend.is_some() {
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
        tracing::info!(
            servers = ?self.servers,
            by = backend.name(),
            "the DNS resolvers of the session are set"
        );
        self.backend = Some(backend);
        Ok(())
    }

    fn unset(&mut self) -> Result<(), DeviceError> {
        self.is_due = false;
        match self.backend {
            None => return Ok(()),
            Some(DnsBackend::Resolved) => run("resolvectl", &["revert", &self.tun], "")?,
            Some(DnsBackend::Resolvconf) => run("resolvconf", &["-d", &self.tun, "-f"], "")?,
            Some(DnsBackend::File) => self.file().restore().map(drop)?,
        }
        self.backend = None;
        // If this fails, the next start finds nothing to restore.
        let _ = fs::remove_file(self.instance.dns_path());
        Ok(())
    }

    fn mend(&mut self) -> Result<(), DeviceError> {
        match (self.is_due, self.backend) {
            (true, None) => return self.set(),
            (false, Some(_)) => return self.unset(),
            _ => {}
        }
        if self.backend != Some(DnsBackend::File) || self.file().is_ours() {
            return Ok(());
        }
        self.file().set(&self.servers)?;
        tracing::warn!(
            "another program changed the DNS resolvers of the session; they are set again"
        );
        Ok(())
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
        // The stub may be configured without resolved running.
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

/// Restores the resolvers of an ended instance. Those of systemd-resolved went with its TUN.
pub(crate) fn restore(instance: &Instance) -> Result<(), DeviceError> {
    let note = instance.dns_path();
    let directory = match fs::read(&note) {
        Ok(bytes) => {
            if is_program("resolvconf") {
                // The exit status does not show whether there was an entry.
                let _ = run("resolvconf", &["-d", instance.name(), "-f"], "");
            }
            PathBuf::from(OsString::from_vec(bytes))
        }
        Err(_) => PathBuf::from(STATE_DIRECTORY),
    };
    let file = ResolvConf::new(instance.name(), Path::new(RESOLV_CONF), &directory);
    if file.restore()? {
        tracing::info!("the previous DNS resolvers are restored in {RESOLV_CONF}");
    }
    match fs::remove_file(&note) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(DeviceError::system(format!("remove {}", note.display()), error))
        }
        _ => Ok(()),
    }
}

/// As `restore` at a client's start, which knows its state directory even if `/run` was cleared.
pub fn restore_of(instance: &Instance, state_directory: &Path) -> Result<(), DeviceError> {
    ResolvConf::new(instance.name(), Path::new(RESOLV_CONF), state_directory).restore()?;
    restore(instance)
}

fn is_program(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(name).is_file())
}

fn run(program: &str, words: &[&str], input: &str) -> Result<(), DeviceError> {
    let mut command = Command::new(program);
    program::run(command.args(words), input, LIMIT).map_err(|failure| match failure {
        Failure::NotStarted(error) => DeviceError::system(format!("run {program}"), error),
        Failure::Said(detail) => DeviceError::Program { program: program.to_owned(), detail },
    })
}

const LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_secs(4);

const RESOLV_CONF: &str = "/etc/resolv.conf";
const STATE_DIRECTORY: &str = "/var/lib/roadweave";
