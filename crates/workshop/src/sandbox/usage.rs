//! What a process has used of the machine so far, by what the kernel says of its threads.
//!
//! ```text
//! /proc/PID/task/*/schedstat: time on a core, to the nanosecond
//! /proc/PID/task/*/status:    how often it went to sleep, and how often it was pushed aside
//! ```

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

/// What all threads of a process have used. Threads that have ended count no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a core.
    pub cpu: Duration,
    /// How often a thread went to sleep, and was woken.
    pub sleeps: u64,
    /// How often a thread had to leave its core to another.
    pub preemptions: u64,
}

impl Usage {
    /// Of the process `id`.
    ///
    /// # Errors
    /// When it has ended.
    pub fn of(id: u32) -> anyhow::Result<Self> {
        let tasks = format!("/proc/{id}/task");
        let mut all = Self::default();
        for task in std::fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
            let task = task.with_context(|| format!("cannot read {tasks}"))?.path();
            let read = |name: &str| read(&task.join(name));
            // A thread may end between the two.
            let (Ok(times), Ok(status)) = (read("schedstat"), read("status")) else { continue };
            let one = parse(&times, &status)
                .with_context(|| format!("{} is malformed", task.display()))?;
            all.cpu += one.cpu;
            all.sleeps += one.sleeps;
            all.preemptions += one.preemptions;
        }
        Ok(all)
    }

    /// What was used since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            sleeps: self.sleeps.saturating_sub(earlier.sleeps),
            preemptions: self.preemptions.saturating_sub(earlier.preemptions),
        }
    }
}

/// What a process has of the machine's memory, bytes: what is not swapped out of all that it has
/// touched.
///
/// # Errors
/// When it has ended.
pub fn resident_bytes(id: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{id}/status");
    let status = read(path.as_ref()).with_context(|| format!("cannot read {path}"))?;
    let kib = field(&status, "VmRSS").and_then(|text| text.strip_suffix(" kB")?.parse().ok());
    kib.map(|kib: u64| kib << 10).with_context(|| format!("{path} is malformed"))
}

fn read(path: &Path) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

fn parse(schedstat: &str, status: &str) -> Option<Usage> {
    let nanos = schedstat.split_whitespace().next()?.parse().ok()?;
    Some(Usage {
        cpu: Duration::from_nanos(nanos),
        sleeps: field(status, "voluntary_ctxt_switches")?.parse().ok()?,
        preemptions: field(status, "nonvoluntary_ctxt_switches")?.parse().ok()?,
    })
}

/// What stands behind `name:` in a file of `/proc`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    Some(lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::clock;

    #[test]
    fn what_the_kernel_writes_is_understood() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        let usage = parse("2500000 17 4\n", status).unwrap();
        assert_eq!(usage, Usage { cpu: Duration::from_micros(2500), sleeps: 12, preemptions: 3 });
        assert_eq!(parse("", status), None);
        assert_eq!(parse("1 2 3", "Name:\tx\n"), None);
    }

    #[test]
    fn what_this_process_holds_grows() {
        let id = std::process::id();
        let before = resident_bytes(id).unwrap();
        let held = vec![1_u8; 64 << 20];
        let grown = resident_bytes(id).unwrap() - before;
        assert!((32 << 20..1 << 30).contains(&grown), "{grown} for {}", held.len());
    }

    #[test]
    fn what_this_process_uses_grows() {
        let before = Usage::of(std::process::id()).unwrap();
        clock::sleep_until(clock::now() + Duration::from_millis(5));
        let used = Usage::of(std::process::id()).unwrap().since(before);
        assert!(used.sleeps > 0, "{used:?}");
    }
}
