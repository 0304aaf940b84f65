//! Two redundant routers between namespaces: what they carry, when a link dies, when one starts
//! anew.
//!
//! Each test runs in a sandbox of its own; where the system allows none, it says so and is skipped.

#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests start programs, open sockets and wait"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use common::*;
use roadweave_device::netns::{NetNs, Watch, run_sandboxed};
use serde_json::Value;

/// Packets of a stream under way.
const UNDER_WAY_MAX: u32 = 32;

/// Writes the file of the router in the box, and of that in the server's namespace.
fn write_files(road: &Road, more: &str, link: impl Fn(u8) -> (String, String)) {
    let links: Vec<_> = [1, 2].map(link).into();
    let file = |inner: [&str; 2], into: &str, tun: &str, links: String| {
        format!(
            "addresses = [\"{}\", \"{}\"]\ninto_tunnel = [{into}]\n{more}\n\
             [tun]\nname = \"{tun}\"\n{links}",
            inner[0], inner[1]
        )
    };
    let near = links.iter().map(|(near, _)| near.as_str()).collect();
    let far = links.iter().map(|(_, far)| far.as_str()).collect();
    let behind = "\"203.0.113.0/24\", \"2001:db8:1::/64\"";
    let near = file(["10.77.0.2/24", "fd77::2/64"], behind, CLIENT, near);
    let far = file(["10.77.0.1/24", "fd77::1/64"], "\"192.168.50.0/24\"", SERVER, far);
    fs::write(road.path("near.toml"), near).unwrap();
    fs::write(road.path("far.toml"), far).unwrap();
}

/// Both ends of link `number`, each at a fixed address.
fn fixed(number: u8) -> (String, String) {
    let end = |listen: u8, peer: u8| {
        format!(
            "[[links]]\nname = \"eth{number}\"\ninterface = \"eth{number}\"\n\
             listen = \"10.{number}.0.{listen}:6081\"\npeer = \"10.{number}.0.{peer}:6081\"\n"
        )
    };
    (end(2, 1), end(1, 2))
}

fn start_both(road: &Road) -> (Daemon, Daemon) {
    let far = road.start(&road.server, "router", "far");
    let near = road.start(&road.vehicle, "router", "near");
    for instance in [CLIENT, SERVER] {
        let watch = Watch::start();
        while !fs::exists(socket(instance)).unwrap() {
            assert!(watch.elapsed() < WAIT_MAX, "{}{}", near.log(), far.log());
            sleep(Duration::from_millis(20));
        }
        road.wait_for_status(instance, "both links", |status| usable(status) == ["eth1", "eth2"]);
    }
    (far, near)
}

fn link<'a>(status: &'a Value, name: &str) -> &'a Value {
    let links = status["sessions"][0]["paths"].as_array().unwrap();
    links.iter().find(|link| link["uplink"] == name).unwrap()
}

/// Sends numbered packets from one namespace to the other, `count` at 1 ms or more apart, and
/// calls `disturb` in the middle; returns the numbers as they arrived.
///
/// No more are under way than queues and sockets hold while a process has no processor.
fn stream(from: &NetNs, to: &NetNs, at: &str, count: u32, disturb: impl FnOnce()) -> Vec<u32> {
    let at: SocketAddr = at.parse().unwrap();
    let receiver = to.enter(|| UdpSocket::bind(at).unwrap()).unwrap();
    receiver.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let arrived = &AtomicU32::new(0);
    let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let sender = from.enter(|| UdpSocket::bind(any).unwrap()).unwrap();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let (mut numbers, mut buffer) = (Vec::new(), [0; 2000]);
            while let Ok(length) = receiver.recv(&mut buffer) {
                assert_eq!(length, 1200);
                let number = u32::from_be_bytes(*buffer.first_chunk().unwrap());
                numbers.push(number);
                arrived.fetch_max(number, Ordering::Relaxed);
                if numbers.last() == Some(&(count - 1)) {
                    break;
                }
            }
            numbers
        });
        let mut disturb = Some(disturb);
        for number in 0..count {
            let mut packet = [0; 1200];
            packet[..4].copy_from_slice(&number.to_be_bytes());
            sender.send_to(&packet, at).unwrap();
            let start = Watch::start();
            sleep(Duration::from_millis(1));
            while number - arrived.load(Ordering::Relaxed) > UNDER_WAY_MAX {
                assert!(start.elapsed() < WAIT_MAX, "of those before {number} none comes");
                sleep(Duration::from_millis(1));
            }
            if number == count / 2 {
                disturb.take().into_iter().for_each(|disturb| disturb());
            }
        }
        receiver.join().unwrap()
    })
}

#[test]
fn every_packet_crosses_on_both_links_and_one_may_die() {
    run_sandboxed("every_packet_crosses_on_both_links_and_one_may_die", || {
        let road = Road::new();
        write_files(&road, "", fixed);
        let (far, near) = start_both(&road);
        assert_eq!(near.count("nothing that this tunnel carries is encrypted"), 1);
        for address in [GATEWAY_V4, GATEWAY_V6] {
            for size in [0, 56, 1300, 9000] {
                let output = ping(&road.vehicle, address, &format!("-c 3 -i 0.05 -s {size}"));
                assert!(output.status.success(), "{address} {size}: {output:?}");
            }
        }
        let all: Vec<u32> = (0..400).collect();
        // Both ways, over both families, each time with a link that dies in the middle: one that
        // its own side sees, and one behind which everything is swallowed.
        let down = || road.server.ip("link set eth1 down").unwrap();
        assert_eq!(stream(&road.vehicle, &road.server, "10.77.0.1:9000", 400, down), all);
        road.wait_for_status(CLIENT, "eth1 is silent", |status| usable(status) == ["eth2"]);
        road.server.ip("link set eth1 up").unwrap();
        road.wait_for_status(CLIENT, "eth1 is back", |status| usable(status).len() == 2);
        let silent = || road.silence("eth2", true);
        assert_eq!(stream(&road.vehicle, &road.server, "[fd77::1]:9000", 400, silent), all);
        road.silence("eth2", false);
        let down = || road.vehicle.ip("link set eth2 down").unwrap();
        assert_eq!(stream(&road.server, &road.vehicle, "10.77.0.2:9000", 400, down), all);

        let status = road.show(SERVER);
        let session = &status["sessions"][0];
        assert_eq!((&status["role"], &session["peer_packets_lost"]), (&"router".into(), &0.into()));
        let adopted = |name| link(&status, name)["counters"]["adopted"].as_u64().unwrap();
        assert!(adopted("eth1") > 0 && adopted("eth2") > 0, "{status:#}");
        assert!(link(&status, "eth1")["lost"].as_u64() > Some(100), "{status:#}");
        assert_eq!(session["lanes"][0]["received"]["order"]["order"], "reorder");
        road.check_shown(&[CLIENT, SERVER]);
        let page = roadweave(&["show", "--socket", &socket(SERVER)]);
        let page = String::from_utf8(page.stdout).unwrap();
        for part in ["router rws", "eth1", "eth2", "adopted", "0 came by no link"] {
            assert!(page.contains(part), "{part} is not in:\n{page}");
        }
        near.interrupt();
        far.interrupt();
    });
}

#[test]
fn a_router_that_starts_anew_is_heard_within_a_second() {
    run_sandboxed("a_router_that_starts_anew_is_heard_within_a_second", || {
        let road = Road::new();
        write_files(&road, "", fixed);
        let (far, _near) = start_both(&road);
        road.echo(&road.server, "0.0.0.0");
        let socket_to_echo = road.socket_to(GATEWAY_V4);
        socket_to_echo.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let echo = || {
            socket_to_echo.send(b"?").unwrap();
            assert_eq!(socket_to_echo.recv(&mut [0; 10]).unwrap(), 1);
        };
        (0..20).for_each(|_| echo());
        far.kill();
        let far = road.start(&road.server, "router", "far");
        far.wait_for("the router runs");
        // Its sequence begins at 0 again: the first answer must get through.
        let begin = Watch::start();
        socket_to_echo.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        while {
            let _ = socket_to_echo.send(b"?");
            socket_to_echo.recv(&mut [0; 10]).is_err()
        } {
            assert!(begin.elapsed() < Duration::from_secs(2), "no answer");
        }
        let restarts = road.show(CLIENT)["sessions"][0]["peer_restarts"].clone();
        assert_eq!(restarts, 1);
    });
}

#[test]
fn routers_behind_nat_are_found_by_their_hellos() {
    run_sandboxed("routers_behind_nat_are_found_by_their_hellos", || {
        let road = Road::without_uplinks();
        for number in [1, 2] {
            road.connect_modem(number);
            let route =
                format!("route add 198.51.100.1 via 192.168.8.1 dev eth{number} metric {number}");
            road.vehicle.ip(&route).unwrap();
        }
        write_files(&road, "insecure = true", |number| {
            let near = format!(
                "[[links]]\nname = \"eth{number}\"\ninterface = \"eth{number}\"\n\
                 listen = \"0.0.0.0:6081\"\npeer = \"198.51.100.1:6081\"\n"
            );
            let far = format!(
                "[[links]]\nname = \"eth{number}\"\nlisten = \"198.51.100.1:6081\"\n\
                 peer_within = [\"10.{number}.0.0/24\"]\n"
            );
            (near, far)
        });
        let (_far, _near) = start_both(&road);
        // What the box sent before its address was learned never came. Its number is waited for
        // once, and what came meanwhile leaves at one blow: more than a socket's buffer holds, were
        // it the stream.
        assert!(ping(&road.vehicle, GATEWAY_V4, "-c 1").status.success());
        let all: Vec<u32> = (0..200).collect();
        let up = stream(&road.vehicle, &road.server, "10.77.0.1:9000", 200, || {});
        let down = stream(&road.server, &road.vehicle, "10.77.0.2:9000", 200, || {});
        assert_eq!((up, down), (all.clone(), all));
        let status = road.show(SERVER);
        for (name, address) in [("eth1", "10.1.0.2"), ("eth2", "10.2.0.2")] {
            let remote = link(&status, name)["remote"].as_str().unwrap().to_owned();
            assert!(remote.starts_with(address), "{remote}");
        }
        // Somebody else who sends the same is not heard.
        let stranger = road.cloud.enter(|| UdpSocket::bind("0.0.0.0:6081").unwrap()).unwrap();
        road.cloud.ip("route add 198.51.100.1 via 203.0.113.1").unwrap();
        // What came by a link before its first hello counts as well.
        let unknown = |status: &Value| status["drops"]["unknown-peer"].as_u64().unwrap_or(0);
        let before = unknown(&road.show(SERVER));
        stranger.send_to(&[0; 40], "198.51.100.1:6081").unwrap();
        road.wait_for_status(SERVER, "the stranger is counted", |status| {
            unknown(status) == before + 1
        });
    });
}

#[test]
fn segments_are_clamped_to_what_fits_the_tunnel() {
    run_sandboxed("segments_are_clamped_to_what_fits_the_tunnel", || {
        let road = Road::new();
        let camera = road.connect_camera();
        road.cloud.ip("route add 192.168.50.0/24 via 203.0.113.1").unwrap();
        write_files(&road, "", fixed);
        let (_far, _near) = start_both(&road);
        // Both hosts have an MTU of 1500 and do not know of the tunnel between them.
        for (from, to, at) in
            [(&camera, &road.cloud, "203.0.113.2:80"), (&road.cloud, &camera, "192.168.50.2:80")]
        {
            let at: SocketAddr = at.parse().unwrap();
            let listener = to.enter(|| TcpListener::bind(at).unwrap()).unwrap();
            let stream = from.enter(|| TcpStream::connect_timeout(&at, WAIT_MAX).unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            for end in [&stream, &accepted] {
                let size = socket2::SockRef::from(end).tcp_mss().unwrap();
                // 1,400 less 40 bytes of headers, and the timestamps of TCP.
                assert!((1300..=1360).contains(&size), "{size}");
            }
        }
    });
}

#[test]
fn a_public_address_is_refused_unless_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("router.toml");
    let check = |text: &str| {
        fs::write(&path, text).unwrap();
        roadweave(&["router", "--check", "--config", path.to_str().unwrap()])
    };
    let links = "[[links]]\nname = \"a\"\nlisten = \"0.0.0.0:6081\"\npeer = \"9.9.9.9:6081\"\n";
    let refused = check(links);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(text.contains("line 3") && text.contains("insecure = true"), "{text}");
    let told = check(&format!("insecure = true\n{links}"));
    assert!(told.status.success(), "{told:?}");
}
