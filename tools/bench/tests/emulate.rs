//! Links between TUN devices in two namespaces: packets arrive intact, and as late as they should.

#![allow(clippy::unwrap_used, reason = "helpers of tests, whose failure is the test's")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of the real-time emulator needs real time and sockets"
)]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use roadweave_bench::emulate::{EmulateFile, EmulatedLinkReport, Emulator};
use roadweave_device::netns::{NetNs, run_sandboxed, wait_within};
use roadweave_device::{Signal, Signals};
use rustix::process::{getpid, kill_process};

const LINKS: &str = "
[place]
near = 'near'
far = 'far'
[[link]]
name = 'slow'
rate_kbps = 8000
delay_ms = 30
[[link]]
name = 'fast'
rate_kbps = 100000
delay_ms = 5
";

/// Runs `work` while the emulator runs; returns its report.
fn with_emulator(text: &str, work: impl FnOnce(&NetNs, &NetNs)) -> Vec<EmulatedLinkReport> {
    let near = NetNs::create("near").unwrap();
    let far = NetNs::create("far").unwrap();
    let file: EmulateFile = toml::from_str(text).unwrap();
    let emulation = file.resolve(std::path::Path::new(".")).unwrap();
    let mut signals = Signals::catch(&[Signal::Terminate, Signal::Hangup]).unwrap();
    std::thread::scope(|scope| {
        let emulator = scope.spawn(move || {
            let mut emulator = Emulator::open(&emulation).unwrap();
            emulator.run(&mut signals).unwrap();
            emulator.report()
        });
        let stop = Stop;
        wait_for_interface(&far, "fast-far");
        work(&near, &far);
        drop(stop);
        emulator.join().unwrap()
    })
}

/// Stops the emulator when a test fails too, which would otherwise wait for its thread forever.
struct Stop;

impl Drop for Stop {
    fn drop(&mut self) {
        kill_process(getpid(), rustix::process::Signal::TERM).unwrap();
    }
}

fn wait_for_interface(namespace: &NetNs, name: &str) {
    wait_within(Duration::from_secs(5), name, || {
        namespace.ip(&format!("link show {name}")).is_ok()
    });
    std::thread::sleep(Duration::from_millis(100));
}

fn socket(namespace: &NetNs, address: &str) -> UdpSocket {
    let address: IpAddr = address.parse().unwrap();
    let bind = || UdpSocket::bind(SocketAddr::new(address, 7_000)).unwrap();
    let socket = namespace.enter(bind).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

/// Sends `count` packets of `payload` bytes at once; returns when each arrives, since the first was
/// sent.
fn burst(from: &UdpSocket, to: &UdpSocket, count: usize, payload: usize) -> Vec<Duration> {
    let destination = to.local_addr().unwrap();
    let begin = Instant::now();
    for index in 0..count {
        let packet = vec![index as u8; payload];
        from.send_to(&packet, destination).unwrap();
    }
    let mut buffer = vec![0; 2_000];
    let arrivals = (0..count).map(|index| {
        let (length, _) = to.recv_from(&mut buffer).expect("every packet arrives");
        assert_eq!(&buffer[..length], vec![index as u8; payload], "packet {index} is intact");
        begin.elapsed()
    });
    arrivals.collect()
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort_unstable();
    values[values.len() / 2]
}

#[test]
fn links_have_their_delay_and_rate_in_both_directions_and_families() {
    run_sandboxed(|| {
        let reports = with_emulator(LINKS, |near, far| {
            for (near_address, far_address) in
                [("10.201.1.2", "10.201.1.1"), ("fd00:201:1::2", "fd00:201:1::1")]
            {
                let near = socket(near, near_address);
                let far = socket(far, far_address);
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let delays = (0..9).map(|_| burst(from, to, 1, 1_000)[0]).collect();
                    let delay = median(delays);
                    println!("one packet: {delay:?}");
                    // 30 ms, and 1 ms for 1,028 or 1,048 bytes at 8 Mbit/s.
                    assert!(delay >= Duration::from_millis(31), "{delay:?}");
                    assert!(delay < Duration::from_millis(45), "{delay:?}");
                    // 90 packets take 91 to 95 ms more.
                    let took = burst(from, to, 90, 1_000)[89];
                    println!("90 packets: {took:?}");
                    assert!(took >= Duration::from_millis(122), "{took:?}");
                    assert!(took < Duration::from_millis(160), "{took:?}");
                }
            }
        });
        assert!(reports[0].up.delivered >= 198, "{reports:?}");
        assert_eq!(reports[0].down.dropped.total(), 0, "{reports:?}");
    });
}

#[test]
fn the_near_namespace_has_a_default_route_per_link_and_sizes_up_to_the_mtu_pass() {
    run_sandboxed(|| {
        with_emulator(LINKS, |near, far| {
            let routes = near.run("ip route show default").unwrap();
            assert!(routes.contains("default via 10.201.1.1 dev slow metric 101"), "{routes}");
            assert!(routes.contains("default via 10.201.2.1 dev fast metric 102"), "{routes}");
            let near = socket(near, "10.201.2.2");
            let far = socket(far, "10.201.2.1");
            for payload in [0, 1, 2, 500, 1_471, 1_472] {
                burst(&near, &far, 3, payload);
                burst(&far, &near, 3, payload);
            }
        });
    });
}

#[test]
fn a_device_that_goes_down_and_up_works_again() {
    run_sandboxed(|| {
        with_emulator(LINKS, |near, far| {
            let near_socket = socket(near, "10.201.2.2");
            let far_socket = socket(far, "10.201.2.1");
            burst(&near_socket, &far_socket, 5, 100);
            near.ip("link set fast down").unwrap();
            std::thread::sleep(Duration::from_millis(200));
            far_socket.send_to(&[0; 100], "10.201.2.2:7000").unwrap();
            std::thread::sleep(Duration::from_millis(200));
            near.ip("link set fast up").unwrap();
            std::thread::sleep(Duration::from_millis(200));
            burst(&near_socket, &far_socket, 5, 100);
            burst(&far_socket, &near_socket, 5, 100);
        });
    });
}
