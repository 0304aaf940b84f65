//! The systemd units: they start roles of the program and grant no more than it needs.

#[path = "../../../../scripts/golden.rs"]
mod golden;

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;

use crate::common::*;

const UNITS: [(&str, &str, &str); 5] = [
    ("roadweave-client@", "client", "client"),
    ("roadweave-server", "", "server"),
    ("roadweave@", "proxy", "proxy"),
    ("roadweave@", "anchor", "anchor"),
    ("roadweave@", "router", "router"),
];
const INSTALLED: &str = "/usr/bin/roadweave";

pub fn unit(name: &str) -> String {
    let file = format!("../../deploy/systemd/{name}.service");
    fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

pub fn value(unit: &str, field: &str) -> String {
    let value = |line: &str| Some(line.strip_prefix(field)?.strip_prefix('=')?.to_owned());
    unit.lines().find_map(value).unwrap_or_else(|| panic!("no {field}"))
}

#[test]
fn the_services_start_what_the_program_has() {
    for (name, instance, role) in UNITS {
        let unit = unit(name);
        let start = value(&unit, "ExecStart").replace("%i", instance);
        let (program, arguments) = start.split_once(' ').unwrap();
        assert_eq!(program, INSTALLED);
        assert_eq!(arguments.split(' ').next(), Some(role));
        let output = Command::new(PROGRAM).args(arguments.split(' ')).arg("--help").output();
        let output = output.unwrap();
        assert!(output.status.success(), "{role}: {output:?}");
        let missing = [role, "--check", "--config", "/nowhere/x.toml"];
        let code = Command::new(PROGRAM).args(missing).output().unwrap().status.code().unwrap();
        assert_eq!(value(&unit, "RestartPreventExitStatus"), code.to_string());
    }
}

#[test]
fn the_services_are_alike_in_all_but_what_they_start() {
    let rest = |name| unit(name).split_once("\nType=").unwrap().1.to_owned();
    let first = rest(UNITS[0].0);
    UNITS.iter().for_each(|(name, ..)| assert_eq!(rest(name), first, "{name}"));
    for field in ["User", "Group"] {
        assert_eq!(value(&first, field), "roadweave");
    }
    for field in ["AmbientCapabilities", "CapabilityBoundingSet"] {
        assert_eq!(value(&first, field), "CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE");
    }
    assert_eq!(value(&first, "ProtectSystem"), "strict");
    assert_eq!(value(&first, "ReadOnlyPaths"), "/etc/roadweave");
    assert_eq!(value(&first, "InaccessiblePaths"), "-/run/dbus -/run/systemd/private");
    assert!(!first.contains("\nReadWritePaths="));
    let client = unit("roadweave-client@");
    assert_eq!(["Wants", "Before"].map(|field| value(&client, field)), ["network-pre.target"; 2]);
    assert!(value(&first, "Nice").parse::<i32>().unwrap() < 0);
    // `closed.rs` tests this signal.
    assert_eq!(value(&first, "RestartKillSignal"), "SIGUSR1");
    let settings = first.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(settings.filter(|line| line.starts_with("CPUScheduling")).count(), 0);
}

/// The verdict of `systemd-analyze` on a unit; `None` where it is not installed.
fn analyzed(name: &str, instance: &str, words: &[&str]) -> Option<(bool, String)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(format!("{name}{instance}.service"));
    fs::write(&file, unit(name).replace(INSTALLED, PROGRAM)).unwrap();
    match Command::new("systemd-analyze").args(words).arg(&file).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let _ = writeln!(std::io::stderr(), "skipped: no systemd-analyze");
            None
        }
        output => {
            let output = output.unwrap();
            let said = [output.stdout, output.stderr].concat();
            Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
        }
    }
}

#[test]
fn systemd_understands_the_services_and_finds_them_little_exposed() {
    for (name, instance, _) in UNITS {
        let Some((is_right, said)) = analyzed(name, instance, &["verify", "--man=no"]) else {
            return;
        };
        let about_it: Vec<&str> = said.lines().filter(|line| line.contains("roadweave")).collect();
        assert!(is_right && about_it.is_empty(), "{said}");
        // 0 is best, 100 worst. They need the network of the machine.
        let words = ["security", "--offline=yes", "--threshold=32"];
        let (is_below, said) = analyzed(name, instance, &words).unwrap();
        assert!(is_below, "{said}");
    }
}

#[test]
fn no_call_that_the_program_needs_is_barred() {
    let units = UNITS.iter().map(|(name, ..)| value(&unit(name), "SystemCallFilter"));
    for filter in units {
        let groups = filter.strip_prefix('~').unwrap().split(' ').map(str::to_owned);
        let words: Vec<String> = ["syscall-filter".to_owned()].into_iter().chain(groups).collect();
        let output = match Command::new("systemd-analyze").args(words).output() {
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            output => output.unwrap(),
        };
        let barred = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(barred.contains("ptrace"), "{barred}");
        for call in ["adjtimex", "clock_adjtime", "setpriority", "memfd_create", "capset"] {
            assert!(!barred.lines().any(|line| line.trim() == call), "{call}");
        }
    }
}

#[test]
fn the_service_manager_hears_that_both_ends_are_up_and_what_they_do() {
    on_network(|network| {
        let start = |role: &str, namespace| {
            let path = network.path(&format!("{role}.notify"));
            let manager = UnixDatagram::bind(&path).unwrap();
            manager.set_read_timeout(Some(WAIT_MAX)).unwrap();
            let mut command = NetNs::command(namespace, PROGRAM);
            command
                .args([role, "--config"])
                .arg(network.path(&format!("{role}.toml")))
                .env("NOTIFY_SOCKET", path);
            let log = network.path(&format!("{role}.log"));
            (Daemon::start(command, log.clone()), manager, log)
        };
        let wait_for = |manager: &UnixDatagram, wanted: &str| {
            let mut buffer = [0; 256];
            wait_until(wanted, || {
                let length = manager.recv(&mut buffer).unwrap();
                buffer[..length] == *wanted.as_bytes()
            });
        };
        let (server, server_manager, server_log) = start("server", &network.server);
        wait_for(&server_manager, "READY=1");
        let (client, client_manager, client_log) = start("client", &network.vehicle);
        wait_for(&client_manager, "READY=1");
        wait_for(&server_manager, "STATUS=sessions: 1");
        wait_for(&client_manager, "STATUS=session with 198.51.100.1:4433, 2 of 2 paths usable");
        client.interrupt();
        wait_for(&client_manager, "STOPPING=1");
        server.interrupt();
        let [client, server] = [client_log, server_log].map(events);
        golden::assert_golden("log.txt", &format!("# client\n{client}# server\n{server}"));
    });
}

/// The lines of a log on sessions and the end, sorted, without what differs between runs.
fn events(log: PathBuf) -> String {
    let line = |line: &str| {
        let (head, rest) = line.split_once(" roadweave_")?;
        let (_, text) = rest.split_once(": ")?;
        let is_event = text.contains("event=") || text.ends_with("stops");
        let mask = |word: &str| if word.starts_with("key=") { "key=KEY" } else { word }.to_owned();
        let text: Vec<String> = text.split(' ').map(mask).collect();
        let text = text.join(" ").replace("eth1", "ethN").replace("eth2", "ethN");
        let level = head.split_whitespace().last()?;
        is_event.then(|| format!("{level} {text}\n"))
    };
    let lines: BTreeSet<String> =
        fs::read_to_string(log).unwrap().lines().filter_map(line).collect();
    lines.into_iter().collect()
}
