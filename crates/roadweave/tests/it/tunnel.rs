//! The tunnel between namespaces as its users see it: pings, `show`, lanes, reloads.

use std::fs;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::common::*;
use roadweave_identity::Identity;
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn pings_cross_the_tunnel_and_show_counts_them() {
    on_network(|network| {
        let camera = network.connect_camera();
        let (_server, _client) = network.start_both();
        for address in [GATEWAY_V4, GATEWAY_V6, "203.0.113.2", "2001:db8:1::2"] {
            check_ping(&network.vehicle, address, "-c 10 -i 0.05");
        }
        // Errors of routers on the way reach the sender.
        for (hops, router) in [(1, "192.168.50.1"), (2, "10.77.0.1")] {
            let output = ping(&camera, "203.0.113.2", &format!("-c 1 -W 1 -t {hops}"));
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains(&format!("From {router}")), "{output:?}");
        }
        network.wait_for_paths(&["eth1", "eth2"]);

        let session = &network.show(CLIENT)["sessions"][0];
        for path in session["paths"].as_array().unwrap() {
            for figure in ["smoothed_rtt_ms", "congestion_window_bytes", "mtu_bytes"] {
                assert!(path[figure].as_f64().is_some_and(|value| value > 0.0), "{path:#}");
            }
        }
        let sent = &session["lanes"][1]["sent"]["inner_packets"];
        assert!(sent.as_u64() >= Some(40), "{session:#}");

        let server = network.show(SERVER);
        assert_eq!(usable(&server), ["eth1", "eth2"]);
        let received = &server["sessions"][0]["lanes"][1]["received"]["delivered_packets"];
        assert!(received.as_u64() >= Some(40), "{server:#}");
        network.check_shown(&[CLIENT, SERVER]);

        assert!(network.page(CLIENT).contains("client vehicle-1"));

        let set = |name: &str| {
            roadweave(&["set", "--socket", &socket(CLIENT), "interactive", "strategy", name])
        };
        let strategy = || {
            network.show(CLIENT)["sessions"][0]["lanes"][1]["strategy"].as_str().unwrap().to_owned()
        };
        for name in ["redundant", "lola"] {
            assert!(set(name).status.success());
            assert_eq!(strategy(), name);
            check_ping(&network.vehicle, GATEWAY_V4, "-c 10 -i 0.05");
        }
        let said = String::from_utf8(set("fastest").stderr).unwrap();
        assert!(said.contains("known are: xnc,"), "{said}");
        assert_eq!(strategy(), "lola");
        let said = String::from_utf8(set("single:eth9").stdout).unwrap();
        assert!(said.contains("waits for eth9"), "{said}");
    });
}

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
    on_network(|network| {
        let peer = |number: u32| {
            let mut seed = [7; 32];
            seed[..4].copy_from_slice(&number.to_be_bytes());
            let public = Identity::from_seed(seed).public_key().to_string();
            let (high, low) = (number / 256, number % 256);
            let behind = match number % 10 {
                0 => format!("\", \"172.{}.{low}.0/24", 16 + high),
                _ => String::new(),
            };
            let keys = Keys { private: String::new(), public };
            keys.peer(&format!("box-{number}"), &format!("10.99.{high}.{low}/32{behind}"))
        };
        let original = fs::read_to_string(network.path("server.toml")).unwrap();
        network.edit("server.toml", |text| text + &(0..4_000).map(peer).collect::<String>());
        let (server, client) = network.start_both();
        network.wait_for_echo();
        let socket = network.socket_to(GATEWAY_V4);
        let calm = longest_gap(&socket, Duration::from_secs(1));

        let stay = (0..4_000).filter(|number| number % 3 > 0).map(peer).collect::<String>();
        network.edit("server.toml", |_| original + &stay);
        server.signal(Signal::HUP);
        let gap = longest_gap(&socket, Duration::from_secs(3));
        server.wait_for("the clients were read again");
        println!("longest gap: {calm:?} in calm, {gap:?} with a reload");
        assert!(gap < Duration::from_millis(250), "{gap:?}, in calm {calm:?}");
        assert_eq!(client.count(" joined "), 1, "{}", client.log());
    });
}

#[test]
fn what_strategies_learn_is_kept() {
    on_network(|network| {
        let lane = "[[lanes]]\nname = \"ping\"\nstrategy = \"raven\"\n\
                    match = { protocols = [\"icmp\"] }\n";
        for name in ["client.toml", "server.toml"] {
            network.edit(name, |text| text + lane);
        }
        let files = ["rw0.learned.json", "rws.learned.json"].map(|name| network.path(name));
        for life in 0..2 {
            let (server, client) = network.start_both();
            network.wait_for_paths(&["eth1", "eth2"]);
            check_ping(&network.vehicle, GATEWAY_V4, "-c 5 -i 0.12");
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
