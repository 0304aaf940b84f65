//! SIGHUP: what a running client and server take up of a changed file, and what they say of the
//! rest.

#![allow(clippy::disallowed_methods, reason = "end-to-end tests start programs and wait")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::*;
use roadweave_device::netns::run_sandboxed;
use rustix::process::Signal;

#[test]
fn a_running_client_takes_up_lanes_policies_and_uplinks_and_keeps_its_session() {
    run_sandboxed(
        "a_running_client_takes_up_lanes_policies_and_uplinks_and_keeps_its_session",
        || {
            let road = Road::new();
            let lane = "[[lanes]]\nname = \"all\"\nstrategy = \"minrtt\"\n";
            let original = std::fs::read_to_string(road.path("client.toml")).unwrap();
            let with = |uplinks: &str, lanes: &str| {
                let text = original.replace("include = []", uplinks);
                assert_ne!(text, original);
                road.edit("client.toml", |_| format!("{text}\n{lanes}"));
            };
            with("include = [\"eth*\"]", lane);
            let (server, client) = road.start_both();
            road.wait_for_paths(&["eth1", "eth2"]);

            // Fewer uplinks, another strategy, a policy; and a name, which waits for the next
            // start.
            let policy = "include = [\"eth1\"]\n\
                          policies = [{ name = \"eth1\", priority = \"backup\", weight = 7 }]";
            with(
                policy,
                "[[lanes]]\nname = \"all\"\nstrategy = \"ecf\"\nqueue_max_bytes = 50000\n",
            );
            road.edit("client.toml", |text| with_name(&text, "other"));
            client.signal(Signal::HUP);
            client.wait_for("were read again");
            road.wait_for_paths(&["eth1"]);
            road.wait_for_status(CLIENT, "the policy and the strategy", |status| {
                let session = &status["sessions"][0];
                let path = &session["paths"][0];
                path["priority"] == "backup"
                    && path["weight"] == 7
                    && session["lanes"][0]["strategy"] == "ecf"
            });
            client.wait_for("ignored until the next start");
            assert_eq!(client.count("fields=\"name\""), 1, "{}", client.log());

            // Lanes of other names are none that the server knows: a session with them follows.
            with("include = [\"eth*\"]", "[[lanes]]\nname = \"new\"\nstrategy = \"redundant\"\n");
            client.signal(Signal::HUP);
            road.wait_for_status(CLIENT, "the new lane", |status| {
                status["sessions"][0]["lanes"][0]["name"] == "new"
            });
            road.wait_for_paths(&["eth1", "eth2"]);

            // A broken file changes nothing.
            road.edit("client.toml", |text| format!("{text}\ncolour = 1\n"));
            client.signal(Signal::HUP);
            client.wait_for("nothing was changed: ");
            assert_eq!(client.count("unknown field `colour`"), 1, "{}", client.log());
            road.wait_for_paths(&["eth1", "eth2"]);

            // What the server would have to open anew is named.
            road.edit("server.toml", |text| {
                text.replace("listen = \"[::]:4433\"", "listen = \"[::]:4434\"")
                    .replace("name = \"rws\"", "name = \"rws\"\nmtu_bytes = 1400")
            });
            server.signal(Signal::HUP);
            server.wait_for("ignored until the next start");
            assert_eq!(server.count("fields=\"listen, tun.mtu_bytes\""), 1, "{}", server.log());
            client.wait_for_count("joined", 2);
            assert_eq!((client.count("joined"), server.count("joined")), (2, 2));
            client.interrupt();
            server.interrupt();
        },
    );
}

#[test]
fn an_interface_that_becomes_an_uplink_by_sighup_draws_nothing_out_any_more() {
    let name = "an_interface_that_becomes_an_uplink_by_sighup_draws_nothing_out_any_more";
    run_sandboxed(name, || {
        let road = Road::new();
        // A network that says the cloud is reached by it (DHCP's option 121).
        road.vehicle.ip("route add 203.0.113.0/24 via 10.2.0.1").unwrap();
        let named = "include = [\"eth*\"]";
        let but_one = "include = [\"eth*\"]\nexclude = [\"eth2\"]";
        road.edit("client.toml", |text| {
            text.replace("include = []", but_one).replace("inside = [\"lan*\"]\n", "")
        });
        let (_server, client) = road.start_both();
        let way = || {
            let words = ["route", "get", "203.0.113.2"];
            let output = road.vehicle.command("ip").args(words).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert!(way().contains("dev eth2"), "a network behind the box: {}", way());
        for (round, [old, new], uplinks, device) in [
            (1, [but_one, named], &["eth1", "eth2"][..], "dev rw0"),
            (2, [named, but_one], &["eth1"], "dev eth2"),
        ] {
            road.edit("client.toml", |text| text.replace(old, new));
            client.signal(Signal::HUP);
            client.wait_for_count("were read again", round);
            road.wait_for_paths(uplinks);
            assert!(way().contains(device), "{}", way());
        }
    });
}

fn with_name(text: &str, name: &str) -> String {
    let line = |line: &str| match line.starts_with("name = \"vehicle-1\"") {
        true => format!("name = {name:?}\n"),
        false => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}
