//! `roadweave qoe` on files with known damage, on those of the lab, and on broken ones.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use roadweave_lab::video::h264::AccessUnit;
use roadweave_lab::video::rtp::Packetizer;
use roadweave_lab::video::stream_log::{ArrivedPacket, SentLine};
use roadweave_proto::Instant;
use serde_json::{Value, json};

const FRAMES: usize = 90;
const PACKETS: usize = 3;

fn roadweave(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-lab"));
    command.current_dir(folder).args(arguments).env_remove("ROADWEAVE_LOG").output().unwrap()
}

fn printed(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Writes a run of three seconds with an IDR frame each. Packets take 20 ms; `is_lost` (frame,
/// packet of the frame) selects lost ones.
fn write_run(folder: &Path, is_lost: impl Fn(usize, usize) -> bool) {
    fs::create_dir_all(folder).unwrap();
    let unit = AccessUnit { nals: vec![vec![0x41; 3_000].into()] };
    let mut packetizer = Packetizer::new(7, 0);
    let (mut sent, mut arrived) = (Vec::new(), Vec::new());
    for frame in 0..FRAMES {
        let captured = Instant::from_millis(1_000) + Duration::from_secs(frame as u64) / 30;
        let timestamp = 3_000 * frame as u32;
        let packets = packetizer.packetize(&unit, timestamp);
        assert_eq!(packets.len(), PACKETS);
        for (index, packet) in packets.iter().enumerate() {
            let line = SentLine {
                frame,
                idr: frame.is_multiple_of(30),
                captured,
                sent: captured,
                sequence: (frame * PACKETS + index) as u16,
                timestamp,
                bytes: packet.len(),
            };
            line.write(&mut sent).unwrap();
            if !is_lost(frame, index) {
                let at = captured + Duration::from_millis(20);
                ArrivedPacket::write(at, packet, &mut arrived).unwrap();
            }
        }
    }
    fs::write(folder.join("sent.csv"), sent).unwrap();
    fs::write(folder.join("arrived.log"), arrived).unwrap();
}

fn check(seen: &Value, name: &str, expected: f64) {
    let found = seen[name].as_f64().unwrap();
    assert!((found - expected).abs() < 1e-6, "{name}: {found}, expected {expected}");
}

#[test]
fn known_damage_gives_known_figures() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_run(&folder.join("whole"), |_, _| false);
    write_run(&folder.join("packet"), |frame, packet| (frame, packet) == (12, 1));
    write_run(&folder.join("frames"), |frame, _| (60..72).contains(&frame));
    let runs = ["qoe", "whole", "packet", "frames", "--json", "--details"];
    let told = printed(&roadweave(folder, &runs));
    let [whole, packet, frames] = &told["strategies"].as_array().unwrap()[..] else {
        panic!("{told}")
    };
    assert_eq!((&whole["strategy"], &whole["frames"]), (&json!("whole"), &json!(FRAMES)));
    check(whole, "fps", 30.0);
    check(whole, "stall_ratio", 0.0);
    check(&whole["delay_ms"], "p50", 20.0);
    check(&whole["frame_delay_ms"], "p999", 20.0);
    assert!(whole["ssim"].is_null() && whole["redundancy"].is_null(), "not known from these files");

    // The frames 12 to 29 are damaged; one is incomplete.
    check(packet, "fps", (FRAMES - 18) as f64 / 3.0);
    check(packet, "residual_loss", 1.0 / (FRAMES * PACKETS) as f64);
    assert_eq!(packet["frames_complete"], FRAMES - 1);
    assert_eq!(packet["detail"][12]["delay_ms"], Value::Null);
    assert_eq!(packet["detail"][29]["undamaged"], false);
    assert_eq!(packet["detail"][30]["undamaged"], true);

    // Frame 72 is shown 100 ms after it came, when the player gives up those before it.
    let gap = (13.0 / 30.0 + 0.1) * 1e3;
    let stall = frames["stalls_ms"][0].as_array().unwrap();
    let length = stall[1].as_f64().unwrap() - stall[0].as_f64().unwrap();
    assert!((length - gap).abs() < 1e-3, "{length}, expected {gap}");
    check(frames, "residual_loss", 12.0 / FRAMES as f64);

    let table = roadweave(folder, &["qoe", "packet"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("residual loss") && table.contains("20.0 ms"), "{table}");
}

#[test]
fn files_that_are_broken_or_do_not_belong_together_are_refused_with_their_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let check = |break_it: &dyn Fn(&Path), more: &[&str], parts: &[&str]| {
        let run = folder.join("run");
        write_run(&run, |_, _| false);
        break_it(&run);
        let output = roadweave(folder, &[&["qoe", "run"], more].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "{part:?} is not in:\n{said}"));
    };
    let write = |name: &'static str, bytes: &'static [u8]| {
        move |run: &Path| fs::write(run.join(name), bytes).unwrap()
    };
    check(
        &|run| fs::remove_file(run.join("sent.csv")).unwrap(),
        &[],
        &["cannot open run/sent.csv"],
    );
    check(&write("sent.csv", b""), &[], &["run/sent.csv: no packet was sent"]);
    check(&write("sent.csv", b"0,1,0,0,0,0,9\nhello\n"), &[], &["run/sent.csv", "line 2", "hello"]);
    check(&write("sent.csv", b"\xff\xfe\n"), &[], &["run/sent.csv"]);
    check(&write("arrived.log", b"hello"), &[], &["run/arrived.log: no whole record"]);
    let foreign = |run: &Path| {
        let mut log = Vec::new();
        ArrivedPacket::write(Instant::from_millis(9), b"not RTP", &mut log).unwrap();
        fs::write(run.join("arrived.log"), log).unwrap();
    };
    check(&foreign, &[], &["none of its 1 datagrams is one of those sent"]);
    let other_clock = |run: &Path| {
        let text = fs::read_to_string(run.join("sent.csv")).unwrap();
        fs::write(
            run.join("sent.csv"),
            text.replace("1000000000,1000000000", "1000000000,9000000000"),
        )
        .unwrap();
    };
    check(&other_clock, &[], &["line 1 of run/sent.csv", "same clock"]);
    if Command::new("ffmpeg").arg("-version").output().is_ok() {
        fs::write(folder.join("short.h264"), b"\0\0\0\x01\x65\x80hello").unwrap();
        let clip = ["--clip", "short.h264"];
        check(&|_| (), &clip, &["--clip short.h264: 1 pictures, but 90 frames were sent"]);
        check(&|_| (), &["--clip", "nowhere.mp4"], &["--clip nowhere.mp4", "No such file"]);
    }
}

#[test]
fn what_the_lab_keeps_gives_the_labs_figures() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let frame = |nal_type: u8| [&[0, 0, 0, 1, nal_type, 0x80][..], &[0x5a; 9_000]].concat();
    let clip: Vec<u8> =
        (0..60).flat_map(|n| frame(if n % 30 == 0 { 0x65 } else { 0x61 })).collect();
    fs::write(folder.join("clip.h264"), clip).unwrap();
    let scenario = "seconds = 2\nstrategy = 'single:a'\n[[link]]\nname = 'a'\nrate_kbps = 9000\n\
                    loss = 0.02\n[[traffic]]\nkind = 'video'\nfile = 'clip.h264'\n";
    fs::write(folder.join("s.toml"), scenario).unwrap();
    let lab = printed(&roadweave(folder, &["lab", "run", "s.toml", "--json", "--keep", "kept"]));
    let seen = printed(&roadweave(folder, &["qoe", "kept/single-a", "--json"]));
    let (lab, seen) = (&lab["strategies"][0], &seen["strategies"][0]);
    for name in [
        "fps",
        "stall_ratio",
        "delay_ms",
        "delay_arrived_ms",
        "frame_delay_ms",
        "residual_loss",
        "late",
    ] {
        assert_eq!(lab[name], seen[name], "{name}");
    }
    assert_eq!(seen["delay_ms"]["p999"], 700.0, "lost packets count as late ones");
    assert!(lab["residual_loss"].as_f64() > Some(0.0), "{lab}");

    let synthetic = scenario.replace("file = 'clip.h264'", "rate_kbps = 2000");
    fs::write(folder.join("s.toml"), synthetic).unwrap();
    let output = roadweave(folder, &["lab", "run", "s.toml", "--keep", "kept"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no video with a `file`"));
}
