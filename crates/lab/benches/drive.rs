//! How fast is the lab? A synthetic drive of 90 s with four links at 30 Mbit/s, strategy by strategy:
//! seconds of virtual time per second of one core, and the most memory that was held.
//!
//! `cargo bench -p roadweave-lab --bench drive [-- STRATEGY...]`

use std::time::{Duration, Instant};

use roadweave_emulate::{Drive, Operator};
use roadweave_lab::run::run;
use roadweave_lab::scenario::Scenario;
use roadweave_types::Rate;

const SECONDS: u32 = 90;
const SEED: u64 = 3;

#[allow(clippy::disallowed_methods, reason = "a bench measures time")]
fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let strategies = match named.is_empty() {
        true => ["xnc", "minrtt", "single:tmobile"].map(String::from).to_vec(),
        false => named,
    };
    let length = Duration::from_secs(SECONDS.into());
    let drive = Drive::synthetic(SEED, &Operator::ALL, length);
    for name in strategies {
        let strategy = name.parse().expect("a strategy's name");
        let rate = Rate::from_kbps(30_000);
        let scenario = Scenario::of_drive("bench", &drive, strategy, rate, SECONDS, SEED);
        let begin = Instant::now();
        let outcome = run(&scenario).expect("the drive makes a world");
        let took = begin.elapsed().as_secs_f64();
        let figures = &outcome.run.figures;
        println!(
            "{name}: {took:.2} s, {:.1} x real time, {} MB; stall {:.2} %, p99 {:.0} ms, redundancy {:.1} %",
            f64::from(SECONDS) / took,
            memory_max_mb(),
            figures.stall_ratio * 100.0,
            figures.delay_ms.p99,
            figures.redundancy * 100.0,
        );
    }
}

/// The most memory that this process has held, where the system tells.
fn memory_max_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) / 1024
}
