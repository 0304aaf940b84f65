//! Starts that fail, uplinks that die and return, and what is left behind.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::chown;
use std::thread::sleep;
use std::time::Duration;

use crate::common::*;

#[test]
fn what_keeps_a_daemon_from_starting_is_reported_in_one_line() {
    on_network(|network| {
        let refused = |daemon: &mut Daemon, parts: &[&str]| {
            assert_eq!(daemon.wait(), Some(1), "{}", daemon.log());
            let log = daemon.log();
            assert_eq!(log.lines().count(), 1, "{log}");
            assert!(parts.iter().all(|part| log.contains(part)), "{parts:?} are not all in: {log}");
        };
        let before = network.state();

        let holder = network.server.enter(|| UdpSocket::bind("[::]:4433").unwrap()).unwrap();
        let mut server = network.start(&network.server, "server", "server");
        refused(&mut server, &["[::]:4433 is in use by another program", "ss -lunp"]);
        drop(holder);

        network.vehicle.ip("link add rw0 type veth peer name rw0peer").unwrap();
        refused(&mut network.start_client("client"), &["the interface name rw0 is in use"]);
        network.vehicle.ip("link del rw0").unwrap();

        // Root without the capability; and user 65534, where this sandbox has it.
        let mut ways = vec!["--bounding-set -net_admin --inh-caps -net_admin"];
        if !fs::read_to_string("/proc/self/uid_map").unwrap().trim().ends_with(" 1") {
            chown(network.path("client.toml"), Some(65_534), Some(65_534)).unwrap();
            ways.push("--reuid 65534 --regid 65534 --clear-groups");
        }
        for words in ways {
            let words = words.split(' ');
            let mut command = network.vehicle.command("setpriv");
            command.args(words).arg(PROGRAM).args(["client", "--config"]);
            command.arg(network.path("client.toml"));
            let mut client = Daemon::start(command, network.path("powerless.log"));
            refused(&mut client, &["no permission to", "run as root or grant CAP_NET_ADMIN"]);
        }
        assert_eq!(network.state(), before);

        let (_server, client) = network.start_both();
        network.edit("client.toml", |text| text + "[[lanes]]\nname = \"another\"\n");
        fs::copy(network.path("client.toml"), network.path("second.toml")).unwrap();
        let running = format!("instance rw0 is already running (pid {})", client.id());
        refused(&mut network.start_client("second"), &[&running]);
        check_ping(&network.vehicle, GATEWAY_V4, "-c 1");
    });
}

#[test]
fn a_client_without_uplinks_says_what_they_lack() {
    run_sandboxed(|| {
        let network = TestNetwork::without_uplinks();
        network.edit("client.toml", |text| text.replace("include = []", "include = [\"wwan*\"]"));
        let check = |said: &str| {
            let client = network.start_client("client");
            client.wait_for(&format!("no uplink is usable: {said}"));
            assert_eq!(client.count("WARN") + client.count("ERROR"), 1, "{}", client.log());
            client.interrupt();
        };
        check("no interface matches uplinks.include (wwan*) and uplinks.exclude");
        network.vehicle.ip("link add wwan0 type veth peer name tower").unwrap();
        check("wwan0: it is down");
        for name in ["wwan0", "tower"] {
            network.vehicle.ip(&format!("link set {name} up")).unwrap();
        }
        check("wwan0: it has no address");
        network.edit("client.toml", |text| text.replace("include = [\"wwan*\"]", "include = []"));
        check("tower: it has no address; wwan0: it has no address");
        network.vehicle.ip("address add 10.9.0.2/24 dev wwan0").unwrap();
        check("tower: it has no address; wwan0: it has no default route");
    });
}

#[test]
fn uplinks_die_return_and_are_replugged() {
    on_network(|network| {
        let _server = network.start_server();
        network.silence("eth1", true);
        let start = Watch::start();
        let client = network.start_joined("client");
        let after = start.elapsed();
        assert!(after < Duration::from_secs(3), "joined after {after:?}");
        network.wait_for_paths(&["eth2"]);
        network.silence("eth1", false);
        network.echo(&network.server, GATEWAY_V4);
        network.wait_for_paths(&["eth1", "eth2"]);

        for number in [1, 2] {
            network.vehicle.ip(&format!("link set eth{number} down")).unwrap();
            assert!(network.wait_for_traffic() < Duration::from_secs(3));
            network.wait_for_paths(&[if number == 1 { "eth2" } else { "eth1" }]);
            network.vehicle.ip(&format!("link set eth{number} up")).unwrap();
            network.route_uplink(number);
            network.wait_for_paths(&["eth1", "eth2"]);
        }

        network.vehicle.ip("link del eth1").unwrap();
        client.wait_for("uplink is gone");
        assert!(network.wait_for_traffic() < Duration::from_secs(3));
        network.connect_uplink(1);
        network.wait_for_paths(&["eth1", "eth2"]);

        for number in [1, 2] {
            network.vehicle.ip(&format!("link set eth{number} down")).unwrap();
        }
        sleep(Duration::from_secs(2));
        network.vehicle.ip("link set eth2 up").unwrap();
        network.route_uplink(2);
        let resumed = network.wait_for_traffic();
        assert!(resumed < Duration::from_secs(3), "after {resumed:?}");
        assert_eq!(client.count(" joined "), 1, "one session outlives all of it: {}", client.log());

        // A router on the way translates addresses with an entry from before, which leads nowhere.
        let sockets = network.vehicle.run("ss -H -l -u -n").unwrap();
        let port = sockets.split("%eth2:").nth(1).unwrap().split_whitespace().next().unwrap();
        let rule = format!("udp sport {port} drop");
        let chain = "type filter hook prerouting priority -500;";
        nft(&network.server, &format!("table ip lost {{ chain in {{ {chain} {rule}; }}; }}"));
        let passed = network.wait_for_traffic();
        assert!(passed < Duration::from_secs(25), "{passed:?}");
    });
}

#[test]
fn nothing_is_left_after_an_interrupt_or_after_a_kill_and_the_next_start() {
    on_network(|network| {
        network.set_rp_filters(&[("eth1", "1"), ("eth2", "1")]);
        network.vehicle.ip("rule add priority 77 oif eth1 table 77").unwrap();
        network.vehicle.ip("route add 10.99.0.0/16 via 10.1.0.1 table 77").unwrap();
        let before = network.state();

        let (server, client) = network.start_both();
        let during = network.state();
        let accepts_ra = "box sysctl ipv6/conf/eth1/accept_ra 2";
        for mark in ["link rw0", "link rws", "box rule 532", accepts_ra, "inet roadweave_rws"] {
            assert!(during.iter().any(|line| line.contains(mark)), "{mark}: {during:#?}");
        }
        interrupt([client, server]);
        assert_eq!(network.state(), before, "after an interrupt");

        let (server, client) = network.start_both();
        client.kill();
        server.kill();
        assert_ne!(network.state(), before, "a kill leaves something");
        let (server, client) = network.start_both();
        interrupt([client, server]);
        assert_eq!(network.state(), before, "after a kill and the next start");
    });
}
