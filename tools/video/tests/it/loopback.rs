//! Sender and receiver on one machine.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::common::{Process, free_port, is_taken, number, reports, run, start, wait_until, whole};

/// A receiver that listens at `port` for so many seconds.
fn receiver(port: u16, seconds: &str) -> Process {
    let listen = port.to_string();
    let receiver = start(&["receive", "--listen", &listen, "--json", "--seconds", seconds]);
    wait_until("nobody listens", || is_taken(port));
    receiver
}

#[test]
fn pictures_arrive_soon_after_they_were_captured() {
    let port = free_port();
    let receiver = receiver(port, "8");
    let to = format!("127.0.0.1:{port}");
    let words = ["send", "--to", &to, "--size", "640x360", "--bitrate", "3M", "--seconds", "5"];
    let sent = whole(&run(&[&words[..], &["--json"]].concat()));
    let received = whole(&receiver.output());

    // A machine that does other things as well may not come to all 150.
    let frames = number(&sent, "frames");
    assert!(frames > 5.0 && frames + number(&sent, "frames_too_slow") > 60.0, "{sent}");
    assert!(number(&received, "frames_shown") > 0.9 * frames - 5.0, "{sent} {received}");
    assert!(number(&received, "frames_lost") < 0.1 * frames + 5.0, "{received}");
    assert_eq!(received["clocks"], "shared", "{received}");
    let delays = &received["glass_to_glass_ms"];
    let p50 = number(delays, "p50");
    assert!((1.0..2000.0).contains(&p50) && p50 <= number(delays, "max"), "{received}");
    assert!(number(&sent, "bitrate_bps") < 3e6, "{sent}");
    assert_eq!(number(&sent, "frames_too_large"), 0.0, "{sent}");
    // The receiver's reports come back.
    assert_eq!(sent["receiver_silent_s"], 0.0, "{sent}");
}

/// The first two bytes of each unit of an H.264 byte stream: its header, and where its slice
/// begins.
fn units(stream: &[u8]) -> Vec<[u8; 2]> {
    let begins = stream.windows(5).filter(|bytes| bytes.starts_with(&[0, 0, 1]));
    begins.map(|bytes| [bytes[3], bytes[4]]).collect()
}

#[test]
fn what_is_decoded_can_be_read_afterwards_and_has_no_picture_in_two() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (frames, stream, port) = (file("frames"), file("stream"), free_port());
    let listen = port.to_string();
    let files = ["--frames", &frames, "--write", &stream, "--seconds", "8", "--json"];
    let receiver = start(&[&["receive", "--listen", &listen][..], &files].concat());
    wait_until("nobody listens", || is_taken(port));
    let to = format!("127.0.0.1:{port}");
    let words = ["send", "--to", &to, "--size", "640x360", "--bitrate", "3M", "--seconds", "4"];
    whole(&run(&words.into_iter().chain(["--json"]).collect::<Vec<_>>()));
    let received = whole(&receiver.output());

    let lines = std::fs::read_to_string(&frames).unwrap();
    assert_eq!(lines.lines().count() as f64, number(&received, "frames_shown"), "{received}");
    let numbers: Vec<u64> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| line["number"].as_u64().unwrap())
        .collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "each picture once: {numbers:?}");

    // x264 makes a slice for each core. Whatever but a slice stands before a slice that does not
    // begin at the picture's first block begins a picture there (ISO/IEC 14496-10 7.4.1.2.3).
    let units = units(&std::fs::read(&stream).unwrap());
    assert!(units.len() > 60, "{}", units.len());
    let is_slice = |unit: [u8; 2]| matches!(unit[0] & 31, 1 | 5);
    let split = units
        .windows(2)
        .position(|pair| is_slice(pair[1]) && pair[1][1] & 0x80 == 0 && !is_slice(pair[0]));
    assert_eq!(split, None, "a picture is torn: {:x?}", &units[..8]);
}

/// Passes packets on between a sender and a receiver, except `lost` of them that follow the
/// `after`th of the sender's.
fn lossy_link(receiver: u16, after: u64, lost: u64) -> (u16, Arc<AtomicU64>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let passed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&passed);
    thread::spawn(move || {
        let receiver = SocketAddr::from(([127, 0, 0, 1], receiver));
        let (mut sender, mut bytes) = (None, [0; 2048]);
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let to = if from == receiver { sender } else { Some(receiver) };
            if from != receiver {
                sender = Some(from);
                let at = count.fetch_add(1, Ordering::Relaxed);
                if (after..after + lost).contains(&at) {
                    continue;
                }
            }
            if let Some(to) = to {
                let _ = socket.send_to(&bytes[..length], to);
            }
        }
    });
    (port, passed)
}

#[test]
fn after_a_loss_a_key_frame_is_asked_for_and_comes() {
    let port = free_port();
    let receiver = receiver(port, "9");
    let (link, passed) = lossy_link(port, 300, 20);
    let to = format!("127.0.0.1:{link}");
    let words = ["send", "--to", &to, "--size", "640x360", "--bitrate", "3M", "--seconds", "6"];
    let sent = whole(&run(&[&words[..], &["--json"]].concat()));
    let received = receiver.output();
    let whole = whole(&received);

    assert!(passed.load(Ordering::Relaxed) > 600, "{sent}");
    assert!((1.0..=20.0).contains(&number(&whole, "packets_lost")), "{whole}");
    let frames_lost = number(&whole, "frames_lost");
    assert!((1.0..60.0).contains(&frames_lost), "{whole}");
    assert!(number(&whole, "key_frame_requests") >= 1.0, "{whole}");
    assert!(number(&sent, "key_frames_asked") >= 1.0, "{sent} {whole}");
    let shown: Vec<f64> = reports(&received).iter().map(|it| number(it, "frames_shown")).collect();
    assert!(shown[3..5].iter().all(|frames| *frames > 10.0), "{shown:?}");
}

#[test]
fn another_sender_takes_over() {
    let port = free_port();
    let receiver = receiver(port, "10");
    let to = format!("127.0.0.1:{port}");
    let mut shown = 0.0;
    for codec in ["h264", "vp8"] {
        let words = ["send", "--to", &to, "--size", "320x240", "--codec", codec, "--seconds", "3"];
        shown += number(&whole(&run(&[&words[..], &["--json"]].concat())), "frames");
    }
    let received = whole(&receiver.output());
    assert!(number(&received, "frames_shown") > 0.8 * shown - 10.0, "{shown} {received}");
}
