//! The local fleet as a user starts it. Skipped if the system lacks a requirement.

use std::fs;
use std::process::Command;

use roadweave_linux::netns::sandbox_is_there;
use serde_json::Value;

use crate::PROGRAM;

#[test]
fn both_boxes_go_on_at_the_proxy_that_is_left() {
    if !sandbox_is_there() {
        return;
    }
    let beside = std::path::Path::new(PROGRAM);
    let programs = ["roadweave", "roadweave-controller", "roadweave-fleet"];
    if programs.iter().any(|name| !beside.with_file_name(name).exists()) {
        let required = std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_some();
        assert!(!required, "the fleet's programs are not built: cargo test");
        println!("skipped: the fleet's programs are not built (cargo test builds them)");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.html");
    let mut command = Command::new(PROGRAM);
    command.args(["stack", "--seconds", "8", "--bitrate", "2", "--json", "--report"]).arg(&report);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("ffmpeg") && std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_none() {
        println!("skipped: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let killed = results["killed"].as_str().unwrap();
    let boxes = results["boxes"].as_array().unwrap();
    assert_eq!(boxes.len(), 2);
    assert!(boxes.iter().any(|seen| seen["proxy_before"] == killed), "{results:#}");
    for seen in boxes {
        assert_ne!(seen["proxy_after"], killed, "{results:#}");
        // Even on a busy machine the stream returns long before the end.
        let figure = |name: &str| seen[name].as_f64().unwrap();
        assert!(figure("gap_ms") < 3_000.0, "{results:#}");
        assert!(figure("packets_lost") < 0.4 * figure("packets"), "{results:#}");
    }
    assert!(fs::read_to_string(&report).unwrap().contains("<svg"));
}
