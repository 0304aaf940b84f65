//! `roadweave qoe` on files with known damage, on files of the lab, and on broken ones.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use roadweave_lab::video::h264::AccessUnit;
use roadweave_lab::video::rtp::Packetizer;
use roadweave_lab::video::stream_log::{ArrivedPacket, SentLine};
use roadweave_proto::Instant;
use serde_json::Value;

use crate::golden::assert_golden;
use crate::{check_refused, json, printed, run, said, write};

const FRAMES: usize = 90;
const PACKETS: usize = 3;

/// Writes a run of three seconds, each with an IDR frame. Packets take 20 ms; `is_lost` (frame,
/// packet of the frame) selects lost ones.
fn write_run(folder: &Path, is_lost: impl Fn(usize, usize) -> bool) {
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
    write(folder, "sent.csv", sent);
    write(folder, "arrived.log", arrived);
}

#[test]
fn known_damage_gives_known_figures() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_run(&folder.join("whole"), |_, _| false);
    write_run(&folder.join("packet"), |frame, packet| (frame, packet) == (12, 1));
    write_run(&folder.join("frames"), |frame, _| (60..72).contains(&frame));
    assert_golden("qoe.txt", &printed(folder, "qoe whole packet frames"));
    let report = json(folder, "qoe whole packet frames --details");
    let [whole, packet, frames] = &report["strategies"].as_array().unwrap()[..] else {
        panic!("{report}")
    };
    assert_eq!(whole["strategy"], "whole");
    assert_eq!(whole["frames"], FRAMES);
    assert!(whole["ssim"].is_null() && whole["redundancy"].is_null(), "not known from these files");
    let check = |seen: &Value, name: &str, expected: f64| {
        let found = seen[name].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-6, "{name}: {found}, expected {expected}");
    };
    check(whole, "fps", 30.0);

    // Frames 12 to 29 are damaged; one is incomplete.
    check(packet, "fps", (FRAMES - 18) as f64 / 3.0);
    check(packet, "residual_loss", 1.0 / (FRAMES * PACKETS) as f64);
    assert_eq!(packet["frames_complete"], FRAMES - 1);
    assert_eq!(packet["detail"][12]["delay_ms"], Value::Null);
    assert_eq!(packet["detail"][29]["undamaged"], false);
    assert_eq!(packet["detail"][30]["undamaged"], true);

    // Frame 72 is shown 100 ms after it arrived, when the player gives up the frames before it.
    let gap = (13.0 / 30.0 + 0.1) * 1e3;
    let stall = &frames["stalls_ms"][0];
    let length = stall[1].as_f64().unwrap() - stall[0].as_f64().unwrap();
    assert!((length - gap).abs() < 1e-3, "{length}, expected {gap}");
}

#[test]
fn files_that_are_broken_or_do_not_belong_together_are_refused_with_their_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_run(&folder.join("run"), |_, _| false);
    let read = |name: &str| fs::read(folder.join("run").join(name)).unwrap();
    let (sent, arrived) = (read("sent.csv"), read("arrived.log"));
    let other_clock = String::from_utf8(sent.clone()).unwrap();
    let other_clock = other_clock.replace("1000000000,1000000000", "1000000000,9000000000");
    let mut foreign = Vec::new();
    ArrivedPacket::write(Instant::from_millis(9), b"not RTP", &mut foreign).unwrap();
    let runs: [(&str, &[u8], &[u8]); 6] = [
        ("nothing-sent", b"", &arrived),
        ("no-numbers", b"0,1,0,0,0,0,9\nhello\n", &arrived),
        ("no-text", b"\xff\xfe\n", &arrived),
        ("no-record", &sent, b"hello"),
        ("foreign", &sent, &foreign),
        ("other-clock", other_clock.as_bytes(), &arrived),
    ];
    for (name, sent, arrived) in runs {
        write(folder, &format!("{name}/sent.csv"), sent);
        write(folder, &format!("{name}/arrived.log"), arrived);
    }
    let lines = [
        "qoe nowhere",
        "qoe nothing-sent",
        "qoe no-numbers",
        "qoe no-text",
        "qoe no-record",
        "qoe foreign",
        "qoe other-clock",
    ];
    check_refused("refused-qoe.txt", folder, &lines);
    if Command::new("ffmpeg").arg("-version").output().is_ok() {
        write(folder, "short.h264", b"\0\0\0\x01\x65\x80hello");
        let lines = ["qoe run --clip short.h264", "qoe run --clip nowhere.mp4"];
        check_refused("refused-qoe-clip.txt", folder, &lines);
    }
}

#[test]
fn what_the_lab_keeps_gives_the_labs_figures() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let frame = |nal_type: u8| [&[0, 0, 0, 1, nal_type, 0x80][..], &[0x5a; 9_000]].concat();
    let clip: Vec<u8> =
        (0..60).flat_map(|n| frame(if n % 30 == 0 { 0x65 } else { 0x61 })).collect();
    write(folder, "clip.h264", clip);
    let scenario = "seconds = 2\nstrategy = 'single:a'\n[[link]]\nname = 'a'\nrate_kbps = 9000\n\
                    loss = 0.02\n[[traffic]]\nkind = 'video'\nfile = 'clip.h264'\n";
    write(folder, "s.toml", scenario);
    let lab = json(folder, "lab run s.toml --keep kept");
    let seen = json(folder, "qoe kept/single-a");
    let (lab, seen) = (&lab["strategies"][0], &seen["strategies"][0]);
    let names = "fps stall_ratio delay_ms delay_arrived_ms frame_delay_ms residual_loss late";
    for name in names.split(' ') {
        assert_eq!(lab[name], seen[name], "{name}");
    }
    assert_eq!(seen["delay_ms"]["p999"], 700.0, "lost packets count as late ones");
    assert!(lab["residual_loss"].as_f64() > Some(0.0), "{lab}");

    write(folder, "s.toml", scenario.replace("file = 'clip.h264'", "rate_kbps = 2000"));
    let output = run(folder, "lab run s.toml --keep kept");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output.stderr).contains("no video in the scenario has a `file`"));
}
