//! A program runs itself again inside fresh namespaces.
//!
//! ```text
//! roadweave (outside) --- waits, forwards signals
//!    +-- unshare ------- mount, net, pid and, when not root, user namespace
//!          +-- roadweave (inside): pid 1, all others are its children
//! ```
//!
//! When the outer program ends, the kernel kills `unshare` (parent death signal), that kills pid 1,
//! and with it end all processes, mounts, interfaces, routes and rules of the namespaces.

#![allow(unsafe_code, reason = "a child asks the kernel to die with its parent before exec")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::MountFlags;
use rustix::process::{Pid, Signal as KernelSignal, getppid, kill_process_group};

use crate::signals::{Signal, Signals};
use crate::{DeviceError, wait_readable};

/// Where [`Sandbox::enter`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// Inside: continue.
    Inside,
    /// Outside, after the inner program: exit with this code (128 + signal if killed).
    Ended(i32),
}

impl Sandbox {
    /// Runs this program again, with its own arguments, inside a sandbox.
    ///
    /// Call it first, before threads and sockets. Inside, it returns [`Sandbox::Inside`] at once.
    /// Interrupt, terminate and hang-up are forwarded; the program is killed 3 s after the first,
    /// or at a second. Fails with [`DeviceError::Unavailable`] without kernel support or tools.
    pub fn enter() -> Result<Self, DeviceError> {
        Self::enter_with(std::env::args_os().skip(1).collect(), Stdio::inherit())
    }

    pub(super) fn enter_with(arguments: Vec<OsString>, output: Stdio) -> Result<Self, DeviceError> {
        if std::env::var_os(MARK).is_some() {
            return set_up_inside().map(|()| Self::Inside);
        }
        Self::probe()?;
        let program = std::env::current_exe()
            .map_err(|error| DeviceError::system("find this program's file", error))?;
        let mut command = unshare();
        command.arg(program).args(arguments).stdout(output).env(MARK, namespace_of_mounts()?);
        // In its own group, so that signals of the terminal come once, through us.
        command.process_group(0);
        die_with_parent(&mut command);
        let mut signals =
            Signals::catch(&[Signal::Interrupt, Signal::Terminate, Signal::Hangup, Signal::Child])?;
        let mut child =
            command.spawn().map_err(|error| DeviceError::system("start unshare", error))?;
        supervise(&mut child, &mut signals).map(Self::Ended)
    }

    /// Checks that a sandbox is available; fails with [`DeviceError::Unavailable`] and the reason.
    pub fn probe() -> Result<(), DeviceError> {
        let unavailable = |why: String| DeviceError::Unavailable { why };
        let output = unshare().arg("true").stdin(Stdio::null()).output().map_err(|error| {
            unavailable(format!("cannot run unshare: {error}; install util-linux"))
        })?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(unavailable(format!(
                "the kernel does not allow namespaces here ({}): run as root, or allow \
                 unprivileged user namespaces",
                text.trim()
            )));
        }
        if !Path::new("/dev/net/tun").exists() {
            return Err(DeviceError::NoTunDevice);
        }
        for (program, package) in [("ip", "iproute2"), ("nsenter", "util-linux")] {
            let found = Command::new(program).arg("-V").stdout(Stdio::null()).status();
            if found.is_err() {
                return Err(unavailable(format!("{program} is not installed: install {package}")));
            }
        }
        Ok(())
    }
}

pub(super) fn is_inside() -> bool {
    Path::new(READY).exists()
}

fn set_up_inside() -> Result<(), DeviceError> {
    if is_inside() {
        return Ok(());
    }
    // The variable proves nothing, and mounting over the real /run would do harm.
    let outer = std::env::var(MARK).unwrap_or_default();
    if outer == namespace_of_mounts()? {
        let why = format!("{MARK} is set, but this is not a sandbox: unset it");
        return Err(DeviceError::Unavailable { why });
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("roadweave", "/run", "tmpfs", flags, c"mode=0755")
        .map_err(|error| DeviceError::system("mount a private /run", error))?;
    for directory in [super::NAMED, "/run/roadweave"] {
        fs::create_dir_all(directory)
            .map_err(|error| DeviceError::system(format!("make {directory}"), error))?;
    }
    super::set_up("lo")?;
    fs::write(READY, "").map_err(|error| DeviceError::system(format!("write {READY}"), error))
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.arg("--");
    command
}

fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    let work = move || {
        rustix::process::set_parent_process_death_signal(Some(KernelSignal::KILL))?;
        // The parent may have died before the request.
        if getppid() == Some(parent) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; these two are plain
    // system calls that neither allocate nor lock.
    unsafe { command.pre_exec(work) };
}

fn supervise(child: &mut Child, signals: &mut Signals) -> Result<i32, DeviceError> {
    let failed = |error| DeviceError::system("wait for the sandbox", error);
    let mut deadline: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        }
        let timeout = match deadline {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
            None => Duration::from_secs(1),
        };
        wait_readable(&*signals, timeout).map_err(failed)?;
        while let Some(signal) = signals.take() {
            let kernel = KernelSignal::from_named_raw(signal as i32);
            let Some(kernel) = kernel.filter(|_| signal != Signal::Child) else { continue };
            if deadline.is_some() {
                deadline = Some(Instant::now());
            } else {
                // Fails only when the group is gone, which the next wait sees.
                let _ = kill_process_group(Pid::from_child(child), kernel);
                deadline = Some(Instant::now() + GRACE);
            }
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            child.kill().map_err(failed)?;
        }
    }
}

fn namespace_of_mounts() -> Result<String, DeviceError> {
    let link = fs::read_link("/proc/self/ns/mnt")
        .map_err(|error| DeviceError::system("read /proc/self/ns/mnt", error))?;
    Ok(link.to_string_lossy().into_owned())
}

const MARK: &str = "ROADWEAVE_SANDBOX";
const READY: &str = "/run/roadweave/.sandbox";
const GRACE: Duration = Duration::from_secs(3);
