//! What a client is told of its modems: it keeps what a modem can know, of its uplinks, for a
//! while.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::*;
use roadweave_device::ModemFacts;
use roadweave_device::local::{RequestError, TellModem, request, tell_modem};
use serde_json::{Value, json};

/// The place of an uplink among those that are tried first.
fn rank(road: &Road, uplink: &str) -> u64 {
    let status = road.show(CLIENT);
    let mut uplinks = status["uplinks"].as_array().unwrap().iter();
    uplinks.find(|it| it["name"] == uplink).unwrap()["rank"].as_u64().unwrap()
}

#[test]
fn what_a_modem_tells_decides_who_is_tried_first_and_is_shown_for_as_long_as_it_is_told() {
    run_sandboxed(|| {
        let road = Road::new();
        road.edit("client.toml", |text| {
            text + "[[uplinks.policies]]\nname = \"eth2\"\ntechnology = \"wifi\"\n"
        });
        let (_server, client) = road.start_both();
        let path = socket(CLIENT);
        let path = Path::new(&path);
        let operator = Some("Some Operator".to_owned());
        let facts = ModemFacts { operator, rsrp_dbm: Some(-95.5), ..ModemFacts::default() };
        let told = |uplink: &str| {
            tell_modem(path, &TellModem { uplink: uplink.to_owned(), facts: facts.clone() })
        };
        let tell = |uplink: &str, technology: &str, rsrp_dbm: f64| {
            let facts = ModemFacts {
                technology: Some(technology.to_owned()),
                rsrp_dbm: Some(rsrp_dbm),
                ..ModemFacts::default()
            };
            let told = TellModem { uplink: uplink.to_owned(), facts };
            assert!(tell_modem(path, &told).unwrap());
            rank(&road, uplink)
        };
        assert_eq!((rank(&road, "eth1"), rank(&road, "eth2")), (0, 3));
        assert_eq!(tell("eth1", "5g-sa", -90.0), 1);
        assert_eq!(tell("eth2", "5g-sa", -90.0), 3, "its owner knows better");
        let lte = tell("eth1", "lte", -90.0);
        assert!(lte > 3 && tell("eth1", "5g-sa", -125.0) > lte);
        // It stays so when the file is read again, and the uplink comes back.
        client.reload();
        assert!(rank(&road, "eth1") > lte);
        // For half a minute after it was told.
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
        let known = || road.show(CLIENT)["modems"]["eth1"].clone();
        let expected = json!({ "operator": "Some Operator", "rsrp_dbm": -95.5 });
        assert_eq!(known(), expected);
        let page = road.page(CLIENT);
        assert!(page.contains("modem eth1: Some Operator, RSRP -96 dBm\n"), "{page}");
        wait_within(Duration::from_secs(40), "it is still there", || known() != expected);
        assert!(begun.elapsed() > Duration::from_secs(30), "{:?}", begun.elapsed());
        assert_eq!(road.show(CLIENT)["modems"], Value::Null);
        assert_eq!(rank(&road, "eth1"), 0, "nobody tells it any more");
    });
}
