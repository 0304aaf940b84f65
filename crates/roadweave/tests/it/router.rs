//! Two redundant routers: every packet crosses on both links, and one may die.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use crate::common::*;
use serde_json::Value;

fn write_files(network: &TestNetwork) {
    let behind = "\"203.0.113.0/24\", \"2001:db8:1::/64\"";
    for (name, own, peer, into, tun) in
        [("near", 2, 1, behind, CLIENT), ("far", 1, 2, "\"192.168.50.0/24\"", SERVER)]
    {
        let links = [1, 2].map(|number| members::link(number, own, peer)).concat();
        let file = format!(
            "addresses = [\"10.77.0.{own}/24\", \"fd77::{own}/64\"]\ninto_tunnel = [{into}]\n\
             [tun]\nname = \"{tun}\"\n{links}"
        );
        fs::write(network.path(&format!("{name}.toml")), file).unwrap();
    }
}

fn start_both(network: &TestNetwork) -> (Daemon, Daemon) {
    let far = network.start(&network.server, "router", "far");
    let near = network.start(&network.vehicle, "router", "near");
    for instance in [CLIENT, SERVER] {
        wait_until(instance, || fs::exists(socket(instance)).unwrap());
        network
            .wait_for_status(instance, "both links", |status| usable(status) == ["eth1", "eth2"]);
    }
    (far, near)
}

fn link<'a>(status: &'a Value, name: &str) -> &'a Value {
    let links = status["sessions"][0]["paths"].as_array().unwrap();
    links.iter().find(|link| link["uplink"] == name).unwrap()
}

fn ping_while(from: &NetNs, to: &str, disturb: impl FnOnce()) {
    std::thread::scope(|scope| {
        let pings = scope.spawn(|| ping(from, to, "-c 400 -i 0.005 -s 1200"));
        sleep(Duration::from_millis(600));
        disturb();
        let output = pings.join().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("400 packets transmitted, 400 received"), "{output:?}");
    });
}

#[test]
fn every_packet_crosses_on_both_links_and_one_may_die() {
    on_network(|network| {
        let camera = network.connect_camera();
        network.cloud.ip("route add 192.168.50.0/24 via 203.0.113.1").unwrap();
        write_files(&network);
        let (far, near) = start_both(&network);
        assert_eq!(near.count("this tunnel neither encrypts nor authenticates packets"), 1);
        for address in [GATEWAY_V4, GATEWAY_V6] {
            for size in [0, 56, 1300, 9000] {
                check_ping(&network.vehicle, address, &format!("-c 3 -i 0.05 -s {size}"));
            }
        }
        // Over both families a link dies: one is down, and one swallows every packet.
        let down = || network.server.ip("link set eth1 down").unwrap();
        ping_while(&network.vehicle, GATEWAY_V4, down);
        network.wait_for_status(CLIENT, "eth1 is silent", |status| usable(status) == ["eth2"]);
        network.server.ip("link set eth1 up").unwrap();
        network.wait_for_status(CLIENT, "eth1 is back", |status| usable(status).len() == 2);
        let silent = || network.silence("eth2", true);
        ping_while(&network.vehicle, GATEWAY_V6, silent);
        network.silence("eth2", false);

        let status = network.show(SERVER);
        let session = &status["sessions"][0];
        assert_eq!((&status["role"], &session["peer_packets_lost"]), (&"router".into(), &0.into()));
        let adopted = |name| link(&status, name)["counters"]["adopted"].as_u64().unwrap();
        assert!(adopted("eth1") > 0 && adopted("eth2") > 0, "{status:#}");
        assert!(link(&status, "eth1")["lost"].as_u64() > Some(0), "{status:#}");
        assert_eq!(session["lanes"][0]["received"]["order"]["order"], "reorder");
        network.check_shown(&[CLIENT, SERVER]);
        let page = network.page(SERVER);
        for part in ["router rws", "eth1", "eth2", "adopted", "0 arrived over no link"] {
            assert!(page.contains(part), "{part} is not in:\n{page}");
        }
        for (from, to, at) in [
            (&camera, &network.cloud, "203.0.113.2:80"),
            (&network.cloud, &camera, "192.168.50.2:80"),
        ] {
            let at: SocketAddr = at.parse().unwrap();
            let listener = to.enter(|| TcpListener::bind(at).unwrap()).unwrap();
            let stream = from.enter(|| TcpStream::connect_timeout(&at, WAIT_MAX).unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            for end in [&stream, &accepted] {
                let size = socket2::SockRef::from(end).tcp_mss().unwrap();
                // 1,400 less 40 bytes of headers and TCP's timestamps.
                assert!((1300..=1360).contains(&size), "{size}");
            }
        }
        interrupt([near, far]);
    });
}
