//! `roadweave capture`: what tshark finds in its files, and that nothing which becomes of the one
//! who captures is of any concern to the tunnel.

#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests start programs, open sockets and wait"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use common::disk::Disk;
use common::*;
use roadweave_device::netns::{Watch, run_sandboxed};
use rustix::process::Signal;

/// What tshark finds in a file, by packet and field; `None` where it is not installed.
fn read(path: &Path, options: &[&str], fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(path).args(["-T", "fields", "-E", "separator=|"]).args(options);
    fields.iter().for_each(|field| _ = command.args(["-e", field]));
    match command.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
            assert!(!said.contains("cut short") && !said.contains("damaged"), "{said}");
            let lines = String::from_utf8(output.stdout).unwrap();
            let line = |line: &str| line.split('|').map(str::to_owned).collect();
            Some(lines.lines().map(line).collect())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            assert!(std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_none(), "tshark: {error}");
            eprintln!("skipped: tshark is not installed");
            None
        }
        Err(error) => panic!("tshark cannot run: {error}"),
    }
}

/// `roadweave capture` with further words.
fn command(instance: &str, words: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["capture", instance]).args(words.split_whitespace());
    command
}

/// One that runs by now and writes to a file.
fn start(road: &Road, instance: &str, name: &str, words: &str) -> (Daemon, PathBuf) {
    let path = road.path(name);
    let mut command = command(instance, words);
    command.arg("--write").arg(&path);
    let daemon = Daemon::start(command, road.path(&format!("{name}.log")));
    let watch = Watch::start();
    while fs::metadata(&path).map_or(0, |file| file.len()) == 0 {
        assert!(watch.elapsed() < WAIT_MAX, "it does not begin:\n{}", daemon.log());
        sleep(Duration::from_millis(20));
    }
    (daemon, path)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Both ends with two uplinks, and a lane that does what `strategy` says.
fn begin(strategy: &str) -> Option<(Road, Daemon, Daemon)> {
    if !is_admin_built() {
        return None;
    }
    let road = Road::new();
    let lanes = format!("\n[[lanes]]\nname = \"all\"\nstrategy = \"{strategy}\"\n");
    for name in ["client.toml", "server.toml"] {
        road.edit(name, |text| text + &lanes);
    }
    let (server, client) = road.start_both();
    road.wait_for_paths(&["eth1", "eth2"]);
    Some((road, server, client))
}

const FIELDS: [&str; 5] = [
    "frame.interface_name",
    "frame.packet_flags_direction",
    "icmp.type",
    "icmp.seq",
    "frame.comment",
];

#[test]
fn each_ping_is_on_the_interfaces_of_its_paths_with_a_comment() {
    run_sandboxed("each_ping_is_on_the_interfaces_of_its_paths_with_a_comment", || {
        let Some((road, _server, _client)) = begin("redundant") else { return };
        let (near, near_file) = start(&road, CLIENT, "near.pcapng", "");
        let (far, far_file) = start(&road, SERVER, "far.pcapng", "");
        assert!(ping(&road.vehicle, GATEWAY_V4, "-c 20 -i 0.05 -s 300").status.success());
        sleep(Duration::from_millis(300));
        near.interrupt();
        far.interrupt();
        assert_eq!(fs::metadata(&near_file).unwrap().permissions().mode() & 0o777, 0o600);
        let Some(near) = read(&near_file, &["-Y", "icmp"], &FIELDS) else { return };
        let count = |lines: &[Vec<String>], parts: [&str; 4]| {
            let [interface, direction, kind, comment] = parts;
            let is_such = |line: &&Vec<String>| {
                line[0] == interface
                    && u32::from_str_radix(line[1].trim_start_matches("0x"), 16)
                        == Ok(if direction == "in" { 1 } else { 2 })
                    && line[2] == kind
                    && line[4].starts_with(direction)
                    && line[4].contains(comment)
            };
            lines.iter().filter(is_such).count()
        };
        for interface in ["eth1", "eth2"] {
            let path = format!("over {interface} with");
            assert_eq!(count(&near, [interface, "out", "8", &path]), 20, "{near:#?}");
            assert_eq!(count(&near, [interface, "in", "0", &path]), 20, "{near:#?}");
        }
        assert_eq!(near.len(), 80, "{near:#?}");
        // One of each two is the packet itself.
        let of = |direction: &str, kind: &str, comment: &str| -> usize {
            let on = |interface| count(&near, [interface, direction, kind, comment]);
            on("eth1") + on("eth2")
        };
        assert_eq!(of("out", "8", "lane 0 all, source packet"), 20);
        assert_eq!(of("out", "8", "copy of source packet"), 20);
        assert_eq!(of("in", "0", "lane 0, source packet"), 20);
        assert_eq!(of("in", "0", "copy of source packet"), 20);
        let far = read(&far_file, &["-Y", "icmp"], &FIELDS).unwrap();
        let status = road.show(SERVER);
        let peer = status["sessions"][0]["peer"].as_str().unwrap();
        for interface in ["eth1", "eth2"].map(|uplink| format!("{peer} {uplink}")) {
            assert_eq!(count(&far, [&interface, "in", "8", peer]), 20, "{far:#?}");
            assert_eq!(count(&far, [&interface, "out", "0", peer]), 20, "{far:#?}");
        }
    });
}

#[test]
fn outer_packets_are_what_tshark_knows_as_quic_between_the_ends_of_a_path() {
    run_sandboxed("outer_packets_are_what_tshark_knows_as_quic_between_the_ends_of_a_path", || {
        let Some((road, _server, _client)) = begin("redundant") else { return };
        for (instance, name) in [(CLIENT, "near.pcapng"), (SERVER, "far.pcapng")] {
            let (capture, path) = start(&road, instance, name, "--outer --snaplen 200");
            assert!(ping(&road.vehicle, GATEWAY_V4, "-c 20 -i 0.05 -s 1000").status.success());
            capture.interrupt();
            let fields = [
                "frame.interface_name",
                "ip.src",
                "ip.dst",
                "udp.dstport",
                "frame.len",
                "frame.cap_len",
                "frame.comment",
                "_ws.col.Protocol",
            ];
            let Some(lines) = read(&path, &["-d", "udp.port==4433,quic"], &fields) else { return };
            for uplink in ["eth1", "eth2"] {
                let near = format!("10.{}.0.2", &uplink[3..]);
                let large = |line: &&Vec<String>| {
                    let size = |at: usize| line[at].parse::<usize>().unwrap();
                    line[0].ends_with(uplink)
                        && line[6].contains(&format!(" over {uplink} with "))
                        && size(4) > 1000
                        && size(5) <= 248
                        && line[7] == "QUIC"
                };
                let to_server = |line: &&Vec<String>| {
                    line[2] == "198.51.100.1" && line[3] == "4433" && large(line)
                };
                let from_server = |line: &&Vec<String>| {
                    line[1] == "198.51.100.1" && line[2] == near && large(line)
                };
                let counts = (
                    lines.iter().filter(to_server).count(),
                    lines.iter().filter(from_server).count(),
                );
                assert!(counts.0 >= 20 && counts.1 >= 20, "{uplink} {counts:?} {lines:#?}");
            }
        }
    });
}

#[test]
fn filters_and_bounds_hold_and_what_is_wrong_is_said() {
    run_sandboxed("filters_and_bounds_hold_and_what_is_wrong_is_said", || {
        let Some((road, mut server, _client)) = begin("redundant") else { return };
        let (mut capture, path) = start(
            &road,
            CLIENT,
            "few.pcapng",
            "--path eth2 --direction out --packets 7 --snaplen 60",
        );
        assert!(ping(&road.vehicle, GATEWAY_V4, "-c 20 -i 0.05").status.success());
        assert_eq!(capture.wait(), Some(0), "{}", capture.log());
        assert!(capture.log().contains("7 packets"), "{}", capture.log());
        let fields = ["frame.interface_name", "frame.len", "frame.cap_len"];
        let Some(lines) = read(&path, &[], &fields) else { return };
        assert_eq!(lines.len(), 7, "{lines:#?}");
        assert!(lines.iter().all(|line| line[0] == "eth2" && line[2] == "60"), "{lines:#?}");
        // The box has packets of its own as well.
        assert!(lines.iter().filter(|line| line[1] == "84").count() >= 4, "{lines:#?}");

        // Lines for people, and an end in time.
        let mut ping_beside = road
            .vehicle
            .command("ping")
            .args(["-c", "30", "-i", "0.1", GATEWAY_V4])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let lines = command(SERVER, "--seconds 2 --peer vehicle-1").output().unwrap();
        assert!(lines.status.success(), "{}", said(&lines));
        let text = String::from_utf8(lines.stdout).unwrap();
        assert!(text.contains(" vehicle-1 eth1: in, path "), "{text}");
        let none = command(SERVER, "--seconds 1 --peer nobody").output().unwrap();
        assert!(said(&none).contains("0 packets") && none.stdout.is_empty(), "{}", said(&none));
        assert!(ping_beside.wait().unwrap().success());

        // What is wrong with the words.
        for (words, code, why) in [
            ("--snaplen 0", 2, "0 is not in 1..=65535"),
            ("--packets none", 2, "invalid"),
            ("--seconds 0", 2, "such as 12.5"),
            ("--coded --outer", 2, "cannot be used with"),
            ("--direction up", 2, "in, out"),
            ("--write /nowhere/at/all", 2, "No such file or directory"),
        ] {
            let refused = command(CLIENT, words).output().unwrap();
            assert_eq!(refused.status.code(), Some(code), "{words}: {}", said(&refused));
            assert!(said(&refused).contains(why), "{words}: {}", said(&refused));
        }
        let nobody = command("rw7", "").output().unwrap();
        assert_eq!(nobody.status.code(), Some(1));
        assert!(said(&nobody).contains("nothing runs at"), "{}", said(&nobody));

        // One who may not.
        let words =
            ["--reuid=65534", "--regid=65534", "--clear-groups", PROGRAM, "capture", CLIENT];
        let stranger = Command::new("setpriv").args(words).output().unwrap();
        assert_eq!(stranger.status.code(), Some(1), "{}", said(&stranger));
        assert!(said(&stranger).contains("no permission"), "{}", said(&stranger));

        // An instance that ends leaves a whole file.
        let (mut capture, path) = start(&road, SERVER, "cut.pcapng", "");
        assert!(ping(&road.vehicle, GATEWAY_V4, "-c 5 -i 0.05").status.success());
        sleep(Duration::from_millis(300));
        server.signal(Signal::TERM);
        assert_eq!(server.wait(), Some(0));
        assert_eq!(capture.wait(), Some(1), "{}", capture.log());
        assert!(capture.log().contains("the instance has ended"), "{}", capture.log());
        assert_eq!(read(&path, &["-Y", "icmp"], &FIELDS).unwrap().len(), 20);
    });
}

#[test]
fn no_packet_waits_for_a_reader_that_stops_and_one_that_is_killed_makes_room() {
    run_sandboxed(
        "no_packet_waits_for_a_reader_that_stops_and_one_that_is_killed_makes_room",
        || {
            let Some((road, _server, client)) = begin("redundant") else { return };
            let (capture, path) = start(&road, CLIENT, "stopped.pcapng", "");
            capture.signal(Signal::STOP);
            // More than queue and buffers take: four packets for each.
            let flood = ping(&road.vehicle, GATEWAY_V4, "-f -q -c 3000 -s 1000");
            let text = String::from_utf8_lossy(&flood.stdout).into_owned();
            assert!(text.contains(" 0% packet loss"), "{text}");
            let second = command(CLIENT, "--seconds 1").output().unwrap();
            assert_eq!(second.status.code(), Some(1), "{}", said(&second));
            assert!(said(&second).contains("one can at a time"), "{}", said(&second));
            capture.signal(Signal::CONT);
            sleep(Duration::from_secs(1));
            let log = road.path("stopped.pcapng.log");
            capture.interrupt();
            let log = fs::read_to_string(log).unwrap();
            let missed = log.split("; ").nth(1).and_then(|rest| rest.split(' ').next());
            let missed: u64 = missed.expect(&log).parse().expect(&log);
            let Some(lines) = read(&path, &[], &FIELDS) else { return };
            assert!(log.contains(&format!("{} packets; ", lines.len())), "{log}");
            // Whatever was not seen is counted; what machines say by themselves comes beside the
            // pings.
            let all = lines.len() as u64 + missed;
            assert!((4 * 3000..4 * 3000 + 300).contains(&all), "{} {log}", lines.len());
            assert!(missed > 1000, "{log}");
            // The statistics of the device's interface have it, in an option of their own.
            let option = [&[5, 0, 8, 0][..], &missed.to_le_bytes()].concat();
            let file = fs::read(&path).unwrap();
            assert!(file.windows(option.len()).any(|bytes| bytes == option), "{log}");

            let (capture, _) = start(&road, CLIENT, "killed.pcapng", "");
            capture.kill();
            let watch = Watch::start();
            while !command(CLIENT, "--seconds 0.1").output().unwrap().status.success() {
                assert!(watch.elapsed() < WAIT_MAX, "one that was killed keeps its place");
                sleep(Duration::from_millis(50));
            }
            assert!(ping(&road.vehicle, GATEWAY_V4, "-c 3 -i 0.05").status.success());

            // Nor does the one who captures wait for who reads it.
            let mut stalled = command(CLIENT, "--seconds 1 --write -");
            let mut stalled =
                stalled.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let flood = "-c 500 -i 0.002 -s 1000";
            assert!(ping(&road.vehicle, GATEWAY_V4, flood).status.success());
            let watch = Watch::start();
            while stalled.try_wait().unwrap().is_none() {
                assert!(watch.elapsed() < WAIT_MAX, "nothing but KILL ends it");
                sleep(Duration::from_millis(50));
            }
            let (status, mut why) = (stalled.wait().unwrap(), String::new());
            stalled.stderr.unwrap().read_to_string(&mut why).unwrap();
            assert!(status.code() == Some(1) && why.contains("takes nothing"), "{status} {why}");
            assert_eq!(client.count("panicked"), 0);
        },
    );
}

#[test]
fn a_full_disk_ends_a_capture_with_a_line_and_leaves_a_whole_file() {
    run_sandboxed("a_full_disk_ends_a_capture_with_a_line_and_leaves_a_whole_file", || {
        let Some((road, _server, _client)) = begin("minrtt") else { return };
        let disk = Disk::mount("/run/disk");
        let path = disk.0.join("full.pcapng");
        let mut command = command(CLIENT, "--seconds 60");
        command.arg("--write").arg(&path);
        let mut capture = Daemon::start(command, road.path("full.log"));
        let watch = Watch::start();
        while !path.exists() {
            assert!(watch.elapsed() < WAIT_MAX, "it does not begin:\n{}", capture.log());
            sleep(Duration::from_millis(20));
        }
        assert!(ping(&road.vehicle, GATEWAY_V4, "-c 100 -i 0.02 -s 1000").status.success());
        assert_eq!(capture.wait(), Some(1), "{}", capture.log());
        assert!(capture.log().contains("No space left on device"), "{}", capture.log());
        let Some(lines) = read(&path, &["-Y", "icmp"], &FIELDS) else { return };
        assert!((10..100).contains(&lines.len()), "{}", lines.len());
        assert!(ping(&road.vehicle, GATEWAY_V4, "-c 3 -i 0.05").status.success());
    });
}
