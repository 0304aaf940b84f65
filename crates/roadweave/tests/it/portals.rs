//! Captive portals, and networks that only claim to be one: each affects its own uplink only.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use crate::common::*;
use serde_json::{Value, json};

/// The host of the page that shows whether a network is open.
const PAGE: &str = "198.51.100.80";
const GUEST: &str = "10.1.0.2";
const LOGIN: &str = "https://login.test/welcome?to=probe.test";

#[derive(Clone, Copy, Debug)]
enum PortalAnswer {
    Open,
    Redirect,
    Endless,
    Slow,
}

struct Portal {
    to_guest: PortalAnswer,
    asked: Vec<IpAddr>,
}

impl Portal {
    fn serve(namespace: &NetNs) -> Arc<Mutex<Self>> {
        let portal = Arc::new(Mutex::new(Self { to_guest: PortalAnswer::Open, asked: Vec::new() }));
        let listener = namespace.enter(|| TcpListener::bind((PAGE, 80)).unwrap()).unwrap();
        let shared = portal.clone();
        spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                spawn(move || answer(&shared, stream));
            }
        });
        portal
    }
}

fn answer(portal: &Mutex<Portal>, mut stream: TcpStream) {
    let guest = stream.peer_addr().unwrap().ip();
    let mut question = [0; 1024];
    let length = stream.read(&mut question).unwrap_or(0);
    let question = String::from_utf8_lossy(&question[..length]).into_owned();
    let answer = {
        let mut portal = portal.lock().unwrap();
        portal.asked.push(guest);
        if guest.to_string() == GUEST { portal.to_guest } else { PortalAnswer::Open }
    };
    let _ = match answer {
        PortalAnswer::Open => stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n"),
        PortalAnswer::Redirect => stream.write_all(
            format!("HTTP/1.1 302 Found\r\nLocation: {LOGIN}\r\nContent-Length: 0\r\n\r\n")
                .as_bytes(),
        ),
        PortalAnswer::Endless => {
            let line = format!("X-{}: y\r\n", "x".repeat(50));
            stream.write_all(b"HTTP/1.1 204 No Content\r\n").unwrap_or(());
            while stream.write_all(line.as_bytes()).is_ok() {}
            Ok(())
        }
        PortalAnswer::Slow => {
            let text = format!("HTTP/1.1 204 No Content\r\nX: {}\r\n\r\n", "y".repeat(100));
            text.bytes().try_for_each(|byte| {
                sleep(Duration::from_secs(1));
                stream.write_all(&[byte])
            })
        }
    };
    assert!(question.starts_with("GET /generate_204 HTTP/1.1\r\n"), "{question}");
    assert!(question.contains("\r\nHost: probe.test\r\n"), "{question}");
}

const CUT_OFF: &str = "table inet portal { chain in { type filter hook input priority -10; \
                       iifname eth1 udp dport 4433 drop; }; }";

fn portal_of(status: &Value, uplink: &str) -> Value {
    let uplinks = status["uplinks"].as_array().unwrap();
    uplinks.iter().find(|it| it["name"] == uplink).map_or(Value::Null, |it| it["portal"].clone())
}

#[test]
fn a_portal_or_a_network_that_lies_about_one_costs_its_own_uplink_alone() {
    on_network(|network| {
        network.edit("client.toml", |text| {
            let probe = "[uplinks]\nportal_probe = \"http://probe.test/generate_204\"\n";
            text.replace("[uplinks]\n", probe)
        });
        network.server.ip(&format!("address add {PAGE}/32 dev lo")).unwrap();
        network.set_resolvers("nameserver 127.0.0.53\n");
        for gateway in ["10.1.0.1", "10.2.0.1"] {
            dns::serve(&network.server, gateway, &[("probe.test", PAGE)]);
        }
        let portal = Portal::serve(&network.server);
        nft(&network.server, CUT_OFF);
        let _server = network.start_server();
        let start = |answer: PortalAnswer| {
            portal.lock().unwrap().to_guest = answer;
            network.start_joined("client")
        };
        for answer in [PortalAnswer::Endless, PortalAnswer::Slow] {
            let before = portal.lock().unwrap().asked.len();
            let client = start(answer);
            network.wait_for_paths(&["eth2"]);
            wait_until("it is asked", || portal.lock().unwrap().asked.len() != before);
            let end = Watch::start();
            while end.elapsed() < Duration::from_secs(6) {
                let status = network.show(CLIENT);
                assert_eq!(portal_of(&status, "eth1"), Value::Null, "{answer:?}");
                assert_eq!(usable(&status), ["eth2"], "{answer:?}");
                sleep(Duration::from_millis(500));
            }
            client.interrupt();
        }

        let client = start(PortalAnswer::Redirect);
        client.wait_for("uplink-portal");
        let status = network.show(CLIENT);
        assert_eq!(portal_of(&status, "eth1"), json!({ "url": LOGIN }));
        assert_eq!(portal_of(&status, "eth2"), Value::Null);
        network.wait_for_paths(&["eth2"]);
        let page = network.page(CLIENT);
        assert!(page.contains("behind a portal, log in first: eth1"), "{page}");
        assert_eq!(client.count("login.test"), 0, "{}", client.log());
        // No probe leaves by an uplink that carries packets.
        sleep(Duration::from_secs(12));
        let guests: BTreeSet<String> =
            portal.lock().unwrap().asked.iter().map(IpAddr::to_string).collect();
        assert_eq!(guests, [GUEST.to_owned()].into());

        portal.lock().unwrap().to_guest = PortalAnswer::Open;
        nft(&network.server, "delete table inet portal");
        let login = Watch::start();
        network.wait_for_paths(&["eth1", "eth2"]);
        let after = login.elapsed();
        assert!(after < Duration::from_secs(10), "back after {after:?}\n{}", client.log());
        assert_eq!(portal_of(&network.show(CLIENT), "eth1"), Value::Null);
        client.wait_for("uplink-portal-over");
    });
}
