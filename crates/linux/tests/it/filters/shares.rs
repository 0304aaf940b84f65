//! The shares of clients and hosts in the kernel's tables leave enough for others.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use roadweave_linux::{FilterKeeper, FilterOptions, Share};
use roadweave_proto::DropReason;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::*;

fn begin(from: &NetNs, source: &str, to: &str, ports: std::ops::Range<u16>) {
    let (source, to): (IpAddr, IpAddr) = (source.parse().unwrap(), to.parse().unwrap());
    from.enter(|| {
        for port in ports {
            let socket = UdpSocket::bind((source, port)).unwrap();
            let _ = socket.send_to(b"there", (to, 9));
        }
    })
    .unwrap();
}

fn arrives(from: &NetNs, source: &str, to: (&NetNs, &str), bytes: usize) -> bool {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let receiver = to.0.enter(|| UdpSocket::bind((ip(to.1), 0)).unwrap()).unwrap();
    receiver.set_read_timeout(Some(WAIT)).unwrap();
    let sender = from.enter(|| UdpSocket::bind((ip(source), 0)).unwrap()).unwrap();
    sender.send_to(&vec![7; bytes], receiver.local_addr().unwrap()).unwrap();
    receiver.recv(&mut [0; 9_000]).is_ok_and(|length| length == bytes)
}

fn entries(machine: &NetNs, source: &str) -> Vec<String> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
    let text = machine.enter(read).unwrap();
    let first = |line: &&str| {
        line.split_whitespace().find_map(|word| word.strip_prefix("src=")).unwrap().to_owned()
    };
    text.lines().filter(|line| first(line).starts_with(source)).map(str::to_owned).collect()
}

fn assert_bounded(machine: &NetNs, source: &str) {
    // The first packets of IPv6 wait for the router's link-layer address.
    wait_until("connections begin", || entries(machine, source).len() >= 20);
    let taken = entries(machine, source).len();
    assert!(taken <= 320, "{source}: {taken}");
}

fn keeper(machine: &NetNs, options: FilterOptions) -> FilterKeeper {
    keep(machine, "share", options)
}

#[test]
fn a_client_begins_no_more_connections_than_its_share() {
    on_crossing(|Crossing { machine, tunnel, lan: outside, .. }| {
        for address in ["10.1.0.3/24", "fd01::3/64", "fd01:0:0:7::1/64", "fd01:0:0:7::2/64"] {
            tunnel.ip(&format!("address add {address} dev eth0")).unwrap();
        }
        let options = FilterOptions { masquerade: true, ..a_server(false, false) };
        let unbounded = keeper(machine, options.clone());
        begin(tunnel, "10.1.0.2", "10.2.0.2", 10_000..12_000);
        assert!(entries(machine, "10.1.0.2").len() >= 2_000, "the test can fail");
        drop(unbounded);

        let share = Share { connections: 320, prefixes: vec![prefix("fd01:0:0:7::/64")] };
        let mut keeper = keeper(machine, FilterOptions { share: Some(share), ..options.clone() });
        begin(tunnel, "10.1.0.3", "10.2.0.2", 10_000..12_000);
        assert_bounded(machine, "10.1.0.3");
        let dropped = keeper.drops().get(DropReason::ConnectionShare);
        assert!((1_680..2_000).contains(&dropped), "{dropped}");
        // A client's whole prefix is one source.
        for source in ["fd01:0:0:7::1", "fd01:0:0:7::2"] {
            begin(tunnel, source, "fd02::2", 10_000..12_000);
        }
        assert_bounded(machine, "fd01:0000:0000:0007:");
        for (source, to) in [("10.1.0.2", "10.2.0.2"), ("fd01::3", "fd02::2")] {
            assert!(arrives(tunnel, source, (outside, to), 9), "{source}");
        }
        // An existing flow continues, with or without answers.
        let held = tunnel.enter(|| UdpSocket::bind("10.1.0.2:9999").unwrap()).unwrap();
        let before = keeper.drops().get(DropReason::ConnectionShare);
        (0..3_000).for_each(|_| assert!(held.send_to(b"there", "10.2.0.2:7").is_ok()));
        assert_eq!(keeper.drops().get(DropReason::ConnectionShare), before);
        // One source port may use the whole share, and no more.
        let socket = tunnel.enter(|| UdpSocket::bind("10.1.0.2:7777").unwrap()).unwrap();
        (1..2_000).for_each(|port| _ = socket.send_to(b"there", ("10.2.0.2", port)));
        let of_port = |line: &&String| line.contains("sport=7777");
        let taken = entries(machine, "10.1.0.2").iter().filter(of_port).count();
        assert!((15..=320).contains(&taken), "{taken}: as many as begin in a burst");
        // An idle connection expires in hours, not days.
        let listener = outside.enter(|| TcpListener::bind("10.2.0.2:80").unwrap()).unwrap();
        let mut open = tunnel
            .enter(|| {
                tunnel.ip("address add 10.1.0.4/24 dev eth0").unwrap();
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                let source: SocketAddr = "10.1.0.4:0".parse().unwrap();
                socket.bind(&source.into()).unwrap();
                socket.connect(&listener.local_addr().unwrap().into()).unwrap();
                TcpStream::from(socket)
            })
            .unwrap();
        let assert_forgotten = || {
            let tcp = entries(machine, "10.1.0.4").into_iter().find(|it| it.contains("ESTAB"));
            let seconds = tcp.as_ref().unwrap().split_whitespace().nth(4).unwrap().parse::<u32>();
            assert!(seconds.unwrap() <= 7_440, "{tcp:?}");
        };
        assert_forgotten();
        let prefixes = vec![prefix("fd01:0:0:7::/64"), prefix("10.1.9.0/24")];
        let share = Some(Share { connections: 320, prefixes });
        keeper.set_and_wait(FilterOptions { share, mtu: 1_300, ..options }).unwrap();
        open.write_all(b"there").unwrap();
        let begun = std::time::Instant::now();
        while begun.elapsed() < WAIT {
            assert_forgotten();
        }
        begin(tunnel, "10.1.0.3", "10.2.0.2", 20_000..22_000);
        assert_bounded(machine, "10.1.0.3");
        assert!(keeper.drops().get(DropReason::ConnectionShare) > before, "drops stay counted");
    });
}

#[test]
fn a_host_behind_a_box_begins_no_more_connections_than_its_share() {
    on_crossing(|Crossing { machine, tunnel, lan, .. }| {
        let share = Share { connections: 320, ..Share::default() };
        let options = FilterOptions { share: Some(share), ..a_box(false) };
        let mut keeper = keeper(machine, options);
        begin(lan, "10.2.0.2", "10.1.0.2", 10_000..12_000);
        assert_bounded(machine, "10.2.0.2");
        assert!(keeper.drops().get(DropReason::ConnectionShare) >= 1_680);
        // All source addresses count for one host.
        for number in 0..40 {
            let source = format!("fd02::{:x}", 0x100 + number);
            lan.ip(&format!("address add {source}/64 dev eth0 nodad")).unwrap();
            begin(lan, &source, "fd01::2", 10_000..10_050);
        }
        assert_bounded(machine, "fd02:");
        lan.ip("link add eth1 link eth0 type macvlan mode private").unwrap();
        lan.ip("link set eth1 up").unwrap();
        lan.ip("address add 10.2.0.3/32 dev eth1").unwrap();
        lan.ip("route add 10.2.0.1 dev eth1 table 3").unwrap();
        lan.ip("route add default via 10.2.0.1 dev eth1 table 3").unwrap();
        lan.ip("rule add from 10.2.0.3 table 3").unwrap();
        assert!(arrives(lan, "10.2.0.3", (tunnel, "10.1.0.2"), 9));
    });
}

#[test]
fn hosts_that_find_no_place_share_one_bound() {
    on_crossing(|Crossing { machine, tunnel, lan, .. }| {
        let share = Some(Share::default());
        let _keeper = keeper(machine, FilterOptions { share, ..a_box(false) });
        // As if another host had forged this many hardware addresses.
        let hosts =
            (0..1_024).map(|it| format!("lan0 . 02:00:00:00:{:02x}:{:02x}", it >> 8, it & 255));
        let hosts = hosts.collect::<Vec<_>>().join(", ");
        for set in ["known4", "known6"] {
            nft(machine, &format!("flush set inet roadweave_share_shares {set}"));
            nft(machine, &format!("add element inet roadweave_share_shares {set} {{ {hosts} }}"));
        }
        assert!(arrives(lan, "10.2.0.2", (tunnel, "10.1.0.2"), 9));
        assert!(arrives(lan, "fd02::2", (tunnel, "fd01::2"), 9));
        begin(lan, "10.2.0.2", "10.1.0.2", 10_000..12_000);
        let taken = entries(machine, "10.2.0.2").len();
        assert!((20..=513).contains(&taken), "{taken}");
    });
}

#[test]
fn what_begins_outside_is_counted_by_its_destination() {
    on_crossing(|Crossing { machine, tunnel, lan: outside, .. }| {
        tunnel.ip("address add 10.1.0.3/24 dev eth0").unwrap();
        let share = Some(Share { connections: 320, prefixes: Vec::new() });
        let mut keeper = keeper(machine, FilterOptions { share, ..a_server(true, false) });
        begin(outside, "10.2.0.2", "10.1.0.2", 10_000..12_000);
        assert_bounded(machine, "10.2.0.2");
        assert!(keeper.drops().get(DropReason::ConnectionShare) >= 1_680);
        assert!(arrives(tunnel, "10.1.0.2", (outside, "10.2.0.2"), 9));
        assert!(arrives(outside, "10.2.0.2", (tunnel, "10.1.0.3"), 9));
    });
}

#[test]
fn bounds_that_fail_leave_the_filters_and_are_tried_again() {
    on_crossing(|Crossing { machine, tunnel, lan: outside, .. }| {
        let program = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"];
        let program = program.into_iter().find(|path| std::path::Path::new(path).exists()).unwrap();
        std::fs::copy(program, "/run/nft").unwrap();
        let script = "#!/bin/sh\nread() { cat; }\nin=$(read)\ncase $in in\n*\"$(cat /run/unknown)\"*) \
                      echo 'Error: Could not process rule: '\"$(cat /run/why)\" >&2; exit 1;;\nesac\n\
                      printf '%s\\n' \"$in\" | exec /run/nft \"$@\"\n";
        std::fs::write("/run/script", script).unwrap();
        let run = |words: &str| {
            let mut words = words.split(' ');
            let mut command = std::process::Command::new(words.next().unwrap());
            assert!(command.args(words).status().unwrap().success());
        };
        run("chmod 755 /run/script /run/nft");
        run(&format!("mount --bind /run/script {program}"));
        let options = FilterOptions { share: Some(Share::default()), ..a_server(false, false) };
        let chains = |table: &str| {
            let mut list = machine.command("/run/nft");
            let output = list.args(["list", "table", "inet", table]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        std::fs::write("/run/unknown", "_shares").unwrap();
        std::fs::write("/run/why", "Cannot allocate memory").unwrap();
        let unbounded = keeper(machine, options.clone());
        assert!(arrives(tunnel, "10.1.0.2", (outside, "10.2.0.2"), 9));
        assert!(!chains("roadweave_share").is_empty(), "the filters are there");
        drop(unbounded);
        std::fs::write("/run/unknown", "ct count").unwrap();
        std::fs::write("/run/why", "No such file or directory").unwrap();
        let mut keeper = keeper(machine, options.clone());
        assert!(chains("roadweave_share_shares").contains("take_fragment4"));
        assert!(!chains("roadweave_share_shares").contains("ct count"));
        // The next attempt uses all features, even with the same options.
        std::fs::write("/run/unknown", "nothing").unwrap();
        keeper.refresh();
        let begun = std::time::Instant::now();
        while !chains("roadweave_share_shares").contains("ct count") {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60));
            std::thread::sleep(WAIT);
        }
        drop(keeper);
    });
}

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
        let _ = socket.send_to(&packet, &SockAddr::from(SocketAddr::new(to, 0)));
    }
}

const STREAM: u32 = 2_000;

/// Sends 500 datagrams per second in two fragments each, beside a flood; returns how many arrived.
fn stream(from: &NetNs, (bad, good): (&str, &str), to: (&NetNs, &str)) -> u32 {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let receiver = to.0.enter(|| UdpSocket::bind((ip(to.1), 0)).unwrap()).unwrap();
    receiver.set_read_timeout(Some(WAIT)).unwrap();
    let sender = from.enter(|| UdpSocket::bind((ip(good), 0)).unwrap()).unwrap();
    let mut received = 0;
    for burst in 0..STREAM / 20 {
        let begun = std::time::Instant::now();
        flood(from, bad, to.1, 200);
        for _ in 0..20 {
            sender.send_to(&[7; 2_000], receiver.local_addr().unwrap()).unwrap();
        }
        (0..20).for_each(|_| received += u32::from(receiver.recv(&mut [0; 9_000]).is_ok()));
        assert_eq!(received, (burst + 1) * 20);
        std::thread::sleep(std::time::Duration::from_millis(40).saturating_sub(begun.elapsed()));
    }
    received
}

#[test]
fn a_client_leaves_room_for_the_fragments_of_others() {
    on_crossing(|Crossing { machine, tunnel, lan: outside, .. }| {
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
        let begun = std::time::Instant::now();
        for (bad, good, to) in families {
            flood(tunnel, bad, to, 60_000);
            assert!(arrives(tunnel, good, (outside, to), 4_000), "{good}");
        }
        // A loaded machine sends slowly, and a share admits at most 10,000 fragments a second.
        let admitted = 10_000 * (1 + begun.elapsed().as_secs());
        let drops = keeper.drops().get(DropReason::FragmentShare);
        assert!(drops > 0 && drops + admitted > 60_000, "{drops} after {:?}", begun.elapsed());
        for (bad, good, to) in families {
            let received = stream(tunnel, (bad, good), (outside, to));
            assert_eq!(received, STREAM, "{good}");
        }
        drop(keeper);
        let restored = machine.enter(|| sysctl("ipv4/ipfrag_high_thresh")).unwrap();
        assert_eq!(restored, "4194304");
        let wait = machine.enter(|| sysctl("ipv4/ipfrag_time")).unwrap();
        assert_eq!(wait, "30");
    });
}
