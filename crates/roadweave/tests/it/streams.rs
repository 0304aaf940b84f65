//! The SOCKS5 and HTTP CONNECT proxy of a box, as applications and as an attacker see it.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

use crate::common::hosts::{Host, bytes, read_head, seen_from, there_and_back};
use crate::common::*;

const BOX: &str = "192.168.50.1:1080";
const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const PORT: u16 = 8080;

const SUCCEEDED: u8 = 0;
const FORBIDDEN: u8 = 2;
const UNREACHABLE: u8 = 4;
const REFUSED: u8 = 5;

fn network() -> (TestNetwork, NetNs) {
    let network = TestNetwork::new();
    let camera = network.connect_camera();
    network.edit("client.toml", |text| {
        format!("{text}\n[streams]\nlisten = \"{BOX}\"\ntcp = \"tunnel\"\n")
    });
    network.edit("server.toml", |text| text + "[streams]\nconnects_per_second = 10\n");
    (network, camera)
}

fn socks(namespace: &NetNs, request: &[u8]) -> (u8, TcpStream) {
    hosts::socks(namespace, BOX, request)
}

fn to_address(address: Ipv4Addr, port: u16) -> Vec<u8> {
    hosts::to_address((address, port))
}

fn to_name(name: &str, port: u16) -> Vec<u8> {
    [&[5, 1, 0, 3, name.len() as u8], name.as_bytes(), &port.to_be_bytes()].concat()
}

#[test]
fn applications_reach_hosts_by_both_proxies_and_strangers_do_not() {
    run_sandboxed(|| {
        let (network, camera) = network();
        let _host = Host::start(&network.cloud, (HOST, PORT).into());
        let _own = Host::start(&network.server, ([203, 0, 113, 1], PORT).into());
        let (server, _client) = network.start_both();
        let sent = bytes(3_000_000);
        let (reply, mut socket) = socks(&camera, &to_address(HOST, PORT));
        assert_eq!(reply, SUCCEEDED);
        seen_from(&mut socket).unwrap();
        assert!(there_and_back(&socket, &sent) == sent);

        let mut socket = camera.enter(|| TcpStream::connect(BOX).unwrap()).unwrap();
        let head = format!("CONNECT {HOST}:{PORT} HTTP/1.1\r\nHost: {HOST}:{PORT}\r\n\r\nearly");
        socket.write_all(head.as_bytes()).unwrap();
        let answer = read_head(&mut socket);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        seen_from(&mut socket).unwrap();
        assert_eq!(there_and_back(&socket, b" and late"), b"early and late");

        let reply = |request: &[u8]| socks(&camera, request).0;
        assert_eq!(reply(&to_address(HOST, 9)), REFUSED);
        // The server's own address outside, its loopback, also by name, and link-local.
        assert_eq!(reply(&to_address(Ipv4Addr::new(203, 0, 113, 1), PORT)), FORBIDDEN);
        assert_eq!(reply(&to_address(Ipv4Addr::LOCALHOST, PORT)), FORBIDDEN);
        assert_eq!(reply(&to_name("localhost", PORT)), FORBIDDEN);
        assert_eq!(reply(&to_address(Ipv4Addr::new(169, 254, 169, 254), 80)), FORBIDDEN);
        assert_eq!(reply(&to_name("nobody.invalid", PORT)), UNREACHABLE);

        let client = network.wait_for_status(CLIENT, "all are over", |status| {
            status["streams"]["connections"] == 0
        });
        let ends = &client["streams"]["ends"];
        assert!(ends["closed"].as_u64() >= Some(2), "{ends:#}");
        assert!(ends["unconnected"].as_u64() >= Some(6), "{ends:#}");
        let ends = &network.show(SERVER)["streams"]["ends"];
        assert!(ends["forbidden"].as_u64() >= Some(4), "{ends:#}");
        assert_eq!((&ends["refused"], &ends["unreachable"]), (&1.into(), &1.into()), "{ends:#}");

        // A network under an uplink that knows the box's address inside: nothing answers it.
        network.server.ip("route add 192.168.50.1/32 via 10.1.0.2").unwrap();
        let address = SocketAddrV4::new(Ipv4Addr::new(192, 168, 50, 1), 1080);
        let found = network
            .server
            .enter(|| TcpStream::connect_timeout(&address.into(), Duration::from_secs(2)));
        assert!(found.unwrap().is_err(), "a stranger reaches the box");
        // Ten a second, with a burst of some seconds, and no more.
        let refused = (1..120).filter(|port| socks(&camera, &to_address(HOST, *port)).0 != REFUSED);
        assert!(refused.count() > 40, "whole hosts are scanned");
        let ends = &network.show(SERVER)["streams"]["ends"];
        assert!(ends["too-many"].as_u64() > Some(40), "{ends:#}");

        network.edit("server.toml", |text| format!("deny_destinations = [\"{HOST}/32\"]\n{text}"));
        server.reload();
        wait_until("the host is reached all the same", || {
            reply(&to_address(HOST, PORT)) == FORBIDDEN
        });
    });
}

fn seen_by(camera: &NetNs, request: &[u8]) -> Option<SocketAddr> {
    let (reply, mut socket) = socks(camera, request);
    (reply == SUCCEEDED).then(|| seen_from(&mut socket).unwrap())
}

#[test]
fn hosts_see_the_clients_address_and_a_crash_leaves_nothing_in_the_way() {
    run_sandboxed(|| {
        let (network, camera) = network();
        network.edit("server.toml", |text| format!("masquerade = false\n{text}"));
        network.cloud.ip("route add 10.77.0.0/16 via 203.0.113.1").unwrap();
        network.cloud.ip("route add fd77::/64 via 2001:db8:1::1").unwrap();
        let addresses = ["203.0.113.2:81", "[2001:db8:1::2]:81"];
        let addresses: [SocketAddr; 2] = addresses.map(|address| address.parse().unwrap());
        let _hosts = addresses.map(|address| Host::start(&network.cloud, address));
        let to_v6 = hosts::to_address(addresses[1]);
        let own_rules = || network.server.run("ip rule").unwrap().matches("522:").count();
        let (server, _client) = network.start_both();
        let check = || {
            let seen = seen_by(&camera, &to_address(HOST, 81)).unwrap();
            assert_eq!(seen.ip().to_string(), "10.77.0.2");
            assert!((10_240..32_768).contains(&seen.port()), "{seen}");
            let seen = seen_by(&camera, &to_v6).unwrap();
            assert_eq!(seen.ip().to_string(), "fd77::2");
            assert_eq!(network.show(SERVER)["streams"]["source"], "client");
            assert_eq!(seen_by(&camera, &to_address(Ipv4Addr::new(10, 77, 0, 1), 9)), None);
            check_ping(&network.cloud, "10.77.0.2", "-c 3 -i 0.05");
            assert_eq!(own_rules(), 1);
        };
        check();
        server.kill();
        let server = network.start_server();
        wait_until("no stream after a restart", || {
            socks(&camera, &to_address(HOST, 81)).0 == SUCCEEDED
        });
        check();
        server.interrupt();
        assert_eq!(own_rules(), 0);
        // Another program's rule takes the mark: without masquerade, no streams are taken.
        network.server.ip("rule add priority 100 fwmark 0x1/0x1 lookup main").unwrap();
        let server = network.start_server();
        server.wait_for_count("joined", 1);
        assert_eq!(server.count("no streams are accepted"), 1);
        assert_eq!(seen_by(&camera, &to_address(HOST, 81)), None);
        server.interrupt();
        network.edit("server.toml", |text| text.replace("masquerade = false\n", ""));
        let server = network.start_server();
        server.wait_for_count("joined", 1);
        assert_eq!(server.count("streams use this machine's own address"), 1);
        assert_eq!(network.show(SERVER)["streams"]["source"], "server");
        wait_until("no stream", || seen_by(&camera, &to_address(HOST, 81)).is_some());
    });
}
