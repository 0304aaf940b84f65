//! Captive portals, and networks that only claim to be one: each affects its own uplink only.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use crate::common::portal::{Answer, cut_off, redirect};
use crate::common::*;
use serde_json::{Value, json};

/// The host of the page that shows whether a network is open.
const PAGE: &str = "198.51.100.80";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A road whose gateways know the host of the page, and whose client asks for it.
fn road() -> (Road, std::sync::Arc<std::sync::Mutex<portal::Portal>>) {
    let road = Road::new();
    road.edit("client.toml", |text| {
        let probe = "[uplinks]\nportal_probe = \"http://probe.test/generate_204\"\n";
        text.replace("[uplinks]\n", probe) + "[metrics]\nlisten = \"127.0.0.1:9474\"\n"
    });
    road.server.ip(&format!("address add {PAGE}/32 dev lo")).unwrap();
    road.set_resolvers("nameserver 127.0.0.53\n");
    for gateway in ["10.1.0.1", "10.2.0.1"] {
        dns::serve(&road.server, gateway, &[("probe.test", PAGE)]);
    }
    let portal = portal::serve(&road.server, PAGE);
    (road, portal)
}

/// What `show` says of the portal of an uplink.
fn portal_of(status: &Value, uplink: &str) -> Value {
    let uplinks = status["uplinks"].as_array().unwrap();
    uplinks.iter().find(|it| it["name"] == uplink).map_or(Value::Null, |it| it["portal"].clone())
}

#[test]
fn an_uplink_behind_a_portal_is_held_back_and_comes_back_by_itself() {
    run_sandboxed(|| {
        let (road, portal) = road();
        cut_off(&road.server, "eth1", true);
        let login = "https://login.test/welcome?to=probe.test";
        portal.lock().unwrap().answers.push((address("10.1.0.2"), redirect(login)));
        let (_server, client) = road.start_both();
        client.wait_for("uplink-portal");
        let status = road.show(CLIENT);
        assert_eq!(portal_of(&status, "eth1"), json!({ "url": login }));
        assert_eq!(portal_of(&status, "eth2"), Value::Null);
        road.wait_for_paths(&["eth2"]);
        let page = road.page(CLIENT);
        assert!(page.contains("portal, somebody has to log in: eth1"), "{page}");
        let told = http_get(&road.vehicle, 9474, "/metrics");
        for line in [
            "roadweave_uplink_portal{uplink=\"eth1\"} 1",
            "roadweave_uplink_portal{uplink=\"eth2\"} 0",
        ] {
            assert!(told.contains(line), "{told}");
        }
        // The address of the login page is not logged.
        assert_eq!(client.count("login.test"), 0, "{}", client.log());
        // No probe leaves by an uplink that carries packets.
        sleep(Duration::from_secs(12));
        assert_eq!(portal.lock().unwrap().guests(), [address("10.1.0.2")].into());

        // After the login.
        portal.lock().unwrap().answers.clear();
        cut_off(&road.server, "eth1", false);
        let login = Watch::start();
        road.wait_for_paths(&["eth1", "eth2"]);
        let after = login.elapsed();
        assert!(after < Duration::from_secs(10), "back after {after:?}\n{}", client.log());
        assert_eq!(portal_of(&road.show(CLIENT), "eth1"), Value::Null);
        client.wait_for("uplink-portal-over");
    });
}

#[test]
fn a_network_that_lies_about_a_portal_costs_its_own_uplink_alone() {
    run_sandboxed(|| {
        let (road, portal) = road();
        cut_off(&road.server, "eth1", true);
        let escape = "http://a.test/\u{1b}[2J";
        let long = format!("http://a.test/{}", "x".repeat(4_000));
        let answers = [
            (Answer::Endless, false),
            (Answer::Slow, false),
            (Answer::Bytes(vec![0xff; 100_000]), false),
            // Control characters make it invalid.
            (redirect(escape), false),
            // A portal whose address is not shown.
            (redirect(&long), true),
        ];
        let _server = road.start_server();
        for (answer, is_portal) in answers {
            let name = format!("{answer:?}").chars().take(40).collect::<String>();
            portal.lock().unwrap().answers = vec![(address("10.1.0.2"), answer)];
            let before = portal.lock().unwrap().asked.len();
            let client = road.start_client("client");
            client.wait_for(" joined ");
            road.wait_for_paths(&["eth2"]);
            wait_until(&format!("it is asked: {name}"), || {
                portal.lock().unwrap().asked.len() != before
            });
            if is_portal {
                client.wait_for("uplink-portal");
                assert_eq!(portal_of(&road.show(CLIENT), "eth1"), json!({}), "{name}");
            } else {
                // While the probe lasts, the event loop runs and the session lives.
                let end = Watch::start();
                while end.elapsed() < Duration::from_secs(6) {
                    let status = road.show(CLIENT);
                    assert_eq!(portal_of(&status, "eth1"), Value::Null, "{name}");
                    assert_eq!(usable(&status), ["eth2"], "{name}");
                    sleep(Duration::from_millis(500));
                }
            }
            assert_eq!(client.count("PANIC") + client.count("panicked"), 0, "{}", client.log());
            client.interrupt();
        }
        assert_eq!(portal.lock().unwrap().guests(), [address("10.1.0.2")].into());
    });
}
