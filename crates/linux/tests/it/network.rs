//! Uplinks, routes, packet filters and their removal, in real namespaces.

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_linux::{
    Change, ClientRoutes, DeviceError, Excluded, FilterKeeper, FilterOptions, Filters, Forwarding,
    Gateway, Grant, Instance, LocalNetworks, Monitor, Netlink, Outgoing, ROUTE_PROTOCOL,
    RouteSettings, Routes, SendOutcome, Tun, TunOptions, UdpOptions, Uplink, UplinkSocket, cleanup,
    wait_readable,
};
use roadweave_proto::UplinkSelector;

use crate::common::*;

fn tun(name: &str, address: &str) -> Tun {
    let addresses = vec![prefix(address)];
    Tun::open(&TunOptions { name: name.to_owned(), mtu: 1400, addresses, offload: true }).unwrap()
}

fn filters(tun: &str, inner: &str) -> FilterOptions {
    let inner = vec![prefix(inner)];
    FilterOptions { inner, masquerade: true, ..FilterOptions::new(tun, 1400, Forwarding::Open) }
}

fn selector(include: &[&str], exclude: &[&str]) -> UplinkSelector {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let (include, exclude) = (names(include), names(exclude));
    UplinkSelector { include, exclude, inside: Vec::new() }
}

fn to_server(contents: &[u8]) -> Outgoing<'_> {
    Outgoing {
        destination: "10.99.0.1:4433".parse().unwrap(),
        source: None,
        ecn: None,
        contents,
        segment_size: contents.len(),
    }
}

fn server_at(namespace: &NetNs, address: &str) -> UdpSocket {
    let server = namespace.enter(|| UdpSocket::bind(address).unwrap()).unwrap();
    server.set_read_timeout(Some(WAIT_MAX)).unwrap();
    server
}

fn client_routes(instance: &Instance, tun: &Tun, into_tunnel: &[&str]) -> ClientRoutes {
    let settings = RouteSettings {
        into_tunnel: into_tunnel.iter().map(|text| prefix(text)).collect(),
        excluded: Excluded::default(),
        closed_before_join: false,
        local: LocalNetworks::Network,
        accept: Vec::new(),
        selector: selector(&["eth*"], &["eth0"]),
    };
    ClientRoutes::open(instance, settings, tun.index()).unwrap()
}

fn grant(address: &str) -> Grant {
    let (addresses, gateways, networks) = (vec![prefix(address)], Vec::new(), Vec::new());
    Grant { addresses, gateways, networks, mtu: 1400 }
}

fn await_uplinks<T>(monitor: &mut Monitor, mut found: impl FnMut(&Monitor) -> Option<T>) -> T {
    let watch = Watch::start();
    while watch.elapsed() < WAIT_MAX {
        monitor.poll().unwrap();
        if let Some(result) = found(monitor) {
            return result;
        }
        wait_readable(&*monitor, Duration::from_millis(500)).unwrap();
    }
    panic!("it never came");
}

/// A box with two modems that both assign 192.168.8.100, a server at 10.99.0.1, a default route.
struct TwoModems {
    vehicle: NetNs,
    internet: NetNs,
}

impl TwoModems {
    fn new() -> Self {
        let vehicle = NetNs::create("box").unwrap();
        let internet = NetNs::create("internet").unwrap();
        let elsewhere = NetNs::create("elsewhere").unwrap();
        cable((&vehicle, "eth0", &["172.16.0.2/24"]), (&elsewhere, "eth0", &["172.16.0.1/24"]));
        vehicle.ip("route add default via 172.16.0.1").unwrap();
        for number in [1, 2] {
            let modem = NetNs::create(&format!("modem{number}")).unwrap();
            let here = format!("eth{number}");
            cable((&vehicle, &here, &["192.168.8.100/24"]), (&modem, "lan0", &["192.168.8.1/24"]));
            let (near, far) = (format!("10.{number}.0.2/24"), format!("10.{number}.0.1/24"));
            cable((&modem, "wan0", &[&near]), (&internet, &here, &[&far]));
            modem.ip(&format!("route add default via 10.{number}.0.1")).unwrap();
            modem.set_forwarding().unwrap();
            // The modem's own NAT; the filters' "TUN" is its inner side.
            let instance = Instance::new("modem").unwrap();
            let options = FilterOptions { forward: false, ..filters("lan0", "192.168.8.0/24") };
            let filters = modem.enter(|| Filters::install(&instance, &options).unwrap()).unwrap();
            std::mem::forget(filters);
        }
        internet.ip("address add 10.99.0.1/32 dev lo").unwrap();
        for interface in ["all", "eth1", "eth2"] {
            vehicle.set_sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "1").unwrap();
        }
        Self { vehicle, internet }
    }

    fn check_round_trip(&self, socket: &mut UplinkSocket, server: &UdpSocket, number: u8) {
        assert_eq!(socket.send(&to_server(&[number; 20])), SendOutcome::Sent);
        let mut buffer = [0; 100];
        let (length, remote) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(buffer[..length], [number; 20]);
        assert_eq!(remote.ip(), IpAddr::from([10, number, 0, 2]));
        server.send_to(&[number; 5], remote).unwrap();
        assert!(wait_readable(&*socket, WAIT_MAX).unwrap(), "no answer on uplink {number}");
        let mut answers = Vec::new();
        socket.recv(|incoming| answers.push(incoming.payload.to_vec())).unwrap();
        assert_eq!(answers, [vec![number; 5]]);
    }
}

#[test]
fn two_uplinks_with_the_same_address_both_work() {
    run_sandboxed(|| {
        let world = TwoModems::new();
        let server = server_at(&world.internet, "10.99.0.1:4433");
        let instance = Instance::new("client").unwrap();
        let tun = world.vehicle.enter(|| tun("rw0", "10.8.0.2/24")).unwrap();
        let (mut routes, mut sockets) = world
            .vehicle
            .enter(|| {
                let mut monitor = Monitor::open(selector(&["eth*"], &["eth0"])).unwrap();
                let uplinks = await_uplinks(&mut monitor, |monitor| {
                    let usable = monitor.uplinks().filter(|uplink| uplink.is_usable(true));
                    Some(usable.cloned().collect::<Vec<Uplink>>()).filter(|all| all.len() == 2)
                });
                let mut routes = client_routes(&instance, &tun, &["0.0.0.0/0"]);
                let mut sockets = Vec::new();
                for uplink in &uplinks {
                    let modem = Gateway::Guessed([192, 168, 8, 1].into());
                    assert_eq!(uplink.gateway_v4, Some(modem));
                    routes.set_uplink(uplink).unwrap();
                    let options = UdpOptions::uplink(&uplink.name, true);
                    sockets.push(UplinkSocket::open(&options).unwrap());
                }
                (routes, sockets)
            })
            .unwrap();
        for (socket, number) in sockets.iter_mut().zip([1, 2]) {
            world.check_round_trip(socket, &server, number);
        }

        routes.set_grant(grant("10.8.0.2/24")).unwrap();
        assert_eq!(routes.take_failures().count(), 0);
        for (socket, number) in sockets.iter_mut().zip([1, 2]) {
            world.check_round_trip(socket, &server, number);
        }
    });
}

fn router(vehicle: &NetNs, number: u8) -> NetNs {
    let router = NetNs::create(&format!("router{number}")).unwrap();
    let name = format!("eth{number}");
    let near = [format!("10.{number}.0.2/24"), format!("fd0{number}::2/64")];
    let far = [format!("10.{number}.0.1/24"), format!("fd0{number}::1/64")];
    cable(
        (vehicle, &name, &near.each_ref().map(|it| &**it)),
        (&router, "lan0", &[&far[0], &far[1]]),
    );
    router
}

fn await_gateways(monitor: &mut Monitor, ipv4: bool, wanted: [Option<&str>; 2]) {
    let wanted = wanted.map(|it| it.map(|it| Gateway::Known(it.parse().unwrap())));
    await_uplinks(monitor, |monitor| {
        let seen: Vec<_> = monitor.uplinks().map(|uplink| uplink.gateway(ipv4)).collect();
        (seen == wanted).then_some(())
    });
}

#[test]
fn a_default_route_by_several_next_hops_gives_each_uplink_its_own() {
    run_sandboxed(|| {
        let vehicle = NetNs::create("box").unwrap();
        let routers = [1, 2].map(|number| router(&vehicle, number));
        let open = || Monitor::open(selector(&["eth*"], &[])).unwrap();
        let mut monitor = vehicle.enter(open).unwrap();
        let hops = "nexthop via 10.1.0.1 dev eth1 nexthop via 10.2.0.1 dev eth2";
        vehicle.ip(&format!("route add default metric 5 {hops}")).unwrap();
        await_gateways(&mut monitor, true, [Some("10.1.0.1"), Some("10.2.0.1")]);
        let hops = "nexthop via fd01::1 dev eth1 nexthop via fd02::1 dev eth2";
        vehicle.ip(&format!("-6 route add default metric 5 {hops}")).unwrap();
        await_gateways(&mut monitor, false, [Some("fd01::1"), Some("fd02::1")]);
        vehicle.ip("route del default").unwrap();
        vehicle.ip("-6 route del default").unwrap();

        vehicle.ip("nexthop add id 1 via 10.1.0.9 dev eth1").unwrap();
        vehicle.ip("nexthop add id 2 via 10.2.0.9 dev eth2").unwrap();
        vehicle.ip("nexthop add id 3 group 1/2").unwrap();
        vehicle.ip("route add default nhid 3").unwrap();
        await_gateways(&mut monitor, true, [Some("10.1.0.9"), Some("10.2.0.9")]);
        vehicle.ip("nexthop replace id 1 via 10.1.0.7 dev eth1").unwrap();
        await_gateways(&mut monitor, true, [Some("10.1.0.7"), Some("10.2.0.9")]);
        vehicle.ip("route del default").unwrap();

        // A next hop of IPv6 (RFC 5549) is kept, in the uplink's own table too.
        vehicle.ip("-4 route add default via inet6 fd01::1 dev eth1").unwrap();
        let guessed = Gateway::Guessed([10, 2, 0, 1].into());
        let uplinks = await_uplinks(&mut monitor, |monitor| {
            let all: Vec<Uplink> = monitor.uplinks().cloned().collect();
            let first = Some(Gateway::Known("fd01::1".parse().unwrap()));
            let is_seen = all[0].gateway_v4 == first && all[1].gateway_v4 == Some(guessed);
            is_seen.then_some(all)
        });
        let instance = Instance::new("client").unwrap();
        routers[0].ip("address add 10.99.0.1/32 dev lo").unwrap();
        let server = server_at(&routers[0], "10.99.0.1:4433");
        let mut socket = vehicle
            .enter(|| {
                let tun = tun("rw0", "10.8.0.2/24");
                let mut routes = client_routes(&instance, &tun, &["0.0.0.0/0"]);
                routes.set_uplink(&uplinks[0]).unwrap();
                assert_eq!(routes.sync().unwrap(), [], "it is there");
                assert_eq!(routes.take_failures().count(), 0);
                UplinkSocket::open(&UdpOptions::uplink("eth1", true)).unwrap()
            })
            .unwrap();
        assert_eq!(socket.send(&to_server(b"hello")), SendOutcome::Sent);
        assert_eq!(server.recv_from(&mut [0; 100]).unwrap().0, 5);
    });
}

#[test]
fn inner_addresses_are_masqueraded_and_segments_clamped() {
    run_sandboxed(|| {
        let client = NetNs::create("client").unwrap();
        let server = NetNs::create("server").unwrap();
        let outside = NetNs::create("outside").unwrap();
        cable(
            (&client, "rw0", &["10.8.0.2/24", "fd08::2/64"]),
            (&server, "rw0", &["10.8.0.1/24", "fd08::1/64"]),
        );
        cable(
            (&server, "eth0", &["203.0.113.1/24", "2001:db8::1/64"]),
            (&outside, "eth0", &["203.0.113.2/24", "2001:db8::2/64"]),
        );
        client.ip("route add default via 10.8.0.1").unwrap();
        client.ip("-6 route add default via fd08::1").unwrap();
        let instance = Instance::new("server").unwrap();
        let options = FilterOptions {
            mtu: 1200,
            inner: vec![prefix("10.8.0.0/24"), prefix("fd08::/64")],
            ..filters("rw0", "10.8.0.0/24")
        };
        let filters = server.enter(|| Filters::install(&instance, &options).unwrap()).unwrap();
        std::mem::forget(filters);
        let filters = server.enter(|| Filters::install(&instance, &options).unwrap()).unwrap();

        for (address, seen, headers) in
            [("203.0.113.2:80", "203.0.113.1", 40), ("[2001:db8::2]:80", "2001:db8::1", 60)]
        {
            let address: SocketAddr = address.parse().unwrap();
            let listener = outside.enter(|| TcpListener::bind(address).unwrap()).unwrap();
            let stream =
                client.enter(|| TcpStream::connect_timeout(&address, WAIT_MAX).unwrap()).unwrap();
            let (accepted, remote) = listener.accept().unwrap();
            assert_eq!(remote.ip(), seen.parse::<IpAddr>().unwrap());
            // Timestamps take 12 bytes of it.
            for end in [&stream, &accepted] {
                let size = socket2::SockRef::from(end).tcp_mss().unwrap();
                assert!(size <= 1200 - headers && size >= 1200 - headers - 12, "{size}");
            }
        }

        server
            .enter(move || {
                drop(filters);
                assert_eq!(sysctl("ipv4/ip_forward"), "0");
                assert_eq!(sysctl("ipv6/conf/all/forwarding"), "0");
                assert_eq!(leftovers(), Vec::<String>::new());
            })
            .unwrap();
    });
}

fn change_as_another_program(machine: &NetNs) {
    machine.ip("link set rw0 down").unwrap();
    machine.ip("link set rw0 mtu 1300").unwrap();
    for family in ["-4", "-6"] {
        let _ = machine.ip(&format!("{family} rule del pref 600"));
        machine.ip(&format!("{family} rule add pref 600 lookup local")).unwrap();
        machine.ip(&format!("{family} rule del pref 0")).unwrap();
    }
}

fn link_and_rules(machine: &NetNs) -> Vec<String> {
    let run = |words: &str| machine.run(&format!("ip {words}")).unwrap();
    let link = run("-o link show rw0");
    let is_local = |line: &&str| line.starts_with("0:") && line.contains("lookup local");
    let rules = run("-4 rule") + &run("-6 rule");
    let mut found: Vec<String> = rules.lines().filter(is_local).map(str::to_owned).collect();
    found
        .extend(["mtu 1400", ",UP"].iter().filter(|it| link.contains(**it)).map(|it| (*it).into()));
    found.extend(run("-4 route show table all dev rw0").lines().map(str::to_owned));
    found.extend(run("-6 route show table all dev rw0").lines().map(str::to_owned));
    found
}

#[test]
fn what_another_program_changes_of_the_tun_and_the_rules_is_set_right() {
    run_sandboxed(|| {
        let machine = NetNs::create("machine").unwrap();
        let (before, after, changes) = machine
            .enter(|| {
                let tun = tun("rw0", "10.8.0.2/24");
                let instance = Instance::new("client").unwrap();
                let mut client = client_routes(&instance, &tun, &["0.0.0.0/0", "::/0"]);
                client.set_grant(grant("10.8.0.2/24")).unwrap();
                let before = link_and_rules(&machine);
                change_as_another_program(&machine);
                assert_ne!(link_and_rules(&machine), before, "the test can fail");
                let changes = client.sync().unwrap();
                assert_eq!(client.take_failures().count(), 0);
                assert_eq!(client.sync().unwrap(), [], "once");
                let after = link_and_rules(&machine);
                cleanup(&instance, &instance.lock().unwrap()).unwrap();
                (before, after, changes)
            })
            .unwrap();
        assert_eq!(after, before);
        assert_eq!(changes, [Change::LinkDown, Change::Mtu(1300), Change::LocalRule]);

        machine
            .enter(|| {
                let tun = tun("rw0", "10.8.0.2/24");
                let instance = Instance::new("server").unwrap();
                let mut server = Routes::open(&instance).unwrap();
                server.route_into_tun(tun.index(), &[prefix("0.0.0.0/0")]).unwrap();
                server.keep_tun(&tun, &[prefix("10.8.0.2/24")]);
                change_as_another_program(&machine);
                let changes = server.mend().unwrap();
                assert_eq!(changes, [Change::LinkDown, Change::Mtu(1300), Change::LocalRule]);
                machine.ip("-6 rule add pref 0 lookup local").unwrap();
                let mut keeper = FilterKeeper::start(&instance, None).unwrap();
                keeper.set_and_wait(filters("rw0", "10.8.0.0/24")).unwrap();
                let settings = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];
                let values = || settings.map(|it| sysctl(&it[4..].replace('.', "/")));
                for _ in 0..2 {
                    settings.iter().for_each(|it| machine.set_sysctl(it, "0").unwrap());
                    wait_until("forwarding stays off", || values() == ["1", "1"]);
                }
                drop((keeper, server));
                assert_eq!(values(), ["0", "0"]);
                assert_eq!(leftovers(), Vec::<String>::new());
            })
            .unwrap();
    });
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

#[test]
fn thousands_of_excluded_prefixes_are_read_and_mended_by_another_thread() {
    run_sandboxed(|| {
        let (vehicle, modem) = (NetNs::create("box").unwrap(), NetNs::create("modem").unwrap());
        cable((&vehicle, "eth1", &["10.1.0.2/24"]), (&modem, "eth1", &["10.1.0.1/24"]));
        let passing = || vehicle.run("ip route show table all type throw").unwrap().lines().count();
        let work = || {
            let mut monitor = Monitor::open(selector(&["eth*"], &[])).unwrap();
            let tun = tun("rw0", "10.8.0.2/24");
            let mut routes = client_routes(&Instance::new("client").unwrap(), &tun, &["0.0.0.0/0"]);
            routes.set_grant(grant("10.8.0.2/24")).unwrap();
            let one = |number: u32| IpNet::from(IpAddr::from((0xcb00_0000 + number).to_be_bytes()));
            let destinations = (0..9_000).map(one).collect();
            routes.set_excluded(Excluded { destinations, marks: Vec::new() });
            routes.sync().unwrap();
            routes.await_excluded().unwrap();
            assert_eq!(passing(), 18_000, "in two tables");
            // The event loop's work for a change of an address, against reading all routes.
            let begin = cpu_time();
            for number in 0..10 {
                vehicle.ip(&format!("address add 10.2.0.{number}/32 dev eth1")).unwrap();
                assert!(wait_readable(&monitor, WAIT_MAX).unwrap());
                monitor.poll().unwrap();
                assert_eq!(routes.sync().unwrap(), []);
            }
            let looks = (cpu_time() - begin) / 10;
            let begin = cpu_time();
            assert!(Netlink::open().unwrap().routes().unwrap().len() > 18_000);
            let all = cpu_time() - begin;
            eprintln!("a change takes {looks:?}, to read all routes {all:?}");
            assert!(looks < all / 2, "{looks:?} of {all:?}");
            vehicle.ip("route flush type throw table all").unwrap();
            wait_until("all are there again", || passing() == 18_000);
            routes.set_excluded(Excluded::default());
            routes.sync().unwrap();
            routes.await_excluded().unwrap();
            assert_eq!(passing(), 0);
        };
        vehicle.enter(work).unwrap();
    });
}

#[test]
fn two_instances_leave_each_other_alone() {
    run_sandboxed(|| {
        let (vehicle, modem) = (NetNs::create("box").unwrap(), NetNs::create("modem").unwrap());
        cable((&vehicle, "eth1", &["10.1.0.2/24"]), (&modem, "eth1", &["10.1.0.1/24"]));
        vehicle.set_sysctl("net.ipv4.conf.eth1.rp_filter", "1").unwrap();
        let work = || {
            let [first, second, third] =
                ["first", "second", "third"].map(|name| Instance::new(name).unwrap());
            let tuns = [("rw0", "10.8.0.2/24"), ("rw1", "10.9.0.2/24"), ("rw2", "10.10.0.2/24")];
            let [one, two, three] = tuns.map(|(name, address)| tun(name, address));
            let mut router = Routes::open(&third).unwrap();
            router.route_into_tun(three.index(), &[prefix("0.0.0.0/0")]).unwrap();
            let mut routes = client_routes(&first, &one, &["0.0.0.0/0"]);
            let mut monitor = Monitor::open(selector(&["eth1"], &[])).unwrap();
            monitor.poll().unwrap();
            for uplink in monitor.uplinks() {
                routes.set_uplink(uplink).unwrap();
            }
            routes.set_grant(grant("10.8.0.2/24")).unwrap();
            let filters = Filters::install(&first, &filters("rw0", "10.8.0.0/24")).unwrap();
            drop(filters);
            assert_eq!(sysctl("ipv4/ip_forward"), "0");
            assert_eq!(sysctl("ipv4/conf/eth1/rp_filter"), "2");

            let before = leftovers();
            let mut other = Routes::open(&second).unwrap();
            other.route_into_tun(two.index(), &[prefix("0.0.0.0/0")]).unwrap();
            assert_ne!(leftovers(), before);
            drop(other);
            assert_eq!(leftovers(), before);
            assert!(before.contains(&"rule 530".to_owned()), "{before:?}");
            assert_eq!(routes.sync().unwrap(), [], "nobody took anything of the first");
            cleanup(&first, &first.lock().unwrap()).unwrap();
            assert!(leftovers().contains(&"rule 530".to_owned()), "of the router");
            drop(router);
            assert_eq!(leftovers(), Vec::<String>::new());
            assert_eq!(sysctl("ipv4/conf/eth1/rp_filter"), "1");
        };
        vehicle.enter(work).unwrap();
    });
}

#[test]
fn without_ipv6_the_rest_works() {
    run_sandboxed(|| {
        let vehicle = NetNs::create("box").unwrap();
        for interface in ["all", "default"] {
            vehicle.set_sysctl(&format!("net.ipv6.conf.{interface}.disable_ipv6"), "1").unwrap();
        }
        let work = || {
            let addresses = vec![prefix("fd08::2/64"), prefix("10.8.0.2/24")];
            let (name, mtu) = ("rw0".to_owned(), 1400);
            let tun = Tun::open(&TunOptions { name, mtu, addresses, offload: true }).unwrap();
            let mut netlink = Netlink::open().unwrap();
            let own = netlink.addresses().unwrap();
            assert!(own.contains(&(tun.index(), prefix("10.8.0.2/24"))), "{own:?}");
            let error = netlink.add_address(tun.index(), prefix("fd08::3/128")).unwrap_err();
            assert!(matches!(error, DeviceError::NoIpv6 { .. }), "{error}");
            let mut routes = Routes::open(&Instance::new("client").unwrap()).unwrap();
            let error = routes.route_into_tun(tun.index(), &[prefix("::/0")]).unwrap_err();
            assert!(matches!(error, DeviceError::NoIpv6 { .. }), "{error}");
            routes.route_into_tun(tun.index(), &[prefix("0.0.0.0/0")]).unwrap();

            let mut client =
                client_routes(&Instance::new("other").unwrap(), &tun, &["0.0.0.0/0", "::/0"]);
            client.set_grant(grant("10.8.0.2/24")).unwrap();
            assert_eq!(client.take_failures().count(), 0, "what cannot be, need not be closed");
            assert_eq!(client.sync().unwrap(), []);

            netlink.remove_address(tun.index(), prefix("10.8.0.2/24")).unwrap();
            netlink.remove_address(tun.index(), prefix("10.8.0.2/24")).unwrap();
            let own = netlink.addresses().unwrap();
            assert!(!own.iter().any(|(index, _)| *index == tun.index()), "{own:?}");
        };
        vehicle.enter(work).unwrap();
    });
}

#[test]
fn a_name_that_is_no_text_hides_one_interface_and_blocks_nothing() {
    run_sandboxed(|| {
        let namespace = NetNs::create("box").unwrap();
        namespace.ip("link add odd0 type veth peer name odd1").unwrap();
        let mut command = namespace.command("ip");
        command.args(["link", "set", "odd0", "name"]).arg(OsStr::from_bytes(b"e\xff"));
        assert!(command.status().unwrap().success());
        namespace.ip("link add late0 type veth peer name late1").unwrap();
        let (sender, answer) = channel();
        namespace
            .enter(|| {
                std::thread::spawn(move || sender.send(Netlink::open().unwrap().links()));
            })
            .unwrap();
        let links = answer.recv_timeout(WAIT_MAX).expect("an answer").unwrap();
        let names: Vec<String> = links.into_iter().map(|link| link.name).collect();
        assert_eq!(names, ["lo", "odd1", "late1", "late0"]);
    });
}

fn leftovers() -> Vec<String> {
    let mut netlink = Netlink::open().unwrap();
    let mut found = Vec::new();
    for rule in netlink.rules().unwrap() {
        if rule.protocol == ROUTE_PROTOCOL {
            found.push(format!("rule {}", rule.priority));
        }
    }
    for route in netlink.routes().unwrap() {
        if route.protocol == ROUTE_PROTOCOL {
            found.push(format!("route {} table {}", route.destination, route.table));
        }
    }
    let filters = Command::new("nft").args(["list", "tables"]).output().unwrap();
    for line in String::from_utf8_lossy(&filters.stdout).lines() {
        if line.contains("roadweave") {
            found.push(format!("filter {line}"));
        }
    }
    found
}
