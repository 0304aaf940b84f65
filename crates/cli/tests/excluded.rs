//! What leaves outside the tunnel because the configuration says so, and nothing else: by
//! destination, by the name that was looked up, and by program.
//!
//! Each test runs in a sandbox of its own; where the system allows none, it says so and is skipped.

#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests start programs, open sockets and wait"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;
#[path = "common/dns.rs"]
mod dns;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::hosts::{Host, connect, seen_from};
use common::*;
use roadweave_device::netns::{NetNs, run_sandboxed};
use rustix::process::Signal;
use socket2::{Domain, Socket, Type};

/// Two hosts beyond the server, which forwards to them in the clear too.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const INSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 3);
const OUTSIDE_V6: &str = "2001:db8:1::2";
const PORT: u16 = 8080;
/// The addresses of the uplinks, in the clear.
const UPLINKS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 1, 0, 2), Ipv4Addr::new(10, 2, 0, 2)];

struct World {
    road: Road,
    camera: NetNs,
    _hosts: Vec<Host>,
}

/// A box with a camera, and with these lines among its routes.
fn world(routes: &str) -> World {
    let road = Road::new();
    let camera = road.connect_camera();
    road.cloud.ip(&format!("address add {INSIDE}/24 dev eth0")).unwrap();
    road.cloud.ip("route add default via 203.0.113.1").unwrap();
    road.server.set_forwarding().unwrap();
    road.edit("client.toml", |text| match text.contains("[routes]\n") {
        true => text.replace("[routes]\n", &format!("[routes]\n{routes}")),
        false => format!("{text}\n[routes]\n{routes}"),
    });
    let hosts = [OUTSIDE, INSIDE].map(|host| Host::start(&road.cloud, (host, PORT).into())).into();
    World { road, camera, _hosts: hosts }
}

impl World {
    /// Whom the host sees, if it can be reached from there.
    fn seen(&self, from: &NetNs, host: Ipv4Addr) -> std::io::Result<IpAddr> {
        let mut socket = connect(from, SocketAddr::from((host, PORT)))?;
        seen_from(&mut socket).map(|address| address.ip())
    }

    /// The host is reached outside the tunnel, with the address of an uplink.
    fn check_outside(&self, from: &NetNs, host: Ipv4Addr, when: &str) {
        let seen = self.seen(from, host).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert!(UPLINKS.iter().any(|uplink| seen == *uplink), "{when}: {seen}");
    }

    /// The host is reached through the tunnel.
    fn check_inside(&self, from: &NetNs, host: Ipv4Addr, when: &str) {
        let seen = self.seen(from, host).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert!(UPLINKS.iter().all(|uplink| seen != *uplink), "{when}: {seen}");
    }
}

/// Before a session, during it, and after a crash; and what is left in the end is nothing.
#[test]
fn excluded_destinations_leave_outside_the_tunnel_whatever_becomes_of_it() {
    run_sandboxed("excluded_destinations_leave_outside_the_tunnel_whatever_becomes_of_it", || {
        let world = world(&format!("exclude = [\"{OUTSIDE}/32\"]\n"));
        let World { road, camera, .. } = &world;
        // The socket of one that was killed stays until the next start.
        let state =
            || road.state().into_iter().filter(|it| !it.ends_with(".sock")).collect::<Vec<_>>();
        let before = state();
        let client = road.start_client("client");
        client.wait_for("uplink is up");
        let check_closed = |when: &str| {
            let refused = world.seen(&road.vehicle, INSIDE).expect_err(when);
            assert_eq!(refused.kind(), ErrorKind::HostUnreachable, "{when}: {refused}");
            world.check_outside(&road.vehicle, OUTSIDE, when);
        };
        check_closed("before a session");
        let server = road.start_server();
        client.wait_for("joined");
        road.echo(&road.server, GATEWAY_V4);
        road.wait_for_traffic();
        for from in [&road.vehicle, camera] {
            world.check_inside(from, INSIDE, "during a session");
            world.check_outside(from, OUTSIDE, "during a session");
        }
        // Another one is excluded, while it runs.
        let swap = |from: Ipv4Addr, to: Ipv4Addr| {
            road.edit("client.toml", |text| text.replace(&from.to_string(), &to.to_string()));
            let reloaded = roadweave(&["reload", "--socket", &socket(CLIENT)]);
            assert!(reloaded.status.success(), "{reloaded:?}");
            let is_outside = || {
                let seen = world.seen(&road.vehicle, to);
                seen.is_ok_and(|seen| UPLINKS.iter().any(|uplink| seen == *uplink))
            };
            let begun = Instant::now();
            while !is_outside() {
                assert!(begun.elapsed() < WAIT_MAX, "{to} is not excluded by a reload");
                sleep(Duration::from_millis(50));
            }
        };
        swap(OUTSIDE, INSIDE);
        world.check_outside(camera, INSIDE, "after a reload");
        world.check_inside(&road.vehicle, OUTSIDE, "after a reload");
        swap(INSIDE, OUTSIDE);
        // Somebody takes the route away that lets it pass by.
        road.vehicle.ip("route flush type throw table all").unwrap();
        client.wait_for("set again");
        world.check_outside(&road.vehicle, OUTSIDE, "once it is set again");
        client.kill();
        check_closed("after a crash");
        world.check_outside(camera, OUTSIDE, "after a crash");
        let released = roadweave_in(&road.vehicle, &["release", CLIENT]);
        assert!(released.status.success(), "{released:?}");
        server.interrupt();
        assert_eq!(state(), before);
    });
}

/// The recipe of docs/recipes.md: a resolver fills a set, whose addresses are marked.
#[test]
fn what_is_marked_leaves_outside_the_tunnel_by_name_and_by_program() {
    if let Some(why) = without("dnsmasq") {
        return eprintln!("{why}");
    }
    run_sandboxed("what_is_marked_leaves_outside_the_tunnel_by_name_and_by_program", || {
        let world = world("exclude_mark = \"0x10/0xff\"\n");
        let World { road, camera, .. } = &world;
        let rules = std::fs::read_to_string(recipe("outside.nft")).unwrap();
        nft(&road.vehicle, &rules);
        let (_server, mut client) = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        road.wait_for_traffic();
        for from in [&road.vehicle, camera] {
            world.check_inside(from, OUTSIDE, "nothing is marked yet");
        }
        let _zone = dns::serve(&road.vehicle, "127.0.0.2", &[("video.example", "203.0.113.2")]);
        let mut resolver = road.vehicle.command("dnsmasq");
        resolver.args(["--no-daemon", "--no-resolv", "--no-hosts", "--port=5353", "--user=root"]);
        resolver.args(["--listen-address=127.0.0.1", "--bind-interfaces", "--server=127.0.0.2"]);
        resolver.arg("--conf-file=/dev/null");
        let conf = std::fs::read_to_string(recipe("outside.dnsmasq.conf")).unwrap();
        for line in conf.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            resolver.arg(format!("--{line}"));
        }
        let _resolver = Daemon::start(resolver, road.path("dnsmasq.log"));
        look_up(&road.vehicle, "video.example");
        for from in [&road.vehicle, camera] {
            world.check_outside(from, OUTSIDE, "its name was looked up");
            world.check_inside(from, INSIDE, "its name was not looked up");
        }
        // A program is told by its user.
        nft(&road.vehicle, "add rule inet outside output meta skuid 0 goto leave");
        world.check_outside(&road.vehicle, INSIDE, "a program of that user");
        world.check_inside(camera, INSIDE, "no program of this box");
        client.signal(Signal::TERM);
        assert_eq!(client.wait(), Some(0));
    });
}

#[test]
fn a_mark_leads_out_before_a_session_and_what_has_none_is_refused() {
    run_sandboxed("a_mark_leads_out_before_a_session_and_what_has_none_is_refused", || {
        let world = world("exclude_mark = \"0x10\"\n");
        let World { road, camera, .. } = &world;
        let client = road.start_client("client");
        client.wait_for("uplink is up");
        let connect_marked = |mark| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_mark(mark).unwrap();
            let host = SocketAddr::from((OUTSIDE, PORT));
            socket.connect_timeout(&host.into(), Duration::from_secs(4)).map(|()| socket)
        };
        let refused = road.vehicle.enter(|| connect_marked(0x11)).unwrap().expect_err("not it");
        assert_eq!(refused.kind(), ErrorKind::HostUnreachable);
        let mut marked = road.vehicle.enter(|| connect_marked(0x10)).unwrap().unwrap().into();
        let seen = seen_from(&mut marked).unwrap().ip();
        assert!(UPLINKS.iter().any(|uplink| seen == *uplink), "{seen}");
        // From behind the box too, if it forwards already.
        road.vehicle.set_forwarding().unwrap();
        nft(
            &road.vehicle,
            "table ip own { chain in { type filter hook prerouting priority mangle; \
             ip daddr 203.0.113.2 meta mark set 0x10; }; }",
        );
        world.check_outside(camera, OUTSIDE, "marked");
        let refused = world.seen(camera, INSIDE).expect_err("without a mark");
        assert_eq!(refused.kind(), ErrorKind::HostUnreachable);
        let refused = roadweave_in(&road.vehicle, &["release", CLIENT]);
        assert!(!refused.status.success(), "it runs");
    });
}

#[test]
fn prefixes_of_ipv6_are_excluded_too() {
    run_sandboxed("prefixes_of_ipv6_are_excluded_too", || {
        let world = world(&format!("exclude = [\"{OUTSIDE_V6}/128\"]\n"));
        let World { road, .. } = &world;
        road.server.ip("address add 2001:db8:10::1/64 dev eth1 nodad").unwrap();
        road.vehicle.ip("address add 2001:db8:10::2/64 dev eth1 nodad").unwrap();
        road.vehicle.ip("-6 route add default via 2001:db8:10::1 dev eth1").unwrap();
        let client = road.start_client("client");
        client.wait_for("uplink is up");
        let send = |to: &str| {
            road.vehicle
                .enter(|| UdpSocket::bind("[::]:0").unwrap().send_to(b"x", (to, 9)))
                .unwrap()
        };
        send(OUTSIDE_V6).unwrap();
        let refused = send("2001:db8:1::3").expect_err("it belongs into the tunnel");
        assert_eq!(refused.kind(), ErrorKind::HostUnreachable, "{refused}");
    });
}

/// A file of the recipes.
fn recipe(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes").join(name)
}

/// Why a test that needs `program` is skipped, if it is.
fn without(program: &str) -> Option<String> {
    let found = std::process::Command::new(program).arg("--version").output().is_ok();
    let required = std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_some();
    assert!(found || !required, "{program} is not installed");
    (!found).then(|| format!("skipped: {program} is not installed"))
}

/// Asks the box's resolver for the address of a name until it answers.
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
