//! A TUN carries everything intact, with and without segmentation offload.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use roadweave_linux::{
    DeviceError, Interest, Poller, Token, Tun, TunOptions, WriteCounts, wait_readable,
};

use crate::common::{NetNs, checksum, echo, run_sandboxed, udp};

const MTU: u16 = 1400;

fn options(addresses: &[&str], offload: bool) -> TunOptions {
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    TunOptions { name: "rw0".to_owned(), mtu: MTU, addresses, offload }
}

struct TunPair {
    left: NetNs,
    right: NetNs,
    stop: Arc<AtomicBool>,
    largest: Arc<AtomicU64>,
    bridge: Option<std::thread::JoinHandle<(Tun, Tun)>>,
}

impl TunPair {
    fn new(offload: bool) -> Self {
        let left = NetNs::create(&format!("left-{offload}")).unwrap();
        let right = NetNs::create(&format!("right-{offload}")).unwrap();
        let tun = |namespace: &NetNs, host: u8| {
            let addresses = [format!("10.8.0.{host}/24"), format!("fd08::{host}/64")];
            let options = options(&addresses.each_ref().map(String::as_str), offload);
            namespace.enter(move || Tun::open(&options)).unwrap().unwrap()
        };
        let (a, b) = (tun(&left, 1), tun(&right, 2));
        assert_eq!(a.offload().0, offload);
        let stop = Arc::new(AtomicBool::new(false));
        let largest = Arc::new(AtomicU64::new(0));
        let bridge = {
            let (stop, largest) = (Arc::clone(&stop), Arc::clone(&largest));
            std::thread::spawn(move || bridge(a, b, &stop, &largest))
        };
        Self { left, right, stop, largest, bridge: Some(bridge) }
    }

    fn finish(mut self) -> (Tun, Tun) {
        self.stop.store(true, Ordering::Relaxed);
        self.bridge.take().unwrap().join().unwrap()
    }
}

fn bridge(mut a: Tun, mut b: Tun, stop: &AtomicBool, largest: &AtomicU64) -> (Tun, Tun) {
    let mut poller = Poller::new().unwrap();
    poller.add(&a, Token(0), Interest::Read).unwrap();
    poller.add(&b, Token(1), Interest::Read).unwrap();
    let mut packets: Vec<Vec<u8>> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        poller.wait(Some(Duration::from_millis(20))).unwrap();
        for forward in [true, false] {
            let (from, to) = if forward { (&mut a, &mut b) } else { (&mut b, &mut a) };
            packets.clear();
            from.read_batch(Tun::READS_MAX, |packet| {
                largest.fetch_max(packet.len() as u64, Ordering::Relaxed);
                packets.push(packet.to_vec());
            })
            .unwrap();
            let counts = to.write_batch(&packets);
            assert_eq!(counts.written, packets.len(), "{counts:?}");
        }
    }
    (a, b)
}

fn check_every_size(offload: bool) {
    let pair = TunPair::new(offload);
    for (address, headers) in [("10.8.0.2", 28), ("fd08::2", 48)] {
        let address: IpAddr = address.parse().unwrap();
        let bind =
            SocketAddr::new(if address.is_ipv4() { [0; 4].into() } else { [0u8; 16].into() }, 0);
        let server = pair.right.enter(|| UdpSocket::bind((address, 7000)).unwrap()).unwrap();
        let client = pair.left.enter(|| UdpSocket::bind(bind).unwrap()).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let limit = usize::from(MTU) - headers;
        let mut buffer = [0; 4096];
        for size in (1..=limit).chain([limit + 1, 2000, 3999]) {
            let message: Vec<u8> = (0..size).map(|at| (at * 7 + size) as u8).collect();
            client.send_to(&message, (address, 7000)).unwrap();
            let (length, _) = server.recv_from(&mut buffer).unwrap();
            assert!(buffer[..length] == message, "{size} bytes to {address}");
        }
    }
    assert_eq!(pair.largest.load(Ordering::Relaxed), u64::from(MTU));
    pair.finish();
}

/// A router advertisement (RFC 4861 section 4.2) with an MTU and a prefix for addresses.
fn router_advertisement() -> Vec<u8> {
    let addresses = ["fe80::1", "ff02::1"].map(|text| text.parse::<Ipv6Addr>().unwrap().octets());
    let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    message.extend([5, 1, 0, 0, 0, 0, 5, 0]);
    message.extend([3, 4, 64, 0xc0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0]);
    message.extend("2001:db8:66::".parse::<Ipv6Addr>().unwrap().octets());
    let mut covered = addresses.concat();
    covered.extend([0, 0, 0, message.len() as u8, 0, 0, 0, 58]);
    covered.extend(&message);
    message[2..4].copy_from_slice(&checksum(&covered).to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0, 0, message.len() as u8, 58, 255];
    packet.extend(addresses.concat());
    packet.extend(message);
    packet
}

#[test]
fn a_router_advertisement_out_of_the_tunnel_changes_nothing() {
    run_sandboxed(|| {
        let vehicle = NetNs::create("box").unwrap();
        vehicle.set_sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
        vehicle.set_sysctl("net.ipv6.conf.default.accept_ra", "2").unwrap();
        let options = options(&["fd77::2/128"], false);
        let mut tun = vehicle.enter(move || Tun::open(&options)).unwrap().unwrap();
        let seen =
            || vehicle.run("ip -6 route").unwrap() + &vehicle.run("ip -brief address").unwrap();
        let before = seen();
        assert_eq!(tun.write_batch([router_advertisement()]).written, 1);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(seen(), before);
        vehicle.set_sysctl("net.ipv6.conf.rw0.accept_ra", "2").unwrap();
        assert_eq!(tun.write_batch([router_advertisement()]).written, 1);
        std::thread::sleep(Duration::from_millis(300));
        assert!(seen().contains("default via fe80::1"), "{}", seen());
    });
}

#[test]
fn every_size_arrives_intact_with_and_without_offload() {
    run_sandboxed(|| [false, true].into_iter().for_each(check_every_size));
}

fn copy_by_tcp(pair: &TunPair, address: &str, bytes: usize) {
    let address: IpAddr = address.parse().unwrap();
    let listener = pair.right.enter(|| TcpListener::bind((address, 7001)).unwrap()).unwrap();
    let receiver = std::thread::spawn(move || {
        let mut received = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
        received
    });
    let pattern: Vec<u8> = (0..bytes).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
    let mut stream = pair.left.enter(|| TcpStream::connect((address, 7001)).unwrap()).unwrap();
    stream.write_all(&pattern).unwrap();
    drop(stream);
    assert!(receiver.join().unwrap() == pattern);
}

#[test]
fn tcp_arrives_intact_and_with_offload_in_super_packets() {
    run_sandboxed(|| {
        let pair = TunPair::new(true);
        for address in ["10.8.0.2", "fd08::2"] {
            copy_by_tcp(&pair, address, 20_000_000);
        }
        assert!(pair.largest.load(Ordering::Relaxed) <= u64::from(MTU));
        let (left, right) = pair.finish();
        let (read, written) = (left.statistics(), right.statistics());
        assert_eq!(read.malformed + written.malformed, 0);
        // 40 MB are 29,000 packets of 1,400 bytes; the kernel hands over fewer, larger ones.
        assert!(read.packets_read > 28_000, "{read:?}");
        assert!(read.reads < read.packets_read / 4, "{read:?}");
        assert!(written.writes < written.packets_written / 2, "{written:?}");

        let pair = TunPair::new(false);
        copy_by_tcp(&pair, "10.8.0.2", 5_000_000);
        pair.finish();
    });
}

#[test]
fn udp_gso_from_an_application_is_cut_into_its_datagrams() {
    run_sandboxed(|| {
        let pair = TunPair::new(true);
        for address in ["10.8.0.2:7002", "[fd08::2]:7002"] {
            let address: SocketAddr = address.parse().unwrap();
            let any: SocketAddr =
                if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
            let server = pair.right.enter(|| UdpSocket::bind(address).unwrap()).unwrap();
            server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let client = pair.left.enter(|| UdpSocket::bind(any).unwrap()).unwrap();
            let contents: Vec<u8> = (0..30_500).map(|at| (at / 1000) as u8).collect();
            let state = noq_udp::UdpSocketState::new((&client).into()).unwrap();
            let transmit = noq_udp::Transmit {
                destination: address,
                ecn: None,
                contents: &contents,
                segment_size: Some(1000),
                src_ip: None,
            };
            state.try_send((&client).into(), &transmit).unwrap();
            let mut buffer = [0; 2000];
            for (at, chunk) in contents.chunks(1000).enumerate() {
                let (length, _) = server
                    .recv_from(&mut buffer)
                    .unwrap_or_else(|error| panic!("datagram {at} to {address}: {error}"));
                assert!(buffer[..length] == *chunk);
            }
        }
        pair.finish();
    });
}

#[test]
fn a_name_in_use_is_an_error() {
    run_sandboxed(|| {
        let options =
            |name: &str| TunOptions { name: name.to_owned(), ..options(&["10.8.0.1/24"], true) };
        let first = Tun::open(&options("rw0")).unwrap();
        for name in ["rw0", "lo"] {
            let error = Tun::open(&options(name)).unwrap_err();
            assert!(matches!(error, DeviceError::NameInUse { .. }), "{name}: {error}");
        }
        for name in ["", "a/b", "a name", "sixteen-letters-"] {
            let error = Tun::open(&options(name)).unwrap_err();
            assert!(matches!(error, DeviceError::BadName { .. }), "{name}: {error}");
        }
        drop(first);
        Tun::open(&options("rw0")).expect("the kernel removed it with its descriptor");
        assert_eq!(Tun::open(&options("rw%d")).unwrap().name(), "rw0");
    });
}

#[test]
fn of_several_queues_a_flow_comes_back_by_that_which_it_went_by() {
    run_sandboxed(|| {
        let options = options(&["10.8.0.1/24"], true);
        let mut queues = Tun::open_queues(&options, 3).unwrap();
        for error in [Tun::open(&options).err(), Tun::open_queues(&options, 2).err()] {
            let error = error.expect("its name is taken");
            assert!(matches!(error, DeviceError::NameInUse { .. }), "{error}");
        }
        echo(UdpSocket::bind("10.8.0.1:7000").unwrap());
        for flow in 0..30_u16 {
            let at = usize::from(flow) % queues.len();
            let mut queue = queues[at].try_clone().unwrap();
            let port = 1_000 + flow;
            let (from, to) = ([10, 8, 0, 2].into(), [10, 8, 0, 1].into());
            let packet = udp((from, port), (to, 7000), b"ping");
            assert_eq!(queue.write_batch([packet]).written, 1);
            assert!(wait_readable(&queue, Duration::from_secs(20)).unwrap(), "{flow} at {at}");
            for (number, queue) in queues.iter_mut().enumerate() {
                let mut ports = Vec::new();
                let port_of = |packet: &[u8]| u16::from_be_bytes([packet[22], packet[23]]);
                queue.read_batch(Tun::READS_MAX, |packet| ports.push(port_of(packet))).unwrap();
                let expected = if number == at { vec![port] } else { vec![] };
                assert_eq!(ports, expected, "flow {flow} of queue {at}, read at {number}");
            }
        }
    });
}

#[test]
fn what_is_no_packet_is_refused_and_counted() {
    run_sandboxed(|| {
        let mut tun = Tun::open(&options(&[], true)).unwrap();
        let counts = tun.write_batch([&b"\x00junk that is no IP packet"[..], &[], &[0xff; 30]]);
        assert_eq!(counts, WriteCounts { written: 0, full: 0, refused: 3 });
    });
}
