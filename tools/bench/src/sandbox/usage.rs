//! CPU time and memory of a process, from /proc.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;

/// CPU time of all running threads of the process `id`, to the nanosecond.
pub fn cpu_time(id: u32) -> anyhow::Result<Duration> {
    let tasks = format!("/proc/{id}/task");
    let mut all = Duration::ZERO;
    for task in fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
        let path = task.with_context(|| format!("cannot read {tasks}"))?.path().join("schedstat");
        // A thread may end in between.
        let Ok(times) = fs::read_to_string(&path) else { continue };
        let nanos = times.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
        all += nanos
            .map(Duration::from_nanos)
            .with_context(|| format!("{} is malformed", path.display()))?;
    }
    Ok(all)
}

pub fn resident_bytes(id: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{id}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok());
    kib.map(|kib: u64| kib << 10).with_context(|| format!("{path} is malformed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_holds_and_uses_grows() {
        let id = std::process::id();
        let (memory, cpu) = (resident_bytes(id).unwrap(), cpu_time(id).unwrap());
        let held = vec![1_u8; 64 << 20];
        let grown = resident_bytes(id).unwrap() - memory;
        assert!((32 << 20..1 << 30).contains(&grown), "{grown} for {}", held.len());
        assert!(cpu_time(id).unwrap() > cpu);
    }
}
