//! Privileges of running daemons, and modes of the files that they keep.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::common::*;
use crate::service::{unit, value};

const NETWORK: u64 = 1 << 12 | 1 << 13;

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name} is missing in\n{status}")).trim()
}

/// Checks that every thread has dropped unneeded rights; programs get at most `bounding`.
fn check_restricted(daemon: &Daemon, bounding: u64) {
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
    for (set, expected) in [("CapEff", NETWORK), ("CapAmb", NETWORK), ("CapBnd", bounding)] {
        assert_eq!(field(&status, set), format!("{expected:016x}"), "{set}");
    }
    let limits = fs::read_to_string(format!("{process}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
}

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
    run_sandboxed(|| {
        let network = TestNetwork::without_uplinks();
        network.connect_uplink(1);
        let before = network.state();
        let (server, client) = network.start_both();
        network.echo(&network.server, GATEWAY_V4);
        for (daemon, name) in [(&server, "server.toml"), (&client, "client.toml")] {
            check_restricted(daemon, NETWORK);
            assert!(!remembers(daemon, &private_key(&network.path(name))), "the key of {name}");
        }
        assert!(remembers(&client, "198.51.100.1:4433"));

        // New sockets, rules and filters for an uplink that is plugged in; other peers; statistics.
        network.connect_uplink(2);
        network.wait_for_paths(&["eth1", "eth2"]);
        // A kernel that forwards ignores routers unless it is set otherwise.
        let accepts = |line: &String| line == "box sysctl ipv6/conf/eth2/accept_ra 2";
        wait_until("router advertisements are accepted", || network.state().iter().any(accepts));
        let peer = keygen().peer("late", "10.77.0.9/32\", \"192.168.60.0/24");
        network.edit("server.toml", |text| text + &peer);
        server.reload();
        assert!(network.state().iter().any(|line| line.contains("192.168.60.0/24 dev rws")));
        network.wait_for_traffic();
        assert_eq!(server.count("ERROR") + client.count("ERROR"), 0);
        let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("/run/roadweave"), 0o700);
        for file in ["rw0.lock", "rw0.sock", "rw0.undo", "rws.lock", "rws.sock", "rws.undo"] {
            assert_eq!(mode(&format!("/run/roadweave/{file}")), 0o600, "{file}");
        }

        let text = "addresses = [\"10.78.0.2/24\"]\n[tun]\nname = \"rwr\"\n".to_owned()
            + &members::link(1, 2, 1);
        fs::write(network.path("router.toml"), text).unwrap();
        let router = network.start(&network.vehicle, "router", "router");
        router.wait_for("the router runs");
        check_restricted(&router, NETWORK);
        router.interrupt();

        interrupt([client, server]);
        network.vehicle.ip("link del eth2").unwrap();
        assert_eq!(network.state(), before);
    });
}

/// As ProtectSystem=strict: /run, /dev, /proc and /sys are mounts of their own.
fn protect_system() {
    let mut mount = Command::new("mount");
    assert!(mount.args(["-o", "bind,remount,ro", "/"]).status().unwrap().success());
    assert!(File::create("/etc/written").is_err());
}

fn only(capabilities: &str) -> String {
    let words = capabilities.split(' ').map(|name| name.strip_prefix("CAP_").unwrap());
    words.fold("-all".to_owned(), |list, name| list + ",+" + &name.to_lowercase())
}

fn as_service() -> Vec<String> {
    let client = unit("roadweave-client@");
    let [ambient, bounding] =
        ["AmbientCapabilities", "CapabilityBoundingSet"].map(|field| only(&value(&client, field)));
    let words = format!(
        "setpriv --reuid={USER} --regid={USER} --clear-groups --inh-caps={ambient} \
         --ambient-caps={ambient} --bounding-set={bounding} --no-new-privs"
    );
    words.split(' ').map(str::to_owned).collect()
}

fn has_users() -> bool {
    let there = Command::new("setpriv").arg(format!("--reuid={USER}")).arg("true").output();
    let has_users = there.is_ok_and(|output| output.status.success());
    let is_required = std::env::var_os("ROADWEAVE_REQUIRE_SANDBOX").is_some();
    assert!(has_users || !is_required, "setpriv (util-linux) cannot change the user");
    if !has_users {
        eprintln!("skipped: there is no user but root in this sandbox");
    }
    has_users
}

const USER: u32 = 990;
/// With CAP_NET_BIND_SERVICE, for the start.
const AT_START: u64 = NETWORK | 1 << 10;

/// The daemons run as [`USER`]: root's files in its group's folder, the state in its own.
fn network_of_a_user() -> TestNetwork {
    let mut network = TestNetwork::without_uplinks();
    network.wrapper = as_service();
    // udev lets every user open it; a machine without udev may not.
    let script = "mount -t tmpfs tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200";
    assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
    let folder = network.path("");
    let state = network.path("state");
    fs::create_dir(&state).unwrap();
    for own in [Path::new("/run/roadweave"), &state] {
        chown(own, Some(USER), Some(USER)).unwrap();
    }
    chown(&folder, None, Some(USER)).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o750)).unwrap();
    for name in ["client.toml", "server.toml"] {
        let path = network.path(name);
        network.edit(name, |text| text.replace("\"/run/road\"", "\"/run/road/state\""));
        chown(&path, None, Some(USER)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    }
    network
}

#[test]
fn both_ends_run_as_another_user_with_the_capabilities_of_their_units() {
    run_sandboxed(|| {
        if !has_users() {
            return;
        }
        let network = network_of_a_user();
        network.connect_uplink(1);
        protect_system();
        let before = network.state();
        let (server, client) = network.start_both();
        network.echo(&network.server, GATEWAY_V4);
        for daemon in [&server, &client] {
            check_restricted(daemon, AT_START);
            let status = fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
            let user = [USER; 4].map(|id| id.to_string()).join("\t");
            assert_eq!((field(&status, "Uid"), field(&status, "Gid")), (&*user, &*user));
        }
        network.connect_uplink(2);
        network.wait_for_paths(&["eth1", "eth2"]);
        let peer = keygen().peer("late", "10.77.0.9/32\", \"192.168.60.0/24");
        network.edit("server.toml", |text| text + &peer);
        server.reload();
        network.reload(CLIENT);
        network.wait_for_traffic();
        for daemon in [&server, &client] {
            let log = daemon.log();
            assert_eq!(daemon.count("ERROR") + daemon.count("may read or write it"), 0, "{log}");
        }
        // Root gets in by what its unit leaves to it, and no other user does.
        let show = |user: u32, capabilities: &str| {
            let set = only(capabilities);
            let mut command = Command::new("setpriv");
            command.args([format!("--reuid={user}"), format!("--bounding-set={set}")]).args([
                "--inh-caps=-all",
                PROGRAM,
                "show",
                "--socket",
                &socket(CLIENT),
            ]);
            command.output().unwrap().status.success()
        };
        assert!(show(0, &value(&unit("roadweave-modems@"), "CapabilityBoundingSet")));
        assert!(!show(USER + 1, "CAP_DAC_OVERRIDE"));

        // Root releases what a killed service left. The next start replaces its socket.
        client.kill();
        network.release();
        server.interrupt();
        network.vehicle.ip("link del eth2").unwrap();
        let left = network.state().into_iter().filter(|line| !line.ends_with("/rw0.sock"));
        assert_eq!(left.collect::<Vec<_>>(), before);
        let (server, client) = network.start_both();
        interrupt([client, server]);

        let file = network.path("client.toml");
        let folder = file.parent().unwrap();
        let check = |cure: &str| {
            let mut client = network.start_client("client");
            assert_eq!(client.wait(), Some(2));
            let (said, log) = (format!("permission denied to user {USER}"), client.log());
            assert!(log.contains(&said) && log.contains(cure), "{log}");
        };
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        check(&format!("chown {USER} {}", file.display()));
        chown(&file, Some(USER), None).unwrap();
        let client = network.start_client("client");
        client.wait_for("the client runs");
        client.interrupt();
        fs::set_permissions("/dev/net/tun", Permissions::from_mode(0o600)).unwrap();
        let mut client = network.start_client("client");
        assert_ne!(client.wait(), Some(0));
        assert!(client.log().contains("chmod 666 /dev/net/tun"), "{}", client.log());
        fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
        check(&format!("chgrp {USER} {folder} && chmod 750 {folder}", folder = folder.display()));
    });
}

#[test]
fn a_private_key_that_everybody_may_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let init = roadweave(&["init", "--server", "vpn.example:4433", &path("")]);
    assert!(init.status.success(), "{init:?}");
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
        for mode in [0o604, 0o602] {
            let (code, errors) = check(role, mode);
            assert_eq!(code, Some(2), "{mode:o}: {errors}");
            assert!(errors.contains("everybody on this machine may"), "{errors}");
            assert!(errors.contains(&cure) && errors.contains(&format!("{mode:04o}")), "{errors}");
        }
        let (code, errors) = check(role, 0o640);
        assert_eq!(code, Some(0), "{errors}");
        assert!(errors.contains("its group") && errors.contains(&cure), "{errors}");
        assert_eq!(check(role, 0o600), (Some(0), String::new()));
    }
}
