//! A proxy looks its anchor's name up again while the leg is down; a stranger there costs nothing.

use std::time::Duration;

use crate::common::*;

const BOX: u8 = 1;
const PROXY: u8 = 2;
const ANCHOR: u8 = 3;
const STRANGER: u8 = 4;
const DNS: &str = "198.51.100.53";
/// Look-ups are a minute apart at most while a leg is down.
const LOOKED_UP: Duration = Duration::from_secs(100);

fn anchor(network: &TestNetwork, seed: u8, address: &str, tun: &str) -> Daemon {
    network.cloud.ip(&format!("address replace {address}/24 dev eth0")).unwrap();
    let file = format!(
        "{}tenant = \"acme\"\nlisten = \"{address}:4434\"\n[tun]\nname = \"{tun}\"\n{}{}",
        members::own(network, seed),
        members::proxy("proxy", PROXY),
        members::device("devices", BOX, "\"10.77.0.2/32\"", "")
    );
    network.write(&format!("{tun}.toml"), file);
    let anchor = network.start(&network.cloud, "anchor", tun);
    anchor.wait_for("the anchor runs");
    anchor
}

fn wait_for_leg(network: &TestNetwork, remote: &str) {
    let leg = || network.show("proxy")["legs"][0].clone();
    wait_within(LOOKED_UP, &format!("a leg to {remote}"), || {
        leg()["is_up"] == true && leg()["remote"] == format!("{remote}:4434")
    });
}

#[test]
fn an_anchor_is_found_by_its_name_wherever_it_goes() {
    on_network(|network| {
        network.server.ip(&format!("address add {DNS}/32 dev lo")).unwrap();
        network.set_resolvers(&format!("nameserver {DNS}\n"));
        let zone = dns::serve(&network.server, DNS, &[("anchor.test", "203.0.113.7")]);
        let _stranger = anchor(&network, STRANGER, "203.0.113.7", "rwx");
        let first = anchor(&network, ANCHOR, "203.0.113.8", "rwa");
        let proxy = format!(
            "listen = \"198.51.100.1:4433\"\n{}{}{}",
            members::own(&network, PROXY),
            members::tenant("acme", ANCHOR, "anchor.test:4434"),
            members::device("peers", BOX, "\"10.77.0.2/32\"", "tenant = \"acme\"\n")
        );
        network.write("proxy.toml", proxy);
        let proxy = network.start(&network.server, "proxy", "proxy");
        proxy.wait_for("the proxy runs");
        proxy.wait_for("cannot be reached");
        assert_eq!(network.show("proxy")["legs"][0]["is_up"], false);

        let now_at = |address: &str| {
            zone.lock().unwrap().addresses =
                vec![("anchor.test".to_owned(), address.parse().unwrap())];
        };
        now_at("203.0.113.8");
        wait_for_leg(&network, "203.0.113.8");
        first.interrupt();
        now_at("203.0.113.9");
        let second = anchor(&network, ANCHOR, "203.0.113.9", "rwa");
        wait_for_leg(&network, "203.0.113.9");
        [proxy, second].into_iter().for_each(Daemon::interrupt);
    });
}
