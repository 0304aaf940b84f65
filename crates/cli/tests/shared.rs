//! Two tenants with the same inner addresses: one proxy, and two anchors on one machine.
//!
//! ```text
//! box   10.77.0.2 ═ eth1 ═► server: proxy ──► cloud: anchor of acme  :4434, rwa ┐
//! other 10.77.0.2 ═ eth1 ═►  :4433        └─► cloud: anchor of bravo :4436, rwb ┴─ eth1 ─ site
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests start programs, open sockets and wait"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use common::*;
use roadweave_device::netns::{NetNs, Watch, run_sandboxed};
use roadweave_identity::Identity;

const SITE: &str = "192.0.2.2";
const PROXY: u8 = 2;
const METRICS: u16 = 9474;

/// A tenant: its name, the key of its box, that of its anchor, the anchor's TUN and port.
struct Tenant {
    name: &'static str,
    device: u8,
    anchor: u8,
    tun: &'static str,
    port: u16,
}

const ACME: Tenant = Tenant { name: "acme", device: 11, anchor: 12, tun: "rwa", port: 4434 };
const BRAVO: Tenant = Tenant { name: "bravo", device: 21, anchor: 22, tun: "rwb", port: 4436 };

fn private(seed: u8) -> String {
    Identity::from_seed([seed; 32]).to_base64()
}

fn public(seed: u8) -> String {
    Identity::from_seed([seed; 32]).public_key().to_string()
}

fn write_files(road: &Road) {
    let folder = road.path("").display().to_string();
    let own =
        |seed| format!("private_key = \"{}\"\nstate_directory = \"{folder}\"\n", private(seed));
    let member = |list: &str, tenant: &Tenant, more: &str| {
        let key = public(tenant.device);
        format!(
            "[[{list}]]\nname = \"box\"\npublic_key = \"{key}\"\n{more}\
             addresses = [\"10.77.0.2/32\"]\n"
        )
    };
    let (mut tenants, mut peers) = (String::new(), String::new());
    for tenant in [ACME, BRAVO] {
        let Tenant { name, device, anchor, tun, port } = tenant;
        let client = format!(
            "name = \"box\"\n{}[server]\naddresses = [\"198.51.100.1:4433\"]\npublic_key = \"{}\"\n\
             [tun]\nname = \"{name}0\"\n[uplinks]\ninclude = [\"eth1\", \"eth2\"]\n\
             [routes]\ninto_tunnel = [\"10.77.0.0/24\", \"192.0.2.0/24\"]\n",
            own(device),
            public(PROXY)
        );
        road.write(&format!("box_{name}.toml"), client);
        let anchor_file = format!(
            "{}tenant = \"{name}\"\nlisten = \"203.0.113.2:{port}\"\n\
             metrics = {{ listen = \"127.0.0.1:{port}\" }}\n[tun]\nname = \"{tun}\"\n\
             [[proxies]]\nname = \"proxy\"\npublic_key = \"{}\"\n{}",
            own(anchor),
            public(PROXY),
            member("devices", &tenant, "")
        );
        road.write(&format!("anchor_{name}.toml"), anchor_file);
        tenants += &format!(
            "[[tenants]]\nname = \"{name}\"\ngateways = [\"10.77.0.1\"]\n\
             anchor = {{ public_key = \"{}\", addresses = [\"203.0.113.2:{port}\"] }}\n",
            public(anchor)
        );
        peers += &member("peers", &tenant, &format!("tenant = \"{name}\"\n"));
    }
    let proxy = format!(
        "listen = \"198.51.100.1:4433\"\n{}metrics = {{ listen = \"127.0.0.1:{METRICS}\" }}\n\
         {tenants}{peers}",
        own(PROXY)
    );
    road.write("proxy.toml", proxy);
}

/// A line of conversation by UDP with the same ports for all, until it comes back.
fn ask(socket: &UdpSocket, text: &str) {
    // A box whose leg was away rests before it comes again.
    let (watch, mut buffer) = (Watch::start(), [0; 100]);
    while watch.elapsed() < 4 * WAIT_MAX {
        // While there is no tunnel, the kernel may refuse.
        let _ = socket.send(text.as_bytes());
        while let Ok(length) = socket.recv(&mut buffer) {
            let heard = std::str::from_utf8(&buffer[..length]).unwrap();
            assert_eq!(&heard[..1], &text[..1], "{heard:?} is another tenant's");
            if heard == text {
                return;
            }
        }
    }
    panic!("no answer to {text:?}");
}

#[test]
fn two_tenants_with_the_same_addresses_share_a_proxy_and_a_machine_of_anchors() {
    run_sandboxed(
        "two_tenants_with_the_same_addresses_share_a_proxy_and_a_machine_of_anchors",
        || {
            let road = Road::new();
            write_files(&road);
            let [other, site] = ["other", "site"].map(|name| NetNs::create(name).unwrap());
            connect((&other, "eth1", &["10.3.0.2/24"]), (&road.server, "eth3", &["10.3.0.1/24"]));
            other.ip("route add default via 10.3.0.1").unwrap();
            connect((&road.cloud, "eth1", &["192.0.2.1/24"]), (&site, "eth0", &["192.0.2.2/24"]));
            road.echo(&site, SITE);
            let listener = site.enter(|| TcpListener::bind((SITE, 9)).unwrap()).unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    let mut echoed = stream.try_clone().unwrap();
                    std::thread::spawn(move || std::io::copy(&mut stream, &mut echoed));
                }
            });
            let [acme, bravo] = [ACME, BRAVO].map(|tenant| {
                let anchor = road.start(&road.cloud, "anchor", &format!("anchor_{}", tenant.name));
                anchor.wait_for("the anchor runs");
                anchor
            });
            let proxy = road.start(&road.server, "proxy", "proxy");
            proxy.wait_for("the proxy runs");
            let first = road.start(&road.vehicle, "client", "box_acme");
            let second = road.start(&other, "client", "box_bravo");
            [&first, &second].into_iter().for_each(|client| client.wait_for("joined"));

            // The same addresses and ports, to the same port of the same host.
            let [a, b] = [&road.vehicle, &other].map(|namespace| {
                let bind = || UdpSocket::bind("10.77.0.2:4000").unwrap();
                let socket = namespace.enter(bind).unwrap();
                socket.connect((SITE, ECHO_PORT)).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                socket
            });
            for round in 0..5 {
                ask(&a, &format!("a{round}"));
                ask(&b, &format!("b{round}"));
            }
            let mut streams = [&road.vehicle, &other].map(|namespace| {
                let stream = namespace.enter(|| TcpStream::connect((SITE, 9)).unwrap()).unwrap();
                stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
                stream
            });
            for (stream, text) in streams.iter_mut().zip(["of acme", "of bravo"]) {
                let mut back = vec![0; text.len()];
                stream.write_all(text.as_bytes()).unwrap();
                stream.read_exact(&mut back).unwrap();
                assert_eq!(back, text.as_bytes());
            }
            let read = || fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
            let connections = road.cloud.enter(read).unwrap();
            let of = |protocol: &str, ports: &str| {
                let line = |it: &&str| it.contains(protocol) && it.contains(ports);
                connections.lines().filter(line).count()
            };
            assert_eq!(of("udp", "sport=4000 dport=7"), 2, "{connections}");
            assert_eq!(of("tcp", "dport=9"), 2, "{connections}");

            // Each tenant has its own figures, where they share, and where they do not.
            let page = String::from_utf8(roadweave(&["show", "--socket", &socket("proxy")]).stdout);
            let page = page.unwrap();
            let at_proxy = http_get(&road.server, METRICS, "/metrics");
            for tenant in [&ACME, &BRAVO] {
                let at_anchor = http_get(&road.cloud, tenant.port, "/metrics");
                let name = tenant.name;
                let up = format!(
                    "roadweave_tenant_packets_total{{tenant=\"{name}\",direction=\"up\"}} "
                );
                for figures in [&at_proxy, &at_anchor] {
                    let line = figures.lines().find_map(|line| line.strip_prefix(&up));
                    assert!(line.unwrap().parse::<u64>().unwrap() >= 5, "{figures}");
                }
                let shown = road.show("proxy");
                assert!(shown["tenants"][name]["packets_up"].as_u64().unwrap() >= 5, "{shown:#}");
                assert!(page.contains(name), "{page}");
                let anchor =
                    String::from_utf8(roadweave(&["show", "--socket", &socket(tenant.tun)]).stdout);
                let (anchor, stranger) =
                    (anchor.unwrap(), if name == "acme" { "bravo" } else { "acme" });
                assert!(anchor.contains(name) && !anchor.contains(stranger), "{anchor}");
                assert!(!at_anchor.contains(stranger), "{at_anchor}");
            }

            // One of them ends, and the other notices nothing.
            drop(streams);
            acme.interrupt();
            ask(&b, "b alone");
            let anchor = road.start(&road.cloud, "anchor", "anchor_acme");
            ask(&a, "a again");
            ask(&b, "b still");
            [first, second, proxy, anchor, bravo].into_iter().for_each(Daemon::interrupt);
            let rules = road.cloud.command("ip").arg("rule").output().unwrap();
            let rules = String::from_utf8(rules.stdout).unwrap();
            assert!(!rules.contains("523:"), "{rules}");
        },
    );
}
