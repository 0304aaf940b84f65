//! An end that stood still, as in sleep: it finds out, and the tunnel is back within seconds.

use std::thread::sleep;
use std::time::Duration;

use crate::common::*;
use rustix::process::Signal;

/// Rounds and pauses, shorter than a session lives without a word (10 s) and longer.
const TIMES: [(usize, Duration); 2] = [(1, Duration::from_secs(6)), (2, Duration::from_secs(13))];

#[test]
fn who_stood_still_is_back_within_seconds_and_sends_nothing_old() {
    on_network(|network| {
        for name in ["client.toml", "server.toml"] {
            network.edit(name, |text| text + "[transport]\nidle_timeout_seconds = 10\n");
        }
        let (server, client) = network.start_with_echo();
        let socket = network.socket_to(GATEWAY_V4);
        socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();

        for (round, time) in TIMES {
            client.signal(Signal::STOP);
            sleep(Duration::from_millis(200));
            socket.send(b"steer left").unwrap();
            sleep(time);
            client.signal(Signal::CONT);
            let resumed = Watch::start();
            client.wait_for_count("this program did not run for ", round);
            assert!(resumed.elapsed() < Duration::from_secs(1), "{:?}", resumed.elapsed());
            let took = network.wait_for_traffic();
            assert!(took < Duration::from_secs(3), "round {round}: {took:?}");
            assert!(socket.recv(&mut [0; 100]).is_err(), "round {round}: an old command came");
            network.wait_for_paths(&["eth1", "eth2"]);
        }
        assert_eq!(client.count("did not run"), 2, "{}", client.log());
        assert!(client.count("; queued packets are discarded") == 2, "{}", client.log());
        assert_eq!(server.count("did not run"), 0, "{}", server.log());
        let discarded = network.show(CLIENT)["drops"]["queue-expired"].as_u64().unwrap();
        assert!(discarded >= 2, "{discarded}");

        for (round, time) in TIMES {
            server.signal(Signal::STOP);
            sleep(time);
            server.signal(Signal::CONT);
            let resumed = Watch::start();
            server.wait_for_count("this program did not run for ", round);
            assert!(resumed.elapsed() < Duration::from_secs(1), "{:?}", resumed.elapsed());
            let took = network.wait_for_traffic();
            assert!(took < Duration::from_secs(3), "round {round}: {took:?}");
        }
    });
}
