//! Proxies and an anchor between namespaces: a connection outlives the proxy that it began at.
//!
//! ```text
//! box ═ eth1, eth2 ═► server: proxy A :4433, proxy B :4435 ── lan0 ──► cloud: anchor :4434, rwa
//!  └──────────────────────── one TCP connection to 10.77.0.1 ───────────────────────────┘
//! ```

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::common::*;

const ANCHOR_TUN: &str = "rwa";

const BOX: u8 = 1;
const PROXIES: [(&str, u8, u16); 2] = [("proxy_a", 2, 4433), ("proxy_b", 3, 4435)];
const ANCHOR: u8 = 9;

fn write_files(network: &TestNetwork) {
    let inner = "\"10.77.0.2/32\"";
    let client = |at: &[(u8, u16)]| {
        members::client(network, BOX, at) + "[routes]\ninto_tunnel = [\"10.77.0.0/24\"]\n"
    };
    let proxies = PROXIES.map(|(name, number, _)| members::proxy(name, number));
    let anchor = format!(
        "{}tenant = \"acme\"\naddresses = [\"10.77.0.1/24\"]\n\
         allow_destinations = [\"10.77.0.1\"]\n[tun]\nname = \"{ANCHOR_TUN}\"\n{}{}",
        members::own(network, ANCHOR),
        proxies.concat(),
        members::device("devices", BOX, inner, "")
    );
    network.write("anchor.toml", anchor);
    for (name, number, port) in PROXIES {
        let proxy = format!(
            "instance = \"{name}\"\nlisten = \"198.51.100.1:{port}\"\n{}\
             metrics = {{ listen = \"127.0.0.1:{port}\" }}\n{}{}",
            members::own(network, number),
            members::tenant("acme", ANCHOR, "203.0.113.2:4434"),
            members::device("peers", BOX, inner, "tenant = \"acme\"\n")
        );
        network.write(&format!("{name}.toml"), proxy);
        network.write(&format!("at_{name}.toml"), client(&[(number, port)]));
    }
    network.write("at_both.toml", client(&PROXIES.map(|(_, number, port)| (number, port))));
}

fn start_proxy(network: &TestNetwork, name: &str) -> Daemon {
    let mut command = network.server.command("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", PROGRAM, "proxy", "--config"]);
    command.arg(network.path(&format!("{name}.toml")));
    let proxy = Daemon::start(command, network.path(&format!("{name}.log")));
    proxy.wait_for("the proxy runs");
    proxy
}

fn connection(network: &TestNetwork) -> TcpStream {
    let listener = network.cloud.enter(|| TcpListener::bind("10.77.0.1:9000").unwrap()).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut echoed = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut stream, &mut echoed);
    });
    let connect = || TcpStream::connect("10.77.0.1:9000").unwrap();
    let stream = network.vehicle.enter(connect).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

fn converse(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
    let mut back = vec![0; text.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, text.as_bytes());
}

#[test]
fn a_connection_outlives_the_proxy_that_it_began_at() {
    on_network(|network| {
        write_files(&network);
        let anchor = network.start(&network.cloud, "anchor", "anchor");
        anchor.wait_for("the anchor runs");
        let [first, second] = PROXIES.map(|(name, ..)| start_proxy(&network, name));
        let status = fs::read_to_string(format!("/proc/{}/status", first.id())).unwrap();
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            let line = status.lines().find(|line| line.starts_with(set)).unwrap();
            assert!(line.ends_with("\t0000000000000000"), "{line}");
        }
        let client = network.start_joined("at_proxy_a");
        anchor.wait_for("attached");

        let mut stream = connection(&network);
        converse(&mut stream, "over the first proxy");
        let shown = network.show("proxy_a");
        assert_eq!((&shown["role"], &shown["tun"]), (&"proxy".into(), &"".into()));
        assert_eq!(shown["legs"][0]["attachments"], 1, "{shown:#}");
        assert_eq!(network.show(ANCHOR_TUN)["role"], "anchor");
        network.check_shown(&["proxy_a", ANCHOR_TUN]);
        let page = network.page("proxy_a");
        assert!(page.contains("no device") && page.contains("acme"), "{page}");

        first.kill();
        let gone = Watch::start();
        client.kill();
        let client = network.start_joined("at_proxy_b");
        converse(&mut stream, "over the second proxy");
        let gap = gone.elapsed();
        assert!(gap < Duration::from_secs(15), "{gap:?}");
        assert_eq!(network.show("proxy_b")["legs"][0]["attachments"], 1);
        let old = &network.show(ANCHOR_TUN)["refusals"]["old-binding"];
        assert_eq!(old, 1, "it learned the newest number, and used a greater one");

        interrupt([client, second, anchor]);
        let kept = fs::read_to_string(network.path("rwa.bindings.json")).unwrap();
        assert!(kept.contains("\"number\":2"), "{kept}");
    });
}

#[test]
fn a_drained_proxy_lets_its_clients_go_to_another_and_says_so() {
    on_network(|network| {
        write_files(&network);
        let anchor = network.start(&network.cloud, "anchor", "anchor");
        anchor.wait_for("the anchor runs");
        let [mut first, mut second] = PROXIES.map(|(name, ..)| (name, start_proxy(&network, name)));
        let _client = network.start_joined("at_both");
        anchor.wait_for("attached");
        let sessions = |name| network.show(name)["totals"]["sessions"].as_u64().unwrap();
        if sessions(first.0) == 0 {
            std::mem::swap(&mut first, &mut second);
        }
        assert_eq!((sessions(first.0), sessions(second.0)), (1, 0));
        let port = |of: &str| PROXIES.iter().find(|(name, ..)| *name == of).unwrap().2;
        let mut stream = connection(&network);
        converse(&mut stream, "before the drain");
        let ready = http_get(&network.server, port(first.0), "/readyz");
        assert!(ready.starts_with("HTTP/1.1 200 OK\r\n"), "{ready}");

        let began = Watch::start();
        let drain = |name, wait: &str| {
            roadweave(&["drain", "--socket", &socket(name), "--over", "1", "--wait", wait])
        };
        let drained = drain(first.0, "20");
        assert!(drained.status.success(), "{drained:?}");
        assert_eq!(String::from_utf8_lossy(&drained.stdout), "drained: 1 client gone\n");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        converse(&mut stream, "after the drain");
        assert_eq!((sessions(first.0), sessions(second.0)), (0, 1));
        for path in ["/readyz", "/healthz", "/metrics"] {
            let answer = http_get(&network.server, port(first.0), path);
            let status = if path == "/readyz" { "503 Service Unavailable" } else { "200 OK" };
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
        }
        for (name, lines) in [
            (first.0, ["roadweave_draining 1", "roadweave_sessions 0"]),
            (second.0, ["roadweave_draining 0", "roadweave_sessions 1"]),
        ] {
            let figures = http_get(&network.server, port(name), "/metrics");
            for line in lines {
                assert!(figures.lines().any(|it| it == line), "{line} is not in\n{figures}");
            }
        }

        let drained = drain(second.0, "1");
        assert_eq!(drained.status.code(), Some(1), "{drained:?}");
        assert!(String::from_utf8_lossy(&drained.stderr).contains("1 client left after 1 s"));
        converse(&mut stream, "with nobody else");
        let refused = roadweave(&["drain", "--socket", &socket(ANCHOR_TUN)]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    });
}
