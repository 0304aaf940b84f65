//! Interfaces that other programs rename: uplinks and the tunnel's own.

use std::time::Duration;

use crate::common::*;

const OPERATOR: &str = "198.51.100.77";

fn rename(namespace: &NetNs, from: &str, to: &str) {
    namespace.ip(&format!("link set {from} down")).unwrap();
    namespace.ip(&format!("link set {from} name {to}")).unwrap();
}

fn rename_uplink(network: &TestNetwork, from: &str, to: &str) {
    rename(&network.vehicle, from, to);
    network.vehicle.ip(&format!("link set {to} up")).unwrap();
    let route = format!("route replace default via 10.1.0.1 metric 100 dev {to}");
    network.vehicle.ip(&route).unwrap();
}

fn check_operator(network: &TestNetwork) {
    check_ping(&network.server, "10.1.0.2", &format!("-c 1 -I {OPERATOR}"));
}

#[test]
fn uplinks_are_used_under_any_name_and_a_tunnel_has_its_own_back_within_seconds() {
    on_network(|network| {
        let camera = network.connect_camera();
        network.edit("client.toml", |text| {
            text.replace("include = []", "exclude = [\"gone*\"]")
                .replace("[routes]\n", "[routes]\nmasquerade = true\n")
        });
        network.server.ip(&format!("address add {OPERATOR}/32 dev lo")).unwrap();
        let (server, client) = network.start_with_echo();
        check_operator(&network);
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
            rename_uplink(&network, before, name);
            let mut paths = [name, "eth2"];
            paths.sort_unstable();
            network.wait_for_paths(&paths);
            assert!(network.wait_for_traffic() < Duration::from_secs(3), "{name:?}");
            check_operator(&network);
            let settings = network.vehicle.enter(|| {
                let path = format!("/proc/sys/net/ipv4/conf/{name}/src_valid_mark");
                std::fs::read_to_string(path).unwrap()
            });
            assert_eq!(settings.unwrap().trim(), "1", "{name:?}");
            before = name;
        }
        rename_uplink(&network, before, "gone0");
        network.wait_for_paths(&["eth2"]);
        client.wait_for(
            "its interface is now called gone0, which is not an uplink by the configuration",
        );
        rename_uplink(&network, "gone0", "eth1");
        network.wait_for_paths(&["eth1", "eth2"]);
        check_tunnel(&network, &camera, [&client, &server]);
        let log = client.log();
        assert!(log.contains("its interface is now called lte0"), "{log}");
        assert_eq!(client.count(" joined "), 1, "{log}");
        assert!(!log.contains('\u{1b}'), "a name reached the terminal: {log}");
        assert!(!log.contains("nft failed"), "{log}");
        assert!(!network.page(CLIENT).contains('\u{1b}'));
        interrupt([client, server]);
        assert_eq!(network.vehicle.run("nft list ruleset").unwrap(), "");
    });
}

fn check_tunnel(network: &TestNetwork, camera: &NetNs, [client, server]: [&Daemon; 2]) {
    // One name looks like an uplink, and filters cannot quote the other.
    for (namespace, daemon, own, name) in [
        (&network.vehicle, client, CLIENT, "wwan5"),
        (&network.server, server, SERVER, "tunnel\"0"),
    ] {
        rename(namespace, own, name);
        daemon
            .wait_for(&format!("another program renamed the tunnel's interface {own} to {name};"));
        wait_within(Duration::from_secs(4), own, || {
            ping(&network.vehicle, GATEWAY_V4, "-c 1 -W 1").status.success()
        });
        let echo = ping(camera, "203.0.113.2", "-c 5 -i 0.4");
        let said = String::from_utf8_lossy(&echo.stdout);
        assert!(echo.status.success() && said.contains("ttl="), "{own}: {echo:?}");
        check_ping(&network.vehicle, GATEWAY_V6, "-c 4 -i 0.4");
    }
    assert_eq!(client.count("uplink=\"wwan5\""), 0, "{}", client.log());
}
