//! How fast is the lab? A synthetic drive of 90 s with four links at 30 Mbit/s, strategy by
//! strategy: seconds of virtual time per second of one core, and the most memory that was held.
//!
//! `cargo bench -p roadweave-lab --bench drive [-- STRATEGY... [SECONDS]]`
//!
//! The time is CPU time, so that a machine with other work tells the same.

use std::time::Duration;

use roadweave_emulate::{Drive, Operator};
use roadweave_lab::run::run;
use roadweave_lab::scenario::Scenario;
use roadweave_types::Rate;

const SECONDS: u32 = 90;
const SEED: u64 = 3;
/// What Linux counts CPU time in, per second, on every machine (USER_HZ).
const TICKS: f64 = 100.0;

fn main() {
    let words = || std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let seconds = words().find_map(|word| word.parse().ok()).unwrap_or(SECONDS);
    let mut strategies: Vec<String> = words().filter(|word| word.parse::<u32>().is_err()).collect();
    if strategies.is_empty() {
        strategies = ["xnc", "minrtt", "single:tmobile"].map(String::from).to_vec();
    }
    let drive = Drive::synthetic(SEED, &Operator::ALL, Duration::from_secs(SECONDS.into()));
    for name in strategies {
        let strategy = name.parse().expect("a strategy's name");
        let rate = Rate::from_kbps(30_000);
        let scenario = Scenario::of_drive("bench", &drive, strategy, rate, seconds, SEED);
        let before = cpu_seconds();
        let outcome = run(&scenario).expect("the drive makes a world");
        let took = cpu_seconds() - before;
        let figures = &outcome.run.figures;
        println!(
            "{name}: {took:.2} s of CPU time, {:.1} x real time, at most {} MB; \
             stall {:.2} %, p99 {:.0} ms, redundancy {:.1} %",
            f64::from(seconds) / took.max(1.0 / TICKS),
            memory_max_mb(),
            figures.stall_ratio * 100.0,
            figures.delay_ms.p99,
            figures.redundancy * 100.0,
        );
    }
}

/// CPU time of this process so far, where the system tells.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the process, in parentheses, may hold spaces; user and system time are the
    // twelfth and thirteenth field behind it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// The most memory that this process has held, where the system tells.
fn memory_max_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) / 1024
}
