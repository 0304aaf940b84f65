//! Client and server as their users run them, between namespaces: traffic, bad days, what is left.
//!
//! Each test runs in a sandbox of its own; where the system allows none, it says so and is skipped.

#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests start programs, open sockets and wait"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::*;
use roadweave_device::netns::{NetNs, run_sandboxed};
use rustix::process::Signal;

#[test]
fn pings_cross_the_tunnel_and_show_tells_of_it() {
    run_sandboxed("pings_cross_the_tunnel_and_show_tells_of_it", || {
        let road = Road::new();
        let (_server, _client) = road.start_both();
        for address in [GATEWAY_V4, GATEWAY_V6, "203.0.113.2", "2001:db8:1::2"] {
            let output = ping(&road.vehicle, address, "-c 10 -i 0.05");
            assert!(output.status.success(), "{address}: {output:?}");
        }
        road.wait_for_paths(&["eth1", "eth2"]);

        let client = road.show(CLIENT);
        assert_eq!((&client["role"], &client["tun"]), (&"client".into(), &"rw0".into()));
        assert_eq!(client["name"], "vehicle-1");
        let session = &client["sessions"][0];
        assert_eq!(session["addresses"], serde_json::json!(["10.77.0.2/32", "fd77::2/128"]));
        for path in session["paths"].as_array().unwrap() {
            for figure in ["smoothed_rtt_ms", "congestion_window_bytes", "mtu_bytes"] {
                assert!(path[figure].as_f64().is_some_and(|value| value > 0.0), "{path:#}");
            }
            assert!(path["counters"]["bytes_received"].as_u64() > Some(0), "{path:#}");
        }
        let lane = &session["lanes"][0];
        assert_eq!((&lane["name"], &lane["strategy"]), (&"default".into(), &"xnc".into()));
        assert!(lane["sent"]["inner_packets"].as_u64() >= Some(40), "{lane:#}");

        // The server knows the same session, and the uplinks by their names.
        let server = road.show(SERVER);
        assert_eq!(server["role"], "server");
        assert_eq!(server["sessions"][0]["peer"], "vehicle-1");
        assert_eq!(usable(&server), ["eth1", "eth2"]);
        let received = &server["sessions"][0]["lanes"][0]["received"]["delivered_packets"];
        assert!(received.as_u64() >= Some(40), "{server:#}");

        let page = roadweave(&["show", "--socket", &socket(CLIENT)]);
        let page = String::from_utf8(page.stdout).unwrap();
        for part in ["client vehicle-1", "10.77.0.2/32", "eth1", "eth2", "usable", "default"] {
            assert!(page.contains(part), "{part} is not in:\n{page}");
        }
    });
}

#[test]
fn inner_packets_of_every_size_arrive_intact() {
    run_sandboxed("inner_packets_of_every_size_arrive_intact", || {
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
                    let output = ping(&road.vehicle, address, &format!("-c 1 -s {size}"));
                    assert!(output.status.success(), "{tun}{address} {size}: {output:?}");
                }
            }
            for (instance, lane) in [(SERVER, "received"), (CLIENT, "received")] {
                let drops = road.show(instance)["sessions"][0]["lanes"][0][lane]["drops"].clone();
                assert_eq!(drops, serde_json::json!({}), "{tun}{instance}");
            }
            client.interrupt();
            server.interrupt();
        }
    });
}

/// Payloads of 1 byte to the largest that IP can, each compared with what comes back.
fn check_udp_sizes(road: &Road, address: &str) {
    let socket = road.socket_to(address);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
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
    run_sandboxed("tcp_reaches_a_host_behind_the_servers_nat", || {
        let road = Road::new();
        // A camera behind the box, with the usual MTU: its segments must shrink on the way.
        let camera = NetNs::create("camera").unwrap();
        connect(
            (&camera, "eth0", &["192.168.50.2/24"]),
            (&road.vehicle, "lan0", &["192.168.50.1/24"]),
        );
        camera.ip("route add default via 192.168.50.1").unwrap();
        let (_server, _client) = road.start_both();
        for (from, to, seen) in [
            (&road.vehicle, "203.0.113.2:80", "203.0.113.1"),
            (&road.vehicle, "[2001:db8:1::2]:80", "2001:db8:1::1"),
            (&camera, "203.0.113.2:80", "203.0.113.1"),
        ] {
            let listener = road.cloud.enter(|| TcpListener::bind(to).unwrap()).unwrap();
            let stream = from
                .enter(|| TcpStream::connect_timeout(&to.parse().unwrap(), PATIENCE).unwrap())
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
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
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
fn spoofed_inner_sources_are_dropped_and_counted() {
    run_sandboxed("spoofed_inner_sources_are_dropped_and_counted", || {
        let road = Road::new();
        // Otherwise the box's own filters would give every packet its inner address.
        road.edit("client.toml", |text| text + "masquerade = false\n");
        let (_server, _client) = road.start_both();
        for (stranger, gateway) in [("10.77.0.3", GATEWAY_V4), ("fd77::3", GATEWAY_V6)] {
            let here = road.server.enter(|| UdpSocket::bind((gateway, 9)).unwrap()).unwrap();
            here.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            road.vehicle.ip(&format!("address add {stranger} dev lo")).unwrap();
            let spoof = road.vehicle.enter(|| UdpSocket::bind((stranger, 0)).unwrap()).unwrap();
            for _ in 0..5 {
                spoof.send_to(b"not from me", (gateway, 9)).unwrap();
            }
            let heard = here.recv(&mut [0; 100]);
            assert!(heard.is_err(), "{stranger} got through: {heard:?}");
        }
        // The kernel's own reports of multicast groups count too, a few.
        let dropped = road.show(SERVER)["sessions"][0]["drops"]["spoofed-source"].clone();
        assert!((10..20).contains(&dropped.as_u64().unwrap()), "{dropped}");
        let output = ping(&road.vehicle, GATEWAY_V4, "-c 1");
        assert!(output.status.success(), "its own address still works: {output:?}");
    });
}

#[test]
fn what_keeps_a_daemon_from_starting_is_told_in_one_line() {
    run_sandboxed("what_keeps_a_daemon_from_starting_is_told_in_one_line", || {
        let road = Road::new();
        let refused = |daemon: &mut Daemon, parts: &[&str]| {
            assert_eq!(daemon.wait(), Some(1), "{}", daemon.log());
            let log = daemon.log();
            assert_eq!(log.lines().count(), 1, "{log}");
            assert!(parts.iter().all(|part| log.contains(part)), "{parts:?} are not all in: {log}");
        };
        let before = road.state();

        let holder = road.server.enter(|| UdpSocket::bind("[::]:4433").unwrap()).unwrap();
        let mut server = road.start(&road.server, "server", "server");
        refused(&mut server, &["[::]:4433 is in use by another program", "ss -lunp"]);
        drop(holder);

        road.vehicle.ip("link add rw0 type veth peer name rw0peer").unwrap();
        refused(&mut road.start_client("client"), &["the interface name rw0 is in use"]);
        road.vehicle.ip("link del rw0").unwrap();

        // Nobody could not even read the file that init wrote.
        fs::set_permissions(road.path("client.toml"), Permissions::from_mode(0o644)).unwrap();
        // Root may do without the one capability; nobody has none.
        for words in [
            &["--bounding-set", "-net_admin", "--inh-caps", "-net_admin"][..],
            &["--reuid", "65534", "--regid", "65534", "--clear-groups"],
        ] {
            let mut command = road.vehicle.command("setpriv");
            command.args(words).arg(PROGRAM).args(["client", "--config"]);
            command.arg(road.path("client.toml"));
            let mut client = Daemon::start(command, road.path("powerless.log"));
            refused(&mut client, &["no permission to", "run as root or grant CAP_NET_ADMIN"]);
        }
        assert_eq!(road.state(), before);

        let (_server, client) = road.start_both();
        road.edit("client.toml", |text| text + "[[lanes]]\nname = \"another\"\n");
        fs::copy(road.path("client.toml"), road.path("second.toml")).unwrap();
        let running = format!("instance rw0 is already running (pid {})", client.id());
        refused(&mut road.start_client("second"), &[&running]);
        let output = ping(&road.vehicle, GATEWAY_V4, "-c 1");
        assert!(output.status.success(), "the first one goes on: {output:?}");
    });
}

#[test]
fn a_server_that_cannot_be_reached_is_told_within_seconds() {
    run_sandboxed("a_server_that_cannot_be_reached_is_told_within_seconds", || {
        let road = Road::new();
        // Nobody listens; and a second client without any uplink.
        road.edit("client.toml", |text| {
            let rest = text.replace("include = []", "include = [\"wwan*\"]");
            fs::write(road.path("nowhere.toml"), rest + "[tun]\nname = \"rwb\"\n").unwrap();
            text
        });
        let start = Instant::now();
        let client = road.start_client("client");
        let nowhere = road.start_client("nowhere");
        client.wait_for("no answer from 198.51.100.1:4433; is the server running");
        nowhere.wait_for("no uplink is usable");
        assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
        for daemon in [&client, &nowhere] {
            assert_eq!(daemon.count("WARN") + daemon.count("ERROR"), 1, "{}", daemon.log());
        }
        // Patience is all it takes.
        let _server = road.start_server();
        client.wait_for("joined");
    });
}

#[test]
fn strangers_are_refused_once_on_both_sides() {
    run_sandboxed("strangers_are_refused_once_on_both_sides", || {
        let road = Road::new();
        let stranger = |name: &str, tun: &str, change: &dyn Fn(String) -> String| {
            let text = change(fs::read_to_string(road.path("client.toml")).unwrap());
            let file = format!("{text}[tun]\nname = \"{tun}\"\n");
            fs::write(road.path(&format!("{name}.toml")), file).unwrap();
        };
        let (unknown, expired, elsewhere) = (keygen(), keygen(), keygen());
        stranger("unknown", "rwu", &|text| with_key(&text, "private_key", &unknown.private));
        stranger("expired", "rwe", &|text| with_key(&text, "private_key", &expired.private));
        stranger("mistaken", "rwm", &|text| with_key(&text, "public_key", &elsewhere.public));
        road.edit("server.toml", |text| {
            let peer = expired.peer("late", "10.77.0.9/32");
            format!("{text}{peer}expires = 2020-01-31T00:00:00Z\n")
        });
        let server = road.start_server();
        let strangers = ["unknown", "expired", "mistaken"].map(|name| road.start_client(name));
        for daemon in &strangers {
            daemon.wait_for("ERROR");
        }
        // Longer than the patience after which a silent server is reported, shorter than a rest.
        sleep(Duration::from_secs(7));
        let reasons =
            ["refused by the server: ", "refused by the server: ", "the server showed the key"];
        for (daemon, reason) in strangers.iter().zip(reasons) {
            assert_eq!(daemon.count(reason), 1, "{}", daemon.log());
            assert_eq!(daemon.count("next try in 10 s"), 1, "{}", daemon.log());
            assert_eq!(daemon.count("WARN") + daemon.count("ERROR"), 1, "{}", daemon.log());
        }
        assert_eq!(server.count("WARN"), 3, "{}", server.log());
        assert_eq!(server.count("the client expects another key of this server"), 1);
        for key in [&unknown.public, &expired.public] {
            assert_eq!(server.count(key), 1, "{}", server.log());
        }
        assert_eq!(road.show(SERVER)["sessions"], serde_json::json!([]));
    });
}

#[test]
fn a_restarted_server_has_its_client_back_within_seconds() {
    run_sandboxed("a_restarted_server_has_its_client_back_within_seconds", || {
        let road = Road::new();
        let (mut server, client) = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        for round in 2..=4 {
            // Killed twice, and once told to stop.
            if round == 4 {
                server.interrupt()
            } else {
                server.kill()
            }
            sleep(Duration::from_millis(200));
            server = road.start_server();
            let restarted = Instant::now();
            client.wait_for_count(" joined ", round);
            road.wait_for_traffic();
            let after = restarted.elapsed();
            assert!(after < Duration::from_secs(3), "round {round}: {after:?}");
        }
    });
}

#[test]
fn the_first_uplink_may_be_dead_at_the_start() {
    run_sandboxed("the_first_uplink_may_be_dead_at_the_start", || {
        let road = Road::new();
        let server = road.start_server();
        road.silence("eth1", true);
        let start = Instant::now();
        let client = road.start_client("client");
        client.wait_for(" joined ");
        let after = start.elapsed();
        assert!(after < Duration::from_secs(3), "joined after {after:?}");
        road.wait_for_paths(&["eth2"]);
        road.silence("eth1", false);
        road.wait_for_paths(&["eth1", "eth2"]);
        drop((server, client));
    });
}

#[test]
fn uplinks_die_return_and_are_replugged() {
    run_sandboxed("uplinks_die_return_and_are_replugged", || {
        let road = Road::new();
        let (_server, client) = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        road.wait_for_paths(&["eth1", "eth2"]);

        for number in [1, 2] {
            road.vehicle.ip(&format!("link set eth{number} down")).unwrap();
            assert!(road.wait_for_traffic() < Duration::from_secs(3));
            road.wait_for_paths(&[if number == 1 { "eth2" } else { "eth1" }]);
            road.vehicle.ip(&format!("link set eth{number} up")).unwrap();
            road.route_uplink(number);
            road.wait_for_paths(&["eth1", "eth2"]);
        }

        // Unplugged and plugged again, it is another interface under the same name.
        road.vehicle.ip("link del eth1").unwrap();
        client.wait_for("uplink is gone");
        assert!(road.wait_for_traffic() < Duration::from_secs(3));
        road.connect_uplink(1);
        road.wait_for_paths(&["eth1", "eth2"]);

        // The network behind both falls silent, without a word to the interfaces.
        for interface in ["eth1", "eth2"] {
            road.silence(interface, true);
        }
        sleep(Duration::from_secs(4));
        road.silence("eth1", false);
        let resumed = road.wait_for_traffic();
        assert!(resumed < Duration::from_secs(3), "after {resumed:?}");
        road.silence("eth2", false);
        road.wait_for_paths(&["eth1", "eth2"]);

        // All gone at once, and back.
        for number in [1, 2] {
            road.vehicle.ip(&format!("link set eth{number} down")).unwrap();
        }
        sleep(Duration::from_secs(2));
        road.vehicle.ip("link set eth2 up").unwrap();
        road.route_uplink(2);
        let resumed = road.wait_for_traffic();
        assert!(resumed < Duration::from_secs(3), "after {resumed:?}");
        assert_eq!(client.count(" joined "), 1, "one session outlives all of it: {}", client.log());
    });
}

#[test]
fn two_uplinks_with_the_same_address_both_carry_traffic() {
    run_sandboxed("two_uplinks_with_the_same_address_both_carry_traffic", || {
        let road = Road::without_uplinks();
        for number in [1, 2] {
            road.connect_modem(number);
        }
        road.edit("client.toml", |text| text.replace("include = []", "include = [\"eth*\"]"));
        let (_server, _client) = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        road.wait_for_paths(&["eth1", "eth2"]);
        for (silent, left) in [("eth1", "eth2"), ("eth2", "eth1")] {
            road.silence(silent, true);
            road.wait_for_paths(&[left]);
            assert!(road.wait_for_traffic() < Duration::from_secs(3));
            road.silence(silent, false);
            road.wait_for_paths(&["eth1", "eth2"]);
        }
        let server = road.show(SERVER);
        let paths = server["sessions"][0]["paths"].as_array().unwrap();
        let mut remotes: Vec<&str> = paths
            .iter()
            .map(|path| path["remote"].as_str().unwrap().rsplit_once(':').unwrap().0)
            .collect();
        remotes.sort_unstable();
        assert_eq!(remotes, ["10.1.0.2", "10.2.0.2"], "one behind each modem");
    });
}

#[test]
fn sighup_adds_and_removes_peers_while_others_live_on() {
    run_sandboxed("sighup_adds_and_removes_peers_while_others_live_on", || {
        let road = Road::new();
        let (server, client) = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        let original = fs::read_to_string(road.path("server.toml")).unwrap();

        // A second client in the same box, with a network of its own behind it.
        let keys = keygen();
        let text = fs::read_to_string(road.path("client.toml")).unwrap();
        let text = with_key(&text, "private_key", &keys.private)
            .replace("\"0.0.0.0/0\", \"::/0\"", "\"10.88.0.0/24\"");
        fs::write(road.path("second.toml"), text + "masquerade = false\n[tun]\nname = \"rwb\"\n")
            .unwrap();
        let peer = keys.peer("second", "10.77.0.3/32\", \"192.168.60.0/24");
        road.edit("server.toml", |text| text + &peer);
        server.signal(Signal::HUP);
        server.wait_for("the clients were read again");
        let second = road.start_client("second");
        second.wait_for(" joined ");
        let status = road.wait_for_status(SERVER, "two sessions", |status| {
            status["sessions"].as_array().is_some_and(|sessions| sessions.len() == 2)
        });
        assert_eq!(status["sessions"][1]["peer"], "second");
        assert!(road.state().iter().any(|line| line.contains("192.168.60.0/24 dev rws")));

        // A file that cannot be read changes nothing.
        road.edit("server.toml", |text| text.replace("[[peers]]", "[[pears]]"));
        server.signal(Signal::HUP);
        server.wait_for("nothing was changed");
        assert_eq!(road.show(SERVER)["sessions"].as_array().map(Vec::len), Some(2));

        road.edit("server.toml", |_| original);
        server.signal(Signal::HUP);
        second.wait_for("refused by the server");
        road.wait_for_status(SERVER, "one session", |status| {
            status["sessions"].as_array().is_some_and(|sessions| sessions.len() == 1)
        });
        assert!(!road.state().iter().any(|line| line.contains("192.168.60.0/24")));
        assert!(road.wait_for_traffic() < Duration::from_secs(3));
        assert_eq!(client.count(" joined "), 1, "{}", client.log());
        assert_eq!(client.count("WARN"), 0, "{}", client.log());
    });
}

#[test]
fn nothing_is_left_after_an_interrupt_or_after_a_kill_and_the_next_start() {
    run_sandboxed("nothing_is_left_after_an_interrupt_or_after_a_kill_and_the_next_start", || {
        let road = Road::new();
        for interface in ["eth1", "eth2"] {
            road.vehicle.set_sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "1").unwrap();
        }
        // What belongs to others stays.
        road.vehicle.ip("rule add priority 77 oif eth1 table 77").unwrap();
        road.vehicle.ip("route add 10.99.0.0/16 via 10.1.0.1 table 77").unwrap();
        let before = road.state();

        let (server, client) = road.start_both();
        let during = road.state();
        for mark in ["link rw0", "link rws", "box rule 531", "box sysctl", "inet roadweave_rws"] {
            assert!(during.iter().any(|line| line.contains(mark)), "{mark}: {during:#?}");
        }
        client.interrupt();
        server.interrupt();
        assert_eq!(road.state(), before, "after an interrupt");

        let (server, client) = road.start_both();
        client.kill();
        server.kill();
        assert_ne!(road.state(), before, "a kill leaves something");
        let (server, client) = road.start_both();
        client.interrupt();
        server.interrupt();
        assert_eq!(road.state(), before, "after a kill and the next start");
    });
}
