//! Rate, delay and loss of emulated links, measured by iperf3 and ping; and which packets pass.
//!
//! ```text
//!  near: ping, iperf3 ── slow, lossy (roadweave emulate) ── far: iperf3
//! ```
//!
//! A busy machine adds delay and loss, so a measurement that disagrees is repeated.

#![allow(clippy::unwrap_used, reason = "helpers of tests, whose failure is the test's")]
#![allow(
    clippy::disallowed_methods,
    reason = "the real-time emulator needs real time and programs"
)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use roadweave_linux::netns::{NetNs, run_sandboxed};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// With this seed `lossy` keeps iperf3's first packets; otherwise iperf3 waits for a minute.
const LINKS: &str = "
seed = 3
[place]
near = 'near'
far = 'far'
[[link]]
name = 'slow'
rate_kbps = 8000
rate_down_kbps = 12000
delay_ms = 30
queue_bytes = 60000
[[link]]
name = 'lossy'
rate_kbps = 30000
delay_ms = 12.5
loss = 0.05
loss_burst = 3
";
const ATTEMPTS: usize = 4;
/// Queue of `slow`, bytes.
const QUEUE: f64 = 60_000.0;
/// How long iperf3 sends, seconds.
const SECONDS: f64 = 2.0;
/// iperf3's packets with their headers, bytes.
const PACKET: f64 = 1_028.0;

fn with_emulator(work: impl FnOnce(&NetNs, &NetNs, &Emulator)) -> Value {
    let near = NetNs::create("near").unwrap();
    let far = NetNs::create("far").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("emulate.toml");
    fs::write(&file, LINKS).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-lab"));
    command.args(["emulate", "--json", "--config"]).arg(&file).stdout(Stdio::piped());
    let mut emulator = Emulator(command.spawn().unwrap());
    let mut lines = BufReader::new(emulator.0.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["ready"], true);
    work(&near, &far, &emulator);
    emulator.signal(Signal::TERM);
    next()
}

/// Ends with its test, also a failed one.
struct Emulator(Child);

impl Emulator {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually(mut measure: impl FnMut() -> Result<(), String>) {
    let mut complaints = Vec::new();
    while complaints.len() < ATTEMPTS {
        match measure() {
            Ok(()) => return,
            Err(complaint) => complaints.push(complaint),
        }
    }
    panic!("{complaints:#?}");
}

fn near_to(what: &str, found: f64, expected: f64, tolerance: f64) -> Result<(), String> {
    println!("{what}: {found:.3}, expected {expected:.3}");
    match (found - expected).abs() <= tolerance {
        true => Ok(()),
        false => Err(format!("{what}: {found}, expected {expected} +- {tolerance}")),
    }
}

fn is_missing(program: &str) -> bool {
    let missing = Command::new(program).arg("-v").output().is_err();
    if missing {
        let required = std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_some();
        assert!(!required, "{program} is not installed");
        eprintln!("skipped: {program} is not installed");
    }
    missing
}

fn ping(near: &NetNs, address: &str) -> (f64, f64) {
    let words = ["-n", "-c", "40", "-i", "0.02", address];
    let output = near.command("ping").args(words).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let time = |line: &str| line.split_once("time=")?.1.split(' ').next()?.parse().ok();
    let mut times: Vec<f64> = text.lines().filter_map(time).collect();
    times.sort_by(f64::total_cmp);
    assert!(times.len() > 20, "{text}");
    (times[times.len() / 2], times[0])
}

/// Packets that iperf3 sends and loses in [`SECONDS`] of UDP at `mbps` Mbit/s to `address`. (Its
/// reverse mode does not count packets in flight at the end.)
fn iperf(from: &NetNs, to: &NetNs, address: &str, mbps: f64) -> (f64, f64) {
    let mut server = to.command("iperf3");
    server.args(["-s", "-1", "-B", address]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = server.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let output = loop {
        let mut client = from.command("iperf3");
        client.args(["-c", address, "-u", "-J", "-l", "1000", "--pacing-timer", "200"]);
        client.args(["-t", &SECONDS.to_string(), "-b", &format!("{mbps}M")]);
        let output = client.output().unwrap();
        if output.status.success() {
            break output;
        }
        // The server needs a moment to listen.
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(Instant::now() < deadline, "{said}");
        std::thread::sleep(Duration::from_millis(50));
    };
    server.wait().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figure = |name: &str| report["end"]["sum"][name].as_f64().unwrap();
    (figure("packets"), figure("lost_packets"))
}

#[test]
fn ping_sees_the_delay_twice_and_iperf3_the_rate_and_the_loss() {
    run_sandboxed(|| {
        if is_missing("ping") || is_missing("iperf3") {
            return;
        }
        with_emulator(|near, far, emulator| {
            for (address, round_trip) in [("10.201.1.1", 60.0), ("fd00:201:2::1", 25.0)] {
                eventually(|| {
                    let (median, least) = ping(near, address);
                    // Each packet takes some 0.1 ms more at 8 Mbit/s.
                    assert!(least >= round_trip, "faster than light: {least} ms");
                    near_to("round trip, ms", median, round_trip + 1.0, 1.0)
                });
            }
            for (from, to, address, expected) in
                [(near, far, "10.201.1.1", 8.0), (far, near, "10.201.1.2", 12.0)]
            {
                eventually(|| {
                    let (sent, lost) = iperf(from, to, address, 1.15 * expected);
                    // The queue's content still arrives after the end.
                    let seconds = SECONDS + QUEUE * 8.0 / (expected * 1e6);
                    let rate = (sent - lost) * PACKET * 8.0 / 1e6 / seconds;
                    near_to("Mbit/s", rate, expected, 0.02 * expected)
                });
            }
            eventually(|| {
                emulator.signal(Signal::HUP);
                // 5,000 packets: with bursts of three the standard deviation is 0.7 points.
                let (sent, lost) = iperf(near, far, "10.201.2.1", 20.0);
                near_to("share lost", lost / sent, 0.05, 0.015)
            });
        });
    });
}

fn socket(namespace: &NetNs, address: &str) -> UdpSocket {
    let address: IpAddr = address.parse().unwrap();
    let bind = || UdpSocket::bind(SocketAddr::new(address, 7_000)).unwrap();
    let socket = namespace.enter(bind).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

fn burst(from: &UdpSocket, to: &UdpSocket, count: u8, payload: usize) {
    let packet = |index: u8| vec![index; payload];
    for index in 0..count {
        from.send_to(&packet(index), to.local_addr().unwrap()).unwrap();
    }
    let mut buffer = vec![0; 2_000];
    for index in 0..count {
        let (length, _) = to.recv_from(&mut buffer).expect("every packet arrives");
        assert_eq!(&buffer[..length], packet(index), "packet {index} is intact");
    }
}

#[test]
fn packets_up_to_the_mtu_pass_by_a_default_route_per_link_and_after_a_device_was_down() {
    run_sandboxed(|| {
        let report = with_emulator(|near, far, _| {
            let routes = near.run("ip route show default").unwrap();
            assert!(routes.contains("default via 10.201.1.1 dev slow metric 101"), "{routes}");
            assert!(routes.contains("default via 10.201.2.1 dev lossy metric 102"), "{routes}");
            let (box_end, far_end) = (socket(near, "10.201.1.2"), socket(far, "10.201.1.1"));
            for payload in [0, 1, 2, 500, 1_471, 1_472] {
                burst(&box_end, &far_end, 3, payload);
                burst(&far_end, &box_end, 3, payload);
            }
            let pause = || std::thread::sleep(Duration::from_millis(200));
            near.ip("link set slow down").unwrap();
            pause();
            far_end.send_to(&[0; 100], "10.201.1.2:7000").unwrap();
            pause();
            near.ip("link set slow up").unwrap();
            pause();
            burst(&box_end, &far_end, 5, 100);
            burst(&far_end, &box_end, 5, 100);
        });
        let [up, down] = ["up", "down"].map(|way| &report["links"][0][way]);
        let delivered = [up, down].map(|way| way["delivered"].as_u64().unwrap());
        assert!(delivered.iter().all(|packets| *packets >= 23), "{report}");
        assert_eq!(up["dropped"], serde_json::json!({}), "{report}");
    });
}
