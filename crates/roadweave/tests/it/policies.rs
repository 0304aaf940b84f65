//! Policies of uplinks, from the file and from `roadweave uplink`.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::*;
use roadweave_node::ModemFacts;
use roadweave_node::local::{TellModem, tell_modem};
use serde_json::Value;

const UPLINKS: [&str; 2] = ["eth1", "eth2"];
const CAP: u64 = 1_000_000;

#[test]
fn an_uplink_is_paused_resumed_and_used_otherwise_while_the_session_lives() {
    on_network(|network| {
        let (server, client) = network.start_with_echo();
        let socket = socket(CLIENT);
        let uplink = |words: &[&str]| {
            let output = roadweave(&[&["uplink", "--socket", &socket], words].concat());
            (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        assert_eq!(uplink(&["pause", "eth2"]).0, Some(0));
        network.wait_for_paths(&["eth1"]);
        exchange(&network, 5);
        let (code, said) = uplink(&["pause", "eth1"]);
        assert!(code == Some(2) && said.contains("--force"), "{code:?} {said}");
        network.vehicle.ip("link set eth2 down").unwrap();
        network.vehicle.ip("link set eth2 up").unwrap();
        network.route_uplink(2);
        client.reload();
        network.wait_for_status(CLIENT, "still paused", |status| status["paused"][0] == "eth2");
        network.wait_for_paths(&["eth1"]);
        assert_eq!(uplink(&["resume", "eth2"]).0, Some(0));
        network.wait_for_paths(&UPLINKS);

        assert_eq!(uplink(&["set", "eth1", "--priority", "backup", "--weight", "7"]).0, Some(0));
        wait_for_priorities(&network, "backup", "primary");
        assert_eq!(path(&network.show(CLIENT), "eth1")["weight"], 7);
        exchange(&network, 5);
        assert_eq!(uplink(&["set", "eth1", "--rate-limit-kbps", "2500"]).0, Some(0));
        for end in [CLIENT, SERVER] {
            network.wait_for_status(end, "the limit", |it| {
                path(it, "eth1")["rate_limit_bps"] == 2_500_000
            });
        }
        assert_eq!(uplink(&["set", "eth1", "--rate-limit-kbps", "0"]).0, Some(0));
        assert_eq!(path(&network.show(CLIENT), "eth1")["rate_limit_bps"], Value::Null);
        assert_eq!(uplink(&["set", "eth2", "--daily-cap-mb", "1"]).0, Some(0));
        assert_eq!(path(&network.show(CLIENT), "eth2")["daily_cap_bytes"], CAP);
        exchange(&network, 500);
        wait_for_priorities(&network, "backup", "backup");
        assert_eq!(uplink(&["set", "eth2", "--daily-cap-mb", "0"]).0, Some(0));
        assert_eq!(path(&network.show(CLIENT), "eth2")["daily_cap_bytes"], Value::Null);
        wait_for_priorities(&network, "backup", "primary");

        let too_much = ["set", "eth1", "--monthly-cap-mb", "1000000001"];
        let no_weight = ["set", "eth1", "--weight", "0"];
        for words in [&["pause", "rw0"][..], &["set", "eth1"], &no_weight, &too_much] {
            assert_eq!(uplink(words).0, Some(2), "{words:?}");
        }
        let (code, said) = uplink(&["set", "eth1", "--rate-limit-kbps", "99"]);
        assert!(code == Some(2) && said.contains("100 to 100000000"), "{code:?} {said}");

        assert_eq!(uplink(&["pause", "eth2"]).0, Some(0));
        assert_eq!(uplink(&["pause", "eth1", "--force"]).0, Some(0));
        network.wait_for_paths(&[]);
        assert_eq!(uplink(&["resume", "eth1"]).0, Some(0));
        network.wait_for_paths(&["eth1"]);
        exchange(&network, 5);
        assert_eq!((client.count("joined"), server.count("joined")), (1, 1), "{}", client.log());
        interrupt([client, server]);
    });
}

#[test]
fn the_cap_of_a_sim_stays_its_own_under_another_name() {
    on_network(|network| {
        let iccid = "8949020000012345678";
        network.edit("client.toml", |text| {
            format!(
                "{text}\n[[uplinks.policies]]\niccid = \"{iccid}\"\nmetered.monthly_cap_mb = 1\n\
                 [[uplinks.policies]]\nname = \"modem*\"\npriority = \"secondary\"\n"
            )
        });
        let (_server, client) = network.start_with_echo();
        let tell = |uplink: &str| {
            let facts = ModemFacts {
                iccid: Some(format!("{iccid}F")),
                operator: Some("Some Operator".to_owned()),
                technology: Some("lte".to_owned()),
                ..ModemFacts::default()
            };
            let told = TellModem { uplink: uplink.to_owned(), facts };
            tell_modem(Path::new(&socket(CLIENT)), &told).unwrap()
        };
        let rank = |status: &Value| {
            let mut uplinks = status["uplinks"].as_array().unwrap().iter();
            uplinks.find(|it| it["name"] == "eth1").unwrap()["rank"].as_u64().unwrap()
        };
        let cap = |uplink: &str| path(&network.show(CLIENT), uplink)["monthly_cap_bytes"].as_u64();
        assert_eq!((cap("eth1"), rank(&network.show(CLIENT))), (None, 0));
        assert!(tell("eth1") && !tell("wwan7"), "wwan7 is no uplink");
        let status = network.show(CLIENT);
        assert!(rank(&status) > 0 && status["modems"]["eth1"]["operator"] == "Some Operator");
        assert_eq!((cap("eth1"), cap("eth2")), (Some(CAP), None));
        let month = |uplink: &str| path(&network.show(CLIENT), uplink)["month_bytes"].as_u64();
        let uplink = |words: &[&str]| {
            let told = roadweave(&[&["uplink", "--socket", &socket(CLIENT)], words].concat());
            assert!(told.status.success(), "{told:?}");
        };
        uplink(&["pause", "eth2"]);
        network.wait_for_paths(&["eth1"]);
        exchange(&network, 100);
        let before = month("eth1").unwrap();
        assert!((200_000..CAP).contains(&before), "{before}");
        uplink(&["resume", "eth2"]);
        network.wait_for_paths(&UPLINKS);

        for words in ["set eth1 down", "set eth1 name modem7", "set modem7 up"] {
            network.vehicle.ip(&format!("link {words}")).unwrap();
        }
        network.vehicle.ip("route replace default via 10.1.0.1 dev modem7 metric 100").unwrap();
        network.wait_for_paths(&["eth2", "modem7"]);
        let unknown = path(&network.show(CLIENT), "modem7");
        assert_eq!(
            (&unknown["priority"], &unknown["month_bytes"]),
            (&"secondary".into(), &Value::Null)
        );
        assert!(tell("modem7"));
        assert_eq!(path(&network.show(CLIENT), "modem7")["priority"], "primary");
        assert!(month("modem7").unwrap() >= before);
        client.interrupt();
        let _client = network.start_joined("client");
        network.wait_for_paths(&["eth2", "modem7"]);
        assert!(tell("modem7"));
        assert!(month("modem7").unwrap() >= before);
    });
}

fn wait_for_priorities(network: &TestNetwork, first: &str, second: &str) {
    for instance in [CLIENT, SERVER] {
        network.wait_for_status(instance, "the priorities", |status| {
            path(status, "eth1")["priority"] == first && path(status, "eth2")["priority"] == second
        });
    }
}

fn path(status: &Value, uplink: &str) -> Value {
    let paths = status["sessions"][0]["paths"].as_array();
    paths.into_iter().flatten().find(|path| path["uplink"] == uplink).cloned().unwrap_or_default()
}

/// Sends `packets` and waits for an answer to each. One that is lost, as while the server validates
/// a new port, is sent again.
fn exchange(network: &TestNetwork, packets: u32) {
    let socket = network.socket_to(GATEWAY_V4);
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    for _ in 0..packets {
        let begun = Instant::now();
        loop {
            socket.send(&[7; 1000]).unwrap();
            match socket.recv(&mut [0; 2000]) {
                Ok(_) => break,
                Err(error) => assert!(begun.elapsed() < WAIT_MAX, "{error}"),
            }
        }
    }
}
