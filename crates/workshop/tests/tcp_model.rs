//! Whether the lab's TCP does what the kernel's does, over the same emulated links: a short form of
//! `roadweave lab tcp`. Where the system makes no namespaces, the test says so and does nothing.
//!
//! A machine that does something else meanwhile is late, which costs the kernel time and the model
//! none: a run that disagrees is made again, at most twice.

#![allow(clippy::disallowed_methods, reason = "an end-to-end test starts the program")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

mod skip;

use std::process::{Command, Output};

use roadweave_device::netns::sandbox_is_there;
use serde_json::Value;
use skip::is_lacking;

fn compare(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-lab"));
    command.args(["lab", "tcp"]).args(arguments).output().unwrap()
}

/// Two that lose nothing but what their queues do not take.
const LINKS: &str = "10M-120ms-q250,20M-50ms-q300";
const RUNS_MAX: usize = 3;
/// How far the medians may lie apart; and for how many seconds more the kernel may take a request.
const APART: f64 = 0.1;
const LATE: f64 = 0.02;

#[test]
fn the_model_and_the_kernel_take_the_same_time_within_a_tenth() {
    if !sandbox_is_there("the_model_and_the_kernel_take_the_same_time_within_a_tenth") {
        return;
    }
    let mut apart = Vec::new();
    for _ in 0..RUNS_MAX {
        let few = ["--only", LINKS, "--rounds", "3", "--seconds", "3", "--seeds", "3", "--json"];
        let output = compare(&few);
        let said = String::from_utf8_lossy(&output.stderr);
        if is_lacking(&said, "this kernel has no") {
            return;
        }
        assert!(output.status.success(), "{said}");
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = results["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2 * 2 * 4, "links, congestion controls, tasks");
        let median = |row: &Value, whose: &str| row[whose]["median"].as_f64().unwrap();
        let is_late = |row: &Value| {
            row["task"] != "bulk"
                && (0.0..=LATE).contains(&(median(row, "kernel") - median(row, "model")))
        };
        let is_apart = |row: &&Value| row["apart"].as_f64().unwrap().abs() > APART && !is_late(row);
        apart = rows.iter().filter(is_apart).cloned().collect();
        if apart.is_empty() {
            return;
        }
    }
    panic!("{apart:#?}");
}

#[test]
fn a_link_that_is_not_there_is_refused_with_those_that_are() {
    let output = compare(&["--only", "20M"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("no setting \"20M\"") && said.contains("20M-50ms-q50"), "{said}");
}
