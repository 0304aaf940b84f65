//! Daemons without file descriptors left, between namespaces: the tunnel goes on, one line says so,
//! and what could not be done is done when there are some again.

use std::fs;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use crate::common::*;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

/// How many descriptors a daemon may have open from now on; those that it has stay.
fn limit(daemon: &Daemon, descriptors: u64) {
    let pid = Pid::from_raw(i32::try_from(daemon.id()).unwrap());
    // Nobody may have more than was inherited.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: Some(descriptors), maximum };
    prlimit(pid, Resource::Nofile, limit).unwrap();
}

/// The processor time that a daemon has used, all threads.
fn used(daemon: &Daemon) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// Callers that connect and say nothing.
fn callers(instance: &str, count: usize) -> Vec<UnixStream> {
    (0..count).map(|_| UnixStream::connect(socket(instance)).unwrap()).collect()
}

/// Both daemons go on for so long without making much ado.
fn check_calm(road: &Road, daemons: [&Daemon; 2], time: Duration) {
    let before = daemons.map(used);
    let lines = daemons.map(|daemon| daemon.log().lines().count());
    sleep(time);
    assert!(road.wait_for_traffic() < Duration::from_secs(2));
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
        let road = Road::without_uplinks();
        road.connect_uplink(1);
        let (server, client) = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        road.wait_for_traffic();

        for daemon in [&server, &client] {
            limit(daemon, 3);
        }
        // What is open stays so, and nothing new can be.
        let waiting = [callers(CLIENT, 3), callers(SERVER, 3)];
        road.connect_uplink(2);
        road.edit("server.toml", |text| text + &keygen().peer("late", "10.77.0.9/32"));
        server.signal(Signal::HUP);
        for daemon in [&server, &client] {
            daemon.wait_for("Too many open files");
        }
        check_calm(&road, [&server, &client], Duration::from_secs(6));
        for daemon in [&server, &client] {
            assert!(!daemon.log().contains("install nftables"), "{}", daemon.log());
        }

        for daemon in [&server, &client] {
            limit(daemon, 1_024);
        }
        drop(waiting);
        // A new socket, routes and filters for the new uplink; the local socket answers.
        road.wait_for_paths(&["eth1", "eth2"]);
        assert!(road.wait_for_traffic() < Duration::from_secs(2));
        server.reload();
        assert_eq!(client.count(" joined "), 1, "{}", client.log());
        assert_eq!(client.count("local socket takes callers again"), 1, "{}", client.log());
        client.interrupt();
        server.interrupt();
    });
}

#[test]
fn a_router_without_descriptors_opens_its_links_when_there_are_some() {
    run_sandboxed(|| {
        let road = Road::without_uplinks();
        road.connect_uplink(1);
        let link = |number: u8| {
            format!(
                "[[links]]\nname = \"link{number}\"\ninterface = \"eth{number}\"\n\
                 listen = \"10.{number}.0.2:6081\"\npeer = \"10.{number}.0.1:6081\"\n"
            )
        };
        let text = format!("addresses = [\"10.77.0.2/24\"]\n{}{}", link(1), link(2));
        fs::write(road.path("router.toml"), text).unwrap();
        let router = road.start(&road.vehicle, "router", "router");
        router.wait_for("the router runs");
        limit(&router, 3);
        road.connect_uplink(2);
        router.wait_for("Too many open files");
        let (before, lines) = (used(&router), router.log().lines().count());
        sleep(Duration::from_secs(5));
        assert!(used(&router) - before < Duration::from_millis(500));
        assert!(router.log().lines().count() - lines < 3, "{}", router.log());
        limit(&router, 1_024);
        router.wait_for_count("listening", 2);
        router.interrupt();
    });
}
