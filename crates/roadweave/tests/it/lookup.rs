//! The box finds its server by name: over each uplink, outside the tunnel.

use std::fs;
use std::net::UdpSocket;
use std::thread::{sleep, spawn};
use std::time::Duration;

use crate::common::*;

const HERE: &str = "198.51.100.1";
const THERE: &str = "198.51.100.7";
const DNS: &str = "198.51.100.53";

fn by_name(network: &TestNetwork) {
    network.edit("client.toml", |text| text.replace("\"198.51.100.1:4433\"", "\"edge.test:4433\""));
}

fn lease(network: &TestNetwork, interface: &str, server: &str) {
    let text = network.vehicle.run(&format!("ip -o link show {interface}")).unwrap();
    let index = text.split(':').next().unwrap();
    fs::create_dir_all("/run/systemd/netif/leases").unwrap();
    let path = format!("/run/systemd/netif/leases/{index}");
    fs::write(path, format!("ROUTER=10.1.0.1\nDNS={server}\n")).unwrap();
}

#[test]
fn a_server_that_moves_is_found_while_the_tunnel_is_dead() {
    on_network(|network| {
        by_name(&network);
        for address in [THERE, DNS, "198.51.100.54"] {
            network.server.ip(&format!("address add {address}/32 dev lo")).unwrap();
        }
        // The second uplink's name server lies, and no gateway answers.
        let zone = dns::serve(&network.server, DNS, &[("edge.test", HERE)]);
        dns::serve(&network.server, "198.51.100.54", &[("edge.test", "203.0.113.66")]);
        lease(&network, "eth1", DNS);
        lease(&network, "eth2", "198.51.100.54");
        network.set_resolvers("nameserver 127.0.0.53\n");

        let start = Watch::start();
        let server = network.start_server();
        let client = network.start_joined("client");
        assert!(start.elapsed() < Duration::from_secs(5), "the lying name server delays the join");
        assert!(client.log().contains(HERE), "{}", client.log());
        network.wait_for_paths(&["eth1", "eth2"]);

        server.kill();
        network.server.ip(&format!("address del {HERE}/32 dev lo")).unwrap();
        {
            let mut zone = zone.lock().unwrap();
            zone.addresses = vec![("new.edge.test".to_owned(), THERE.parse().unwrap())];
            zone.alias = Some(("edge.test".to_owned(), "new.edge.test".to_owned()));
            zone.truncates = true;
        }
        let moved = Watch::start();
        let _server = network.start_server();
        client.wait_for_count(" joined ", 2);
        let after = moved.elapsed();
        assert!(after < Duration::from_secs(25), "found after {after:?}\n{}", client.log());
        assert!(client.log().contains(&format!("server={THERE}:4433")), "{}", client.log());
        network.wait_for_paths(&["eth1", "eth2"]);
    });
}

#[test]
fn an_answer_from_another_address_or_port_counts_for_nothing() {
    on_network(|network| {
        by_name(&network);
        network.server.ip(&format!("address add {DNS}/32 dev lo")).unwrap();
        let bind =
            |address: &str| network.server.enter(|| UdpSocket::bind(address).unwrap()).unwrap();
        let asked = bind(&format!("{DNS}:53"));
        let forgers = [bind(&format!("{DNS}:5353")), bind("198.51.100.1:53")];
        spawn(move || {
            let mut question = [0; 512];
            while let Ok((length, from)) = asked.recv_from(&mut question) {
                let answer = |address| dns::answer_with(&question[..length], address);
                let lie = answer("203.0.113.66");
                forgers.iter().for_each(|forger| drop(forger.send_to(&lie, from)));
                sleep(Duration::from_millis(100));
                asked.send_to(&answer(HERE), from).unwrap();
            }
        });
        lease(&network, "eth1", DNS);
        lease(&network, "eth2", DNS);
        network.set_resolvers("nameserver 127.0.0.53\n");
        let _server = network.start_server();
        let mut command = network.vehicle.command(PROGRAM);
        command.args(["--log", "debug", "client", "--config"]).arg(network.path("client.toml"));
        let client = Daemon::start(command, network.path("client.log"));
        client.wait_for(" joined ");
        assert!(client.count("looked up") > 0, "{}", client.log());
        assert_eq!(client.count("203.0.113.66"), 0, "{}", client.log());
    });
}

/// The client's file has an IPv4 literal.
#[test]
fn an_uplink_without_ipv4_reaches_a_server_that_has_nothing_else() {
    run_sandboxed(|| {
        let network = TestNetwork::without_uplinks();
        cable(
            (&network.vehicle, "eth1", &["2001:db8:a::2/64"]),
            (&network.server, "eth1", &["2001:db8:a::1/64"]),
        );
        network.vehicle.ip("route add default via 2001:db8:a::1").unwrap();
        // In place of a NAT64 the server has the translated address itself.
        network.server.ip("address add 64:ff9b::198.51.100.1/128 dev lo nodad").unwrap();
        network.set_resolvers("nameserver 127.0.0.53\n");
        let names =
            [("ipv4only.arpa", "64:ff9b::192.0.0.170"), ("ipv4only.arpa", "64:ff9b::192.0.0.171")];
        dns::serve(&network.server, "2001:db8:a::1", &names);
        let _server = network.start_server();
        let client = network.start_client("client");
        client.wait_for("server=[64:ff9b::c633:6401]:4433");
        client.interrupt();
    });
}
