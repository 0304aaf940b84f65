//! Transparent splitting: TCP connections of a network behind a box end at the box and go on as
//! streams. Tests see them as the applications and as an attacker do.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use crate::common::hosts::{Host, bytes, connect, read_head, seen_from, there_and_back};
use crate::common::*;
use serde_json::Value;

const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const HOST_V6: &str = "2001:db8:1::2";
const PORT: u16 = 8080;
const TABLE: &str = "inet roadweave_rw0_split";
const PROXY: &str = "192.168.50.1:1080";
const STREAMS: &str = "\n[streams]\ntcp = \"split\"\n";

fn network() -> (TestNetwork, NetNs) {
    let network = TestNetwork::new();
    let camera = network.connect_camera_of_both_families();
    network.cloud.ip("route add default via 203.0.113.1").unwrap();
    network.edit("client.toml", |text| text + STREAMS);
    network.edit("server.toml", |text| text + "[streams]\n");
    (network, camera)
}

fn host(port: u16) -> SocketAddr {
    SocketAddr::from((HOST, port))
}

fn taken(network: &TestNetwork) -> u64 {
    network.show(CLIENT)["streams"]["split"]["taken"].as_u64().unwrap()
}

fn wait_until_on(network: &TestNetwork) -> Value {
    network.wait_for_status(CLIENT, "connections are split", |status| {
        status["streams"]["split"].is_object() && status["streams"]["split"]["obstacle"].is_null()
    })
}

fn wait_until_off(network: &TestNetwork, why: &str) {
    network.wait_for_status(CLIENT, why, |status| {
        status["streams"]["split"]["obstacle"].as_str().is_some_and(|it| it.contains(why))
    });
}

/// Makes the box learn that the host answers: the first connection goes as packets.
fn learn(network: &TestNetwork, camera: &NetNs, to: SocketAddr) {
    let before = taken(network);
    let mut socket = connect(camera, to).unwrap();
    seen_from(&mut socket).unwrap();
    assert_eq!(taken(network), before, "taken before the host was known");
}

/// Connects until a connection is taken: an address of the box that settles late replaces the
/// table and what it has learned.
fn connect_taken(network: &TestNetwork, camera: &NetNs) -> TcpStream {
    for _ in 0..20 {
        let before = taken(network);
        let mut socket = connect(camera, host(PORT)).unwrap();
        seen_from(&mut socket).unwrap();
        if taken(network) != before {
            return socket;
        }
    }
    panic!("no connection is taken");
}

#[test]
fn a_download_goes_as_packets_first_and_then_as_a_stream_from_the_same_address() {
    run_sandboxed(|| {
        let (network, camera) = network();
        network.edit("client.toml", |text| format!("{text}listen = \"{PROXY}\"\n"));
        network.edit("server.toml", |text| format!("masquerade = false\n{text}"));
        network.cloud.ip("route add fd77::/64 via 2001:db8:1::1").unwrap();
        let v6 = SocketAddr::new(HOST_V6.parse().unwrap(), PORT);
        let _hosts = [host(PORT), v6].map(|address| Host::start(&network.cloud, address));
        let (server, client) = network.start_both();
        wait_until_on(&network);
        let sent = bytes(3_000_000);
        for (to, inner) in [(host(PORT), "10.77.0.2"), (v6, "fd77::2")] {
            for round in 0..3 {
                let before = taken(&network);
                let mut socket = connect(&camera, to).unwrap();
                assert_eq!(socket.peer_addr().unwrap(), to);
                assert_eq!(seen_from(&mut socket).unwrap().ip().to_string(), inner);
                assert!(there_and_back(&socket, &sent) == sent);
                assert_eq!(taken(&network) - before, u64::from(round > 0), "{to}, round {round}");
            }
        }
        let status = network.wait_for_status(CLIENT, "all are over", |status| {
            status["streams"]["connections"] == 0
        });
        assert_eq!(status["streams"]["ends"]["closed"], 4, "{:#}", status["streams"]);
        // Also when the kernel keeps no state of handshakes, as while it is flooded.
        let key = "/proc/sys/net/ipv4/tcp_syncookies";
        network.vehicle.enter(|| std::fs::write(key, "2").unwrap()).unwrap();
        let before = taken(&network);
        for to in [host(PORT), v6] {
            let mut socket = connect(&camera, to).unwrap();
            seen_from(&mut socket).unwrap();
            assert!(there_and_back(&socket, &sent) == sent);
        }
        assert_eq!(taken(&network), before + 2);
        let before = taken(&network);
        seen_from(&mut connect(&network.vehicle, host(PORT)).unwrap()).unwrap();
        let mut asked = connect(&camera, PROXY.parse().unwrap()).unwrap();
        let to = host(PORT);
        write!(asked, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
        let answer = read_head(&mut asked);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        seen_from(&mut asked).unwrap();
        assert!(there_and_back(&asked, &sent) == sent);
        assert_eq!(taken(&network), before);

        // Elements that packets add to the table are no change by another program.
        nft(&network.vehicle, "add table inet other");
        sleep(Duration::from_secs(5));
        assert_eq!(client.count("split connections; it is restored"), 0, "{}", client.log());
        nft(&network.vehicle, &format!("delete table {TABLE}"));
        client.wait_for("the table of split connections; it is restored");
        learn(&network, &camera, host(PORT));
        network.wait_for_status(CLIENT, "all are over", |it| it["streams"]["connections"] == 0);

        drop(server);
        network.edit("server.toml", |text| text + "connects_per_second = 1\n");
        let _server = network.start_server();
        client.wait_for_count("joined server", 2);
        wait_until_on(&network);
        let burst: Vec<_> = (0..20).map(|_| connect(&camera, host(PORT))).collect();
        let reset = burst
            .into_iter()
            .filter_map(|socket| socket.and_then(|mut socket| seen_from(&mut socket)).err());
        assert!(reset.count() > 0, "all were taken");
        wait_until_off(&network, "the server refused a connection because there are too many");
        let before = taken(&network);
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!(taken(&network), before);
        assert!(!noted(&network, "failed4").contains(&HOST.to_string()), "the host is blamed");
    });
}

fn attempt(camera: &NetNs, to: SocketAddr) -> Result<SocketAddr, ErrorKind> {
    let mut socket = connect(camera, to).map_err(|error| error.kind())?;
    seen_from(&mut socket).map_err(|error| error.kind())
}

fn scan(camera: &NetNs) -> Vec<u16> {
    (PORT - 5..PORT + 5).filter(|port| connect(camera, host(*port)).is_ok()).collect()
}

fn noted(network: &TestNetwork, set: &str) -> String {
    network.vehicle.run(&format!("nft list set {TABLE} {set}")).unwrap()
}

#[test]
fn only_open_ports_look_open_and_a_host_that_is_gone_costs_one_reset() {
    run_sandboxed(|| {
        let (network, camera) = network();
        network.edit("client.toml", |text| text + "connections_max = 8\n");
        let open = Host::start(&network.cloud, host(PORT));
        let (_server, _client) = network.start_both();
        wait_until_on(&network);
        check_listener(&network, &camera);
        assert_eq!(scan(&camera), [PORT]);
        // The open port is known by now, and no other.
        let before = taken(&network);
        assert_eq!(scan(&camera), [PORT]);
        assert_eq!(taken(&network), before + 1);
        assert_eq!(attempt(&camera, host(PORT - 1)), Err(ErrorKind::ConnectionRefused));

        let unreachable = SocketAddr::from(([203, 0, 113, 77], PORT));
        assert_eq!(attempt(&camera, unreachable), Err(ErrorKind::HostUnreachable));

        network.wait_for_status(CLIENT, "all are over", |it| it["streams"]["connections"] == 0);
        let before = taken(&network);
        let begin = |_| {
            let mut socket = connect(&camera, host(PORT)).unwrap();
            seen_from(&mut socket).unwrap();
            socket
        };
        let sockets: Vec<TcpStream> = (0..12).map(begin).collect();
        assert_eq!(taken(&network) - before, 7);
        wait_until_off(&network, "too many connections are open");
        drop(sockets);
        wait_until_on(&network);
        connect_taken(&network, &camera);

        open.end(&network.cloud);
        let before = taken(&network);
        let begun = Watch::start();
        assert_eq!(attempt(&camera, host(PORT)), Err(ErrorKind::ConnectionReset));
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        assert_eq!(taken(&network), before + 1);
        assert!(noted(&network, "failed4").contains(&format!("{HOST} . {PORT}")));
        for _ in 0..2 {
            assert_eq!(attempt(&camera, host(PORT)), Err(ErrorKind::ConnectionRefused));
        }
        let _open = Host::start(&network.cloud, host(PORT));
        attempt(&camera, host(PORT)).unwrap();
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!(taken(&network), before + 1);
    });
}

fn check_listener(network: &TestNetwork, camera: &NetNs) {
    learn(network, camera, host(PORT));
    let rules = network.vehicle.run("nft list ruleset").unwrap();
    let port_of = |family: &str| -> u16 {
        let rest = rules.split(&format!("tproxy {family} to ")).nth(1).unwrap();
        let address = rest.split_whitespace().next().unwrap();
        address.rsplit(':').next().unwrap().parse().unwrap()
    };
    let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, port_of("ip")));
    let listener_v6 = SocketAddr::new("::1".parse().unwrap(), port_of("ip6"));
    // The most permissive kernel: loopback's addresses come in by any interface.
    for interface in ["all", "lan0", "eth1"] {
        let key = format!("/proc/sys/net/ipv4/conf/{interface}/route_localnet");
        network.vehicle.enter(|| std::fs::write(key, "1").unwrap()).unwrap();
    }
    let before = network.show(CLIENT)["streams"].clone();
    for (from, gateway) in [(camera, "192.168.50.1"), (&network.server, "10.1.0.2")] {
        from.ip("rule add priority 1 to 127.0.0.1 lookup 99").unwrap();
        from.ip("rule del priority 0 lookup local").unwrap();
        from.ip("rule add priority 2 lookup local").unwrap();
        from.ip(&format!("route add 127.0.0.1/32 via {gateway} table 99")).unwrap();
        let own = SocketAddr::new(gateway.parse().unwrap(), listener.port());
        for to in [own, listener] {
            let found = attempt(from, to);
            assert!(found.is_err(), "{to} is served from {}", from.name());
        }
    }
    // A network under an uplink sends SYNs that the box would take from inside.
    network.server.ip("route add 203.0.113.2/32 via 10.1.0.2").unwrap();
    assert!(attempt(&network.server, host(PORT)).is_err());
    network.server.ip("route del 203.0.113.2/32 via 10.1.0.2").unwrap();
    for to in [listener, listener_v6] {
        assert!(attempt(&network.vehicle, to).is_err(), "{to}");
    }
    let after = network.show(CLIENT)["streams"].clone();
    assert_eq!(after["split"]["taken"], before["split"]["taken"], "{after:#}");
    assert!(after["ends"]["stranger"].as_u64() >= Some(2), "{after:#}");
    attempt(camera, host(PORT)).unwrap();
    assert_ne!(taken(network), before["split"]["taken"].as_u64().unwrap());
}

#[test]
fn without_a_far_end_connections_go_as_packets() {
    run_sandboxed(|| {
        let (network, camera) = network();
        let server_file = std::fs::read_to_string(network.path("server.toml")).unwrap();
        network.edit("server.toml", |text| text.replace("[streams]\n", ""));
        let _host = Host::start(&network.cloud, host(PORT));
        let (server, _client) = network.start_both();
        wait_until_off(&network, "the server does not accept streams");
        for _ in 0..3 {
            learn(&network, &camera, host(PORT));
        }
        drop(server);
        network.write("server.toml", server_file);
        let _server = network.start_server();
        wait_until_on(&network);
        let taken_one = connect_taken(&network, &camera);
        // The tunnel falls silent, and comes back: what is open lives, new ones see no host.
        ["eth1", "eth2"].into_iter().for_each(|uplink| network.silence(uplink, true));
        // Taken before the silence is noticed.
        let before = taken(&network);
        let mut waiting = connect(&camera, host(PORT)).unwrap();
        assert_eq!(taken(&network), before + 1);
        sleep(Duration::from_secs(14));
        wait_until_off(&network, "there is no session, or it does not answer");
        let silent = camera
            .enter(|| TcpStream::connect_timeout(&host(PORT), Duration::from_secs(1)))
            .unwrap();
        assert!(silent.is_err(), "something answers in the name of the host");
        ["eth1", "eth2"].into_iter().for_each(|uplink| network.silence(uplink, false));
        wait_until_on(&network);
        assert!(there_and_back(&taken_one, b"still there") == b"still there");
        seen_from(&mut waiting).unwrap();
        assert!(!noted(&network, "failed4").contains(&HOST.to_string()), "the host is blamed");
    });
}

#[test]
fn a_crash_and_other_programs_end_what_is_split_and_nothing_else() {
    run_sandboxed(|| {
        let (network, camera) = network();
        let _host = Host::start(&network.cloud, host(PORT));
        let (_server, client) = network.start_both();
        wait_until_on(&network);
        learn(&network, &camera, host(PORT));
        let mut split = connect(&camera, host(PORT)).unwrap();
        seen_from(&mut split).unwrap();
        assert_eq!(taken(&network), 1);
        client.kill();
        split.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let _ = split.write_all(b"is anybody there?");
        let left = split.read(&mut [0; 64]);
        assert!(
            matches!(&left, Ok(0)) || left.is_err_and(|it| it.kind() == ErrorKind::ConnectionReset)
        );
        let without = camera
            .enter(|| TcpStream::connect_timeout(&host(PORT), Duration::from_secs(1)))
            .unwrap();
        assert!(without.is_err(), "something answers in the name of the host");
        let client = network.start_joined("client");
        wait_until_on(&network);
        learn(&network, &camera, host(PORT));
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!(taken(&network), 1);
        client.kill();

        // A start without splitting removes what the crash left.
        let has_left = || {
            let is_left = |line: &String| line.contains("_split") || line.contains("0x5258");
            network.state().iter().any(is_left)
        };
        assert!(has_left());
        network.edit("client.toml", |text| text.replace(STREAMS, ""));
        let client = network.start_joined("client");
        attempt(&camera, host(PORT)).unwrap();
        assert!(!has_left(), "{:#?}", network.state());
        client.interrupt();

        network.edit("client.toml", |text| text + STREAMS);
        let rule = "priority 100 fwmark 0x8/0x8 lookup main";
        network.vehicle.ip(&format!("rule add {rule}")).unwrap();
        let client = network.start_joined("client");
        wait_until_off(
            &network,
            "the mark 0x5258 is used by a rule of another program (priority 100",
        );
        wait_until_off(&network, "set packet_marks to bits that no other program uses");
        for _ in 0..2 {
            learn(&network, &camera, host(PORT));
        }
        assert_eq!(client.count("and are not split: "), 1, "{}", client.log());
        network.vehicle.ip("rule del priority 100").unwrap();
        wait_until_on(&network);
        learn(&network, &camera, host(PORT));
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!(taken(&network), 1);
        client.interrupt();

        // With other bits the rule does not matter; a firewall does.
        network.vehicle.ip(&format!("rule add {rule}")).unwrap();
        nft(
            &network.vehicle,
            "table inet own { chain in { type filter hook input priority 0; }; }",
        );
        network.edit("client.toml", |text| format!("packet_marks = \"0x00ff0000\"\n{text}"));
        let client = network.start_joined("client");
        wait_until_on(&network);
        learn(&network, &camera, host(PORT));
        nft(&network.vehicle, "add rule inet own in iifname lan0 meta l4proto tcp drop");
        let found = camera.enter(|| TcpStream::connect_timeout(&host(PORT), WAIT_MAX)).unwrap();
        seen_from(&mut found.unwrap()).unwrap();
        wait_until_off(&network, "a firewall of this box drops them at INPUT");
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!((taken(&network), client.count("do not arrive")), (0, 1));
    });
}
