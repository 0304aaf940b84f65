//! A stopwatch for tests on busy machines.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use rustix::thread::{MembarrierCommand, membarrier};

/// A stopwatch without scheduling delays: the time that threads were ready without a processor. It
/// covers all visible processes (in a [`Sandbox`](super::Sandbox) the test's) and RCU grace
/// periods, for `nft`. It shows at least a quarter of the real time, so that timeouts end.
///
/// Source: Linux Documentation/scheduler/sched-stats.rst, `/proc/PID/schedstat`.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    begun: Instant,
    withheld: Duration,
}

impl Watch {
    /// Starts now.
    pub fn start() -> Self {
        Self { withheld: withheld(), begun: Instant::now() }
    }

    /// The time since the start, without scheduling delays.
    pub fn elapsed(&self) -> Duration {
        let passed = self.begun.elapsed();
        passed.saturating_sub(withheld().saturating_sub(self.withheld)).max(passed / 4)
    }
}

/// The scheduling delay since the first call: of each sample the longest of any thread.
fn withheld() -> Duration {
    static NANOSECONDS: AtomicU64 = AtomicU64::new(0);
    static SAMPLER: OnceLock<()> = OnceLock::new();
    SAMPLER.get_or_init(|| {
        let mut known = waits(&BTreeMap::new()).1;
        let sample = move || {
            loop {
                let begun = Instant::now();
                sleep(SAMPLE);
                let asked = Instant::now();
                let _ = membarrier(MembarrierCommand::Global);
                let kernel = asked.elapsed().saturating_sub(GRACE_PERIOD).as_nanos();
                let (more, now) = waits(&known);
                let more = more.max(u64::try_from(kernel).unwrap_or(u64::MAX));
                known = now;
                let most = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                NANOSECONDS.fetch_add(more.min(most), Ordering::Relaxed);
            }
        };
        // Without the sampler the stopwatch shows the real time.
        let _ = Builder::new().name("watch".to_owned()).spawn(sample);
    });
    Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed))
}

fn waits(known: &BTreeMap<PathBuf, u64>) -> (u64, BTreeMap<PathBuf, u64>) {
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    let processes = entries("/proc".into()).map(|entry| entry.path());
    let of_number = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit())
    };
    let threads = processes.filter(of_number).flat_map(|process| entries(process.join("task")));
    let wait = |path: PathBuf| {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        Some((path, text.split(' ').nth(1)?.parse().ok()?))
    };
    let now: BTreeMap<PathBuf, u64> = threads.filter_map(|it| wait(it.path())).collect();
    let before = |path| known.get(path).copied().unwrap_or_default();
    let more = now.iter().map(|(path, wait)| wait.saturating_sub(before(path))).max();
    (more.unwrap_or_default(), now)
}

const GRACE_PERIOD: Duration = Duration::from_millis(100);
/// A program that ends sooner has not waited for long.
const SAMPLE: Duration = Duration::from_millis(20);
