//! Daemons without free file descriptors log one line, keep the tunnel up, and recover.

use std::fs;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use crate::common::*;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

fn limit(daemon: &Daemon, descriptors: u64) {
    let pid = Pid::from_raw(i32::try_from(daemon.id()).unwrap());
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: Some(descriptors), maximum };
    prlimit(pid, Resource::Nofile, limit).unwrap();
}

fn used(daemon: &Daemon) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn callers(instance: &str, count: usize) -> Vec<UnixStream> {
    (0..count).map(|_| UnixStream::connect(socket(instance)).unwrap()).collect()
}

fn check_calm(network: &TestNetwork, daemons: [&Daemon; 3], time: Duration) {
    let before = daemons.map(used);
    let lines = daemons.map(|daemon| daemon.log().lines().count());
    sleep(time);
    assert!(network.wait_for_traffic() < Duration::from_secs(2));
    for ((daemon, before), lines) in daemons.into_iter().zip(before).zip(lines) {
        let share = (used(daemon) - before).as_secs_f64() / time.as_secs_f64();
        assert!(share < 0.1, "{share} of a processor: {}", daemon.log());
        let lines = daemon.log().lines().count() - lines;
        assert!(lines < 5, "{lines} lines: {}", daemon.log());
    }
}

#[test]
fn a_daemon_without_descriptors_goes_on_and_catches_up() {
    run_sandboxed(|| {
        let network = TestNetwork::without_uplinks();
        network.connect_uplink(1);
        let (server, client) = network.start_both();
        network.wait_for_echo();
        let links = [1, 2].map(|number| members::link(number, 2, 1)).concat();
        let text = format!("addresses = [\"10.78.0.2/24\"]\n[tun]\nname = \"rwr\"\n{links}");
        fs::write(network.path("router.toml"), text).unwrap();
        let router = network.start(&network.vehicle, "router", "router");
        router.wait_for("the router runs");

        for daemon in [&server, &client, &router] {
            limit(daemon, 3);
        }
        let waiting = [callers(CLIENT, 3), callers(SERVER, 3)];
        network.connect_uplink(2);
        network.edit("server.toml", |text| text + &keygen().peer("late", "10.77.0.9/32"));
        server.signal(Signal::HUP);
        for daemon in [&server, &client, &router] {
            daemon.wait_for("Too many open files");
        }
        check_calm(&network, [&server, &client, &router], Duration::from_secs(6));
        for daemon in [&server, &client] {
            assert!(!daemon.log().contains("install nftables"), "{}", daemon.log());
        }

        for daemon in [&server, &client, &router] {
            limit(daemon, 1_024);
        }
        drop(waiting);
        network.wait_for_paths(&["eth1", "eth2"]);
        router.wait_for_count("listening", 2);
        assert!(network.wait_for_traffic() < Duration::from_secs(2));
        server.reload();
        assert_eq!(client.count(" joined "), 1, "{}", client.log());
        assert_eq!(client.count("local socket accepts connections again"), 1, "{}", client.log());
        [router, client, server].into_iter().for_each(Daemon::interrupt);
    });
}
