//! Traffic that leaves outside the tunnel as configured: by destination, by name, by program.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use crate::common::hosts::{Host, connect, seen_from};
use crate::common::*;
use socket2::{Domain, Socket, Type};

const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const INSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 3);
const PORT: u16 = 8080;
const UPLINKS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 1, 0, 2), Ipv4Addr::new(10, 2, 0, 2)];

struct World {
    network: TestNetwork,
    camera: NetNs,
    _hosts: Vec<Host>,
}

fn world(routes: &str) -> World {
    let network = TestNetwork::new();
    let camera = network.connect_camera();
    network.cloud.ip(&format!("address add {INSIDE}/24 dev eth0")).unwrap();
    network.cloud.ip("route add default via 203.0.113.1").unwrap();
    network.server.set_forwarding().unwrap();
    network.edit("client.toml", |text| match text.contains("[routes]\n") {
        true => text.replace("[routes]\n", &format!("[routes]\n{routes}")),
        false => format!("{text}\n[routes]\n{routes}"),
    });
    let hosts =
        [OUTSIDE, INSIDE].map(|host| Host::start(&network.cloud, (host, PORT).into())).into();
    World { network, camera, _hosts: hosts }
}

impl World {
    fn open(&self, from: &NetNs, host: Ipv4Addr) -> std::io::Result<(TcpStream, IpAddr)> {
        let mut socket = connect(from, SocketAddr::from((host, PORT)))?;
        let seen = seen_from(&mut socket)?;
        Ok((socket, seen.ip()))
    }

    fn seen(&self, from: &NetNs, host: Ipv4Addr) -> std::io::Result<IpAddr> {
        self.open(from, host).map(|(_, seen)| seen)
    }

    fn check_outside(&self, from: &NetNs, host: Ipv4Addr, when: &str) {
        let seen = self.seen(from, host).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert!(UPLINKS.iter().any(|uplink| seen == *uplink), "{when}: {seen}");
    }

    fn check_inside(&self, from: &NetNs, host: Ipv4Addr, when: &str) {
        let seen = self.seen(from, host).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert!(UPLINKS.iter().all(|uplink| seen != *uplink), "{when}: {seen}");
    }
}

#[test]
fn excluded_destinations_leave_outside_the_tunnel_whatever_becomes_of_it() {
    run_sandboxed(|| {
        let world = world(&format!("exclude = [\"{OUTSIDE}/32\"]\n"));
        let World { network, camera, .. } = &world;
        // The socket of a killed client stays until the next start.
        let state =
            || network.state().into_iter().filter(|it| !it.ends_with(".sock")).collect::<Vec<_>>();
        let before = state();
        let client = network.start_client("client");
        client.wait_for("uplink is up");
        let check_closed = |when: &str| {
            let refused = world.seen(&network.vehicle, INSIDE).expect_err(when);
            assert_eq!(refused.kind(), ErrorKind::HostUnreachable, "{when}: {refused}");
            world.check_outside(&network.vehicle, OUTSIDE, when);
        };
        check_closed("before a session");
        let server = network.start_server();
        client.wait_for("joined");
        network.wait_for_echo();
        for from in [&network.vehicle, camera] {
            world.check_inside(from, INSIDE, "during a session");
            world.check_outside(from, OUTSIDE, "during a session");
        }
        let swap = |from: Ipv4Addr, to: Ipv4Addr| {
            network.edit("client.toml", |text| text.replace(&from.to_string(), &to.to_string()));
            network.reload(CLIENT);
            let is_outside = || {
                let seen = world.seen(&network.vehicle, to);
                seen.is_ok_and(|seen| UPLINKS.iter().any(|uplink| seen == *uplink))
            };
            wait_until(&format!("{to} is excluded by the reload"), is_outside);
        };
        swap(OUTSIDE, INSIDE);
        world.check_outside(camera, INSIDE, "after a reload");
        world.check_inside(&network.vehicle, OUTSIDE, "after a reload");
        swap(INSIDE, OUTSIDE);
        network.vehicle.ip("route flush type throw table all").unwrap();
        client.wait_for("addresses of the tunnel; they are restored");
        world.check_outside(&network.vehicle, OUTSIDE, "once it is set again");
        client.kill();
        check_closed("after a crash");
        world.check_outside(camera, OUTSIDE, "after a crash");
        network.release();
        server.interrupt();
        assert_eq!(state(), before);
    });
}

/// The recipe of docs/recipes.md: a resolver fills a set, whose addresses are marked.
#[test]
fn what_is_marked_leaves_outside_the_tunnel_by_name_and_by_program() {
    if !is_installed("dnsmasq") {
        return;
    }
    run_sandboxed(|| {
        let world = world("exclude_mark = \"0x10/0xff\"\n");
        let World { network, camera, .. } = &world;
        let rules = std::fs::read_to_string(recipe("outside.nft")).unwrap();
        nft(&network.vehicle, &rules);
        let client = network.start_client("client");
        client.wait_for("uplink is up");
        let refused = connect_marked(&network.vehicle, 0x11).expect_err("another mark");
        assert_eq!(refused.kind(), ErrorKind::HostUnreachable);
        let mut marked = connect_marked(&network.vehicle, 0x10).unwrap().into();
        let seen = seen_from(&mut marked).unwrap().ip();
        assert!(UPLINKS.iter().any(|uplink| seen == *uplink), "{seen}");
        let _server = network.start_server();
        client.wait_for("joined");
        network.wait_for_echo();
        for from in [&network.vehicle, camera] {
            world.check_inside(from, OUTSIDE, "nothing is marked yet");
        }
        let open = || [&network.vehicle, camera].map(|from| world.open(from, OUTSIDE).unwrap().0);
        let mut inside = open();
        let _zone = dns::serve(&network.vehicle, "127.0.0.2", &[("video.example", "203.0.113.2")]);
        let mut resolver = network.vehicle.command("dnsmasq");
        resolver.args(["--no-daemon", "--no-resolv", "--no-hosts", "--port=5353", "--user=root"]);
        resolver.args(["--listen-address=127.0.0.1", "--bind-interfaces", "--server=127.0.0.2"]);
        resolver.arg("--conf-file=/dev/null");
        let conf = std::fs::read_to_string(recipe("outside.dnsmasq.conf")).unwrap();
        for line in conf.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            resolver.arg(format!("--{line}"));
        }
        let _resolver = Daemon::start(resolver, network.path("dnsmasq.log"));
        look_up(&network.vehicle, "video.example");
        for from in [&network.vehicle, camera] {
            world.check_outside(from, OUTSIDE, "its name was looked up");
            world.check_inside(from, INSIDE, "its name was not looked up");
        }
        inside.iter_mut().for_each(echo);
        let mut outside = open();
        nft(&network.vehicle, "flush set inet outside names4");
        outside.iter_mut().for_each(echo);
        world.check_inside(camera, OUTSIDE, "its name was looked up long ago");
        nft(
            &network.vehicle,
            &format!("add element inet outside names4 {{ {GATEWAY_V4}, {INSIDE} }}"),
        );
        nft(
            &network.vehicle,
            "table ip own { counter marked { }; chain late { type filter hook prerouting priority 0; \
             iifname rw0 meta mark & 0xff == 0x10 counter name marked; \
             ip daddr 10.77.0.1 meta mark & 0xff == 0x10 counter name marked; }; }",
        );
        check_ping(camera, GATEWAY_V4, "-c 1");
        world.check_outside(camera, INSIDE, "in a set");
        assert_eq!(counted(&network.vehicle, "ip own marked"), 0);
        nft(&network.vehicle, "flush set inet outside names4");
        nft(&network.vehicle, "add rule inet outside output meta skuid 0 goto leave");
        world.check_outside(&network.vehicle, INSIDE, "a program of that user");
        world.check_inside(camera, INSIDE, "no program of this box");
        client.interrupt();
    });
}

fn echo(socket: &mut TcpStream) {
    socket.write_all(b"x").unwrap();
    socket.read_exact(&mut [0]).unwrap();
}

fn connect_marked(namespace: &NetNs, mark: u32) -> std::io::Result<Socket> {
    let connect = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_mark(mark).unwrap();
        let host = SocketAddr::from((OUTSIDE, PORT));
        socket.connect_timeout(&host.into(), Duration::from_secs(4)).map(|()| socket)
    };
    namespace.enter(connect).unwrap()
}

fn recipe(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes").join(name)
}

fn look_up(namespace: &NetNs, name: &str) {
    let socket = namespace.enter(|| UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00".to_vec();
    for label in name.split('.') {
        question.push(label.len() as u8);
        question.extend(label.as_bytes());
    }
    question.extend(b"\x00\x00\x01\x00\x01");
    let mut answer = [0; 512];
    let asked = (0..50).any(|_| {
        let _ = socket.send_to(&question, "127.0.0.1:5353");
        socket.recv(&mut answer).is_ok_and(|length| answer[..length].ends_with(&OUTSIDE.octets()))
    });
    assert!(asked, "{name} was not answered");
}
