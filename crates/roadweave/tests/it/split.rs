//! TCP connections of a network behind a box, which end at the box without having been told to: as
//! the applications there, and whoever means harm, see it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use crate::common::hosts::{Host, bytes, connect, read_head, seen_from, there_and_back};
use crate::common::*;
use serde_json::Value;

/// A host beyond the server.
const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const HOST_V6: &str = "2001:db8:1::2";
const PORT: u16 = 8080;
const TABLE: &str = "inet roadweave_rw0_split";

/// A road whose box splits connections of the camera behind it.
fn road() -> (Road, NetNs) {
    let road = Road::new();
    let camera = road.connect_camera_of_both_families();
    road.cloud.ip("route add default via 203.0.113.1").unwrap();
    road.edit("client.toml", |text| format!("{text}\n[streams]\ntcp = \"split\"\n"));
    road.edit("server.toml", |text| text + "[streams]\n");
    (road, camera)
}

fn host(port: u16) -> SocketAddr {
    SocketAddr::from((HOST, port))
}

/// How many connections the box has taken.
fn taken(road: &Road) -> u64 {
    road.show(CLIENT)["streams"]["split"]["taken"].as_u64().unwrap()
}

/// Waits until new connections are taken.
fn wait_until_on(road: &Road) -> Value {
    road.wait_for_status(CLIENT, "connections are split", |status| {
        status["streams"]["split"].is_object() && status["streams"]["split"]["obstacle"].is_null()
    })
}

/// Waits until new connections go by the tunnel, for a reason that has `why` in it.
fn wait_until_off(road: &Road, why: &str) {
    road.wait_for_status(CLIENT, why, |status| {
        status["streams"]["split"]["obstacle"].as_str().is_some_and(|it| it.contains(why))
    });
}

/// Makes the box know that the host answers, by a connection that goes as packets.
fn learn(road: &Road, camera: &NetNs, to: SocketAddr) {
    let before = taken(road);
    let mut socket = connect(camera, to).unwrap();
    seen_from(&mut socket).unwrap();
    assert_eq!(taken(road), before, "taken before it was known that anybody is there");
}

#[test]
fn a_download_goes_as_packets_first_and_then_as_a_stream_from_the_same_address() {
    run_sandboxed(|| {
        let (road, camera) = road();
        // So that the host sees whom the server lets out.
        road.edit("server.toml", |text| format!("masquerade = false\n{text}"));
        road.cloud.ip("route add fd77::/64 via 2001:db8:1::1").unwrap();
        let v6 = SocketAddr::new(HOST_V6.parse().unwrap(), PORT);
        let _hosts = [host(PORT), v6].map(|address| Host::start(&road.cloud, address));
        let (_server, _client) = road.start_both();
        wait_until_on(&road);
        let sent = bytes(3_000_000);
        for (to, inner) in [(host(PORT), "10.77.0.2"), (v6, "fd77::2")] {
            for round in 0..3 {
                let before = taken(&road);
                let mut socket = connect(&camera, to).unwrap();
                assert_eq!(socket.peer_addr().unwrap(), to);
                assert_eq!(seen_from(&mut socket).unwrap().ip().to_string(), inner);
                assert!(there_and_back(&socket, &sent) == sent);
                assert_eq!(taken(&road) - before, u64::from(round > 0), "{to}, round {round}");
            }
        }
        let status = road.wait_for_status(CLIENT, "all are over", |status| {
            status["streams"]["connections"] == 0
        });
        assert_eq!(status["streams"]["ends"]["closed"], 4, "{:#}", status["streams"]);
        // Also when the kernel keeps no state of handshakes, as while it is flooded.
        let key = "/proc/sys/net/ipv4/tcp_syncookies";
        road.vehicle.enter(|| std::fs::write(key, "2").unwrap()).unwrap();
        let before = taken(&road);
        for to in [host(PORT), v6] {
            let mut socket = connect(&camera, to).unwrap();
            seen_from(&mut socket).unwrap();
            assert!(there_and_back(&socket, &sent) == sent);
        }
        assert_eq!(taken(&road), before + 2);
        // The box's own connections are none of the LAN's.
        let before = taken(&road);
        seen_from(&mut connect(&road.vehicle, host(PORT)).unwrap()).unwrap();
        assert_eq!(taken(&road), before);
    });
}

/// How an attempt to reach `to` ends: what the host says, or why not.
fn attempt(camera: &NetNs, to: SocketAddr) -> Result<SocketAddr, ErrorKind> {
    let mut socket = connect(camera, to).map_err(|error| error.kind())?;
    seen_from(&mut socket).map_err(|error| error.kind())
}

/// The ports of the host, of some, that a caller finds open.
fn scan(camera: &NetNs) -> Vec<u16> {
    (PORT - 5..PORT + 5).filter(|port| connect(camera, host(*port)).is_ok()).collect()
}

/// What of `set` is noted in the box.
fn noted(road: &Road, set: &str) -> String {
    road.vehicle.run(&format!("nft list set {TABLE} {set}")).unwrap()
}

#[test]
fn only_open_ports_look_open_and_a_host_that_is_gone_costs_one_reset() {
    run_sandboxed(|| {
        let (road, camera) = road();
        let open = Host::start(&road.cloud, host(PORT));
        let (_server, _client) = road.start_both();
        wait_until_on(&road);
        assert_eq!(scan(&camera), [PORT]);
        // It is known by now, and nothing else has become so.
        let before = taken(&road);
        assert_eq!(scan(&camera), [PORT]);
        assert_eq!(taken(&road), before + 1);
        assert_eq!(attempt(&camera, host(PORT - 1)), Err(ErrorKind::ConnectionRefused));

        // A host that nobody has, which its router tells of.
        let nobody = SocketAddr::from(([203, 0, 113, 77], PORT));
        assert_eq!(attempt(&camera, nobody), Err(ErrorKind::HostUnreachable));

        open.end(&road.cloud);
        let before = taken(&road);
        let begun = Watch::start();
        assert_eq!(attempt(&camera, host(PORT)), Err(ErrorKind::ConnectionReset));
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        assert_eq!(taken(&road), before + 1);
        assert!(noted(&road, "failed4").contains(&format!("{HOST} . {PORT}")));
        for _ in 0..2 {
            assert_eq!(attempt(&camera, host(PORT)), Err(ErrorKind::ConnectionRefused));
        }
        // It is back, and goes by the tunnel for a while.
        let _open = Host::start(&road.cloud, host(PORT));
        attempt(&camera, host(PORT)).unwrap();
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!(taken(&road), before + 1);
    });
}

#[test]
fn an_application_with_two_addresses_finds_the_one_that_is_alive() {
    run_sandboxed(|| {
        let (road, camera) = road();
        let v6 = SocketAddr::new(HOST_V6.parse().unwrap(), PORT);
        let _v4 = Host::start(&road.cloud, host(PORT));
        let (_server, _client) = road.start_both();
        wait_until_on(&road);
        // As browsers do: the next address when the first has not answered for a while.
        let eyeballs = || {
            let first = camera
                .enter(|| TcpStream::connect_timeout(&v6, Duration::from_millis(300)))
                .unwrap();
            let mut socket = first.or_else(|_| connect(&camera, host(PORT))).unwrap();
            seen_from(&mut socket).map(|_| socket.peer_addr().unwrap().is_ipv6())
        };
        // The host has no IPv6 at this port, and says so, or swallows it.
        assert_eq!((eyeballs().unwrap(), eyeballs().unwrap()), (false, false));
        nft(&road.cloud, "table inet dead { chain in { type filter hook input priority 0; }; }");
        nft(
            &road.cloud,
            &format!("add rule inet dead in ip6 daddr {HOST_V6} tcp dport {PORT} drop"),
        );
        assert_eq!((eyeballs().unwrap(), eyeballs().unwrap()), (false, false));
        // It answers, and dies after that: one attempt is reset, and the next finds the other.
        nft(&road.cloud, "flush chain inet dead in");
        let v6_host = Host::start(&road.cloud, v6);
        assert_eq!((eyeballs().unwrap(), eyeballs().unwrap()), (true, true));
        v6_host.end(&road.cloud);
        nft(
            &road.cloud,
            &format!("add rule inet dead in ip6 daddr {HOST_V6} tcp dport {PORT} drop"),
        );
        let begun = Watch::start();
        assert_eq!(eyeballs().unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(begun.elapsed() < Duration::from_secs(13), "{:?}", begun.elapsed());
        assert!(!eyeballs().unwrap());
    });
}

#[test]
fn nobody_comes_to_the_listener_by_its_own_address() {
    run_sandboxed(|| {
        let (road, camera) = road();
        let _host = Host::start(&road.cloud, host(PORT));
        let (_server, _client) = road.start_both();
        wait_until_on(&road);
        learn(&road, &camera, host(PORT));
        let rules = road.vehicle.run("nft list ruleset").unwrap();
        let port_of = |family: &str| -> u16 {
            let rest = rules.split(&format!("tproxy {family} to ")).nth(1).unwrap();
            let address = rest.split_whitespace().next().unwrap();
            address.rsplit(':').next().unwrap().parse().unwrap()
        };
        let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, port_of("ip")));
        let listener_v6 = SocketAddr::new("::1".parse().unwrap(), port_of("ip6"));
        // As generous a kernel as can be: it lets loopback's addresses come in by any interface.
        for interface in ["all", "lan0", "eth1"] {
            let key = format!("/proc/sys/net/ipv4/conf/{interface}/route_localnet");
            road.vehicle.enter(|| std::fs::write(key, "1").unwrap()).unwrap();
        }
        let before = road.show(CLIENT)["streams"].clone();
        for (from, gateway) in [(&camera, "192.168.50.1"), (&road.server, "10.1.0.2")] {
            from.ip("rule add priority 1 to 127.0.0.1 lookup 99").unwrap();
            from.ip("rule del priority 0 lookup local").unwrap();
            from.ip("rule add priority 2 lookup local").unwrap();
            from.ip(&format!("route add 127.0.0.1/32 via {gateway} table 99")).unwrap();
            // By the addresses of the box, and by loopback's.
            let own = SocketAddr::new(gateway.parse().unwrap(), listener.port());
            for to in [own, listener] {
                let found = attempt(from, to);
                assert!(found.is_err(), "{to} is served from {}", from.name());
            }
        }
        // A network under an uplink that sends the box SYNs which it would take from inside.
        road.server.ip("route add 203.0.113.2/32 via 10.1.0.2").unwrap();
        assert!(attempt(&road.server, host(PORT)).is_err());
        road.server.ip("route del 203.0.113.2/32 via 10.1.0.2").unwrap();
        // A user of the box itself.
        for to in [listener, listener_v6] {
            assert!(attempt(&road.vehicle, to).is_err(), "{to}");
        }
        let after = road.show(CLIENT)["streams"].clone();
        assert_eq!(after["split"]["taken"], before["split"]["taken"], "{after:#}");
        assert!(after["ends"]["stranger"].as_u64() >= Some(2), "{after:#}");
        // Who may come still does.
        attempt(&camera, host(PORT)).unwrap();
        assert_ne!(taken(&road), before["split"]["taken"].as_u64().unwrap());
    });
}

#[test]
fn without_a_far_end_connections_go_as_packets() {
    run_sandboxed(|| {
        let (road, camera) = road();
        let server_file = std::fs::read_to_string(road.path("server.toml")).unwrap();
        road.edit("server.toml", |text| text.replace("[streams]\n", ""));
        let _host = Host::start(&road.cloud, host(PORT));
        let (server, client) = road.start_both();
        wait_until_off(&road, "the server takes no streams");
        for _ in 0..3 {
            learn(&road, &camera, host(PORT));
        }
        drop(server);
        road.write("server.toml", server_file);
        let server = road.start_server();
        wait_until_on(&road);
        // What it has heard from the other one holds.
        let mut taken_one = connect(&camera, host(PORT)).unwrap();
        seen_from(&mut taken_one).unwrap();
        assert_eq!(taken(&road), 1);
        // The tunnel falls silent, and comes back: the connection lives, new ones see no host.
        ["eth1", "eth2"].into_iter().for_each(|uplink| road.silence(uplink, true));
        wait_until_off(&road, "no session that answers");
        let silent = camera
            .enter(|| TcpStream::connect_timeout(&host(PORT), Duration::from_secs(1)))
            .unwrap();
        assert!(silent.is_err(), "somebody has answered in the name of a host that is not there");
        ["eth1", "eth2"].into_iter().for_each(|uplink| road.silence(uplink, false));
        wait_until_on(&road);
        assert!(there_and_back(&taken_one, b"still there") == b"still there");
        drop((server, client));
    });
}

#[test]
fn a_proxy_serves_those_who_ask_beside_what_is_taken_from_those_who_do_not() {
    run_sandboxed(|| {
        let (road, camera) = road();
        let proxy: SocketAddr = "192.168.50.1:1080".parse().unwrap();
        road.edit("client.toml", |text| {
            text.replace("[streams]\n", &format!("[streams]\nlisten = \"{proxy}\"\n"))
        });
        let _host = Host::start(&road.cloud, host(PORT));
        let (_server, _client) = road.start_both();
        wait_until_on(&road);
        learn(&road, &camera, host(PORT));
        let sent = bytes(1_000_000);
        for round in 1..3 {
            let mut asked = connect(&camera, proxy).unwrap();
            let to = host(PORT);
            write!(asked, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
            let answer = read_head(&mut asked);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            seen_from(&mut asked).unwrap();
            let mut split = connect(&camera, host(PORT)).unwrap();
            seen_from(&mut split).unwrap();
            assert!(there_and_back(&asked, &sent) == sent && there_and_back(&split, &sent) == sent);
            assert_eq!(taken(&road), round, "what asked was taken, or what did not was not");
        }
        let accepted = road.show(CLIENT)["streams"]["accepted"].as_u64();
        assert_eq!(accepted, Some(4));
    });
}

#[test]
fn when_all_places_are_taken_new_connections_go_as_packets() {
    run_sandboxed(|| {
        let (road, camera) = road();
        road.edit("client.toml", |text| text + "connections_max = 8\n");
        let _host = Host::start(&road.cloud, host(PORT));
        let (_server, _client) = road.start_both();
        wait_until_on(&road);
        learn(&road, &camera, host(PORT));
        let open = || {
            let mut socket = connect(&camera, host(PORT)).unwrap();
            seen_from(&mut socket).unwrap();
            socket
        };
        let mut sockets: Vec<TcpStream> = (0..12).map(|_| open()).collect();
        assert_eq!(taken(&road), 7);
        wait_until_off(&road, "too many connections are open");
        let served =
            sockets.iter().all(|socket| there_and_back(socket, b"all of us") == b"all of us");
        assert!(served, "some are not served");
        sockets.clear();
        wait_until_on(&road);
        drop(open());
        assert_eq!(taken(&road), 8);
    });
}

#[test]
fn a_crash_ends_what_was_split_and_nothing_else() {
    run_sandboxed(|| {
        let (road, camera) = road();
        let _host = Host::start(&road.cloud, host(PORT));
        let (_server, client) = road.start_both();
        let clean = road.state();
        wait_until_on(&road);
        learn(&road, &camera, host(PORT));
        let mut split = connect(&camera, host(PORT)).unwrap();
        seen_from(&mut split).unwrap();
        assert_eq!(taken(&road), 1);
        client.kill();
        // Told at once, however the kernel does: by an end, or by the answer to what it sends.
        split.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let _ = split.write_all(b"is anybody there?");
        let left = split.read(&mut [0; 64]);
        assert!(
            matches!(&left, Ok(0)) || left.is_err_and(|it| it.kind() == ErrorKind::ConnectionReset)
        );
        // While nobody listens, what the table knows is no answer.
        let without = camera
            .enter(|| TcpStream::connect_timeout(&host(PORT), Duration::from_secs(1)))
            .unwrap();
        assert!(without.is_err(), "somebody answers in the name of a host");
        let client = road.start_client("client");
        client.wait_for("joined");
        wait_until_on(&road);
        learn(&road, &camera, host(PORT));
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!(taken(&road), 1);
        client.kill();

        // The next one splits nothing, and leaves nothing of it.
        road.edit("client.toml", |text| text.replace("[streams]\ntcp = \"split\"\n", ""));
        let client = road.start_client("client");
        client.wait_for("joined");
        for _ in 0..2 {
            attempt(&camera, host(PORT)).unwrap();
        }
        let has_left = |state: &[String]| {
            state.iter().any(|line| line.contains("_split") || line.contains("0x5258"))
        };
        assert!(has_left(&clean) && !has_left(&road.state()), "{:#?}", road.state());
        client.interrupt();
        road.edit("client.toml", |text| text + "\n[streams]\ntcp = \"split\"\n");
        let client = road.start_client("client");
        client.wait_for("joined");
        wait_until_on(&road);
        assert!(has_left(&road.state()), "{:#?}", road.state());
        client.interrupt();
        assert!(!has_left(&road.state()), "{:#?}", road.state());
    });
}

#[test]
fn more_than_a_server_takes_in_a_second_goes_as_packets() {
    run_sandboxed(|| {
        let (road, camera) = road();
        let _host = Host::start(&road.cloud, host(PORT));
        let (server, _client) = road.start_both();
        wait_until_on(&road);
        learn(&road, &camera, host(PORT));
        let before = taken(&road);
        let burst = |connections: usize| {
            let each = || connect(&camera, host(PORT));
            std::iter::repeat_with(each).take(connections).collect::<Vec<_>>()
        };
        for socket in burst(120) {
            seen_from(&mut socket.unwrap()).unwrap();
        }
        let split = taken(&road) - before;
        assert!((50..120).contains(&split), "{split} of 120 were split");
        road.wait_for_status(CLIENT, "all are over", |it| it["streams"]["connections"] == 0);

        // One that takes fewer is heard, and left alone for a while.
        drop(server);
        road.edit("server.toml", |text| {
            text.replace("[streams]", "[streams]\nconnects_per_second = 1")
        });
        let _server = road.start_server();
        wait_until_on(&road);
        // Few, so that this is over before that while is, however busy the machine.
        // A reset may come while the connection is still being made.
        let reset = burst(20)
            .into_iter()
            .filter_map(|socket| socket.and_then(|mut socket| seen_from(&mut socket)).err());
        assert!(reset.count() > 0, "all were taken");
        wait_until_off(&road, "the server has refused one as too many");
        let before = taken(&road);
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!(taken(&road), before);
        // It is no fault of the host's.
        assert!(!noted(&road, "failed4").contains(&HOST.to_string()));
    });
}

#[test]
fn what_was_learned_stays_and_a_table_that_is_gone_is_set_again() {
    run_sandboxed(|| {
        let (road, camera) = road();
        let _host = Host::start(&road.cloud, host(PORT));
        let (_server, client) = road.start_both();
        wait_until_on(&road);
        learn(&road, &camera, host(PORT));
        // Each look finds what packets have put there, and somebody else's change beside it.
        for second in 0..6 {
            nft(&road.vehicle, &format!("add table inet other{second}"));
            sleep(Duration::from_secs(1));
        }
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!((taken(&road), client.count("it is set again")), (1, 0), "{}", client.log());
        nft(&road.vehicle, &format!("delete table {TABLE}"));
        client.wait_for("the table of split connections; it is set");
        learn(&road, &camera, host(PORT));
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!(taken(&road), 2);

        // One that waits for the tunnel blames nobody; before it is noticed that nobody answers.
        ["eth1", "eth2"].into_iter().for_each(|uplink| road.silence(uplink, true));
        let mut socket = connect(&camera, host(PORT)).unwrap();
        assert_eq!(taken(&road), 3);
        sleep(Duration::from_secs(14));
        assert!(!noted(&road, "failed4").contains(&HOST.to_string()));
        ["eth1", "eth2"].into_iter().for_each(|uplink| road.silence(uplink, false));
        seen_from(&mut socket).unwrap();
    });
}

#[test]
fn a_firewall_that_knows_nothing_of_it_keeps_nobody_from_a_host() {
    run_sandboxed(|| {
        let (road, camera) = road();
        let _host = Host::start(&road.cloud, host(PORT));
        nft(&road.vehicle, "table inet own { chain in { type filter hook input priority 0; }; }");
        nft(&road.vehicle, "add rule inet own in iifname lan0 meta l4proto tcp drop");
        let (_server, client) = road.start_both();
        wait_until_on(&road);
        learn(&road, &camera, host(PORT));
        // What waits is sent again, and gets through as packets.
        let found = camera.enter(|| TcpStream::connect_timeout(&host(PORT), WAIT_MAX)).unwrap();
        seen_from(&mut found.unwrap()).unwrap();
        wait_until_off(&road, "a firewall of this box drops it at INPUT");
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!((taken(&road), client.count("does not come in")), (0, 1));
    });
}

#[test]
fn where_the_mark_is_anothers_nothing_is_split() {
    run_sandboxed(|| {
        let (road, camera) = road();
        let gone = Host::start(&road.cloud, host(PORT));
        road.vehicle.ip("rule add priority 100 fwmark 0x8/0x8 lookup main").unwrap();
        let (_server, client) = road.start_both();
        wait_until_off(&road, "the mark 0x5258 is taken by another's rule (priority 100");
        wait_until_off(&road, "set packet_marks to bits that no other program uses");
        for _ in 0..2 {
            learn(&road, &camera, host(PORT));
        }
        assert_eq!(client.count("and are not split: "), 1, "{}", client.log());
        // It is noticed that it is free.
        road.vehicle.ip("rule del priority 100").unwrap();
        wait_until_on(&road);
        learn(&road, &camera, host(PORT));
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!(taken(&road), 1);
        client.interrupt();

        // With other bits the rule does not matter.
        road.vehicle.ip("rule add priority 100 fwmark 0x8/0x8 lookup main").unwrap();
        road.edit("client.toml", |text| format!("packet_marks = \"0x00ff0000\"\n{text}"));
        let client = road.start_client("client");
        client.wait_for("joined");
        wait_until_on(&road);
        learn(&road, &camera, host(PORT));
        attempt(&camera, host(PORT)).unwrap();
        assert_eq!(taken(&road), 1);
        gone.end(&road.cloud);
        attempt(&camera, host(PORT)).unwrap_err();
        assert!(noted(&road, "failed4").contains(&PORT.to_string()), "{}", noted(&road, "failed4"));
    });
}
