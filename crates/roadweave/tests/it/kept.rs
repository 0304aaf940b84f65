//! What others remove from a server or a router comes back: filters, routes, rules, addresses.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use crate::common::*;

/// What a daemon in the server's namespace has set up, by name, in order.
fn ours(road: &Road) -> Vec<String> {
    let is_ours = |line: &String| {
        line.starts_with("server")
            && (line.contains("proto 183") || line.contains(SERVER) || line.contains(" filter "))
    };
    // What is counted changes.
    let fixed = |line: String| line.split(" packets ").next().unwrap_or_default().to_owned();
    road.state().into_iter().filter(is_ours).map(fixed).collect()
}

/// Waits until all is as it was.
fn wait_for(road: &Road, settled: &[String], server: &Daemon) {
    let state = || format!("{:#?}\nwas {settled:#?}\n{}", ours(road), server.log());
    wait_or_show(Duration::from_secs(5), state, || ours(road) == settled);
}

const FILTERS_BACK: &str = "another program had changed or removed the packet filters";
const ROUTES_BACK: &str = "another program removed rules, routes or addresses of the tunnel";

#[test]
fn what_others_remove_from_a_server_comes_back_within_seconds() {
    run_sandboxed(|| {
        let road = Road::new();
        // A network behind the box, and all that has no other way: both ways of leading into the
        // TUN.
        road.edit("server.toml", |text| {
            text.replace("\"10.77.0.2/32\"", "\"10.77.0.2/32\", \"192.168.50.0/24\"")
        });
        let camera = road.connect_camera();
        let (server, client) = road.start_both();
        road.wait_for_paths(&["eth1", "eth2"]);
        check_ping(&camera, "203.0.113.2", "-c 1");
        let settled = ours(&road);
        assert!(settled.iter().any(|line| line.contains("192.168.50.0/24")), "{settled:#?}");

        nft(&road.server, "flush ruleset");
        wait_for(&road, &settled, &server);
        server.wait_for(FILTERS_BACK);
        road.server.ip("route flush proto 183").unwrap();
        road.server.ip(&format!("address del {GATEWAY_V4}/16 dev {SERVER}")).unwrap();
        road.server.ip(&format!("-6 address del {GATEWAY_V6}/64 dev {SERVER}")).unwrap();
        wait_for(&road, &settled, &server);
        server.wait_for(ROUTES_BACK);
        check_ping(&camera, "203.0.113.2", "-c 1");
        check_ping(&road.server, "192.168.50.2", "-c 1");
        road.server.ip(&format!("link set {SERVER} down")).unwrap();
        wait_for(&road, &settled, &server);
        server.wait_for("another program set the tunnel's interface down");
        road.server.set_sysctl("net.ipv4.ip_forward", "0").unwrap();
        server.wait_for("another program switched forwarding off");
        wait_for(&road, &settled, &server);
        check_ping(&camera, "203.0.113.2", "-c 1");

        // What the file takes back is not put back.
        road.edit("server.toml", |text| text.replace(", \"192.168.50.0/24\"", ""));
        server.reload();
        sleep(Duration::from_millis(500));
        assert!(!ours(&road).iter().any(|line| line.contains("192.168.50.0/24")));
        client.interrupt();
        server.interrupt();
    });
}

#[test]
fn what_others_remove_from_a_router_comes_back_within_seconds() {
    run_sandboxed(|| {
        let road = Road::new();
        let file = "addresses = [\"10.77.0.1/24\", \"fd77::1/64\"]\n\
                    into_tunnel = [\"0.0.0.0/0\", \"::/0\", \"192.168.50.0/24\"]\n\
                    [tun]\nname = \"rws\"\n\
                    [[links]]\nname = \"eth1\"\ninterface = \"eth1\"\n\
                    listen = \"10.1.0.1:6081\"\npeer = \"10.1.0.2:6081\"\n";
        fs::write(road.path("far.toml"), file).unwrap();
        let router = road.start(&road.server, "router", "far");
        router.wait_for("the router runs");
        let settled = ours(&road);
        assert!(settled.iter().any(|line| line.contains("531:")), "{settled:#?}");

        for priority in [530, 531] {
            road.server.ip(&format!("rule del priority {priority}")).unwrap();
            road.server.ip(&format!("-6 rule del priority {priority}")).unwrap();
        }
        nft(&road.server, "flush ruleset");
        wait_for(&road, &settled, &router);
        for family in ["-4", "-6"] {
            road.server.ip(&format!("{family} route flush table all proto 183")).unwrap();
        }
        road.server.ip(&format!("address flush dev {SERVER} scope global")).unwrap();
        wait_for(&road, &settled, &router);
        router.wait_for(FILTERS_BACK);
        router.wait_for(ROUTES_BACK);
        router.interrupt();
    });
}
