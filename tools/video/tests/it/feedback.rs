//! The sender at the socket of the tunnel's program, which the test implements.

use std::fs;
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::common::{Program, column, free_port, lines, number, sender, wait_until, whole};

/// Sends for 6 s with this target, and from 2.5 s after the first picture on with `later`: returns
/// the frames, the whole report, and when the target changed, in ms since the Unix epoch.
fn send(target: Value, later: Value, more: &str) -> (Vec<Value>, Value, f64) {
    let folder = tempfile::tempdir().unwrap();
    let (socket, file) = (folder.path().join("rw.sock"), folder.path().join("frames.jsonl"));
    let program = Program::start(&socket, target);
    let files = format!("--feedback {} --frames {}", socket.display(), file.display());
    let options = format!("{files} --lane real-time --size 640x360 --seconds 6 {more}");
    let sender = sender(free_port(), &options);
    wait_until("no pictures", || fs::metadata(&file).is_ok_and(|it| it.len() > 0));
    thread::sleep(Duration::from_millis(2500));
    let change = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    program.say(later);
    let whole = whole(&sender.output());
    (lines(&file), whole, change.as_secs_f64() * 1e3)
}

#[test]
fn a_target_that_halves_is_followed_within_two_frames() {
    let lane = |bytes: u64| json!({ "frame_bytes": bytes, "bitrate_bps": bytes * 8 * 40 });
    let (frames, whole, change) = send(lane(12_000), lane(6_000), "");
    assert_eq!(whole["feedback"], "followed", "{whole}");
    assert_eq!(number(&whole, "frames_too_large"), 0.0, "{whole}");

    let captured = |frame: &Value| number(frame, "captured_unix_ms");
    let began = captured(&frames[0]) + 500.0;
    let before: Vec<&Value> =
        frames.iter().filter(|it| captured(it) > began && captured(it) < change).collect();
    let after: Vec<&Value> = frames.iter().filter(|it| captured(it) > change).collect();
    assert!(before.len() > 20 && after.len() > 40, "{} {}", before.len(), after.len());
    let large = before.iter().filter(|it| number(it, "frame_bytes") > 6_000.0).count();
    assert!(large * 2 > before.len(), "the change shows in few frames: {large}");
    // Two frames may have been in the encoder when the target changed.
    for frame in &after[2..] {
        assert_eq!(number(frame, "target_bytes"), 6_000.0, "{frame}");
        let (size, limit) = (number(frame, "frame_bytes"), number(frame, "limit_bytes"));
        assert!(size <= limit && limit < 6_000.0, "{frame}");
    }
}

#[test]
fn a_lane_without_a_target_has_the_rate_of_the_command_line() {
    let (frames, whole, _) = send(Value::Null, Value::Null, "--bitrate 1200k");
    assert_eq!(whole["feedback"], "no_target", "{whole}");
    // A share of 1.2 Mbit/s at the rate of the source, which is 30 a second on an idle machine.
    let targets = column(&frames, "target_bytes");
    assert!(targets.len() > 60 && targets.iter().all(|it| *it >= 4_800.0), "{targets:?}");
    assert!(number(&whole, "bitrate_bps") < 1.3e6, "{whole}");
}
