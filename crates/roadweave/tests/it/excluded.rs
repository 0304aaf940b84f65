//! What leaves outside the tunnel because the configuration says so, and nothing else: by
//! destination, by the name that was looked up, and by program.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use crate::common::hosts::{Host, connect, seen_from};
use crate::common::*;
use rustix::process::Signal;
use socket2::{Domain, Socket, Type};

/// Two hosts beyond the server, which forwards to them in the clear too.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const INSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 3);
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
    /// A connection to the host, and whom that sees.
    fn open(&self, from: &NetNs, host: Ipv4Addr) -> std::io::Result<(TcpStream, IpAddr)> {
        let mut socket = connect(from, SocketAddr::from((host, PORT)))?;
        let seen = seen_from(&mut socket)?;
        Ok((socket, seen.ip()))
    }

    /// Whom the host sees, if it can be reached from there.
    fn seen(&self, from: &NetNs, host: Ipv4Addr) -> std::io::Result<IpAddr> {
        self.open(from, host).map(|(_, seen)| seen)
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
    run_sandboxed(|| {
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
            road.reload(CLIENT);
            let is_outside = || {
                let seen = world.seen(&road.vehicle, to);
                seen.is_ok_and(|seen| UPLINKS.iter().any(|uplink| seen == *uplink))
            };
            wait_until(&format!("{to} is excluded by the reload"), is_outside);
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
        road.release();
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
    run_sandboxed(|| {
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
        let open = || [&road.vehicle, camera].map(|from| world.open(from, OUTSIDE).unwrap().0);
        let mut inside = open();
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
        // What is open goes on as it began.
        inside.iter_mut().for_each(echo);
        let mut outside = open();
        nft(&road.vehicle, "flush set inet outside names4");
        outside.iter_mut().for_each(echo);
        world.check_inside(camera, OUTSIDE, "its name was looked up long ago");
        // The server may mean the same address, and whoever answers for a name a private one.
        nft(
            &road.vehicle,
            &format!("add element inet outside names4 {{ {GATEWAY_V4}, {INSIDE} }}"),
        );
        nft(
            &road.vehicle,
            "table ip own { counter marked { }; chain late { type filter hook prerouting priority 0; \
             iifname rw0 meta mark & 0xff == 0x10 counter name marked; \
             ip daddr 10.77.0.1 meta mark & 0xff == 0x10 counter name marked; }; }",
        );
        check_ping(camera, GATEWAY_V4, "-c 1");
        world.check_outside(camera, INSIDE, "in a set");
        assert_eq!(counted(&road.vehicle, "ip own marked"), 0);
        nft(&road.vehicle, "flush set inet outside names4");
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
    run_sandboxed(|| {
        let world = world("exclude_mark = \"0x10\"\n");
        let World { road, camera, .. } = &world;
        let client = road.start_client("client");
        client.wait_for("uplink is up");
        let refused = connect_marked(&road.vehicle, 0x11).expect_err("not it");
        assert_eq!(refused.kind(), ErrorKind::HostUnreachable);
        let mut marked = connect_marked(&road.vehicle, 0x10).unwrap().into();
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

/// A server that leads into its TUN what is excluded, or marked, reaches what is behind the box,
/// and nobody by its uplinks.
#[test]
fn what_is_excluded_makes_the_box_no_exit_for_its_server() {
    run_sandboxed(|| {
        let world = world(&format!("exclude = [\"{OUTSIDE}/32\"]\nexclude_mark = \"0x10/0xff\"\n"));
        let World { road, camera, .. } = &world;
        let own = "\"10.77.0.2/32\"";
        let more = format!("{own}, \"192.168.50.0/24\", \"{OUTSIDE}/32\", \"{INSIDE}/32\"");
        road.edit("server.toml", |text| text.replace(own, &more));
        // As a rule that knows no interface has it.
        nft(
            &road.vehicle,
            &format!(
                "table ip own {{ chain in {{ type filter hook prerouting priority mangle; \
                 ip daddr {INSIDE} meta mark set 0x10; }}; }}"
            ),
        );
        let _daemons = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        road.wait_for_traffic();
        // What comes by the uplinks goes on to the hosts; the server's own goes into the TUN.
        road.server.ip("route add 203.0.113.0/24 dev lan0 table 78").unwrap();
        for uplink in ["eth1", "eth2"] {
            let rule = format!("rule add priority 100 iif {uplink} to 203.0.113.0/24 lookup 78");
            road.server.ip(&rule).unwrap();
        }
        count(&road.server, "ip daddr 203.0.113.0/24");
        let reaches =
            |to: Ipv4Addr| ping(&road.server, &to.to_string(), "-c 2 -i 0.2 -W 1 -I 10.77.0.1");
        assert!(reaches(Ipv4Addr::new(192, 168, 50, 2)).status.success(), "what is behind the box");
        let refused = || road.show(CLIENT)["drops"]["forward-refused"].as_u64().unwrap_or(0);
        for host in [OUTSIDE, INSIDE] {
            let before = refused();
            assert!(!reaches(host).status.success(), "{host} by an uplink of the box");
            assert_eq!(counted(&road.server, "inet count seen"), 0, "{host}: left by an uplink");
            assert!(refused() >= before + 2, "{host}: not counted");
        }
        for from in [&road.vehicle, camera] {
            world.check_outside(from, OUTSIDE, "from this side of the box");
        }
        world.check_outside(camera, INSIDE, "marked");
        assert!(counted(&road.server, "inet count seen") > 0, "nothing is counted");
    });
}

/// What is split keeps to what a reload, or a mark, excludes.
#[test]
fn connections_of_the_lan_are_not_taken_if_they_are_excluded() {
    run_sandboxed(|| {
        let world = world("exclude = []\n");
        let World { road, camera, .. } = &world;
        road.edit("client.toml", |text| format!("{text}\n[streams]\ntcp = \"split\"\n"));
        road.edit("server.toml", |text| text + "[streams]\n");
        let _daemons = road.start_both();
        let split = |status: &serde_json::Value| status["streams"]["split"].clone();
        let taken = || split(&road.show(CLIENT))["taken"].as_u64().unwrap();
        // The first is a packet's way to learn who answers, the second is taken.
        let take = |host: Ipv4Addr| {
            road.wait_for_status(CLIENT, "connections are split", |status| {
                split(status).is_object() && split(status)["obstacle"].is_null()
            });
            let before = taken();
            world.check_inside(camera, host, "as packets");
            world.check_inside(camera, host, "as a stream");
            assert!(taken() > before, "{host} is not taken");
        };
        take(OUTSIDE);
        let reload = |from: &str, to: &str| {
            road.edit("client.toml", |text| text.replace(from, to));
            road.reload(CLIENT);
        };
        let excluded = format!("exclude = [\"{OUTSIDE}/32\"]\n");
        reload("exclude = []\n", &excluded);
        let before = taken();
        for _ in 0..3 {
            world.check_outside(camera, OUTSIDE, "excluded by a reload");
        }
        assert_eq!(taken(), before);
        reload(&excluded, "exclude_mark = \"0x10/0xff\"\n");
        take(INSIDE);
        let before = taken();
        nft(
            &road.vehicle,
            &format!(
                "table ip own {{ chain in {{ type filter hook prerouting priority mangle; \
                 ip daddr {INSIDE} meta mark set 0x10; }}; }}"
            ),
        );
        for _ in 0..3 {
            world.check_outside(camera, INSIDE, "marked");
        }
        assert_eq!(taken(), before);
    });
}

/// Neither when something is excluded by a reload, nor when it no longer is.
#[test]
fn addresses_of_the_lan_never_leave_by_an_uplink() {
    run_sandboxed(|| {
        let excluded = format!("exclude = [\"{OUTSIDE}/32\"]\n");
        let world = world("exclude = []\n");
        let World { road, camera, .. } = &world;
        // In the tunnel the camera has its own address.
        let own = "\"10.77.0.2/32\"";
        let more = format!("{own}, \"192.168.50.0/24\"");
        road.edit("server.toml", |text| text.replace(own, &more));
        let _daemons = road.start_both();
        road.echo(&road.server, GATEWAY_V4);
        road.wait_for_traffic();
        count(&road.server, "ip saddr 192.168.50.0/24");
        // One flow that lasts, and new ones all the time.
        let lasting = camera.enter(|| UdpSocket::bind("0.0.0.0:5000").unwrap()).unwrap();
        let is_over = AtomicBool::new(false);
        let (from, to) = (camera, SocketAddr::from((OUTSIDE, 9)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let send = || {
                    while !is_over.load(Ordering::Relaxed) {
                        let _ = lasting.send_to(b"x", to);
                        let _ = UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", to);
                        sleep(Duration::from_micros(300));
                    }
                };
                from.enter(send).unwrap();
            });
            let swap = |from: &str, to: &str| {
                sleep(Duration::from_millis(200));
                road.edit("client.toml", |text| text.replace(from, to));
                road.reload(CLIENT);
                sleep(Duration::from_millis(300));
            };
            for _ in 0..3 {
                swap("exclude = []\n", &excluded);
                swap(&excluded, "exclude = []\n");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(counted(&road.server, "inet count seen"), 0, "left with an address of the LAN");
        world.check_inside(camera, OUTSIDE, "in the end");
    });
}

/// Counts in a namespace what comes in by the uplinks and matches.
fn count(namespace: &NetNs, matching: &str) {
    let rule = format!("iifname {{ \"eth1\", \"eth2\" }} {matching} counter name seen");
    nft(
        namespace,
        &format!(
            "table inet count {{ counter seen {{ }}; chain in {{ type filter hook prerouting priority \
             raw; {rule}; }}; }}"
        ),
    );
}

/// Sends something to a [`Host`], and it comes back.
fn echo(socket: &mut TcpStream) {
    socket.write_all(b"x").unwrap();
    socket.read_exact(&mut [0]).unwrap();
}

/// Connects to [`OUTSIDE`] by a socket with this mark.
fn connect_marked(namespace: &NetNs, mark: u32) -> std::io::Result<Socket> {
    let connect = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_mark(mark).unwrap();
        let host = SocketAddr::from((OUTSIDE, PORT));
        socket.connect_timeout(&host.into(), Duration::from_secs(4)).map(|()| socket)
    };
    namespace.enter(connect).unwrap()
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
