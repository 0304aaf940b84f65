//! SIGHUP: a running client and server take up what they can of a changed file, and name the rest.

use crate::common::*;
use rustix::process::Signal;

#[test]
fn a_running_client_takes_up_lanes_policies_and_uplinks_and_keeps_its_session() {
    on_network(|network| {
        // A network advertises a route to the cloud (DHCP option 121).
        network.vehicle.ip("route add 203.0.113.0/24 via 10.2.0.1").unwrap();
        let check_way = |device: &str| {
            let way = network.vehicle.run("ip route get 203.0.113.2").unwrap();
            assert!(way.contains(device), "{way}");
        };
        let lane = "[[lanes]]\nname = \"all\"\nstrategy = \"minrtt\"\n";
        network.edit("client.toml", |text| text.replace("inside = [\"lan*\"]\n", ""));
        let original = std::fs::read_to_string(network.path("client.toml")).unwrap();
        let with = |uplinks: &str, lanes: &str| {
            let text = original.replace("include = []", uplinks);
            assert_ne!(text, original);
            network.edit("client.toml", |_| format!("{text}\n{lanes}"));
        };
        with("include = [\"eth*\"]", lane);
        let (server, client) = network.start_both();
        network.wait_for_paths(&["eth1", "eth2"]);
        check_way("dev rw0");

        let policy = "include = [\"eth1\"]\n\
                          policies = [{ name = \"eth1\", priority = \"backup\", weight = 7 }]";
        with(policy, "[[lanes]]\nname = \"all\"\nstrategy = \"ecf\"\nqueue_max_bytes = 50000\n");
        network.edit("client.toml", |text| {
            text.replace("\nname = \"vehicle-1\"", "\nname = \"other\"")
        });
        client.reload();
        network.wait_for_paths(&["eth1"]);
        check_way("dev eth2");
        network.wait_for_status(CLIENT, "the policy and the strategy", |status| {
            let session = &status["sessions"][0];
            let path = &session["paths"][0];
            path["priority"] == "backup"
                && path["weight"] == 7
                && session["lanes"][0]["strategy"] == "ecf"
        });
        client.wait_for("ignored until the next start");
        assert_eq!(client.count("fields=\"name\""), 1, "{}", client.log());

        with("include = [\"eth*\"]", "[[lanes]]\nname = \"new\"\nstrategy = \"redundant\"\n");
        client.signal(Signal::HUP);
        network.wait_for_status(CLIENT, "the new lane", |status| {
            status["sessions"][0]["lanes"][0]["name"] == "new"
        });
        network.wait_for_paths(&["eth1", "eth2"]);
        check_way("dev rw0");

        network.edit("server.toml", |text| {
            text.replace("listen = \"[::]:4433\"", "listen = \"[::]:4434\"")
                .replace("name = \"rws\"", "name = \"rws\"\nmtu_bytes = 1400")
        });
        server.signal(Signal::HUP);
        server.wait_for("ignored until the next start");
        assert_eq!(server.count("fields=\"listen, tun.mtu_bytes\""), 1, "{}", server.log());
        client.wait_for_count("joined", 2);
        assert_eq!((client.count("joined"), server.count("joined")), (2, 2));
        interrupt([client, server]);
    });
}
