//! The processes of a run: started in their namespaces, watched, and stopped in order.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::clock;

const GRACE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(10);
const LAST_LINES: usize = 5;

#[derive(Debug)]
pub struct Daemon {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

/// CPU time of a process, with the resolution of the kernel's clock tick (10 ms).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    pub user: Duration,
    pub kernel: Duration,
}

impl Daemon {
    pub fn start(
        name: &'static str,
        command: &mut Command,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let output =
            File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let errors = output.try_clone().context("cannot share a log")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start the {name}"))?;
        Ok(Self { name, child, log })
    }

    pub fn check_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().context("cannot query a process")? {
            None => Ok(()),
            Some(status) => self.failed(status),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("cannot signal the {}", self.name))
    }

    pub fn cpu_time(&self) -> anyhow::Result<CpuTime> {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let (user, kernel) = cpu_ticks(&stat).with_context(|| format!("{path} is malformed"))?;
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let time = |ticks: u64| Duration::from_secs_f64(ticks as f64 / per_second);
        Ok(CpuTime { user: time(user), kernel: time(kernel) })
    }

    pub fn wait(mut self, timeout: Duration) -> anyhow::Result<()> {
        match self.ended_within(timeout)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => self.failed(status),
            None => bail!("the {} did not exit{}", self.name, self.last_words()),
        }
    }

    /// Stops the process by SIGTERM, then by SIGKILL; fails if it had ended before.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.check_running()?;
        self.signal(Signal::TERM)?;
        // The drop kills processes that outlast the grace period.
        self.ended_within(GRACE).map(drop)
    }

    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
        if last.is_empty() {
            return format!("; the {} printed nothing", self.name);
        }
        format!("; the {} said:\n  {}", self.name, last.join("\n  "))
    }

    fn ended_within(&mut self, timeout: Duration) -> anyhow::Result<Option<ExitStatus>> {
        let deadline = clock::now() + timeout;
        loop {
            let status = self.child.try_wait().context("cannot wait for a process")?;
            if status.is_some() || clock::now() >= deadline {
                return Ok(status);
            }
            clock::sleep_until(clock::now() + POLL);
        }
    }

    fn failed(&self, status: ExitStatus) -> anyhow::Result<()> {
        bail!("the {} exited ({status}){}", self.name, self.last_words())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl CpuTime {
    pub fn total(self) -> Duration {
        self.user + self.kernel
    }

    pub fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            kernel: self.kernel.saturating_sub(earlier.kernel),
        }
    }
}

/// User and kernel ticks, fields 14 and 15. The name, field 2, may contain any character.
fn cpu_ticks(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "12 (a) b (c) S 1 12 12 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 55 0 0";
        assert_eq!(cpu_ticks(stat), Some((250, 50)));
        assert_eq!(cpu_ticks("12 (a) S 1"), None);
    }

    #[test]
    fn a_process_that_fails_is_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; echo the reason >&2; exit 3"]);
        let daemon = Daemon::start("shell", &mut command, directory.path()).unwrap();
        let error = daemon.wait(Duration::from_secs(20)).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("the reason"), "{error}");
    }
}
