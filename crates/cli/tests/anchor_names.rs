//! An anchor that its proxy knows by name: looked up again where the leg is away, and a name that
//! leads to a stranger costs nothing.

#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests start programs, open sockets and wait"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;
#[path = "common/dns.rs"]
mod dns;

use std::fs;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use common::*;
use roadweave_device::netns::{Watch, run_sandboxed};
use roadweave_identity::Identity;

const BOX: u8 = 1;
const PROXY: u8 = 2;
const ANCHOR: u8 = 3;
const STRANGER: u8 = 4;
/// A name server of the proxy's machine alone.
const DNS: &str = "198.51.100.53";
/// Look-ups are a minute apart at most while a leg is away.
const LOOKED_UP: Duration = Duration::from_secs(100);

fn public(seed: u8) -> String {
    Identity::from_seed([seed; 32]).public_key().to_string()
}

fn own(road: &Road, seed: u8) -> String {
    let key = Identity::from_seed([seed; 32]).to_base64();
    format!("private_key = \"{key}\"\nstate_directory = \"{}\"\n", road.path("").display())
}

fn member(list: &str, tenant: &str) -> String {
    let key = public(BOX);
    format!(
        "[[{list}]]\nname = \"box\"\n{tenant}public_key = \"{key}\"\naddresses = [\"10.77.0.2/32\"]\n"
    )
}

/// An anchor with the key of `seed`, at `address`.
fn anchor(road: &Road, seed: u8, address: &str, tun: &str) -> Daemon {
    road.cloud.ip(&format!("address replace {address}/24 dev eth0")).unwrap();
    let file = format!(
        "{}tenant = \"acme\"\nlisten = \"{address}:4434\"\n\
         allow_destinations = [\"{GATEWAY_V4}\"]\n[tun]\nname = \"{tun}\"\n\
         [[proxies]]\nname = \"proxy\"\npublic_key = \"{}\"\n{}",
        own(road, seed),
        public(PROXY),
        member("devices", "")
    );
    road.write(&format!("{tun}.toml"), file);
    let anchor = road.start(&road.cloud, "anchor", tun);
    anchor.wait_for("the anchor runs");
    anchor
}

/// Waits until the proxy's leg is up, to this address.
fn wait_for_leg(road: &Road, remote: &str) {
    let watch = Watch::start();
    loop {
        let leg = road.show("proxy")["legs"][0].clone();
        if leg["is_up"] == true && leg["remote"] == format!("{remote}:4434") {
            return;
        }
        assert!(watch.elapsed() < LOOKED_UP, "{leg:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn an_anchor_is_found_by_its_name_wherever_it_goes() {
    run_sandboxed("an_anchor_is_found_by_its_name_wherever_it_goes", || {
        let road = Road::new();
        road.server.ip(&format!("address add {DNS}/32 dev lo")).unwrap();
        fs::write(road.path("resolv.conf"), format!("nameserver {DNS}\n")).unwrap();
        let mut command = Command::new("mount");
        command.arg("--bind").arg(road.path("resolv.conf")).arg("/etc/resolv.conf");
        assert!(command.status().unwrap().success());
        // First a stranger has the name.
        let zone = dns::serve(&road.server, DNS, &[("anchor.test", "203.0.113.7")]);
        let _stranger = anchor(&road, STRANGER, "203.0.113.7", "rwx");
        let first = anchor(&road, ANCHOR, "203.0.113.8", "rwa");
        let proxy = format!(
            "listen = \"198.51.100.1:4433\"\n{}[[tenants]]\nname = \"acme\"\n\
             gateways = [\"10.77.0.1\"]\n\
             anchor = {{ public_key = \"{}\", addresses = [\"anchor.test:4434\"] }}\n{}",
            own(&road, PROXY),
            public(ANCHOR),
            member("peers", "tenant = \"acme\"\n")
        );
        road.write("proxy.toml", proxy);
        let proxy = road.start(&road.server, "proxy", "proxy");
        proxy.wait_for("the proxy runs");
        proxy.wait_for("cannot be reached");
        assert_eq!(road.show("proxy")["legs"][0]["is_up"], false);

        let now_at = |address: &str| {
            zone.lock().unwrap().addresses =
                vec![("anchor.test".to_owned(), address.parse().unwrap())];
        };
        now_at("203.0.113.8");
        wait_for_leg(&road, "203.0.113.8");
        let client = format!(
            "name = \"box\"\n{}[server]\naddresses = [\"198.51.100.1:4433\"]\n\
             public_key = \"{}\"\n[uplinks]\ninclude = [\"eth1\", \"eth2\"]\n\
             [routes]\ninto_tunnel = [\"10.77.0.0/24\"]\n",
            own(&road, BOX),
            public(PROXY)
        );
        road.write("box.toml", client);
        let client = road.start_client("box");
        client.wait_for("joined");
        road.echo(&road.cloud, GATEWAY_V4);
        road.wait_for_traffic();

        // It goes to another address, and nobody tells the proxy.
        first.interrupt();
        now_at("203.0.113.9");
        let second = anchor(&road, ANCHOR, "203.0.113.9", "rwa");
        wait_for_leg(&road, "203.0.113.9");
        let socket = road.socket_to(GATEWAY_V4);
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        wait_for_answer(&socket);
        [client, proxy, second].into_iter().for_each(Daemon::interrupt);
    });
}

/// A box that was sent away rests before it comes again.
fn wait_for_answer(socket: &UdpSocket) {
    let watch = Watch::start();
    while watch.elapsed() < LOOKED_UP {
        // While there is no tunnel, the kernel may refuse.
        let _ = socket.send(b"is anybody there?");
        if socket.recv(&mut [0; 100]).is_ok() {
            return;
        }
    }
    panic!("no traffic");
}
