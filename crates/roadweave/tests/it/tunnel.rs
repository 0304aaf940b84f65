//! What the tunnel carries between namespaces, and what it does not, as its users see it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::common::*;
use roadweave_device::local::request;
use roadweave_identity::Identity;
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn pings_cross_the_tunnel_and_show_tells_of_it() {
    run_sandboxed(|| {
        let road = Road::new();
        let (_server, _client) = road.start_both();
        for address in [GATEWAY_V4, GATEWAY_V6, "203.0.113.2", "2001:db8:1::2"] {
            check_ping(&road.vehicle, address, "-c 10 -i 0.05");
        }
        road.wait_for_paths(&["eth1", "eth2"]);

        let client = road.show(CLIENT);
        assert_eq!((&client["role"], &client["tun"]), (&"client".into(), &"rw0".into()));
        assert_eq!(client["name"], "vehicle-1");
        let session = &client["sessions"][0];
        assert_eq!(session["addresses"], json!(["10.77.0.2/32", "fd77::2/128"]));
        for path in session["paths"].as_array().unwrap() {
            for figure in ["smoothed_rtt_ms", "congestion_window_bytes", "mtu_bytes"] {
                assert!(path[figure].as_f64().is_some_and(|value| value > 0.0), "{path:#}");
            }
            assert!(path["counters"]["bytes_received"].as_u64() > Some(0), "{path:#}");
        }
        let names = ["real-time", "interactive", "tcp", "other"];
        for (lane, name) in session["lanes"].as_array().unwrap().iter().zip(names) {
            assert_eq!(lane["name"], name);
        }
        // Echoes are small and few.
        let lane = &session["lanes"][1];
        assert_eq!((&lane["name"], &lane["strategy"]), (&"interactive".into(), &"raven".into()));
        assert!(lane["sent"]["inner_packets"].as_u64() >= Some(40), "{lane:#}");

        // The server knows the same session, and the uplinks by their names.
        let server = road.show(SERVER);
        assert_eq!(server["role"], "server");
        assert_eq!(server["sessions"][0]["peer"], "vehicle-1");
        assert_eq!(usable(&server), ["eth1", "eth2"]);
        let received = &server["sessions"][0]["lanes"][1]["received"]["delivered_packets"];
        assert!(received.as_u64() >= Some(40), "{server:#}");
        road.check_shown(&[CLIENT, SERVER]);

        let page = road.page(CLIENT);
        for part in ["client vehicle-1", "10.77.0.2/32", "eth1", "eth2", "usable", "interactive"] {
            assert!(page.contains(part), "{part} is not in:\n{page}");
        }
    });
}

#[test]
fn inner_packets_of_every_size_arrive_intact() {
    run_sandboxed(|| {
        let road = Road::new();
        // The usual MTU, one that only fragments in the tunnel can carry, and no offload.
        for tun in ["", "mtu_bytes = 9000\n", "mtu_bytes = 1280\noffload = false\n"] {
            road.edit("server.toml", |text| replace_tun(text, &format!("name = \"rws\"\n{tun}")));
            road.edit("client.toml", |text| replace_tun(text, tun));
            let (server, client) = road.start_both();
            if tun.is_empty() {
                road.echo(&road.server, GATEWAY_V4);
                road.echo(&road.server, GATEWAY_V6);
            }
            check_udp_sizes(&road, GATEWAY_V4);
            check_udp_sizes(&road, GATEWAY_V6);
            for size in [0, 1, 56, 1400, 9000, 40_000] {
                for address in [GATEWAY_V4, GATEWAY_V6] {
                    check_ping(&road.vehicle, address, &format!("-c 1 -s {size}"));
                }
            }
            for (instance, lane) in [(SERVER, "received"), (CLIENT, "received")] {
                let drops = road.show(instance)["sessions"][0]["lanes"][0][lane]["drops"].clone();
                assert_eq!(drops, json!({}), "{tun}{instance}");
            }
            client.interrupt();
            server.interrupt();
        }
    });
}

#[test]
fn a_lane_changes_its_strategy_while_pings_cross() {
    run_sandboxed(|| {
        let road = Road::new();
        let (_server, _client) = road.start_both();
        road.wait_for_paths(&["eth1", "eth2"]);
        let strategy = |instance: &str| {
            road.show(instance)["sessions"][0]["lanes"][1]["strategy"].as_str().unwrap().to_owned()
        };
        let set = |instance: &str, lane: &str, name: &str| {
            roadweave(&["set", "--socket", &socket(instance), lane, "strategy", name])
        };
        assert_eq!((strategy(CLIENT), strategy(SERVER)), ("raven".into(), "raven".into()));
        for name in ["redundant", "xlink", "single:eth2", "lola"] {
            let output = set(CLIENT, "interactive", name);
            assert!(output.status.success(), "{output:?}");
            if !name.starts_with("single:") {
                assert!(set(SERVER, "interactive", name).status.success());
                assert_eq!(strategy(SERVER), name);
            }
            assert_eq!(strategy(CLIENT), name);
            check_ping(&road.vehicle, GATEWAY_V4, "-c 10 -i 0.05");
        }
        let refused = |output: std::process::Output, part: &str| {
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success() && text.contains(part), "{text}");
        };
        refused(set(CLIENT, "interactive", "fastest"), "known are: xnc,");
        refused(set(CLIENT, "video", "ecf"), "there are: real-time");
        refused(set(CLIENT, "interactive", "single:a/b"), "can be called");
        refused(set(SERVER, "interactive", "single:eth1"), "eth1");
        assert_eq!(strategy(CLIENT), "lola");
        // An uplink may come some day; that it is not there now is told.
        let output = set(CLIENT, "interactive", "single:eth9");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("waits for eth9"), "{text}");
    });
}

/// Payloads of 1 byte to the largest that IP can, each compared with what comes back.
fn check_udp_sizes(road: &Road, address: &str) {
    let socket = road.socket_to(address);
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let headers = if address.contains(':') { 48 } else { 28 };
    let edges = [1280, 1360, 1472, 1500, 9000].map(|mtu| mtu - headers);
    let sizes = [1, 2, 3, 7, 100, 1000, 2000, 5000, 20_000, 65_507 - 20]
        .into_iter()
        .chain(edges.into_iter().flat_map(|edge| edge - 1..=edge + 1));
    let mut answer = vec![0; 65_536];
    for size in sizes {
        let payload: Vec<u8> = (0..size).map(|at| (at * 31 + size) as u8).collect();
        socket.send(&payload).unwrap();
        let length = socket.recv(&mut answer).unwrap_or_else(|e| panic!("{address} {size}: {e}"));
        assert!(answer[..length] == payload, "{address} {size}: came back as {length} others");
    }
}

fn replace_tun(text: String, tun: &str) -> String {
    let rest = text.split("[tun]").next().unwrap().to_owned();
    format!("{rest}[tun]\n{tun}")
}

#[test]
fn tcp_reaches_a_host_behind_the_servers_nat() {
    run_sandboxed(|| {
        let road = Road::new();
        // With the usual MTU: its segments must shrink on the way.
        let camera = road.connect_camera();
        let (_server, _client) = road.start_both();
        for (from, to, seen) in [
            (&road.vehicle, "203.0.113.2:80", "203.0.113.1"),
            (&road.vehicle, "[2001:db8:1::2]:80", "2001:db8:1::1"),
            (&camera, "203.0.113.2:80", "203.0.113.1"),
        ] {
            let listener = road.cloud.enter(|| TcpListener::bind(to).unwrap()).unwrap();
            let stream = from
                .enter(|| TcpStream::connect_timeout(&to.parse().unwrap(), WAIT_MAX).unwrap())
                .unwrap();
            let (accepted, remote) = listener.accept().unwrap();
            assert_eq!(remote.ip().to_string(), seen);
            exchange_content(stream, accepted);
        }
    });
}

/// Sends 4 MB each way at the same time and compares them.
fn exchange_content(left: TcpStream, right: TcpStream) {
    let content = |seed: u32| -> Vec<u8> {
        (0..1_000_000_u32)
            .flat_map(|at| (at.wrapping_mul(2_654_435_761) ^ seed).to_le_bytes())
            .collect()
    };
    std::thread::scope(|scope| {
        for (stream, own, other) in [(&left, 1, 2), (&right, 2, 1)] {
            stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
            stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
            scope.spawn(move || {
                (&*stream).write_all(&content(own)).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut received = Vec::new();
                (&*stream).read_to_end(&mut received).unwrap();
                assert!(
                    received == content(other),
                    "{} bytes are not what was sent",
                    received.len()
                );
            });
        }
    });
}

#[test]
fn the_uplinks_may_speak_ipv6_alone() {
    run_sandboxed(|| {
        let road = Road::without_uplinks();
        road.server.ip("address add 2001:db8:2::1/128 dev lo nodad").unwrap();
        for number in [1, 2] {
            let name = format!("eth{number}");
            cable((&road.vehicle, &name, &[]), (&road.server, &name, &[]));
            let far = format!("2001:db8:{number}0::1");
            road.server.ip(&format!("address add {far}/64 dev {name} nodad")).unwrap();
            let near = format!("address add 2001:db8:{number}0::2/64 dev {name} nodad");
            road.vehicle.ip(&near).unwrap();
            let route = format!("-6 route add default via {far} dev {name} metric {number}00");
            road.vehicle.ip(&route).unwrap();
        }
        let change = |text: String| text.replace("198.51.100.1:4433", "[2001:db8:2::1]:4433");
        road.edit("client.toml", change);
        let (_server, _client) = road.start_both();
        road.wait_for_paths(&["eth1", "eth2"]);
        for address in [GATEWAY_V4, GATEWAY_V6, "203.0.113.2"] {
            check_ping(&road.vehicle, address, "-c 3 -i 0.05 -s 1300");
        }
    });
}

#[test]
fn what_the_network_behind_refuses_is_told_to_the_sender() {
    run_sandboxed(|| {
        let road = Road::new();
        let camera = road.connect_camera();
        for name in ["client.toml", "server.toml"] {
            let tun = if name == "server.toml" { "name = \"rws\"\n" } else { "" };
            road.edit(name, |text| replace_tun(text, &format!("{tun}mtu_bytes = 2000\n")));
        }
        let (_server, _client) = road.start_both();
        let check = |from, options: &str, part: &str| {
            let output = ping(from, "203.0.113.2", &format!("-c 1 -W 1 -M do {options}"));
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(!output.status.success() && said.contains(part), "{options}: {output:?}");
        };
        // Fits the tunnel, but not the network behind the server, which says so through the tunnel.
        check(&road.vehicle, "-s 1800", "mtu = 1500");
        check(&camera, "-t 1", "From 192.168.50.1");
        check(&camera, "-t 2", "From 10.77.0.1");
        check_ping(&camera, "203.0.113.2", "-c 1 -t 3");
    });
}

/// The longest time in which no packet of a steady stream came back.
fn longest_gap(socket: &UdpSocket, time: Duration) -> Duration {
    socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
    let start = Instant::now();
    let (mut last, mut longest) = (start, Duration::ZERO);
    while start.elapsed() < time {
        socket.send(b"is anybody there?").unwrap();
        if socket.recv(&mut [0; 100]).is_ok() {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
    }
    longest.max(last.elapsed())
}

#[test]
fn a_reload_with_4000_clients_does_not_pause_the_tunnel() {
    run_sandboxed(|| {
        let road = Road::new();
        let peer = |number: u32| {
            let mut seed = [7; 32];
            seed[..4].copy_from_slice(&number.to_be_bytes());
            let public = Identity::from_seed(seed).public_key().to_string();
            let (high, low) = (number / 256, number % 256);
            // Every tenth has a network behind it, which needs a route.
            let behind = match number % 10 {
                0 => format!("\", \"172.{}.{low}.0/24", 16 + high),
                _ => String::new(),
            };
            let keys = Keys { private: String::new(), public };
            keys.peer(&format!("box-{number}"), &format!("10.99.{high}.{low}/32{behind}"))
        };
        let original = fs::read_to_string(road.path("server.toml")).unwrap();
        road.edit("server.toml", |text| text + &(0..4_000).map(peer).collect::<String>());
        let (server, client) = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        road.wait_for_traffic();
        let socket = road.socket_to(GATEWAY_V4);
        let calm = longest_gap(&socket, Duration::from_secs(1));

        // A third are gone, and so are their routes.
        let stay = (0..4_000).filter(|number| number % 3 > 0).map(peer).collect::<String>();
        road.edit("server.toml", |_| original + &stay);
        server.signal(Signal::HUP);
        let gap = longest_gap(&socket, Duration::from_secs(3));
        server.wait_for("the clients were read again");
        println!("longest gap: {calm:?} in calm, {gap:?} with a reload");
        assert!(gap < Duration::from_millis(250), "{gap:?}, in calm {calm:?}");
        assert_eq!(client.count(" joined "), 1, "{}", client.log());
    });
}

#[test]
fn what_strategies_learn_is_kept_and_encoders_are_told_their_targets() {
    run_sandboxed(|| {
        let road = Road::new();
        let lanes = "[[lanes]]\nname = \"ping\"\nstrategy = \"raven\"\n\
                     match = { protocols = [\"icmp\"] }\n\
                     [[lanes]]\nname = \"video\"\nstrategy = \"lola\"\n";
        for name in ["client.toml", "server.toml"] {
            road.edit(name, |text| text + lanes);
        }
        let files = ["rw0.learned.json", "rws.learned.json"].map(|name| road.path(name));
        // The second time both begin with files that nobody can read.
        for life in 0..2 {
            let (server, client) = road.start_both();
            road.wait_for_paths(&["eth1", "eth2"]);
            check_ping(&road.vehicle, GATEWAY_V4, "-c 5 -i 0.12");
            let socket = socket(CLIENT);
            let targets = request(socket.as_ref(), "encoder_targets", &Value::Null).unwrap();
            assert!(targets["video"]["frame_bytes"].as_u64() > Some(0), "{targets:#}");
            assert_eq!(targets["video"]["renewals"], 0, "{targets:#}");
            let supersede = |lane: &str, timestamp: Value| {
                let params = json!({ "lane": lane, "ssrc": 7, "timestamp": timestamp });
                request(socket.as_ref(), "supersede", &params).map_err(|error| error.to_string())
            };
            assert_eq!(supersede("video", json!(u32::MAX)).unwrap(), json!({ "packets": 0 }));
            let error = supersede("vide", json!(1)).unwrap_err();
            assert!(error.contains("vide"), "{error}");
            let error = supersede("video", json!(-1)).unwrap_err();
            assert!(error.contains("u32"), "{error}");
            for mut daemon in [client, server] {
                daemon.signal(Signal::TERM);
                assert_eq!(daemon.wait(), Some(0));
                let log = daemon.log();
                assert_eq!(log.contains("is not used"), life > 0, "{log}");
            }
            for file in &files {
                let learned: Value =
                    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
                assert_eq!(learned["version"], 1);
                let lanes = learned["peers"].as_object().unwrap().values().next().unwrap();
                for uplink in ["eth1", "eth2"] {
                    let log = &lanes["ping"]["networks"][uplink]["log"];
                    assert!(log.as_array().is_some_and(|runs| !runs.is_empty()), "{learned:#}");
                }
                fs::write(file, "{\"version\":").unwrap();
            }
        }
    });
}
