//! How the box finds its server by name: over each uplink, outside the tunnel.

use std::fs;
use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use crate::common::*;
use socket2::{Domain, Protocol, Socket, Type};

/// Where the server is at first, as `init` wrote it.
const HERE: &str = "198.51.100.1";
/// Where it moves to.
const THERE: &str = "198.51.100.7";
/// A name server beyond the uplinks' own networks.
const DNS: &str = "198.51.100.53";

/// The file of the client names its server by name.
fn by_name(road: &Road) {
    road.edit("client.toml", |text| text.replace("\"198.51.100.1:4433\"", "\"edge.test:4433\""));
}

/// What a DHCP client has learned of an uplink.
fn lease(road: &Road, interface: &str, server: &str) {
    let index =
        road.vehicle.enter(|| fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")));
    // The sandbox's /sys shows the network of the first process; ask `ip` where it does.
    let index = index.unwrap().unwrap_or_else(|_| index_of(&road.vehicle, interface).to_string());
    fs::create_dir_all("/run/systemd/netif/leases").unwrap();
    let path = format!("/run/systemd/netif/leases/{}", index.trim());
    fs::write(path, format!("ROUTER=10.1.0.1\nDNS={server}\n")).unwrap();
}

fn index_of(namespace: &NetNs, interface: &str) -> u32 {
    let text = namespace.run(&format!("ip -o link show {interface}")).unwrap();
    text.split(':').next().unwrap().parse().unwrap()
}

#[test]
fn a_server_that_moves_is_found_while_the_tunnel_is_dead() {
    run_sandboxed(|| {
        let road = Road::new();
        by_name(&road);
        for address in [THERE, DNS, "198.51.100.54"] {
            road.server.ip(&format!("address add {address}/32 dev lo")).unwrap();
        }
        // The name server of the first uplink knows; that of the second lies, and the gateway of
        // neither would answer.
        let zone = dns::serve(&road.server, DNS, &[("edge.test", HERE)]);
        dns::serve(&road.server, "198.51.100.54", &[("edge.test", "203.0.113.66")]);
        lease(&road, "eth1", DNS);
        lease(&road, "eth2", "198.51.100.54");
        road.set_resolvers("nameserver 127.0.0.53\n");

        let start = Watch::start();
        let server = road.start_server();
        let client = road.start_client("client");
        client.wait_for(" joined ");
        assert!(start.elapsed() < Duration::from_secs(5), "a liar delays nobody");
        assert!(client.log().contains(HERE), "{}", client.log());
        // The session knows the server, so the second uplink carries it too.
        road.wait_for_paths(&["eth1", "eth2"]);

        // The server dies, and another takes its name, at another address; the tunnel leads
        // nowhere.
        server.kill();
        road.server.ip(&format!("address del {HERE}/32 dev lo")).unwrap();
        {
            let mut zone = zone.lock().unwrap();
            zone.addresses = vec![("new.edge.test".to_owned(), THERE.parse().unwrap())];
            zone.alias = Some(("edge.test".to_owned(), "new.edge.test".to_owned()));
            zone.truncates = true;
        }
        let moved = Watch::start();
        let _server = road.start_server();
        client.wait_for_count(" joined ", 2);
        let after = moved.elapsed();
        assert!(after < Duration::from_secs(25), "found after {after:?}\n{}", client.log());
        assert!(client.log().contains(&format!("server={THERE}:4433")), "{}", client.log());
        road.wait_for_paths(&["eth1", "eth2"]);
    });
}

#[test]
fn an_address_that_a_name_is_found_to_have_is_taken_from_an_uplink_that_had_it_before() {
    run_sandboxed(|| {
        let road = Road::new();
        by_name(&road);
        // A WiFi has leased the server's address before any name is looked up.
        road.vehicle.ip("address del 10.2.0.2/24 dev eth2").unwrap();
        road.vehicle.ip(&format!("address add {HERE}/32 dev eth2")).unwrap();
        road.server.ip(&format!("address add {DNS}/32 dev lo")).unwrap();
        lease(&road, "eth1", DNS);
        road.set_resolvers("nameserver 127.0.0.53\n");
        let zone = dns::serve(&road.server, DNS, &[("other.test", HERE)]);
        let server = road.start_server();
        let client = road.start_client("client");
        client.wait_for("the client runs");
        sleep(Duration::from_secs(2));
        zone.lock().unwrap().addresses = vec![("edge.test".to_owned(), HERE.parse().unwrap())];
        client.wait_for(&format!("its address {HERE}/32 takes {HERE}, the server's"));
        client.wait_for(" joined ");
        road.wait_for_paths(&["eth1"]);

        // An uplink over which the server answers keeps its address, whatever one other says.
        road.vehicle.ip("address add 10.2.0.2/24 dev eth2").unwrap();
        road.route_uplink(2);
        road.wait_for_paths(&["eth1", "eth2"]);
        zone.lock().unwrap().addresses =
            vec![("edge.test".to_owned(), "10.2.0.2".parse().unwrap())];
        drop(server);
        client.wait_for("no uplink answers");
        sleep(Duration::from_secs(8));
        let _server = road.start_server();
        road.wait_for_paths(&["eth1", "eth2"]);
        assert_eq!(client.count("its address"), 1, "{}", client.log());
    });
}

/// Answers for the name server at `DNS`, but from elsewhere, and only then hands the question to
/// the one that was asked.
fn forge(namespace: &NetNs, elsewhere: [&str; 2]) {
    let bind = |address: &str| namespace.enter(|| UdpSocket::bind(address).unwrap()).unwrap();
    let (asked, inner) = (bind(&format!("{DNS}:53")), bind("127.0.0.1:0"));
    let forgers = elsewhere.map(bind);
    spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, from)) = asked.recv_from(&mut question) {
            let lie = dns::answer_with(&question[..length], "203.0.113.66");
            forgers.iter().for_each(|forger| drop(forger.send_to(&lie, from)));
            sleep(Duration::from_millis(100));
            inner.send_to(&question[..length], "127.0.0.1:53").unwrap();
            let mut answer = [0; 512];
            let length = inner.recv(&mut answer).unwrap();
            asked.send_to(&answer[..length], from).unwrap();
        }
    });
}

#[test]
fn an_answer_from_another_address_or_port_counts_for_nothing() {
    run_sandboxed(|| {
        let road = Road::new();
        by_name(&road);
        road.server.ip(&format!("address add {DNS}/32 dev lo")).unwrap();
        dns::serve(&road.server, "127.0.0.1", &[("edge.test", HERE)]);
        forge(&road.server, [&format!("{DNS}:5353"), "198.51.100.1:53"]);
        lease(&road, "eth1", DNS);
        lease(&road, "eth2", DNS);
        road.set_resolvers("nameserver 127.0.0.53\n");
        let server = road.start_server();
        road.edit("client.toml", |text| text.replace("info", "debug"));
        let mut command = road.vehicle.command(PROGRAM);
        command.args(["--log", "debug", "client", "--config"]).arg(road.path("client.toml"));
        let client = Daemon::start(command, road.path("client.log"));
        client.wait_for(" joined ");
        assert!(client.count("looked up") > 0, "{}", client.log());
        assert_eq!(client.count("203.0.113.66"), 0, "{}", client.log());
        drop(server);
    });
}

/// Translates between the server's address behind a NAT64 and the server, for one client: the
/// kernel cannot.
fn translate(namespace: &NetNs, from: &str) {
    let from: SocketAddr = from.parse().unwrap();
    namespace.ip(&format!("address add {}/128 dev lo nodad", from.ip())).unwrap();
    let (near, far) = namespace
        .enter(|| {
            let far = UdpSocket::bind("198.51.100.64:0").unwrap();
            far.connect((HERE, 4433)).unwrap();
            (UdpSocket::bind(from).unwrap(), far)
        })
        .unwrap();
    let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    let client = Arc::new(Mutex::new(None));
    let client_too = client.clone();
    spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((length, from)) = near.recv_from(&mut buffer) {
            *client.lock().unwrap() = Some(from);
            let _ = far.send(&buffer[..length]);
        }
    });
    spawn(move || {
        let mut buffer = vec![0; 65_536];
        loop {
            // A server that is not there yet refuses.
            let Ok(length) = far_too.recv(&mut buffer) else { continue };
            if let Some(to) = *client_too.lock().unwrap() {
                let _ = near_too.send_to(&buffer[..length], to);
            }
        }
    });
}

/// Advertises something to the neighbours, five times a second.
fn advertise(namespace: &NetNs, interface: &'static str, option: &[u8]) {
    let index = index_of(namespace, interface);
    let socket = namespace
        .enter(|| {
            let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).unwrap();
            socket.bind_device(Some(interface.as_bytes())).unwrap();
            socket.set_multicast_hops_v6(255).unwrap();
            socket
        })
        .unwrap();
    // A router that is nobody's default: hop limit, flags, and lifetimes that say nothing.
    let mut advertisement = vec![134, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    advertisement.extend(option);
    let all = SocketAddrV6::new("ff02::1".parse().unwrap(), 0, 0, index);
    spawn(move || {
        loop {
            let _ = socket.send_to(&advertisement, &SocketAddr::from(all).into());
            sleep(Duration::from_millis(200));
        }
    });
}

/// A box with one uplink, eth1, that has no IPv4: a NAT64 translates. The prefix is that of the
/// addresses of ipv4only.arpa (RFC 7050); the client's file has an IPv4 literal.
fn behind_nat64() -> (Road, Arc<Mutex<dns::Zone>>) {
    let road = Road::without_uplinks();
    cable(
        (&road.vehicle, "eth1", &["2001:db8:a::2/64"]),
        (&road.server, "eth1", &["2001:db8:a::1/64"]),
    );
    road.vehicle.ip("route add default via 2001:db8:a::1").unwrap();
    road.server.ip("address add 198.51.100.64/32 dev lo").unwrap();
    road.edit("server.toml", |text| text.replace("[::]:4433", "198.51.100.1:4433"));
    road.set_resolvers("nameserver 127.0.0.53\n");
    translate(&road.server, "[64:ff9b::198.51.100.1]:4433");
    let zone = dns::serve(
        &road.server,
        "2001:db8:a::1",
        &[
            ("ipv4only.arpa", "64:ff9b::192.0.0.170"),
            ("ipv4only.arpa", "64:ff9b::192.0.0.171"),
            ("edge.test", HERE),
        ],
    );
    (road, zone)
}

/// A NAT64 prefix (RFC 8781): half an hour, 96 bits, 2001:db8:64::/96.
const NAT64: [u8; 16] = [38, 2, 0x07, 0x08, 0x20, 0x01, 0x0d, 0xb8, 0, 0x64, 0, 0, 0, 0, 0, 0];
/// A prefix for addresses that hosts make themselves (RFC 4861 section 4.6.2): half an hour,
/// 2001:db8:c::/64.
const PREFIX: [u8; 32] = [
    3, 4, 64, 0xc0, 0, 0, 0x07, 0x08, 0, 0, 0x07, 0x08, 0, 0, 0, 0, //
    0x20, 0x01, 0x0d, 0xb8, 0, 0x0c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

#[test]
fn an_uplink_without_ipv4_that_comes_during_a_session_gets_an_address() {
    run_sandboxed(|| {
        let road = Road::new();
        let (_server, _client) = road.start_both();
        // The box forwards now, and the kernel of one that forwards is deaf to routers by default.
        cable((&road.vehicle, "eth3", &[]), (&road.server, "eth3", &["2001:db8:c::1/64"]));
        advertise(&road.server, "eth3", &PREFIX);
        let addresses = || road.vehicle.run("ip -6 address show dev eth3 scope global").unwrap();
        let is_there = || addresses().contains("2001:db8:c:");
        wait_within(Duration::from_secs(8), "an address", is_there);
    });
}

#[test]
fn an_uplink_without_ipv4_reaches_a_server_that_has_nothing_else() {
    run_sandboxed(|| {
        let (road, zone) = behind_nat64();
        let _server = road.start_server();
        let client = road.start_client("client");
        client.wait_for("server=[64:ff9b::c633:6401]:4433");
        client.interrupt();

        // Now no name server knows a prefix, but the router tells one (RFC 8781), and the server
        // has a name.
        translate(&road.server, "[2001:db8:64::198.51.100.1]:4433");
        zone.lock().unwrap().addresses.drain(..2);
        by_name(&road);
        advertise(&road.server, "eth1", &NAT64);
        let client = road.start_client("client");
        client.wait_for("server=[2001:db8:64::c633:6401]:4433");
        client.interrupt();
    });
}
