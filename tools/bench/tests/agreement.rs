//! Compares the lab with real time between namespaces: same drive, stream and strategies.
//!
//! A busy machine adds delay and loss: a run without idle CPUs, or on a virtual machine whose host
//! gives its CPUs to others, is repeated, and the test is skipped after four. Chance differs in
//! both worlds: one more packet before the outage can change the coded packets by half. So the
//! lab's side is the span of its seeds; after a real run that disagrees two more follow, at most
//! twice, and the median counts.
//!
//! `make agreement` also checks the tail, on an idle machine: medians of five runs on three drives,
//! or of nine if five disagree. The lab's side is the median of 31 seeds: on one drive their p99
//! are between 79 and 130 ms, and the median of the first five is 15 % below that of all.

#![allow(clippy::disallowed_methods, reason = "end-to-end tests start programs and wait")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use roadweave_emulate::{Drive, Operator, format_csv};
use roadweave_linux::netns::sandbox_is_there;
use serde_json::Value;
use tempfile::TempDir;

const SECONDS: usize = 8;
const FPS: usize = 30;
/// Bytes of a frame; every thirtieth, an IDR frame, is twice as large. About 6 Mbit/s.
const FRAME: usize = 24_000;
const LARGE_FRAME: usize = 118_000;
/// A drive whose best link loses all packets for 200 ms, and on which the choice of links does not
/// depend on microseconds: otherwise equal worlds diverge after a few packets.
const SEED: u64 = 19;
const RUNS_MAX: usize = 5;
const DEMO_TRIES: usize = 4;
/// At least this fraction (1/10) of the CPU time must be idle.
const IDLE_PART: u64 = 10;
/// At most this fraction (1/16) of the CPU time may be stolen by the host. Median delays are 1.4 ms
/// above the lab's with 4 % stolen, 2 ms with 9, 3 with 12, and 4.5 with 17.
const STOLEN_PART: u64 = 16;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=9;

/// Drives on which 30 Mbit/s need several links, and all links suffice.
const TAIL_DRIVES: [u64; 3] = [3, 10, 19];
const TAIL_RUNS: usize = 5;
const TAIL_RUNS_MAX: usize = 9;
const TAIL_SEEDS: std::ops::RangeInclusive<u64> = 1..=31;
/// Largest difference of the median p99, as a share of the lab's.
const P99_APART: f64 = 0.15;
/// Largest difference of the median redundancy, as a share of the stream.
const REDUNDANCY_APART: f64 = 0.01;

/// Delay of arrived packets, p50 and p99 in ms; share of packets delivered; redundancy.
type Picture = [f64; 4];
const P99: usize = 1;
const REDUNDANCY: usize = 3;
/// How far each figure may be outside of the lab's span. The tail has its own test.
const BESIDE: Picture = [3.0, f64::INFINITY, 0.005, 0.01];

fn picture(figures: &Value) -> Picture {
    let figure = |name: &str| figures[name].as_f64().unwrap();
    let delay = |share: &str| figures["delay_arrived_ms"][share].as_f64().unwrap();
    let delivered = 1.0 - (figure("residual_loss") - figure("late"));
    [delay("p50"), delay("p99"), delivered, figure("redundancy")]
}

fn sorted(runs: &[Picture], at: usize) -> Vec<f64> {
    let mut figures: Vec<f64> = runs.iter().map(|run| run[at]).collect();
    figures.sort_by(f64::total_cmp);
    figures
}

fn median(runs: &[Picture]) -> Picture {
    [0, 1, 2, 3].map(|at| sorted(runs, at)[runs.len() / 2])
}

fn agrees(real: Picture, lab: &[Picture]) -> bool {
    (0..real.len()).all(|at| {
        let span = sorted(lab, at);
        (span[0] - BESIDE[at]..=span[span.len() - 1] + BESIDE[at]).contains(&real[at])
    })
}

fn figures(folder: &Path, arguments: &[&str]) -> Vec<(String, Picture)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-lab"));
    let output = command.current_dir(folder).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |figures: &Value| (figures["strategy"].as_str().unwrap().to_owned(), picture(figures));
    json["strategies"].as_array().unwrap().iter().map(of).collect()
}

/// A clip of slices that cannot be decoded; only their sizes matter.
fn clip(frame_bytes: usize) -> Vec<u8> {
    let mut clip = Vec::new();
    for frame in 0..SECONDS * FPS {
        let (nal_type, size) = if frame % FPS == 0 {
            (0x65, 2 * frame_bytes)
        } else {
            (0x61, frame_bytes + frame * 7_919 % 2_400)
        };
        clip.extend([0, 0, 0, 1, nal_type, 0x80]);
        clip.resize(clip.len() + size, 0xa5);
    }
    clip
}

fn prepare(seed: u64, operators: &[Operator], frame_bytes: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let drive = Drive::synthetic(seed, operators, Duration::from_secs(SECONDS as u64 + 2));
    fs::create_dir(folder.path().join("drive")).unwrap();
    for link in &drive.links {
        let file = folder.path().join("drive").join(format!("{}.csv", link.name));
        fs::write(file, format_csv(&link.up)).unwrap();
    }
    fs::write(folder.path().join("clip.h264"), clip(frame_bytes)).unwrap();
    fs::write(folder.path().join("scenario.toml"), SCENARIO).unwrap();
    folder
}

fn demo(folder: &Path, strategies: &str) -> Vec<(String, Picture)> {
    let arguments = "demo --drive drive --seed 1 --seconds 8 --clip clip.h264 --no-ssim --json";
    let mut arguments: Vec<&str> = arguments.split(' ').collect();
    arguments.extend(["--strategies", strategies]);
    figures(folder, &arguments)
}

/// The same with enough CPU time; `None` if the machine is too busy.
fn punctual_demo(folder: &Path, strategies: &str) -> Option<Vec<(String, Picture)>> {
    for _ in 0..DEMO_TRIES {
        let before = processor_times();
        let figures = demo(folder, strategies);
        let passed = processor_times();
        let [idle, stolen, all] = [0, 1, 2].map(|at| passed[at].saturating_sub(before[at]));
        if idle * IDLE_PART >= all && stolen * STOLEN_PART <= all {
            return Some(figures);
        }
        println!("the machine is busy: of {all} ticks {idle} were idle and {stolen} stolen");
    }
    println!("left out: real time cannot be measured on this machine now");
    None
}

/// Idle, stolen, and all ticks of all CPUs: `/proc/stat` (proc(5)).
fn processor_times() -> [u64; 3] {
    let text = fs::read_to_string("/proc/stat").unwrap();
    let all = text.lines().next().unwrap().split_whitespace().skip(1);
    let ticks: Vec<u64> = all.map(|it| it.parse().unwrap()).collect();
    [ticks[3] + ticks[4], ticks[7], ticks.iter().sum()]
}

fn lab(folder: &Path, strategy: &str, seed: u64, machine: &str) -> Picture {
    let seed = seed.to_string();
    let arguments = ["lab", "run", "scenario.toml", "--json", "--strategy", strategy];
    let more = ["--seed", &seed, "--machine", machine];
    figures(folder, &[&arguments[..], &more].concat())[0].1
}

const SCENARIO: &str = "
drive = 'drive'
seconds = 8
[[traffic]]
kind = 'video'
file = 'clip.h264'
";

#[test]
fn virtual_time_and_real_time_give_the_same_picture() {
    if !sandbox_is_there() {
        return;
    }
    let folder = prepare(SEED, &[Operator::ATT, Operator::VERIZON, Operator::LTE], FRAME);
    let folder = folder.path();
    let Some(first) = punctual_demo(folder, "single,minrtt,xnc") else { return };
    for (strategy, real) in first {
        let expected: Vec<Picture> =
            SEEDS.map(|seed| lab(folder, &strategy, seed, "punctual")).collect();
        let mut runs = vec![real];
        println!("{strategy}: lab {expected:?}, demo {real:?}");
        while !agrees(median(&runs), &expected) {
            assert!(runs.len() < RUNS_MAX, "{strategy}: lab {expected:?}, demo {runs:?}");
            for _ in 0..2 {
                let Some(more) = punctual_demo(folder, &strategy) else { return };
                runs.push(more[0].1);
            }
        }
    }
}

#[test]
#[ignore = "make agreement runs it, on a machine that does nothing else"]
fn virtual_time_and_real_time_agree_in_the_tail_as_well() {
    if !sandbox_is_there() {
        return;
    }
    let mut apart = Vec::new();
    for seed in TAIL_DRIVES {
        let folder = prepare(seed, &Operator::ALL, LARGE_FRAME);
        let folder = folder.path();
        let in_lab = |machine: &str| {
            let runs: Vec<_> = TAIL_SEEDS.map(|seed| lab(folder, "xnc", seed, machine)).collect();
            println!("drive {seed}, {machine}: p99 of each seed {:.1?}", sorted(&runs, P99));
            median(&runs)
        };
        let (expected, late) = (in_lab("punctual"), in_lab("busy"));
        println!("drive {seed}: lab {expected:?}, on a late machine {late:?}");
        let agrees = |runs: &[Picture]| {
            let real = median(runs);
            (real[P99] - expected[P99]).abs() <= expected[P99] * P99_APART
                && (real[REDUNDANCY] - expected[REDUNDANCY]).abs() <= REDUNDANCY_APART
        };
        let mut runs: Vec<Picture> = Vec::new();
        while runs.len() < TAIL_RUNS || (runs.len() < TAIL_RUNS_MAX && !agrees(&runs)) {
            let more = if runs.is_empty() { TAIL_RUNS } else { 2 };
            runs.extend((0..more).map(|_| demo(folder, "xnc")[0].1));
        }
        println!("drive {seed}: p99 of each demo {:.1?}", sorted(&runs, P99));
        println!("drive {seed}: demo {:?}", median(&runs));
        apart.extend((!agrees(&runs)).then_some(seed));
    }
    assert!(apart.is_empty(), "of drives {TAIL_DRIVES:?} these disagree: {apart:?}");
}
