//! `roadweave qlog`: its files hold sessions and paths that live, are cut, and end.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::*;
use serde_json::Value;

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

fn data<'a>(file: &'a [Value], name: &str) -> Vec<&'a Value> {
    file.iter().filter(|event| event["name"] == name).map(|event| &event["data"]).collect()
}

fn statuses<'a>(file: &'a [Value], uplink: &str) -> Vec<&'a str> {
    let of = data(file, "roadweave:path_status_updated").into_iter();
    of.filter(|data| data["uplink"] == uplink).map(|data| data["new"].as_str().unwrap()).collect()
}

fn wait_for(folder: &Path, daemon: &Daemon, what: &str, is_there: impl Fn(&[Vec<Value>]) -> bool) {
    // A record may be half written while it is read.
    let files = || std::panic::catch_unwind(|| files(folder)).unwrap_or_default();
    wait_or_show(
        WAIT_MAX,
        || format!("{what}: {}\n{:#?}", daemon.log(), files()),
        || is_there(&files()),
    );
}

#[test]
fn a_link_that_is_cut_and_an_instance_that_ends_are_in_the_files_of_both_ends() {
    run_sandboxed(|| {
        if beside("roadweave-admin").is_none() {
            return;
        }
        let network = TestNetwork::new();
        let (near, far) = (network.path("near"), network.path("far"));
        let start = |instance: &str, folder: &Path, log: &str| {
            fs::DirBuilder::new().mode(0o700).create(folder).unwrap();
            let mut command = Command::new(PROGRAM);
            command.args(["qlog", instance, "--folder"]).arg(folder);
            Daemon::start(command, network.path(log))
        };
        let near_qlog = start(CLIENT, &near, "near.log");
        near_qlog.wait_for("nothing runs at");
        let far_qlog = start(SERVER, &far, "far.log");
        let (_server, client) = network.start_both();
        network.wait_for_paths(&["eth1", "eth2"]);
        check_ping(&network.vehicle, GATEWAY_V4, "-c 20 -i 0.05 -s 300");

        network.silence("eth2", true);
        network.wait_for_paths(&["eth1"]);
        wait_for(&near, &near_qlog, "a suspect path", |files| {
            files.first().is_some_and(|file| statuses(file, "eth2").contains(&"suspect"))
        });
        network.silence("eth2", false);
        wait_for(&near, &near_qlog, "it is back", |files| {
            statuses(&files[0], "eth2").last() == Some(&"usable")
        });

        client.interrupt();
        wait_for(&near, &near_qlog, "an end", |files| {
            files[0].last().unwrap()["name"] == "quic:connection_closed"
        });
        let _client = network.start_joined("client");
        wait_for(&near, &near_qlog, "another session", |files| files.len() == 2);
        wait_for(&far, &far_qlog, "another session", |files| files.len() == 2);
        interrupt([near_qlog, far_qlog]);
        let (near, far) = (files(&near), files(&far));

        let first = &near[0];
        let metrics = data(first, "quic:recovery_metrics_updated");
        assert!(metrics.iter().any(|data| data["smoothed_rtt"].as_f64() > Some(0.0)));
        let counters = data(first, "roadweave:path_counters");
        assert!(counters.iter().any(|data| data["suspicions"].as_u64() > Some(0)), "{counters:#?}");
        assert!(statuses(&far[0], "eth2").contains(&"usable"), "{:#?}", far[0]);
        let closed = data(&far[0], "quic:connection_closed");
        assert!(closed[0]["reason"].is_string(), "{closed:#?}");
    });
}
