//! The bench of many connections as its user starts it, with few. Where the system lacks what it
//! needs, the test says so and does nothing.

#![allow(clippy::disallowed_methods, reason = "an end-to-end test starts the program")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

mod skip;

use std::process::{Command, Output};

use roadweave_device::netns::sandbox_is_there;
use serde_json::Value;
use skip::is_lacking;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-lab"));
    command.args(["bench", "connections"]).args(arguments).output().unwrap()
}

#[test]
fn connections_are_answered_held_and_gone_at_both_ends() {
    if !sandbox_is_there("connections_are_answered_held_and_gone_at_both_ends") {
        return;
    }
    let few = ["--boxes", "2", "--rate", "50", "--seconds", "1", "--total", "300", "--open", "200"];
    let output = bench(&[&few[..], &["--readers", "2", "--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    if is_lacking(&said, "cannot find the program roadweave") {
        return;
    }
    // It fails when one is left at an end, or fewer are open than are held.
    assert!(output.status.success(), "{said}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figure = |pointer: &str| results.pointer(pointer).and_then(Value::as_f64).unwrap();
    // 64 callers at each of two boxes: all are answered, on a busy machine too.
    for (pointer, count) in [("/paced/succeeded", 50.0), ("/fastest/succeeded", 270.0)] {
        assert_eq!(figure(pointer), count, "{pointer}: {results:#}");
    }
    for pointer in [
        "/paced/p50_ms",
        "/fastest/per_second",
        "/fastest/cpu_us_each/boxes",
        "/fastest/cpu_us_each/server",
        "/memory_bytes/1/server",
        "/goodput_bps",
        "/cpu_percent/boxes",
    ] {
        assert!(figure(pointer) > 0.0, "{pointer}: {results:#}");
    }
    assert!(figure("/paced/p50_ms") <= figure("/paced/p99_ms"), "{results:#}");
    assert!(figure("/paced/p99_ms") <= figure("/paced/max_ms"), "{results:#}");
}

#[test]
fn numbers_that_cannot_be_are_refused_before_anything_is_started() {
    for (arguments, part) in [
        (&["--boxes", "9"][..], "--boxes"),
        (&["--open", "0"], "1 to 12288, 4096 for each of --boxes"),
        (&["--boxes", "1", "--open", "4097"], "1 to 4096"),
        (&["--rate", "0"], "--rate"),
        (&["--total", "99"], "--total"),
    ] {
        let output = bench(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}
