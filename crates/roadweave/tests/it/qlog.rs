//! `roadweave qlog`: what its files say of sessions and paths that live, are cut, and end.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::*;
use rustix::process::Signal;
use serde_json::Value;

/// A folder in which nobody else writes.
fn folder(road: &Road, name: &str) -> PathBuf {
    let path = road.path(name);
    fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    path
}

/// The records of each file, the oldest file first; all of them are whole.
fn files(folder: &Path) -> Vec<Vec<Value>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "sqlog"));
    paths.sort();
    let read = |path: &PathBuf| {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o600);
        let bytes = fs::read(path).unwrap();
        assert!(bytes.ends_with(b"\n"), "{} ends within a record", path.display());
        let mut parts = bytes.split(|byte| *byte == 0x1e);
        assert_eq!(parts.next(), Some(&b""[..]));
        parts.map(|record| serde_json::from_slice(record).unwrap()).collect()
    };
    paths.iter().map(read).collect()
}

/// The data of all events of a name, in their order.
fn data<'a>(file: &'a [Value], name: &str) -> Vec<&'a Value> {
    file.iter().filter(|event| event["name"] == name).map(|event| &event["data"]).collect()
}

/// The statuses that the paths over an uplink had, one after the other.
fn statuses<'a>(file: &'a [Value], uplink: &str) -> Vec<&'a str> {
    let of = data(file, "roadweave:path_status_updated").into_iter();
    of.filter(|data| data["uplink"] == uplink).map(|data| data["new"].as_str().unwrap()).collect()
}

/// Waits until the files hold something.
fn wait_for(folder: &Path, daemon: &Daemon, what: &str, is_there: impl Fn(&[Vec<Value>]) -> bool) {
    // A record may be half written while it is read.
    let files = || std::panic::catch_unwind(|| files(folder)).unwrap_or_default();
    wait_or_show(
        WAIT_MAX,
        || format!("{what}: {}\n{:#?}", daemon.log(), files()),
        || is_there(&files()),
    );
}

/// What holds of every file: who wrote it, and that time goes on.
fn check_file(file: &[Value], role: &str) {
    assert_eq!(file[0]["file_schema"], "urn:ietf:params:qlog:file:sequential");
    assert_eq!(file[0]["trace"]["vantage_point"]["type"], role);
    let times: Vec<f64> = file[1..].iter().map(|event| event["time"].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let assigned: Vec<&Value> =
        data(file, "quic:tuple_assigned").iter().map(|data| &data["tuple_id"]).collect();
    let of_paths = file[1..].iter().filter_map(|event| event.get("tuple"));
    for tuple in of_paths {
        assert!(assigned.contains(&tuple), "{tuple} was never assigned");
    }
}

#[test]
fn a_link_that_is_cut_and_an_instance_that_ends_are_in_the_files_of_both_ends() {
    run_sandboxed(|| {
        if !is_admin_built() {
            return;
        }
        let road = Road::new();
        let (near, far) = (folder(&road, "near"), folder(&road, "far"));
        let start = |instance: &str, folder: &Path, log: &str| {
            let mut command = Command::new(PROGRAM);
            command.args(["qlog", instance, "--folder"]).arg(folder);
            Daemon::start(command, road.path(log))
        };
        // It waits for what does not run yet.
        let near_qlog = start(CLIENT, &near, "near.log");
        near_qlog.wait_for("nothing runs at");
        let far_qlog = start(SERVER, &far, "far.log");
        let (_server, mut client) = road.start_both();
        road.wait_for_paths(&["eth1", "eth2"]);
        check_ping(&road.vehicle, GATEWAY_V4, "-c 20 -i 0.05 -s 300");
        wait_for(&near, &near_qlog, "counters of both paths", |files| {
            files.iter().flatten().any(|event| {
                event["data"]["delivered_packets"] != 0
                    && event["name"] == "roadweave:lane_counters"
            })
        });

        // The network behind one uplink swallows all for a while.
        road.silence("eth2", true);
        road.wait_for_paths(&["eth1"]);
        let of = |uplink: &'static str, status: &'static str| {
            move |files: &[Vec<Value>]| {
                files.first().is_some_and(|file| statuses(file, uplink).contains(&status))
            }
        };
        wait_for(&near, &near_qlog, "a suspect path", of("eth2", "suspect"));
        road.silence("eth2", false);
        road.wait_for_paths(&["eth1", "eth2"]);
        wait_for(&near, &near_qlog, "it is back", |files| {
            statuses(&files[0], "eth2").last() == Some(&"usable")
        });

        // The client ends and starts again.
        client.signal(Signal::TERM);
        assert_eq!(client.wait(), Some(0));
        wait_for(&near, &near_qlog, "an end", |files| {
            files[0].last().unwrap()["name"] == "quic:connection_closed"
        });
        let client = road.start_client("client");
        client.wait_for("joined");
        wait_for(&near, &near_qlog, "another session", |files| files.len() == 2);
        wait_for(&far, &far_qlog, "another session", |files| files.len() == 2);
        near_qlog.signal(Signal::TERM);
        far_qlog.interrupt();
        let (mut near_qlog, near, far) = (near_qlog, files(&near), files(&far));
        assert_eq!(near_qlog.wait(), Some(0), "{}", near_qlog.log());

        near.iter().for_each(|file| check_file(file, "client"));
        far.iter().for_each(|file| check_file(file, "server"));
        let first = &near[0];
        assert_eq!(data(first, "roadweave:trace_started")[0]["reason"], "joined");
        let started = data(first, "quic:connection_started")[0];
        assert_eq!(started["remote"]["ip_v4"], "198.51.100.1");
        assert!(!statuses(first, "eth1").contains(&"gone"), "{first:#?}");
        // Validated, suspect, and validated again or a path of its own.
        let second = statuses(first, "eth2");
        let at = |status: &str| second.iter().position(|is| *is == status).unwrap();
        assert!(at("usable") < at("suspect") && second.last() == Some(&"usable"), "{second:?}");
        let metrics = data(first, "quic:recovery_metrics_updated");
        assert!(metrics.iter().any(|data| data["smoothed_rtt"].as_f64() > Some(0.0)));
        assert!(metrics.len() > 4, "{metrics:#?}");
        let lost = data(first, "roadweave:path_counters");
        assert!(lost.iter().any(|data| data["suspicions"].as_u64() > Some(0)), "{lost:#?}");
        let closed = data(first, "quic:connection_closed");
        assert_eq!(closed.len(), 1);
        let groups =
            [&near[0], &near[1]].map(|file| &file[0]["trace"]["common_fields"]["group_id"]);
        assert_ne!(groups[0], groups[1]);

        // The server knows the uplinks by what the client tells, and why it went.
        let name = far[0][0]["title"].as_str().unwrap();
        assert_eq!(name, "vehicle-1");
        assert!(statuses(&far[0], "eth2").contains(&"usable"), "{:#?}", far[0]);
        let closed = data(&far[0], "quic:connection_closed");
        assert!(closed[0]["reason"].is_string(), "{closed:#?}");
    });
}
