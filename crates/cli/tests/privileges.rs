//! What a running daemon may still do, and who may read what it keeps.

#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests start programs, open sockets and wait"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use common::*;
use roadweave_device::netns::run_sandboxed;
use rustix::process::Signal;

/// CAP_NET_ADMIN and CAP_NET_RAW.
const NETWORK: u64 = 1 << 12 | 1 << 13;

/// The value of a field of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name} is missing in\n{status}")).trim()
}

/// Checks that every thread of a daemon has given up what it does not need.
fn check_restricted(daemon: &Daemon) {
    let process = format!("/proc/{}", daemon.id());
    let mut threads = 0;
    for entry in fs::read_dir(format!("{process}/task")).unwrap() {
        let Ok(status) = fs::read_to_string(entry.unwrap().path().join("status")) else { continue };
        threads += 1;
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            let has = u64::from_str_radix(field(&status, set), 16).unwrap();
            assert_eq!(has & !NETWORK, 0, "{set} of {}", field(&status, "Name"));
        }
        assert_eq!(field(&status, "NoNewPrivs"), "1", "{}", field(&status, "Name"));
        assert_eq!(field(&status, "Seccomp"), "2", "{}", field(&status, "Name"));
    }
    assert!(threads > 1);
    let status = fs::read_to_string(format!("{process}/status")).unwrap();
    for set in ["CapEff", "CapAmb", "CapBnd"] {
        assert_eq!(field(&status, set), format!("{NETWORK:016x}"), "{set}");
    }
    let limits = fs::read_to_string(format!("{process}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
}

/// Whether `text` stands anywhere in the memory of a process.
fn remembers(daemon: &Daemon, text: &str) -> bool {
    let process = format!("/proc/{}", daemon.id());
    let memory = File::open(format!("{process}/mem")).unwrap();
    let maps = fs::read_to_string(format!("{process}/maps")).unwrap();
    maps.lines().filter(|line| line.contains(" rw")).any(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let parse = |text| u64::from_str_radix(text, 16).unwrap();
        let (from, to) = (parse(from), parse(to));
        let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
        // Not all that is mapped can be read.
        memory.read_exact_at(&mut bytes, from).is_ok()
            && bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

fn private_key(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.starts_with("private_key")).unwrap();
    line.split('"').nth(1).unwrap().to_owned()
}

#[test]
fn a_running_daemon_may_do_no_more_than_it_needs_and_that_it_can() {
    run_sandboxed("a_running_daemon_may_do_no_more_than_it_needs_and_that_it_can", || {
        let road = Road::without_uplinks();
        road.connect_uplink(1);
        let before = road.state();
        let (server, client) = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        for (daemon, name) in [(&server, "server.toml"), (&client, "client.toml")] {
            check_restricted(daemon);
            assert!(!remembers(daemon, &private_key(&road.path(name))), "the key of {name}");
        }
        // What they know anyway is found, or the search finds nothing.
        assert!(remembers(&client, "198.51.100.1:4433"));

        // New sockets, rules and filters for an uplink that is plugged in; other peers; statistics.
        road.connect_uplink(2);
        road.wait_for_paths(&["eth1", "eth2"]);
        let peer = keygen().peer("late", "10.77.0.9/32\", \"192.168.60.0/24");
        road.edit("server.toml", |text| text + &peer);
        server.signal(Signal::HUP);
        server.wait_for("the clients were read again");
        road.wait_for_traffic();
        assert_eq!(server.count("ERROR") + client.count("ERROR"), 0);
        // What is kept is for its owner alone.
        let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("/run/roadweave"), 0o700);
        for file in ["rw0.lock", "rw0.sock", "rw0.undo", "rws.lock", "rws.sock", "rws.undo"] {
            assert_eq!(mode(&format!("/run/roadweave/{file}")), 0o600, "{file}");
        }

        // And the way back.
        client.interrupt();
        server.interrupt();
        road.vehicle.ip("link del eth2").unwrap();
        assert_eq!(road.state(), before);
    });
}

#[test]
fn both_ends_run_where_they_can_write_nothing_but_their_own_folders() {
    run_sandboxed("both_ends_run_where_they_can_write_nothing_but_their_own_folders", || {
        let road = Road::new();
        // As ProtectSystem=strict: /run, /dev, /proc and /sys are mounts of their own.
        let mut mount = Command::new("mount");
        assert!(mount.args(["-o", "bind,remount,ro", "/"]).status().unwrap().success());
        assert!(File::create("/etc/written").is_err());
        let (server, client) = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        road.wait_for_paths(&["eth1", "eth2"]);
        road.wait_for_traffic();
        assert_eq!(server.count("ERROR") + client.count("ERROR"), 0, "{}", client.log());
        client.interrupt();
        server.interrupt();
    });
}

#[test]
fn a_redundant_router_may_do_no_more_than_it_needs() {
    run_sandboxed("a_redundant_router_may_do_no_more_than_it_needs", || {
        let road = Road::new();
        let text = "addresses = [\"10.77.0.2/24\"]\n[[links]]\nname = \"one\"\ninterface = \"eth1\"\n\
                    listen = \"10.1.0.2:6081\"\npeer = \"10.1.0.1:6081\"\n";
        fs::write(road.path("router.toml"), text).unwrap();
        let router = road.start(&road.vehicle, "router", "router");
        router.wait_for("the router runs");
        check_restricted(&router);
        router.interrupt();
    });
}

#[test]
fn a_private_key_that_everybody_may_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let init = roadweave(&["init", "--server", "vpn.example:4433", &path("")]);
    assert!(init.status.success(), "{init:?}");
    // This machine may have no network behind it to name.
    let client = path("client.toml");
    let named = fs::read_to_string(&client).unwrap().replace("inside = []", "inside = [\"lan0\"]");
    fs::write(&client, named).unwrap();
    let check = |role: &str, mode: u32| {
        let file = path(&format!("{role}.toml"));
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let output = roadweave(&[role, "--check", "--config", &file]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for role in ["client", "server"] {
        let cure = format!("chmod 600 {}", path(&format!("{role}.toml")));
        for mode in [0o644, 0o604, 0o602] {
            let (code, errors) = check(role, mode);
            assert_eq!(code, Some(2), "{mode:o}: {errors}");
            assert!(errors.contains("everybody on this machine may"), "{errors}");
            assert!(errors.contains(&cure) && errors.contains(&format!("{mode:04o}")), "{errors}");
        }
        // Kubernetes gives a secret to a group.
        let (code, errors) = check(role, 0o640);
        assert_eq!(code, Some(0), "{errors}");
        assert!(errors.contains("its group") && errors.contains(&cure), "{errors}");
        assert_eq!(check(role, 0o600), (Some(0), String::new()));
        assert_eq!(check(role, 0o400), (Some(0), String::new()));
    }
}
