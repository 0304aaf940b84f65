//! Limits of hosts beside an uplink, of hosts outside a server, and of clients with a valid key.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use crate::common::*;
use rustix::process::Signal;

const CAMERA: [&str; 2] = ["192.168.50.2", "fd50::2"];

/// A stranger in the network of a third uplink with default routes over the box.
fn camera_and_stranger(network: &TestNetwork) -> (NetNs, NetNs) {
    let camera = network.connect_camera_of_both_families();
    let stranger = NetNs::create("stranger").unwrap();
    cable(
        (&network.vehicle, "eth3", &["10.3.0.2/24", "fd03::2/64"]),
        (&stranger, "eth0", &["10.3.0.1/24", "fd03::1/64"]),
    );
    network.vehicle.ip("route add default via 10.3.0.1 metric 300").unwrap();
    stranger.ip("route add default via 10.3.0.2").unwrap();
    stranger.ip("-6 route add default via fd03::2").unwrap();
    (camera, stranger)
}

fn reaches(from: &NetNs, to: &NetNs, address: &str) -> bool {
    reaches_port(from, to, SocketAddr::new(address.parse().unwrap(), 0))
}

fn reaches_port(from: &NetNs, to: &NetNs, at: SocketAddr) -> bool {
    let any = if at.is_ipv4() { "0.0.0.0" } else { "::" };
    let bind = |namespace: &NetNs, port: u16| {
        let socket = namespace.enter(|| UdpSocket::bind((any, port)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
        socket
    };
    let (sender, receiver) = (bind(from, 0), bind(to, at.port()));
    let port = receiver.local_addr().unwrap().port();
    if sender.send_to(b"there", (at.ip(), port)).is_err() {
        return false;
    }
    let Ok((_, remote)) = receiver.recv_from(&mut [0; 9]) else { return false };
    receiver.send_to(b"back", remote).unwrap();
    sender.recv(&mut [0; 9]).is_ok()
}

fn forwarding(namespace: &NetNs) -> [String; 2] {
    let read = |key: &str| std::fs::read_to_string(format!("/proc/sys/net/{key}")).unwrap();
    let keys = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"];
    namespace.enter(|| keys.map(|key| read(key).trim().to_owned())).unwrap()
}

fn has_table(namespace: &NetNs, name: &str) -> bool {
    namespace.run("nft list tables").unwrap().contains(name)
}

#[test]
fn a_stranger_beside_an_uplink_reaches_nothing_behind_the_box() {
    on_network(|network| {
        let (camera, stranger) = camera_and_stranger(&network);
        let check_closed = |when: &str| {
            for address in CAMERA {
                assert!(!reaches(&stranger, &camera, address), "{address} {when}");
            }
        };
        // A box that forwards anyway is closed once the client runs, without a server.
        network.vehicle.set_forwarding().unwrap();
        wait_until("the test can fail", || {
            CAMERA.iter().all(|address| reaches(&stranger, &camera, address))
        });
        let client = network.start_client("client");
        wait_until("the table", || has_table(&network.vehicle, "roadweave_rw0"));
        check_closed("before the client has joined");
        client.interrupt();
        assert_eq!(forwarding(&network.vehicle), ["1", "1"]);

        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            network.vehicle.set_sysctl(key, "0").unwrap();
        }
        let (server, client) = network.start_both();
        assert_eq!(forwarding(&network.vehicle), ["1", "1"]);
        check_closed("while joined");
        check_ping(&camera, "203.0.113.2", "-c 1");
        for address in ["10.77.0.2", "fd77::2"] {
            assert!(!reaches(&stranger, &network.vehicle, address), "{address} is for the tunnel");
        }
        assert!(reaches(&network.server, &network.vehicle, "10.77.0.2"));
        let drops = network.show(CLIENT)["drops"].clone();
        assert_eq!(
            (&drops["forward-refused"], &drops["inner-from-outside"]),
            (&2.into(), &2.into())
        );

        nft(&network.vehicle, "flush ruleset");
        let put_back = "another program changed or removed the packet filters of this";
        wait_within(Duration::from_secs(5), "the table is back", || client.count(put_back) == 1);
        check_closed("after nft flush ruleset");
        check_ping(&camera, "203.0.113.2", "-c 1");

        client.kill();
        assert_eq!(forwarding(&network.vehicle), ["1", "1"], "the test can fail");
        check_closed("after kill -9");
        let late = NetNs::create("late").unwrap();
        cable((&network.vehicle, "eth9", &["10.9.0.2/24"]), (&late, "eth0", &["10.9.0.1/24"]));
        late.ip("route add default via 10.9.0.2").unwrap();
        assert!(!reaches(&late, &camera, CAMERA[0]), "a modem that was plugged in after kill -9");

        let client = network.start_joined("client");
        client.interrupt();
        assert_eq!(forwarding(&network.vehicle), ["0", "0"], "as before the first start");
        assert!(!has_table(&network.vehicle, "roadweave"));
        drop(server);
    });
}

#[test]
fn a_client_reaches_no_more_of_its_server_than_it_may() {
    on_network(|network| {
        network.edit("server.toml", |text| {
            let (_, text) = text.split_once('\n').expect("what is allowed for tests");
            format!("allow_destinations = [\"203.0.113.1:53\", \"{GATEWAY_V4}:53\"]\n{text}")
        });
        // The cloud's metadata service, one hop behind the server.
        for address in ["169.254.169.254/32", "fd00:ec2::254/128"] {
            network.cloud.ip(&format!("address add {address} dev lo nodad")).unwrap();
        }
        network.server.ip("route add 169.254.169.254 via 203.0.113.2").unwrap();
        network.server.ip("-6 route add fd00:ec2::254 via 2001:db8:1::2").unwrap();
        let (server, client) = network.start_both();
        let from = &network.vehicle;
        assert!(reaches(from, &network.cloud, "203.0.113.2"), "the test can fail");
        for address in ["169.254.169.254", "fd00:ec2::254"] {
            assert!(reaches(&network.server, &network.cloud, address), "the test can fail");
            assert!(!reaches(from, &network.cloud, address), "{address}");
        }
        let own = |port| SocketAddr::new([203, 0, 113, 1].into(), port);
        assert!(!reaches_port(from, &network.server, own(22)));
        assert!(reaches_port(from, &network.server, own(53)), "it is allowed");
        assert!(!reaches(from, &network.server, "2001:db8:1::1"));
        for address in [GATEWAY_V4, GATEWAY_V6] {
            assert!(!reaches(from, &network.server, address), "{address}");
            check_ping(from, address, "-c 1");
        }
        let inner = SocketAddr::new(GATEWAY_V4.parse().unwrap(), 53);
        assert!(reaches_port(from, &network.server, inner), "it is allowed");
        assert_eq!(network.show(SERVER)["drops"]["denied-destination"], 6);

        network.edit("server.toml", |text| {
            let text = text.replace("203.0.113.1:53", "203.0.113.1:22");
            format!("deny_destinations = [\"169.254.0.0/16\", \"203.0.113.2/32\"]\n{text}")
        });
        server.signal(Signal::HUP);
        server.wait_for("the destinations that clients may reach were read again");
        wait_within(Duration::from_secs(5), "others are denied", || {
            !reaches(from, &network.cloud, "203.0.113.2")
        });
        assert!(!reaches(from, &network.cloud, "169.254.169.254"));
        assert_eq!(
            [22, 53].map(|port| reaches_port(from, &network.server, own(port))),
            [true, false]
        );
        assert_eq!(server.count("ignored until the next start"), 0, "{}", server.log());
        assert_eq!((client.count("joined"), server.count("joined")), (1, 1));

        network.cloud.ip("route add 10.77.0.0/24 via 203.0.113.1").unwrap();
        assert!(!reaches(&network.cloud, &network.server, GATEWAY_V4));
        assert!(!reaches(&network.cloud, from, "10.77.0.2"));
        let drops = network.show(SERVER)["drops"].clone();
        assert_eq!(
            (&drops["forward-refused"], &drops["inner-from-outside"]),
            (&1.into(), &1.into())
        );

        nft(&network.server, "flush ruleset");
        server.wait_for("another program changed or removed the packet filters of this");
        network.server.ip(&format!("address del {GATEWAY_V4}/16 dev {SERVER}")).unwrap();
        server.wait_for("another program removed rules, routes or addresses of the tunnel");
        network.server.ip(&format!("link set {SERVER} down")).unwrap();
        server.wait_for("another program set the tunnel's interface down");
        wait_within(Duration::from_secs(5), "all is back", || {
            ping(from, GATEWAY_V4, "-c 1 -W 1").status.success()
        });
        assert!(!reaches(&network.cloud, &network.server, GATEWAY_V4));
        drop((server, client));
    });
}
