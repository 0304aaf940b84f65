//! Interfaces that other programs rename, between namespaces: uplinks, also to names that need
//! quoting, and the tunnel's own.

use std::ffi::OsStr;
use std::thread::sleep;
use std::time::Duration;

use crate::common::*;

/// Somebody beyond the uplinks, in none of their networks.
const OPERATOR: &str = "198.51.100.77";

fn ip(namespace: &NetNs, words: &[&OsStr]) {
    let output = namespace.command("ip").args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
}

/// Renames an interface as udev or a person does, which takes its routes.
fn rename(namespace: &NetNs, from: &OsStr, to: &OsStr) {
    let word = OsStr::new::<str>;
    ip(namespace, &[word("link"), word("set"), from, word("down")]);
    ip(namespace, &[word("link"), word("set"), from, word("name"), to]);
    ip(namespace, &[word("link"), word("set"), to, word("up")]);
}

/// The default route that the DHCP client of uplink 1 sets again.
fn route(road: &Road, name: &OsStr) {
    let words = ["route", "replace", "default", "via", "10.1.0.1", "metric", "100", "dev"];
    let words: Vec<&OsStr> = words.into_iter().map(OsStr::new).chain([name]).collect();
    ip(&road.vehicle, &words);
}

fn rename_uplink(road: &Road, from: &str, to: &str) {
    rename(&road.vehicle, OsStr::new(from), OsStr::new(to));
    route(road, OsStr::new(to));
}

/// An operator far away reaches the box by uplink 1, while all else is in the tunnel.
fn check_operator(road: &Road) {
    check_ping(&road.server, "10.1.0.2", &format!("-c 1 -I {OPERATOR}"));
}

fn start(road: &Road) -> (Daemon, Daemon) {
    road.server.ip(&format!("address add {OPERATOR}/32 dev lo")).unwrap();
    let daemons = road.start_both();
    road.echo(&road.server, GATEWAY_V4);
    road.wait_for_paths(&["eth1", "eth2"]);
    daemons
}

#[test]
fn a_renamed_uplink_is_used_under_any_name_that_the_kernel_takes() {
    run_sandboxed(|| {
        let road = Road::new();
        let (_server, client) = start(&road);
        check_operator(&road);
        let mut before = "eth1";
        let names = [
            "lte0",
            "wwan0.100",
            "w\"$(x)",
            "é",
            "a'b;c",
            "{}",
            "w\\n",
            "wwan*",
            "-x",
            "@inside",
            "\u{1b}[31mred",
            "..a",
        ];
        for name in names {
            rename_uplink(&road, before, name);
            let mut paths = [name, "eth2"];
            paths.sort_unstable();
            road.wait_for_paths(&paths);
            assert!(road.wait_for_traffic() < Duration::from_secs(3), "{name:?}");
            check_operator(&road);
            let settings = road.vehicle.enter(|| {
                let path = format!("/proc/sys/net/ipv4/conf/{name}/src_valid_mark");
                std::fs::read_to_string(path).unwrap()
            });
            assert_eq!(settings.unwrap().trim(), "1", "{name:?}");
            before = name;
        }
        let log = client.log();
        assert!(log.contains("its interface is called lte0 now"), "{log}");
        assert_eq!(client.count(" joined "), 1, "{log}");
        assert!(!log.contains('\u{1b}'), "a name reached the terminal: {log}");
        assert!(!log.contains("nft failed"), "{log}");
        let shown = roadweave(&["show", "--socket", &socket(CLIENT)]);
        assert!(!shown.stdout.contains(&0x1b), "{shown:?}");
        client.interrupt();
        assert_eq!(road.vehicle.run("nft list ruleset").unwrap(), "");
    });
}

#[test]
fn an_uplink_renamed_beyond_the_configuration_is_let_go_and_comes_back() {
    run_sandboxed(|| {
        let road = Road::new();
        road.edit("client.toml", |text| text.replace("include = []", "include = [\"eth*\"]"));
        let (_server, client) = start(&road);
        rename_uplink(&road, "eth1", "lte0");
        road.wait_for_paths(&["eth2"]);
        client
            .wait_for("its interface is called lte0 now, which the configuration names no uplink");
        assert!(road.wait_for_traffic() < Duration::from_secs(3));
        rename_uplink(&road, "lte0", "eth7");
        road.wait_for_paths(&["eth2", "eth7"]);
        rename_uplink(&road, "eth7", "eth1");
        road.wait_for_paths(&["eth1", "eth2"]);
        assert_eq!(client.count(" joined "), 1, "{}", client.log());
    });
}

#[test]
fn a_tunnel_whose_interface_is_renamed_has_its_name_back_within_seconds() {
    run_sandboxed(|| {
        let road = Road::new();
        let camera = road.connect_camera();
        road.edit("client.toml", |text| {
            text.replace("[routes]\n", "[routes]\nmasquerade = true\n")
        });
        let (server, client) = start(&road);
        let check = |when: &str| {
            // What the tunnel carries to the box's own address, once its routes are there, and from
            // behind it.
            wait_within(Duration::from_secs(4), when, || {
                ping(&road.vehicle, GATEWAY_V4, "-c 1 -W 1").status.success()
            });
            let echo = ping(&camera, "203.0.113.2", "-c 5 -i 0.4");
            let said = String::from_utf8_lossy(&echo.stdout);
            assert!(echo.status.success() && said.contains("ttl="), "{when}: {echo:?}");
            check_ping(&road.vehicle, GATEWAY_V6, "-c 4 -i 0.4");
        };
        check("before");
        // An uplink by its name, were it another's; and one that filters cannot quote.
        let tunnels = [(&road.vehicle, &client, "rw0"), (&road.server, &server, "rws")];
        for (round, name) in [(1, "wwan5"), (2, "tunnel\"0")] {
            if round == 2 {
                // The same is told every ten seconds at most.
                sleep(Duration::from_secs(10));
            }
            for (namespace, daemon, own) in tunnels {
                let word = OsStr::new::<str>;
                ip(namespace, &[word("link"), word("set"), word(own), word("down")]);
                ip(namespace, &[word("link"), word("set"), word(own), word("name"), word(name)]);
                let line =
                    format!("another program renamed the tunnel's interface {own} to {name};");
                daemon.wait_for(&line);
                check(&format!("{own}, round {round}"));
            }
        }
        assert_eq!(client.count("uplink=\"wwan5\""), 0, "{}", client.log());
        assert_eq!(client.count(" joined "), 1, "{}", client.log());
        client.interrupt();
        server.interrupt();
    });
}
