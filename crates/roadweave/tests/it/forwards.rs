//! Ports of a server that lead to devices behind a client: from outside, from another client and
//! from that client itself, in both families. All else stays as it is.
//!
//! ```text
//! camera 192.168.50.2 ── box A 10.77.0.2 ══╗
//!        fd50::2                           server 203.0.113.1 ── cloud 203.0.113.2
//!                        box B 10.77.0.3 ══╝
//! ```

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::thread::spawn;
use std::time::Duration;

use crate::common::hosts::{Host, connect as connect_tcp, seen_from};
use crate::common::*;
use rustix::process::Signal;

const PUBLIC: [&str; 2] = ["203.0.113.1", "2001:db8:1::1"];
const CLOUD: [&str; 2] = ["203.0.113.2", "2001:db8:1::2"];
const CAMERA: [&str; 2] = ["192.168.50.2", "fd50::2"];
const OWN: &str = "10.77.0.2";
const BOX_B: [&str; 2] = ["10.77.0.3", "fd77::3"];
const GATEWAY: [&str; 2] = [GATEWAY_V4, GATEWAY_V6];

/// The server's ports that lead to the camera (page, streams, a renumbered range), and to the box.
const WEB: u16 = 8443;
const STREAMS: [u16; 2] = [8000, 8001];
const OTHERS: [u16; 2] = [9000, 9001];
const OF_BOX: u16 = 8022;

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

fn forward(protocol: &str, port: &str, to: &str, to_port: &str) -> String {
    let to_port = if to_port.is_empty() { String::new() } else { format!("to_port = {to_port}\n") };
    format!("[[forwards]]\nprotocol = {protocol:?}\nport = {port}\nto = {to:?}\n{to_port}")
}

fn to_camera() -> String {
    let of = |to: &str| {
        forward("both", &WEB.to_string(), to, "443")
            + &forward("udp", &format!("{STREAMS:?}"), to, "")
            + &forward("both", &format!("{OTHERS:?}"), to, "[70, 71]")
    };
    CAMERA.map(of).concat()
}

/// A camera and a second box, whose file is `other.toml`; and the server's file without forwards.
fn place() -> (TestNetwork, NetNs, NetNs, String) {
    let network = TestNetwork::new();
    let camera = network.connect_camera_of_both_families();
    let other = NetNs::create("other").unwrap();
    cable((&other, "eth1", &["10.3.0.2/24"]), (&network.server, "eth3", &["10.3.0.1/24"]));
    other.ip("route add default via 10.3.0.1").unwrap();

    let keys = keygen();
    let client = fs::read_to_string(network.path("client.toml")).unwrap();
    let client = with_key(&client, "private_key", &keys.private);
    network.write("other.toml", client + "\n[tun]\nname = \"rw1\"\n");
    let peer = keys.peer("other", "10.77.0.3/32\", \"fd77::3/128");
    let server = fs::read_to_string(network.path("server.toml")).unwrap();
    let behind = "\"fd77::2/128\", \"192.168.50.0/24\", \"fd50::/64\"";
    let plain = server.replace("\"fd77::2/128\"", behind);
    (network, camera, other, format!("shards = 2\n{plain}{peer}"))
}

fn echo(namespace: &NetNs, address: SocketAddr) {
    let socket = namespace.enter(|| UdpSocket::bind(address).unwrap()).unwrap();
    spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 100]) {
            let _ = socket.send_to(from.ip().to_string().as_bytes(), from);
        }
    });
}

fn serve(namespace: &NetNs, address: &str, port: u16) {
    Host::start(namespace, at(address, port));
    echo(namespace, at(address, port));
}

fn tcp(from: &NetNs, to: &str, port: u16) -> io::Result<IpAddr> {
    let mut stream = connect_tcp(from, at(to, port))?;
    Ok(seen_from(&mut stream)?.ip())
}

fn udp(from: &NetNs, to: &str, port: u16) -> io::Result<IpAddr> {
    let to = at(to, port);
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = from.enter(|| UdpSocket::bind((any, 0))).unwrap()?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.connect(to)?;
    let mut answer = [0; 100];
    let mut tries = 0;
    let length = loop {
        socket.send(b"whom do you see?")?;
        match socket.recv(&mut answer) {
            Err(_) if tries < 2 => tries += 1,
            result => break result?,
        }
    };
    Ok(std::str::from_utf8(&answer[..length]).unwrap().parse().unwrap())
}

fn check_camera(from: &NetNs, source: [&str; 2]) {
    for (public, source) in PUBLIC.into_iter().zip(source) {
        let expected: IpAddr = source.parse().unwrap();
        for port in [WEB, OTHERS[1]] {
            let seen = tcp(from, public, port);
            assert_eq!(seen.unwrap_or_else(|it| panic!("TCP {public} {port}: {it}")), expected);
        }
        for port in [WEB, STREAMS[0], STREAMS[1], OTHERS[0], OTHERS[1]] {
            let seen = udp(from, public, port);
            assert_eq!(seen.unwrap_or_else(|it| panic!("UDP {public} {port}: {it}")), expected);
        }
    }
}

fn is_heard(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut [0]).is_ok()
}

#[test]
fn ports_of_the_server_lead_to_devices_behind_a_client_and_nothing_else_does() {
    run_sandboxed(|| {
        let (network, camera, other, plain) = place();
        let write = |forwards: &str| network.write("server.toml", format!("{plain}{forwards}"));
        let own = forward("tcp", &OF_BOX.to_string(), OWN, "22");
        let before = network.state();
        write(&(to_camera() + &own));
        let (server, client) = network.start_both();
        let second = network.start(&other, "client", "other");
        second.wait_for("joined");
        for address in CAMERA {
            for port in [443, STREAMS[0], STREAMS[1], 70, 71] {
                serve(&camera, address, port);
            }
        }
        serve(&network.vehicle, OWN, 22);
        for address in PUBLIC {
            serve(&network.server, address, WEB);
            serve(&network.server, address, 8081);
        }

        // Senders keep their addresses, unless the answer would take a shorter way back.
        check_camera(&network.cloud, CLOUD);
        check_camera(&other, BOX_B);
        check_camera(&camera, GATEWAY);
        check_camera(&network.vehicle, GATEWAY);
        assert_eq!(tcp(&other, PUBLIC[0], OF_BOX).unwrap().to_string(), BOX_B[0]);

        for prefix in ["10.77.0.0/16", "192.168.50.0/24"] {
            network.cloud.ip(&format!("route add {prefix} via {}", PUBLIC[0])).unwrap();
        }
        for prefix in ["fd77::/64", "fd50::/64"] {
            network.cloud.ip(&format!("route add {prefix} via {}", PUBLIC[1])).unwrap();
        }
        for (public, source) in PUBLIC.into_iter().zip(CLOUD) {
            assert_eq!(tcp(&network.cloud, public, 8081).unwrap().to_string(), source);
            assert!(tcp(&network.cloud, public, STREAMS[0]).is_err(), "UDP alone");
            assert!(tcp(&other, public, 8081).is_err(), "a client may not reach it");
            assert!(udp(&other, public, 8081).is_err(), "a client may not reach it");
        }
        for (camera, from) in CAMERA.into_iter().flat_map(|it| [(it, &network.cloud), (it, &other)])
        {
            assert!(tcp(from, camera, 443).is_err() && udp(from, camera, 443).is_err(), "{camera}");
        }

        // A broken file changes nothing; the next one cuts what it forwards no more.
        let mut stream = connect_tcp(&network.cloud, at(PUBLIC[0], WEB)).unwrap();
        let mut kept = connect_tcp(&network.cloud, at(PUBLIC[0], OF_BOX)).unwrap();
        for stream in [&mut stream, &mut kept] {
            seen_from(stream).unwrap();
        }
        write(&(own.clone() + &forward("tcp", "10", "10.77.0.4", "")));
        server.signal(Signal::HUP);
        server.wait_for("10.77.0.4 is none of a client's");
        assert!(is_heard(&mut stream));
        write(&own);
        server.signal(Signal::HUP);
        server.wait_for("were read again");
        wait_until("it is not cut", || !is_heard(&mut stream));
        for (from, public) in [(&network.cloud, PUBLIC[0]), (&camera, PUBLIC[1])] {
            assert!(udp(from, public, STREAMS[0]).is_err(), "{public}");
        }
        assert!(is_heard(&mut kept));
        assert_eq!([&server, &client, &second].map(|it| it.count("joined")), [2, 1, 1]);
        assert_eq!(server.count("ignored until the next start"), 0, "{}", server.log());

        server.kill();
        write("");
        let server = network.start_server();
        server.wait_for_count("joined", 2);
        assert!(tcp(&network.cloud, PUBLIC[0], 8081).is_ok());
        assert!(!is_heard(&mut kept), "it outlives its forward");
        server.kill();
        [client, second].into_iter().for_each(Daemon::interrupt);
        let released = roadweave_in(&network.server, &["down", SERVER]);
        assert!(released.status.success(), "{released:?}");
        let mut after = network.state();
        after.retain(|it| *it != socket(SERVER));
        assert_eq!(after, before, "nothing is left");
    });
}
