//! What `perf` counts of a process: its system calls, and its instructions where the machine can.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::sandbox::daemon::Daemon;

/// The kernel's own count of the system calls that begin.
const SYSTEM_CALLS: &str = "raw_syscalls:sys_enter";
const INSTRUCTIONS: &str = "instructions";
/// For so long perf may write its report.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was counted; nothing where it could not be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// System calls that began.
    pub system_calls: Option<u64>,
    /// Instructions, in the kernel and in its own code.
    pub instructions: Option<u64>,
}

/// A count under way.
pub struct Counting {
    perf: Daemon,
    report: PathBuf,
}

/// Whether there is a `perf` that runs.
pub fn can_count() -> bool {
    let found = Command::new("perf").arg("--version").stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

impl Counting {
    /// Counts what `process` does from about now on.
    ///
    /// # Errors
    /// When perf cannot be started.
    pub fn start(process: u32, name: &'static str, directory: &Path) -> anyhow::Result<Self> {
        let report = directory.join(format!("{name}.csv"));
        let mut command = Command::new("perf");
        command.args(["stat", "-x", ",", "-e", SYSTEM_CALLS, "-e", INSTRUCTIONS]);
        command.args(["-p", &process.to_string()]).arg("-o").arg(&report);
        let perf = Daemon::start(name, &mut command, directory)?;
        Ok(Self { perf, report })
    }

    /// What was counted. A perf that could not says nothing.
    ///
    /// # Errors
    /// When perf cannot be ended.
    pub fn finish(self) -> anyhow::Result<Counts> {
        if self.perf.signal(rustix::process::Signal::INT).is_err() {
            return Ok(Counts::default());
        }
        // It ends by the signal, which is no success.
        let _ = self.perf.wait(PATIENCE);
        let report = std::fs::read_to_string(&self.report).unwrap_or_default();
        Ok(parse(&report))
    }
}

fn parse(report: &str) -> Counts {
    let count = |event: &str| {
        let fields = report.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let mut of_event = fields.filter(|fields| fields.get(2).is_some_and(|name| *name == event));
        of_event.next()?.first()?.parse().ok()
    };
    Counts { system_calls: count(SYSTEM_CALLS), instructions: count(INSTRUCTIONS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perf_could_not_count_is_left_out() {
        let report = "# started on Mon\n\n\
                      109,,raw_syscalls:sys_enter,2351234,100.00,,\n\
                      <not supported>,,instructions,0,100.00,,\n";
        assert_eq!(parse(report), Counts { system_calls: Some(109), instructions: None });
        assert_eq!(parse(""), Counts::default());
    }
}
