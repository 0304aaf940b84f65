//! Recorded drives and Mahimahi's own traces.
//!
//! `ROADWEAVE_TRACES` is the path of a directory with `drives/*/*.csv` and `saturator/*.mm`;
//! without it these tests are skipped.

#![allow(clippy::unwrap_used, reason = "helpers of tests, whose failure is the test's")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roadweave_emulate::{Drive, Link, LinkSettings, Operator, read_mahimahi};
use roadweave_proto::{Instant, Rate};

fn recordings(test: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("ROADWEAVE_TRACES").map(PathBuf::from);
    if directory.is_none() {
        // A write to the stream itself is not captured.
        let _ = writeln!(std::io::stderr(), "skipped: {test}: ROADWEAVE_TRACES is not set");
    }
    directory
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

/// Sends 1,300-byte packets at `rate` over each uplink of `drive` for its length; returns the
/// number of delivered packets.
fn replay(drive: &Drive, rate: Rate) -> u64 {
    let length = drive.length().expect("a recording ends");
    let pause = rate.time_for(1_300);
    let mut delivered = 0;
    for link in &drive.links {
        let mut link: Link<u64> = Link::new(LinkSettings::new(link.up.clone(), 1));
        let mut now = Instant::ZERO;
        let mut last = None;
        while now.since(Instant::ZERO) < length {
            let _ = link.push(now, 1_300, now.as_nanos());
            while let Some(sent) = link.poll(now) {
                assert!(last.is_none_or(|last| last < sent), "reordered");
                last = Some(sent);
            }
            now += pause;
        }
        let stats = link.stats();
        assert_eq!(stats.pushed, stats.delivered + stats.dropped.total() + stats.in_link);
        delivered += stats.delivered;
    }
    delivered
}

#[test]
fn a_synthetic_drive_carries_a_stream_and_repeats() {
    let drive = Drive::synthetic(1, &Operator::ALL, Duration::from_secs(90));
    let delivered = replay(&drive, Rate::from_kbps(30_000));
    // 90 s of 30 Mbit/s are 260 thousand packets; every link carries some, no link all of them.
    assert!((100_000..4 * 259_600).contains(&delivered), "{delivered}");
    assert_eq!(delivered, replay(&drive, Rate::from_kbps(30_000)));
}

#[test]
fn every_recorded_drive_can_be_replayed() {
    let Some(directory) = recordings("every_recorded_drive_can_be_replayed") else { return };
    let mut drives = 0;
    for directory in entries(&directory.join("drives")).iter().filter(|entry| entry.is_dir()) {
        let drive = Drive::read(directory).unwrap();
        assert_eq!(drive.links.len(), 4, "{}", directory.display());
        assert_eq!(drive.length(), Some(Duration::from_secs(90)), "{}", directory.display());
        let delivered = replay(&drive, Rate::from_kbps(5_000));
        assert!(delivered > 10_000, "{}: {delivered}", directory.display());
        drives += 1;
    }
    assert!(drives > 0, "no drives in {}", directory.display());
}

#[test]
fn every_saturator_trace_can_be_read() {
    let Some(directory) = recordings("every_saturator_trace_can_be_read") else { return };
    for file in entries(&directory.join("saturator")) {
        let opportunities = read_mahimahi(&file).unwrap();
        assert!(opportunities.period() > Duration::from_secs(10), "{}", file.display());
    }
}
