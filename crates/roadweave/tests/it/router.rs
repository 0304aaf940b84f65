//! Two redundant routers between namespaces: what they carry, when a link dies, when one starts
//! anew.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use crate::common::*;
use serde_json::Value;

/// Packets of a stream under way.
const UNDER_WAY_MAX: u32 = 32;

/// Writes the files of the routers in the box and in the server's namespace.
fn write_files(road: &Road) {
    let behind = "\"203.0.113.0/24\", \"2001:db8:1::/64\"";
    for (name, own, peer, into, tun) in
        [("near", 2, 1, behind, CLIENT), ("far", 1, 2, "\"192.168.50.0/24\"", SERVER)]
    {
        let link = |number: u8| {
            format!(
                "[[links]]\nname = \"eth{number}\"\ninterface = \"eth{number}\"\n\
                 listen = \"10.{number}.0.{own}:6081\"\npeer = \"10.{number}.0.{peer}:6081\"\n"
            )
        };
        let file = format!(
            "addresses = [\"10.77.0.{own}/24\", \"fd77::{own}/64\"]\ninto_tunnel = [{into}]\n\
             [tun]\nname = \"{tun}\"\n{}{}",
            link(1),
            link(2)
        );
        fs::write(road.path(&format!("{name}.toml")), file).unwrap();
    }
}

fn start_both(road: &Road) -> (Daemon, Daemon) {
    let far = road.start(&road.server, "router", "far");
    let near = road.start(&road.vehicle, "router", "near");
    for instance in [CLIENT, SERVER] {
        wait_until(instance, || fs::exists(socket(instance)).unwrap());
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
    run_sandboxed(|| {
        let road = Road::new();
        let camera = road.connect_camera();
        road.cloud.ip("route add 192.168.50.0/24 via 203.0.113.1").unwrap();
        write_files(&road);
        let (far, near) = start_both(&road);
        assert_eq!(near.count("nothing that this tunnel carries is encrypted"), 1);
        for address in [GATEWAY_V4, GATEWAY_V6] {
            for size in [0, 56, 1300, 9000] {
                check_ping(&road.vehicle, address, &format!("-c 3 -i 0.05 -s {size}"));
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
        let page = road.page(SERVER);
        for part in ["router rws", "eth1", "eth2", "adopted", "0 came by no link"] {
            assert!(page.contains(part), "{part} is not in:\n{page}");
        }
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
        near.interrupt();
        far.interrupt();
    });
}
