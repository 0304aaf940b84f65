//! An end that stood still, as a machine does that slept or was paused: it finds out by itself, and
//! the tunnel is back within seconds.
//!
//! Each test runs in a sandbox of its own; where the system allows none, it says so and is skipped.

#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests start programs, open sockets and wait"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::thread::sleep;
use std::time::Duration;

use common::*;
use roadweave_device::netns::{Watch, run_sandboxed};
use rustix::process::Signal;

/// The time of silence after which both ends give a session up.
const IDLE: Duration = Duration::from_secs(10);

fn road_with_short_sessions() -> Road {
    let road = Road::new();
    for name in ["client.toml", "server.toml"] {
        road.edit(name, |text| {
            format!("{text}[transport]\nidle_timeout_seconds = {}\n", IDLE.as_secs())
        });
    }
    road
}

/// Stops a daemon for so long; returns when it went on.
fn pause(daemon: &Daemon, time: Duration) -> Watch {
    daemon.signal(Signal::STOP);
    sleep(time);
    daemon.signal(Signal::CONT);
    Watch::start()
}

#[test]
fn a_client_that_stood_still_is_back_within_seconds_and_sends_nothing_old() {
    run_sandboxed("a_client_that_stood_still_is_back_within_seconds_and_sends_nothing_old", || {
        let road = road_with_short_sessions();
        let (server, client) = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        road.wait_for_paths(&["eth1", "eth2"]);
        let socket = road.socket_to(GATEWAY_V4);
        socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();

        // Shorter than a session lives, and longer.
        for (round, time) in
            [(1, IDLE - Duration::from_secs(4)), (2, IDLE + Duration::from_secs(3))]
        {
            client.signal(Signal::STOP);
            sleep(Duration::from_millis(200));
            socket.send(b"steer left").unwrap();
            sleep(time);
            client.signal(Signal::CONT);
            let resumed = Watch::start();
            client.wait_for_count("this program stood still for ", round);
            assert!(resumed.elapsed() < Duration::from_secs(1), "{:?}", resumed.elapsed());
            let took = road.wait_for_traffic();
            assert!(took < Duration::from_secs(3), "round {round}: {took:?}");
            assert!(socket.recv(&mut [0; 100]).is_err(), "round {round}: an old command came");
            road.wait_for_paths(&["eth1", "eth2"]);
        }
        assert_eq!(client.count("stood still"), 2, "{}", client.log());
        assert!(client.count("; what waited is discarded") == 2, "{}", client.log());
        assert_eq!(server.count("stood still"), 0, "{}", server.log());
        let discarded = road.show(CLIENT)["drops"]["queue-expired"].as_u64().unwrap();
        assert!(discarded >= 2, "{discarded}");
    });
}

#[test]
fn a_server_that_stood_still_has_its_client_back_within_seconds() {
    run_sandboxed("a_server_that_stood_still_has_its_client_back_within_seconds", || {
        let road = road_with_short_sessions();
        let (server, _client) = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        for (round, time) in
            [(1, IDLE - Duration::from_secs(4)), (2, IDLE + Duration::from_secs(3))]
        {
            let resumed = pause(&server, time);
            server.wait_for_count("this program stood still for ", round);
            assert!(resumed.elapsed() < Duration::from_secs(1), "{:?}", resumed.elapsed());
            let took = road.wait_for_traffic();
            assert!(took < Duration::from_secs(3), "round {round}: {took:?}");
        }
    });
}
