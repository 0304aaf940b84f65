//! Sender and receiver on one machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{column, lines, number, receiver, relay, reports, sender, whole};

/// The first two bytes of each unit of an H.264 stream: its header, and its slice's beginning.
fn units(stream: &[u8]) -> Vec<[u8; 2]> {
    let begins = stream.windows(5).filter(|bytes| bytes.starts_with(&[0, 0, 1]));
    begins.map(|bytes| [bytes[3], bytes[4]]).collect()
}

#[test]
fn pictures_arrive_soon_after_they_were_captured_and_can_be_read_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let (frames, stream) = (folder.path().join("frames"), folder.path().join("stream"));
    let files = format!("--frames {} --write {}", frames.display(), stream.display());
    let (receiver, port) = receiver(&format!("--seconds 8 {files}"));
    let sent = whole(&sender(port, "--size 640x360 --bitrate 3M --seconds 5").output());
    let received = whole(&receiver.output());

    // A busy machine may not reach all 150.
    let given = number(&sent, "frames");
    assert!(given > 5.0 && given + number(&sent, "frames_too_slow") > 60.0, "{sent}");
    let shown = number(&received, "frames_shown");
    assert!(shown > 0.9 * given - 5.0, "{sent} {received}");
    assert!(number(&received, "frames_lost") < 0.1 * given + 5.0, "{received}");
    assert_eq!(received["clocks"], "shared", "{received}");
    let delays = &received["glass_to_glass_ms"];
    let p50 = number(delays, "p50");
    assert!((1.0..2000.0).contains(&p50) && p50 <= number(delays, "max"), "{received}");
    assert!(number(&sent, "bitrate_bps") < 3e6, "{sent}");
    assert_eq!(number(&sent, "frames_too_large"), 0.0, "{sent}");
    assert_eq!(sent["receiver_silent_s"], 0.0, "{sent}");

    let numbers = column(&lines(&frames), "number");
    assert_eq!(numbers.len() as f64, shown, "{received}");
    assert!(numbers.is_sorted_by(|a, b| a < b), "each picture once: {numbers:?}");

    // x264 makes a slice for each core. Any other unit before a slice that does not begin at the
    // first block splits a picture (ISO/IEC 14496-10 7.4.1.2.3).
    let units = units(&std::fs::read(&stream).unwrap());
    assert!(units.len() > 60, "{}", units.len());
    let is_slice = |unit: [u8; 2]| matches!(unit[0] & 31, 1 | 5);
    let split = units
        .windows(2)
        .position(|pair| is_slice(pair[1]) && pair[1][1] & 0x80 == 0 && !is_slice(pair[0]));
    assert_eq!(split, None, "a picture is torn: {:x?}", &units[..8]);
}

#[test]
fn after_a_loss_a_key_frame_is_asked_for_and_comes() {
    let (receiver, port) = receiver("--seconds 9");
    let passed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&passed);
    let link = relay(port, move |is_answer, _| {
        let is_lost = !is_answer && (300..320).contains(&count.fetch_add(1, Ordering::Relaxed));
        usize::from(!is_lost)
    });
    let sent = whole(&sender(link, "--size 640x360 --bitrate 3M --seconds 6").output());
    let received = reports(&receiver.output());
    let whole = received.last().unwrap();

    assert!(passed.load(Ordering::Relaxed) > 600, "{sent}");
    assert!((1.0..=20.0).contains(&number(whole, "packets_lost")), "{whole}");
    assert!((1.0..60.0).contains(&number(whole, "frames_lost")), "{whole}");
    assert!(number(whole, "key_frame_requests") >= 1.0, "{whole}");
    assert!(number(&sent, "key_frames_asked") >= 1.0, "{sent} {whole}");
    let shown = column(&received, "frames_shown");
    assert!(shown[3..5].iter().all(|frames| *frames > 10.0), "{shown:?}");
}

#[test]
fn another_sender_takes_over() {
    let (receiver, port) = receiver("--seconds 10");
    let mut sent = 0.0;
    for codec in ["h264", "vp8"] {
        let sender = sender(port, &format!("--size 320x240 --codec {codec} --seconds 3"));
        sent += number(&whole(&sender.output()), "frames");
    }
    let received = whole(&receiver.output());
    assert!(number(&received, "frames_shown") > 0.8 * sent - 10.0, "{sent} {received}");
}
