//! What one client, or one host of the LAN, takes of the kernel's tables leaves enough for others.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use roadweave_device::netns::{NetNs, run_sandboxed};
use roadweave_device::{FilterKeeper, FilterOptions, Instance, Share};
use roadweave_types::DropReason;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::{Crossing, WAIT, a_box, a_server, prefix, sysctl};

/// Sends one packet from each of these source ports.
fn begin(from: &NetNs, source: &str, to: &str, ports: std::ops::Range<u16>) {
    let (source, to): (IpAddr, IpAddr) = (source.parse().unwrap(), to.parse().unwrap());
    from.enter(|| {
        for port in ports {
            let socket = UdpSocket::bind((source, port)).unwrap();
            // The far end has no such port, and its refusals come back.
            let _ = socket.send_to(b"there", (to, 9));
        }
    })
    .unwrap();
}

/// Whether what `source` sends to `to` arrives, whole.
fn arrives(from: &NetNs, source: &str, to: (&NetNs, &str), bytes: usize) -> bool {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let receiver = to.0.enter(|| UdpSocket::bind((ip(to.1), 0)).unwrap()).unwrap();
    receiver.set_read_timeout(Some(WAIT)).unwrap();
    let sender = from.enter(|| UdpSocket::bind((ip(source), 0)).unwrap()).unwrap();
    sender.send_to(&vec![7; bytes], receiver.local_addr().unwrap()).unwrap();
    receiver.recv(&mut [0; 9_000]).is_ok_and(|length| length == bytes)
}

/// The entries of the machine's connection table that began at addresses with this beginning.
fn entries(machine: &NetNs, source: &str) -> Vec<String> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
    let text = machine.enter(read).unwrap();
    let first = |line: &&str| {
        line.split_whitespace().find_map(|word| word.strip_prefix("src=")).unwrap().to_owned()
    };
    text.lines().filter(|line| first(line).starts_with(source)).map(str::to_owned).collect()
}

fn keeper(machine: &NetNs, options: FilterOptions) -> FilterKeeper {
    let instance = Instance::new("share").unwrap();
    let mut keeper = machine.enter(|| FilterKeeper::start(&instance, None).unwrap()).unwrap();
    keeper.set_and_wait(options).unwrap();
    keeper
}

#[test]
fn a_client_begins_no_more_connections_than_its_share() {
    run_sandboxed("shares::a_client_begins_no_more_connections_than_its_share", || {
        let road = Crossing::new();
        let Crossing { machine, tunnel, lan: outside, .. } = &road;
        for address in ["10.1.0.3/24", "fd01::3/64", "fd01:0:0:7::1/64", "fd01:0:0:7::2/64"] {
            tunnel.ip(&format!("address add {address} dev eth0")).unwrap();
        }
        let options = FilterOptions { masquerade: true, ..a_server(false, false) };
        let unbounded = keeper(machine, options.clone());
        begin(tunnel, "10.1.0.2", "10.2.0.2", 10_000..12_000);
        assert!(entries(machine, "10.1.0.2").len() >= 2_000, "the test can fail");
        drop(unbounded);

        let share = Share { connections: 320, prefixes: vec![prefix("fd01:0:0:7::/64")] };
        let mut keeper = keeper(machine, FilterOptions { share: Some(share), ..options });
        begin(tunnel, "10.1.0.3", "10.2.0.2", 10_000..12_000);
        let taken = entries(machine, "10.1.0.3").len();
        assert!((20..=320).contains(&taken), "{taken}");
        let dropped = keeper.drops().get(DropReason::ConnectionShare);
        assert!((1_680..2_000).contains(&dropped), "{dropped}");
        // All of a client's prefix is one client.
        for source in ["fd01:0:0:7::1", "fd01:0:0:7::2"] {
            begin(tunnel, source, "fd02::2", 10_000..12_000);
        }
        let taken = entries(machine, "fd01:0000:0000:0007:").len();
        assert!((20..=320).contains(&taken), "{taken}");
        // Others begin what they like.
        for (source, to) in [("10.1.0.2", "10.2.0.2"), ("fd01::3", "fd02::2")] {
            assert!(arrives(tunnel, source, (outside, to), 9), "{source}");
        }
        // A flow that has begun goes on, with or without answers.
        let held = tunnel.enter(|| UdpSocket::bind("10.1.0.2:9999").unwrap()).unwrap();
        let before = keeper.drops().get(DropReason::ConnectionShare);
        (0..3_000).for_each(|_| assert!(held.send_to(b"there", "10.2.0.2:7").is_ok()));
        assert_eq!(keeper.drops().get(DropReason::ConnectionShare), before);
        // A connection that is idle is forgotten in hours, not in days.
        let listener = outside.enter(|| TcpListener::bind("10.2.0.2:80").unwrap()).unwrap();
        let open = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _open = tunnel.enter(open).unwrap();
        let tcp = entries(machine, "10.1.0.2").into_iter().find(|it| it.contains("ESTABLISHED"));
        let seconds = tcp.as_ref().unwrap().split_whitespace().nth(4).unwrap().parse::<u32>();
        assert!(seconds.unwrap() <= 7_440, "{tcp:?}");
    });
}

#[test]
fn a_host_behind_a_box_begins_no_more_connections_than_its_share() {
    run_sandboxed("shares::a_host_behind_a_box_begins_no_more_connections_than_its_share", || {
        let road = Crossing::new();
        let Crossing { machine, tunnel, lan, .. } = &road;
        lan.ip("address add 10.2.0.3/24 dev eth0").unwrap();
        let share = Share { connections: 320, ..Share::default() };
        let mut keeper = keeper(machine, FilterOptions { share: Some(share), ..a_box(false) });
        begin(lan, "10.2.0.2", "10.1.0.2", 10_000..12_000);
        let taken = entries(machine, "10.2.0.2").len();
        assert!((20..=320).contains(&taken), "{taken}");
        assert!(keeper.drops().get(DropReason::ConnectionShare) >= 1_680);
        assert!(arrives(lan, "10.2.0.3", (tunnel, "10.1.0.2"), 9));
    });
}

/// Sends the first fragments of so many datagrams, and never the rest.
fn flood(from: &NetNs, source: &str, to: &str, count: u32) {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let socket = |domain| Socket::new(domain, Type::RAW, Some(Protocol::from(255))).unwrap();
    let (source, to) = (ip(source), ip(to));
    let socket = from.enter(|| socket(Domain::for_address(SocketAddr::new(to, 0)))).unwrap();
    for number in 0..count {
        let mut packet = Vec::new();
        match (source, to) {
            (IpAddr::V4(source), IpAddr::V4(to)) => {
                let number = (number as u16).max(1).to_be_bytes();
                packet.extend([0x45, 0, 0, 164, number[0], number[1], 0x20, 0, 64, 17, 0, 0]);
                packet.extend(source.octets().into_iter().chain(to.octets()));
                packet.resize(164, 0);
            }
            (IpAddr::V6(source), IpAddr::V6(to)) => {
                packet.extend([0x60, 0, 0, 0, 0, 144, 44, 64]);
                packet.extend(source.octets().into_iter().chain(to.octets()));
                packet.extend([17, 0, 0, 1].into_iter().chain(number.to_be_bytes()));
                packet.resize(184, 0);
            }
            _ => unreachable!("one family"),
        }
        // A full queue drops some; there are many.
        let _ = socket.send_to(&packet, &SockAddr::from(SocketAddr::new(to, 0)));
    }
}

#[test]
fn a_client_leaves_room_for_the_fragments_of_others() {
    run_sandboxed("shares::a_client_leaves_room_for_the_fragments_of_others", || {
        let road = Crossing::new();
        let Crossing { machine, tunnel, lan: outside, .. } = &road;
        for address in ["10.1.0.3/24", "fd01::3/64"] {
            tunnel.ip(&format!("address add {address} dev eth0")).unwrap();
        }
        let families = [("10.1.0.2", "10.1.0.3", "10.2.0.2"), ("fd01::2", "fd01::3", "fd02::2")];
        let options = FilterOptions { masquerade: true, ..a_server(false, false) };
        let unbounded = keeper(machine, options.clone());
        for (bad, good, to) in families {
            assert!(arrives(tunnel, good, (outside, to), 4_000), "{good}");
            flood(tunnel, bad, to, 10_000);
            assert!(!arrives(tunnel, good, (outside, to), 4_000), "{good}: the test can fail");
        }
        drop(unbounded);

        let share = Some(Share::default());
        let mut keeper = keeper(machine, FilterOptions { share, ..options });
        for (bad, good, to) in families {
            flood(tunnel, bad, to, 60_000);
            assert!(arrives(tunnel, good, (outside, to), 4_000), "{good}");
        }
        assert!(keeper.drops().get(DropReason::FragmentShare) > 100_000);
        drop(keeper);
        let restored = machine.enter(|| sysctl("ipv4/ipfrag_high_thresh")).unwrap();
        assert_eq!(restored, "4194304");
    });
}
