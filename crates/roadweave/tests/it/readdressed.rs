//! Uplinks whose lease changes: to another address, or to one that belongs to another host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use crate::common::*;

/// Packets to the server's inner side and back, every 20 ms, and the longest time without one.
struct TestFlow {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl TestFlow {
    fn start(network: &TestNetwork) -> Self {
        let socket = network.socket_to(GATEWAY_V4);
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let thread = spawn(move || {
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            while !end.load(Ordering::Relaxed) {
                let _ = socket.send(b"is anybody there?");
                sleep(Duration::from_millis(20));
                if socket.recv(&mut [0; 100]).is_ok() {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
            }
            longest.max(last.elapsed())
        });
        Self { ended, thread }
    }

    fn longest_gap(self) -> Duration {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Leases of uplink 1: old and new address, gateway, and whether the new address comes first.
const RENEWALS: [(&str, &str, &str, bool); 4] = [
    ("10.1.0.2", "10.1.0.77", "10.1.0.1", false),
    ("10.1.0.77", "10.1.0.88", "10.1.0.1", true),
    ("10.1.0.88", "10.9.0.2", "10.9.0.1", false),
    ("10.9.0.2", "10.1.0.2", "10.1.0.1", true),
];

fn wait_for_path_from(network: &TestNetwork, uplink: &str, address: &str) {
    network.wait_for_status(SERVER, &format!("a path from {address}"), |status| {
        let paths = status["sessions"][0]["paths"].as_array().map_or(&[][..], Vec::as_slice);
        let is_it = |path: &&serde_json::Value| {
            path["uplink"] == uplink
                && path["status"] == "usable"
                && path["remote"].as_str().is_some_and(|it| it.starts_with(&format!("{address}:")))
        };
        paths.iter().any(|path| is_it(&path))
    });
}

#[test]
fn an_uplink_with_another_address_is_back_within_seconds_and_the_others_notice_nothing() {
    on_network(|network| {
        network.server.ip("address add 10.9.0.1/24 dev eth1").unwrap();
        // As NetworkManager and systemd-networkd set it.
        network.vehicle.set_sysctl("net.ipv4.conf.all.promote_secondaries", "1").unwrap();
        let (_server, client) = network.start_with_echo();
        for (old, address, gateway, is_new_first) in RENEWALS {
            let line = format!("{address}/24");
            let logged = client.count(&line);
            let flow = TestFlow::start(&network);
            sleep(Duration::from_millis(500));
            let mut commands = [
                format!("address del {old}/24 dev eth1"),
                format!("address add {address}/24 dev eth1"),
            ];
            if is_new_first {
                commands.reverse();
            }
            commands.iter().for_each(|command| network.vehicle.ip(command).unwrap());
            let route = format!("route replace default via {gateway} metric 100");
            network.vehicle.ip(&route).unwrap();
            let renewed = Watch::start();
            wait_for_path_from(&network, "eth1", address);
            network.wait_for_paths(&["eth1", "eth2"]);
            let took = renewed.elapsed();
            assert!(took < Duration::from_secs(3), "{address} after {took:?}");
            let gap = flow.longest_gap();
            assert!(gap < Duration::from_secs(1), "{address} cost {gap:?}");
            client.wait_for_count(&line, logged + 1);
        }
        assert_eq!(client.count(" joined "), 1, "one session outlives all of it");
        assert_eq!(client.count("uplink is up uplink=\"eth2\""), 1, "{}", client.log());
        for change in ["uplink is down uplink=\"eth2\"", "event=\"uplink-moved\" uplink=\"eth2\""] {
            assert_eq!(client.count(change), 0, "{}", client.log());
        }
        sleep(Duration::from_secs(2));
        let renewed = Watch::start();
        for number in [1, 2] {
            network
                .vehicle
                .ip(&format!("address add 10.{number}.0.88/24 dev eth{number}"))
                .unwrap();
            network.vehicle.ip(&format!("address del 10.{number}.0.2/24 dev eth{number}")).unwrap();
            network.route_uplink(number);
        }
        for number in [1, 2] {
            wait_for_path_from(&network, &format!("eth{number}"), &format!("10.{number}.0.88"));
        }
        let took = renewed.elapsed();
        assert!(took < Duration::from_secs(3), "after {took:?}");
    });
}

fn addresses_of(network: &TestNetwork, interface: &str) -> String {
    network.vehicle.run(&format!("ip -brief address show dev {interface}")).unwrap()
}

#[test]
fn a_lease_of_another_s_address_stops_no_other_uplink() {
    on_network(|network| {
        let camera = network.connect_camera();
        network.vehicle.ip("address del 10.2.0.2/24 dev eth2").unwrap();
        network.vehicle.ip("address add 198.51.100.1/32 dev eth2").unwrap();
        let (_server, client) = network.start_both();
        network.echo(&network.server, GATEWAY_V4);
        let hostile = [
            // The address of a lease, or its broadcast address (DHCP option 28).
            ("198.51.100.1/32", "198.51.100.1/32", "the server's"),
            ("10.2.0.66/24", "10.2.0.66/24 brd 198.51.100.1", "the server's"),
            ("10.77.0.2/24", "10.77.0.2/24", "an address inside the tunnel"),
            ("fd77::2/128", "fd77::2/128 nodad", "an address inside the tunnel"),
            ("192.168.50.2/24", "192.168.50.2/24", "a network behind this box"),
        ];
        for (address, lease, owner) in hostile {
            let flow = TestFlow::start(&network);
            network.vehicle.ip(&format!("address replace {lease} dev eth2")).unwrap();
            network.wait_for_status(CLIENT, lease, |status| {
                let why = status["conflicts"]["eth2"].as_str();
                why.is_some_and(|why| why.contains(address) && why.ends_with(owner))
            });
            wait_within(Duration::from_secs(2), "the address is taken", || {
                !addresses_of(&network, "eth2").contains(address)
            });
            assert_eq!(client.count(&format!("its address {address}")), 1, "{lease}");
            network.wait_for_paths(&["eth1"]);
            check_ping(&network.vehicle, "192.168.50.2", "-c 1");
            let gap = flow.longest_gap();
            assert!(gap < Duration::from_secs(1), "{lease} cost {gap:?}");
            network.vehicle.ip("address add 10.2.0.2/24 dev eth2").unwrap();
            network.vehicle.ip("address add fd02::2/64 dev eth2 nodad").unwrap();
            network.route_uplink(2);
            network.wait_for_paths(&["eth1", "eth2"]);
            assert!(network.show(CLIENT)["conflicts"].is_null());
            network.vehicle.ip("address del 10.2.0.2/24 dev eth2").unwrap();
            network.vehicle.ip("address del fd02::2/64 dev eth2").unwrap();
        }
        let flow = TestFlow::start(&network);
        network.vehicle.ip("address add 10.1.0.1/24 dev eth2").unwrap();
        sleep(Duration::from_secs(2));
        network.vehicle.ip("neighbour flush dev eth1").unwrap();
        sleep(Duration::from_secs(2));
        network.wait_for_paths(&["eth1"]);
        let gap = flow.longest_gap();
        assert!(gap < Duration::from_secs(1), "the gateway's address cost {gap:?}");
        network.vehicle.ip("address del 10.1.0.1/24 dev eth2").unwrap();
        network.vehicle.ip("address add 10.2.0.66/24 broadcast 198.51.100.1 dev eth2").unwrap();
        network.wait_for_status(CLIENT, "a conflict", |status| !status["conflicts"].is_null());
        client.interrupt();
        assert!(addresses_of(&network, "eth2").contains("10.2.0.66/24"));
        network.route_uplink(2);
        let default = || network.vehicle.run("ip route show default dev eth2").unwrap();
        let before = default();
        let client = network.start_joined("client");
        assert_eq!(
            (default().as_str(), addresses_of(&network, "eth2").contains("10.2.0.66")),
            ("", false)
        );
        client.interrupt();
        assert!(default().starts_with(before.trim()), "{}", default());
        assert!(addresses_of(&network, "eth2").contains("10.2.0.66/24"));
        drop(camera);
    });
}
