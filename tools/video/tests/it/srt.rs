//! The sender and a standard SRT receiver, ffmpeg, over a shaped link.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    Process, Program, check, free_port, is_taken, number, reports, run, send, start_command,
    wait_until, whole,
};

fn receiver(port: u16, more: &str) -> Process {
    start_receiver(Command::new("ffmpeg"), port, more)
}

fn start_receiver(mut command: Command, port: u16, more: &str) -> Process {
    let uri = format!("srt://127.0.0.1:{port}?mode=listener{more}");
    let words = ["-nostdin", "-v", "error", "-progress", "-", "-i", &uri, "-f", "null", "-"];
    let receiver = start_command(command.args(words));
    wait_until("nobody listens", || is_taken(port));
    receiver
}

fn decoded(output: &Output) -> u64 {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut frames = text.lines().filter_map(|line| line.strip_prefix("frame="));
    frames.next_back().and_then(|frames| frames.trim().parse().ok()).unwrap_or(0)
}

/// A link of `bps` towards a receiver with a queue of half a second, and 20 ms each way.
fn shaped_link(receiver: u16, bps: Arc<AtomicU64>) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let receiver = SocketAddr::from(([127, 0, 0, 1], receiver));
    let later = move |socket: UdpSocket, packet: Vec<u8>, to, at: Instant| {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        let _ = socket.send_to(&packet, to);
    };
    thread::spawn(move || {
        let (mut sender, mut bytes, mut free) = (None, [0; 2048], Instant::now());
        let (queue, packets) = std::sync::mpsc::channel::<(Vec<u8>, SocketAddr, Instant)>();
        let out = socket.try_clone().unwrap();
        thread::spawn(move || {
            packets.iter().for_each(|(packet, to, at)| {
                later(out.try_clone().unwrap(), packet, to, at);
            });
        });
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let now = Instant::now();
            let (to, at) = if from == receiver {
                (sender, now + Duration::from_millis(20))
            } else {
                sender = Some(from);
                free = free.max(now);
                if free - now > Duration::from_millis(500) {
                    continue;
                }
                let bps = bps.load(Ordering::Relaxed) as f64;
                free += Duration::from_secs_f64((length + 28) as f64 * 8.0 / bps);
                (Some(receiver), free + Duration::from_millis(20))
            };
            let Some(to) = to else { continue };
            if from == receiver {
                // Answers do not queue behind pictures.
                let out = socket.try_clone().unwrap();
                let packet = bytes[..length].to_vec();
                thread::spawn(move || later(out, packet, to, at));
            } else {
                queue.send((bytes[..length].to_vec(), to, at)).unwrap();
            }
        }
    });
    port
}

#[test]
fn the_rate_follows_the_link_and_a_stock_receiver_decodes_all_that_follows() {
    let folder = tempfile::tempdir().unwrap();
    let complaints = folder.path().join("complaints");
    let port = free_port();
    let mut ffmpeg = Command::new("sh");
    ffmpeg.args(["-c", "exec ffmpeg \"$@\" 2>\"$0\""]).arg(&complaints);
    let receiver = start_receiver(ffmpeg, port, "");
    let bps = Arc::new(AtomicU64::new(20_000_000));
    let to = format!("srt://127.0.0.1:{}", shaped_link(port, Arc::clone(&bps)));
    let options = "--size 640x360 --bitrate 4M --seconds 22 --min-bitrate 400k";
    let sender = send(&to, options);
    thread::sleep(Duration::from_secs(7));
    bps.store(1_500_000, Ordering::Relaxed);
    // Until the rate is reduced, the link drops packets, and their repeats arrive too late.
    thread::sleep(Duration::from_secs(7));
    let said = || fs::read_to_string(&complaints).unwrap();
    let before = said().len();
    // The last picture is cut off at the sender's end.
    thread::sleep(Duration::from_secs(6));
    let later = said().split_off(before);
    let sent = sender.output();
    let seconds = reports(&sent);
    let room = |at: usize| number(&seconds[at]["srt"], "room_bps");
    assert!(room(4) > 3.5e6, "{}", seconds[4]);
    for (at, second) in seconds.iter().enumerate().take(21).skip(10) {
        assert!((400e3..2e6).contains(&room(at)), "{at} {second}");
        assert!(number(second, "bitrate_bps") < 2e6, "{at} {second}");
    }
    let rtt = number(&seconds[15]["srt"], "rtt_ms");
    assert!((30.0..600.0).contains(&rtt), "{}", seconds[15]);
    let received = receiver.output();
    let frames = number(&whole(&sent), "frames");
    assert!(decoded(&received) as f64 > 0.8 * frames - 10.0, "{frames} {}", said());
    assert!(!later.contains("DROPPED") && !later.contains("[h264"), "{later}");
}

#[test]
fn of_the_tunnels_target_and_the_connections_room_the_smaller_holds() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("rw.sock");
    Program::start(&socket, serde_json::json!({ "frame_bytes": 4_000, "bitrate_bps": null }));
    let port = free_port();
    let _receiver = receiver(port, "");
    let to = format!("srt://127.0.0.1:{port}");
    let feedback = format!("--feedback {} --lane real-time", socket.display());
    // A share of 2 Mbit/s would be 8,333 bytes.
    let options = format!("--size 320x240 --seconds 4 --bitrate 2M {feedback}");
    let sent = whole(&send(&to, &options).output());
    assert_eq!(sent["feedback"], "followed", "{sent}");
    assert!((3_500.0..=4_500.0).contains(&number(&sent, "target_bytes")), "{sent}");
}

fn secret(path: &Path, text: &str) -> String {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_passphrase_has_to_be_the_receivers() {
    let folder = tempfile::tempdir().unwrap();
    let right = secret(&folder.path().join("right"), "correct-horse-battery\n");
    let wrong = secret(&folder.path().join("wrong"), "another-passphrase");
    let port = free_port();
    let receiver = receiver(port, "&passphrase=correct-horse-battery");
    let to = format!("srt://127.0.0.1:{port}");
    let send = |passphrase: &str| {
        let words = ["send", "--to", &to, "--size", "320x240", "--seconds", "4", "--json"];
        let more = ["--passphrase-file", passphrase, "--stream-id", "publish/a b?c=d&e"];
        run(&[&words[..], &more].concat())
    };
    let refused = send(&wrong);
    check(&refused, 1, &["the passphrase"]);
    assert!(!String::from_utf8_lossy(&refused.stderr).contains("another"), "{refused:?}");
    let sent = whole(&send(&right));
    assert!(number(&sent, "frames") > 30.0, "{sent}");
    assert!(decoded(&receiver.output()) > 30, "{sent}");
}

#[test]
fn unusable_srt_options_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let short = secret(&folder.path().join("short"), "short\n");
    let open = folder.path().join("open");
    fs::write(&open, "a-long-passphrase").unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let send = |to: &str, more: &[&str]| run(&[&["send", "--to", to], more].concat());
    let srt = "srt://127.0.0.1:9";
    check(&send(srt, &["--passphrase-file", &short]), 2, &["10 to 79 bytes"]);
    check(&send(srt, &["--passphrase-file", open.to_str().unwrap()]), 2, &["chmod 600"]);
    check(&send(srt, &["--passphrase-file", "/nowhere/key"]), 2, &["/nowhere/key"]);
    check(&send(srt, &["--stream-id", ""]), 2, &["--stream-id"]);
    check(&send(srt, &["--stream-id", &"x".repeat(513)]), 2, &["--stream-id"]);
    check(&send(srt, &["--min-bitrate", "3M", "--bitrate", "2M"]), 2, &["--min-bitrate"]);
    check(&send(srt, &["--codec", "vp8"]), 2, &["vp8"]);
    check(&send("127.0.0.1:9", &["--latency", "500"]), 2, &["only for srt://"]);
    assert_eq!(send("srt://127.0.0.1:9?passphrase=secret-secret", &[]).status.code(), Some(2));
}

#[test]
fn a_listener_that_is_not_there_or_vanishes_ends_it() {
    let to = format!("srt://127.0.0.1:{}", free_port());
    check(&send(&to, "--size 320x240 --seconds 20").output(), 1, &["no answer"]);
    let port = free_port();
    let mut receiver = receiver(port, "");
    let to = format!("srt://127.0.0.1:{port}");
    let sender = send(&to, "--size 320x240 --seconds 40");
    thread::sleep(Duration::from_secs(4));
    receiver.kill();
    let output = sender.output();
    check(&output, 1, &["the receiver has disconnected"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.lines().count() < 20, "{text}");
}

fn damage(seed: &mut u32, packet: &mut Vec<u8>) {
    *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    let at = (*seed >> 8) as usize % packet.len().max(1);
    if let Some(byte) = packet.get_mut(at) {
        *byte ^= (*seed >> 24) as u8;
    }
    if seed.is_multiple_of(5) {
        packet.truncate(at);
    }
}

#[test]
fn a_listener_that_says_nothing_or_garbage_ends_it() {
    for says in [0, 40] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = format!("srt://127.0.0.1:{}", socket.local_addr().unwrap().port());
        thread::spawn(move || {
            let (mut bytes, mut seed) = ([0; 2048], 1);
            while let Ok((length, from)) = socket.recv_from(&mut bytes) {
                for _ in 0..says {
                    let mut packet = bytes[..length].to_vec();
                    (0..4).for_each(|_| damage(&mut seed, &mut packet));
                    let _ = socket.send_to(&packet, from);
                }
            }
        });
        let began = Instant::now();
        let sent = send(&to, "--size 320x240 --seconds 30").output();
        check(&sent, 1, &[&to]);
        assert!(began.elapsed() < Duration::from_secs(25), "{says} {:?}", began.elapsed());
    }
}
