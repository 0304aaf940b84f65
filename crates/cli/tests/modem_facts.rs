//! What a client is told of its modems: it keeps what a modem can know, of its uplinks, for a
//! while.

#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests start programs, open sockets and wait"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::*;
use roadweave_device::ModemFacts;
use roadweave_device::local::{RequestError, TellModem, request, tell_modem};
use roadweave_device::netns::{Watch, run_sandboxed};
use serde_json::{Value, json};

#[test]
fn facts_of_a_modem_are_shown_until_nobody_tells_them() {
    run_sandboxed("facts_of_a_modem_are_shown_until_nobody_tells_them", || {
        let road = Road::new();
        let (_server, _client) = road.start_both();
        let path = socket(CLIENT);
        let path = Path::new(&path);
        let operator = Some("Some Operator".to_owned());
        let facts = ModemFacts { operator, rsrp_dbm: Some(-95.5), ..ModemFacts::default() };
        let told = |uplink: &str| {
            tell_modem(path, &TellModem { uplink: uplink.to_owned(), facts: facts.clone() })
        };
        let begun = Instant::now();
        assert!(told("eth1").unwrap());
        assert!(!told("wwan7").unwrap(), "it is no uplink");
        // Whoever has the socket may still say nothing that harms a terminal.
        for hostile in [
            json!({ "operator": "\u{1b}[2J" }),
            json!({ "operator": "x".repeat(10_000) }),
            json!({ "rsrp_dbm": 7 }),
            json!({ "rsrp_dbm": "strong" }),
            json!({ "technology": "6g" }),
        ] {
            let params = json!({ "uplink": "eth2", "facts": hostile });
            let answer = request(path, "tell_modem", &params);
            assert!(matches!(answer, Err(RequestError::Refused(_))), "{params}");
        }
        let expected = json!({ "eth1": { "operator": "Some Operator", "rsrp_dbm": -95.5 } });
        assert_eq!(road.show(CLIENT)["modems"], expected);
        let page = roadweave(&["show", "--socket", &socket(CLIENT)]);
        let page = String::from_utf8(page.stdout).unwrap();
        assert!(page.contains("modem eth1: Some Operator, RSRP -96 dBm\n"), "{page}");
        let watch = Watch::start();
        while road.show(CLIENT)["modems"] == expected {
            assert!(watch.elapsed() < Duration::from_secs(40), "it is still there");
            std::thread::sleep(Duration::from_secs(1));
        }
        assert!(begun.elapsed() > Duration::from_secs(30), "{:?}", begun.elapsed());
        assert_eq!(road.show(CLIENT)["modems"], Value::Null);
    });
}

/// The place of an uplink among those that are tried first.
fn rank(road: &Road, uplink: &str) -> u64 {
    let status = road.show(CLIENT);
    let mut uplinks = status["uplinks"].as_array().unwrap().iter();
    uplinks.find(|it| it["name"] == uplink).unwrap()["rank"].as_u64().unwrap()
}

#[test]
fn what_a_modem_tells_decides_who_is_tried_first_for_as_long_as_it_is_told() {
    run_sandboxed(
        "what_a_modem_tells_decides_who_is_tried_first_for_as_long_as_it_is_told",
        || {
            let road = Road::new();
            road.edit("client.toml", |text| {
                text + "[[uplinks.policies]]\nname = \"eth2\"\ntechnology = \"wifi\"\n"
            });
            let (_server, client) = road.start_both();
            let path = socket(CLIENT);
            let tell = |uplink: &str, technology: &str, rsrp_dbm: f64| {
                let facts = ModemFacts {
                    technology: Some(technology.to_owned()),
                    rsrp_dbm: Some(rsrp_dbm),
                    ..ModemFacts::default()
                };
                let told = TellModem { uplink: uplink.to_owned(), facts };
                assert!(tell_modem(Path::new(&path), &told).unwrap());
                rank(&road, uplink)
            };
            assert_eq!((rank(&road, "eth1"), rank(&road, "eth2")), (0, 3));
            assert_eq!(tell("eth1", "5g-sa", -90.0), 1);
            assert_eq!(tell("eth2", "5g-sa", -90.0), 3, "its owner knows better");
            let lte = tell("eth1", "lte", -90.0);
            assert!(lte > 3 && tell("eth1", "5g-sa", -125.0) > lte);
            // It stays so when the file is read again, and the uplink comes back.
            client.signal(rustix::process::Signal::HUP);
            client.wait_for("were read again");
            assert!(rank(&road, "eth1") > lte);
            std::thread::sleep(Duration::from_secs(31));
            assert_eq!(rank(&road, "eth1"), 0, "nobody tells it any more");
        },
    );
}
