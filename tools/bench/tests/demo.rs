//! The demo as a user starts it. Skipped if the system lacks a requirement.

#![allow(
    clippy::disallowed_methods,
    reason = "an end-to-end test starts the program and waits for it"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use roadweave_linux::netns::{sandbox_is_there, wait_within};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_roadweave-lab");

fn can_run() -> bool {
    let ffmpeg = Command::new("ffmpeg").arg("-version").stdout(Stdio::null()).status();
    if ffmpeg.is_err() {
        skip("ffmpeg is not installed");
    }
    ffmpeg.is_ok() && sandbox_is_there()
}

fn skip(why: &str) {
    assert!(std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_none(), "{why}");
    println!("skipped: {why}");
}

fn demo(report: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["demo", "--seconds", "3", "--bitrate", "8", "--strategies", "xnc", "--json"]);
    command.arg("--report").arg(report);
    command
}

#[test]
fn a_short_demo_measures_and_reports() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.html");
    let kept = directory.path().join("kept");
    let output = demo(&report).arg("--keep").arg(&kept).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&results["scenario"], &results["seconds"]), (&"synthetic".into(), &3.into()));
    assert_eq!(results["seed"], 10);
    let figures = &results["strategies"][0];
    let figure = |name: &str| figures[name].as_f64().unwrap();
    assert_eq!(figures["strategy"], "xnc");
    // Even on a busy machine, half of the best link's capacity must arrive.
    let page = fs::read_to_string(&report).unwrap();
    let least = best_link_share(&page) / 2.0;
    assert!(least > 0.25, "the links are no good for this video: {least}");
    assert!(figure("fps") > 30.0 * least && figure("ssim") > least, "{least}: {results:#}");
    assert!(figure("residual_loss") < 1.0 - least, "{least}: {results:#}");
    assert!(figures["delay_ms"]["p50"].as_f64().unwrap() > 5.0, "links have a delay: {results:#}");
    assert!(page.contains("<svg"));
    assert!(figures["redundancy"].is_number() && figures["cpu_percent"].is_number(), "{results:#}");

    let mut qoe = Command::new(PROGRAM);
    qoe.args(["qoe", "--json"]).arg(kept.join("xnc")).arg("--clip").arg(kept.join("clip.h264"));
    let seen: Value = serde_json::from_slice(&qoe.output().unwrap().stdout).unwrap();
    let names = "strategy fps stall_ratio ssim delay_ms delay_arrived_ms residual_loss late";
    for name in names.split(' ') {
        assert_eq!(seen["strategies"][0][name], figures[name], "{name} from the files it kept");
    }
}

fn has_live_encoder() -> bool {
    let program = Path::new(PROGRAM).with_file_name("roadweave-video");
    if !program.exists() {
        println!("skipped: there is no {}; build it with: make video", program.display());
    }
    program.exists()
}

#[test]
fn a_live_encoder_is_measured_beside_one_that_keeps_its_rate() {
    if !can_run() || !has_live_encoder() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.html");
    let kept = directory.path().join("kept");
    let mut command = Command::new(PROGRAM);
    command.args(["demo", "--seconds", "4", "--strategies", "xnc-adaptive,single@2M", "--json"]);
    let output = command.arg("--report").arg(&report).arg("--keep").arg(&kept).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("cannot run") {
        return skip(&said);
    }
    assert!(output.status.success(), "{said}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results["strategies"], serde_json::json!([]), "no clip: {results:#}");
    assert_eq!(results["left_out"], serde_json::json!([]));
    let [adaptive, fixed] = &results["live"].as_array().unwrap()[..] else {
        panic!("{results:#}");
    };
    let number = |figures: &Value, name: &str| figures[name].as_f64().unwrap();
    assert_eq!(adaptive["strategy"], "xnc-adaptive");
    assert!(fixed["strategy"].as_str().unwrap().ends_with("@2M"), "{results:#}");
    for figures in [adaptive, fixed] {
        assert_eq!(figures["frames"], 120);
        // A busy machine shows fewer frames, but correct ones.
        assert!(number(figures, "frames_shown") > 30.0, "{results:#}");
        assert!(number(figures, "ssim_shown_db") > 8.0, "{results:#}");
        assert!(number(figures, "encoder_cpu_percent") > 1.0, "{results:#}");
    }
    let (adaptive_rate, fixed_rate) =
        (number(adaptive, "bitrate_bps"), number(fixed, "bitrate_bps"));
    assert!(
        fixed_rate < 2e6 && adaptive_rate > 1.5 * fixed_rate,
        "it follows the links: {results:#}"
    );
    for file in ["film.mp4", "xnc-adaptive/sent.jsonl", "xnc-adaptive/shown.jsonl"] {
        assert!(kept.join(file).exists(), "{file}");
    }
    let page = fs::read_to_string(&report).unwrap();
    assert!(page.contains("Frame delay of live encoders") && page.contains("xnc-adaptive"));
}

#[test]
fn without_the_live_encoder_what_needs_it_is_refused_with_what_to_do() {
    // `roadweave-video` is neither beside this copy nor in the empty PATH.
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("roadweave-lab");
    fs::copy(PROGRAM, &program).unwrap();
    let mut command = Command::new(&program);
    command.args(["demo", "--strategies", "xnc,lola-adaptive"]).env("PATH", "");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--strategies: lola-adaptive: roadweave-video is neither"), "{said}");
    assert!(said.contains("make video"), "{said}");
}

#[test]
fn a_demo_that_is_interrupted_or_killed_leaves_nothing_behind() {
    if !can_run() {
        return;
    }
    for signal in [Signal::INT, Signal::KILL] {
        let directory = tempfile::tempdir().unwrap();
        let mut child = demo(&directory.path().join("report.html"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // At least unshare, the inner program, emulator, server and client.
        let family = wait_for_descendants(&mut child, 5);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert!(!status.success(), "{status}");
        let gone =
            || family.iter().all(|pid| test_kill_process(Pid::from_raw(*pid).unwrap()).is_err());
        wait_within(Duration::from_secs(60), "all processes have ended", gone);
        assert!(!Path::new("/run/roadweave-demo").exists());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

/// The share of the stream that the best link carries alone, by the links' traces, 0..1.
fn best_link_share(page: &str) -> f64 {
    let (before, _) = page.split_once(" % of the stream alone").expect("the report says it");
    before.rsplit(' ').next().unwrap().parse::<f64>().unwrap() / 100.0
}

fn wait_for_descendants(child: &mut Child, count: usize) -> Vec<i32> {
    let root = i32::try_from(child.id()).unwrap();
    let mut family = Vec::new();
    wait_within(Duration::from_secs(60), "the processes of the demo run", || {
        assert!(child.try_wait().unwrap().is_none(), "the demo ended early");
        family = descendants(root);
        family.len() >= count
    });
    family
}

fn descendants(root: i32) -> Vec<i32> {
    let parent = |pid: &i32| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let is_below =
        |pid: &i32| std::iter::successors(parent(pid), parent).any(|above| above == root);
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(is_below).collect()
}
