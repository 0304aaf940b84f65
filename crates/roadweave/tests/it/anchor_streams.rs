//! Streams by proxies to anchors: one outlives its proxy; tenants with equal addresses are apart.
//!
//! ```text
//! camera ─ box ═ eth1, eth2 ═► server: proxies A, B ── lan0 ──► cloud: anchors ── eth1 ── site
//! ```

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::spawn;

use crate::common::*;

const SITE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const MACHINE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PORT: u16 = 8080;
const HTTP: u16 = 8081;
const LENGTH: usize = 60_000_000;

const SUCCEEDED: u8 = 0;
const FORBIDDEN: u8 = 2;
const REFUSED: u8 = 5;

const PROXIES: [(&str, u8, u16); 2] = [("proxy_a", 2, 4433), ("proxy_b", 3, 4435)];

/// Its name, keys of box and anchor, the anchor's TUN and port, its addresses, the box's.
struct Tenant {
    name: &'static str,
    device: u8,
    anchor: u8,
    tun: &'static str,
    port: u16,
    own: &'static str,
    inner: &'static str,
}

const TENANTS: [Tenant; 2] = [ACME, BRAVO];
const ACME: Tenant = Tenant {
    name: "acme",
    device: 11,
    anchor: 12,
    tun: "rwa",
    port: 4434,
    own: "\"10.77.0.1/16\"",
    inner: "\"10.77.0.2/32\"",
};
const BRAVO: Tenant = Tenant {
    name: "bravo",
    device: 21,
    anchor: 22,
    tun: "rwb",
    port: 4436,
    own: "\"10.77.0.1/16\", \"10.88.0.1/16\"",
    inner: "\"10.77.0.2/32\", \"10.88.0.2/32\"",
};

fn write_files(network: &TestNetwork) {
    let (mut tenants, mut peers) = (String::new(), String::new());
    for tenant in TENANTS {
        let Tenant { name, device, anchor, tun, port, own, inner } = tenant;
        let client = format!(
            "{}[tun]\nname = \"{name}0\"\n[streams]\nlisten = \"127.0.0.1:1080\"\n\
             http_ports = [{HTTP}]\n",
            members::client(network, device, &PROXIES.map(|(_, number, port)| (number, port)))
        );
        network.write(&format!("box_{name}.toml"), client);
        let anchor_file = format!(
            "{}tenant = \"{name}\"\nlisten = \"203.0.113.2:{port}\"\naddresses = [{own}]\n\
             deny_destinations = [\"192.0.2.3/32\"]\n[tun]\nname = \"{tun}\"\n\
             [streams]\nhttp_ports = [{HTTP}]\n{}{}",
            members::own(network, anchor),
            PROXIES.map(|(name, number, _)| members::proxy(name, number)).concat(),
            members::device("devices", device, inner, "")
        );
        network.write(&format!("anchor_{name}.toml"), anchor_file);
        tenants += &members::tenant(name, anchor, &format!("203.0.113.2:{port}"));
        peers += &members::device("peers", device, inner, &format!("tenant = \"{name}\"\n"));
    }
    for (name, number, port) in PROXIES {
        let file = format!(
            "instance = \"{name}\"\nlisten = \"198.51.100.1:{port}\"\n{}{tenants}{peers}",
            members::own(network, number)
        );
        network.write(&format!("{name}.toml"), file);
    }
}

fn start(network: &TestNetwork) -> (NetNs, [Daemon; 2], [Daemon; 2]) {
    let site = NetNs::create("site").unwrap();
    cable((&network.cloud, "eth1", &["192.0.2.1/24"]), (&site, "eth0", &["192.0.2.2/24"]));
    let anchors = TENANTS.map(|tenant| {
        let anchor = network.start(&network.cloud, "anchor", &format!("anchor_{}", tenant.name));
        anchor.wait_for("the anchor runs");
        anchor
    });
    let proxies = PROXIES.map(|(name, ..)| {
        let proxy = network.start(&network.server, "proxy", name);
        proxy.wait_for("the proxy runs");
        proxy
    });
    (site, anchors, proxies)
}

fn host(site: &NetNs) -> mpsc::Receiver<IpAddr> {
    let (callers, seen) = mpsc::channel();
    let listener = site.enter(|| TcpListener::bind((SITE, PORT)).unwrap()).unwrap();
    spawn(move || {
        for mut socket in listener.incoming().flatten() {
            callers.send(socket.peer_addr().unwrap().ip()).unwrap();
            spawn(move || {
                let _ = socket.write_all(&hosts::bytes(LENGTH));
            });
        }
    });
    seen
}

fn web(site: &NetNs) {
    let listener = site.enter(|| TcpListener::bind((SITE, HTTP)).unwrap()).unwrap();
    spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut request = [0; 4_096];
        assert!(socket.read(&mut request).unwrap() > 0);
        let answer = "HTTP/1.1 200 OK\r\nPriority: u=1\r\nContent-Length: 2\r\n\r\nhi";
        socket.write_all(answer.as_bytes()).unwrap();
    });
}

fn socks(namespace: &NetNs, to: (Ipv4Addr, u16)) -> (u8, TcpStream) {
    hosts::socks(namespace, "127.0.0.1:1080", &hosts::to_address(to))
}

fn read(socket: &mut TcpStream, from: usize, until: usize) {
    let mut bytes = vec![0; until - from];
    socket.read_exact(&mut bytes).unwrap();
    let wrong = bytes.iter().zip(from..).position(|(found, at)| *found != hosts::byte(at));
    assert_eq!(wrong, None, "from {from} on");
}

#[test]
fn a_download_goes_on_while_its_proxy_dies_and_tenants_are_apart() {
    on_network(|network| {
        write_files(&network);
        let (site, anchors, [first, second]) = start(&network);
        let seen = host(&site);
        let other = NetNs::create("other").unwrap();
        cable((&other, "eth1", &["10.3.0.2/24"]), (&network.server, "eth3", &["10.3.0.1/24"]));
        other.ip("route add default via 10.3.0.1").unwrap();
        let _acme = network.start_joined("box_acme");
        anchors[0].wait_for("attached");
        let sessions = |name| network.show(name)["totals"]["sessions"].as_u64().unwrap();
        let is_first = sessions(PROXIES[0].0) == 1;
        let bravo = network.start(&other, "client", "box_bravo");
        bravo.wait_for("joined");
        anchors[1].wait_for("attached");

        let mut sockets = [&network.vehicle, &other].map(|namespace| {
            let (reply, socket) = socks(namespace, (SITE, PORT));
            assert_eq!(reply, SUCCEEDED);
            assert_eq!(seen.recv().unwrap(), IpAddr::from(MACHINE));
            socket
        });
        let step = LENGTH / 20;
        for from in (0..LENGTH / 4).step_by(step) {
            sockets.iter_mut().for_each(|socket| read(socket, from, from + step));
        }
        // An address of bravo's box: the machine reaches it, and acme does not.
        let inside = SocketAddr::from(([10, 88, 0, 2], PORT));
        let listener = other.enter(|| TcpListener::bind(inside).unwrap()).unwrap();
        spawn(move || listener.incoming().for_each(drop));
        let from_machine = network.cloud.enter(|| TcpStream::connect(inside).is_ok()).unwrap();
        assert!(from_machine, "{}", anchors[1].log());
        assert_ne!(socks(&network.vehicle, (Ipv4Addr::new(10, 88, 0, 2), PORT)).0, SUCCEEDED);
        let drops = |of: Tenant| network.show(of.tun)["drops"]["forward-refused"].as_u64();
        let drops: u64 = TENANTS.map(drops).into_iter().flatten().sum();
        assert!(drops > 0, "it was stopped by something else");

        let attached = anchors[0].count("attached");
        let (dead, _alive) = if is_first { (first, second) } else { (second, first) };
        dead.kill();
        let [mut socket, _] = sockets;
        read(&mut socket, LENGTH / 4, LENGTH);
        assert_eq!(socket.read(&mut [0]).unwrap(), 0, "and nothing more");
        anchors[0].wait_for_count("attached", attached + 1);

        let reply = |to: [u8; 4], port| socks(&network.vehicle, (to.into(), port)).0;
        assert_eq!(reply(SITE.octets(), 9), REFUSED);
        assert_eq!(reply([192, 0, 2, 3], PORT), FORBIDDEN);
        assert_eq!(reply([10, 77, 0, 2], PORT), FORBIDDEN, "another client's, or its own");
        assert_eq!(reply([203, 0, 113, 2], PORT), FORBIDDEN, "the anchor's machine");
        web(&site);
        let (reply, mut socket) = socks(&network.vehicle, (SITE, HTTP));
        assert_eq!(reply, SUCCEEDED);
        socket.write_all(b"GET /a.mp4 HTTP/1.1\r\nHost: a\r\nPriority: u=5\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        assert!(answer.ends_with(b"\r\n\r\nhi"), "{answer:?}");
        let shown = network.show(ACME.tun);
        assert_eq!(shown["streams"]["source"], "client", "{shown:#}");
        assert_eq!(shown["streams"]["http"]["answers"], 1, "{shown:#}");
    });
}
