//! The bench of many clients as its user starts it, with few. Where the system lacks what it needs,
//! the test says so and does nothing.

#![allow(clippy::disallowed_methods, reason = "an end-to-end test starts the program")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

mod skip;

use std::process::Command;

use roadweave_device::netns::sandbox_is_there;
use serde_json::Value;
use skip::is_lacking;

#[test]
fn all_clients_of_the_bench_join_stream_and_come_back() {
    if !sandbox_is_there("all_clients_of_the_bench_join_stream_and_come_back") {
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-lab"));
    command.args(["bench", "clients", "--idle", "12", "--streams", "3", "--rate", "1"]);
    command.args(["--paths", "2", "--seconds", "1", "--shards", "1,2", "--json"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if is_lacking(&said, "cannot find the program roadweave") {
        return;
    }
    // It fails when a client stays away or has too few paths, and when the server disagrees.
    assert!(output.status.success(), "{said}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = results.as_array().unwrap();
    let number = |one: &Value, name: &str| one[name].as_u64().unwrap();
    let runs: Vec<_> = all.iter().map(|one| (number(one, "idle"), number(one, "shards"))).collect();
    assert_eq!(runs, [(12, 1), (12, 2)]);
    for one in all {
        let figure = |pointer: &str| one.pointer(pointer).and_then(Value::as_f64).unwrap();
        for pointer in [
            "/memory_bytes_each",
            "/client_memory_bytes_each",
            "/join/sides/clients_cpu_percent",
            "/restart/sides/server_cpu_percent",
            "/join/half_seconds",
            "/join/cpu_seconds",
            "/quiet/cpu_us_each",
            "/streaming/cpu_us_per_packet",
            "/streaming/delay_ms/p50",
            "/restart/per_second",
        ] {
            assert!(figure(pointer) > 0.0, "{pointer}: {one:#}");
        }
        // The rate is that of three streams, and on a busy machine too most of it arrives.
        let goodput = figure("/streaming/goodput_bps");
        assert!((2e6..3.2e6).contains(&goodput), "{one:#}");
        assert!(figure("/streaming/lost") < 0.1, "{one:#}");
        assert!(figure("/streaming/delay_ms/p99") <= figure("/streaming/delay_max_ms") + 0.01);
        // A killed server is away for a while, and then it is back.
        let gap = figure("/restart_gap_seconds");
        assert!(0.0 < gap && gap < 20.0, "{one:#}");
        assert!(figure("/restart/all_seconds") <= figure("/restart/paths_seconds"), "{one:#}");
    }
}

#[test]
fn numbers_that_cannot_be_are_refused_before_anything_is_started() {
    for (arguments, part) in [
        (&["--idle", "70000"][..], "1 to 65000 clients"),
        (&["--idle", "0", "--streams", "0"], "1 to 65000 clients"),
        (&["--rate", "0"], "from 0.01 to 1000 Mbit/s"),
        (&["--paths", "9"], "--paths"),
        (&["--shards", "1,65"], "--shards"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-lab"));
        let output = command.args(["bench", "clients"]).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}
