//! Errors for users: one line, and an exit code.

use std::fs;
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::common::{
    Process, check, free_port, number, run, start, start_command, wait_up_to, whole,
};

fn send(source: &str) -> Output {
    run(&["send", "--source", source, "--to", "127.0.0.1:9", "--seconds", "20", "--json"])
}

#[test]
fn what_is_not_there_or_no_video_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    fs::write(&text, "This is no video. ".repeat(100)).unwrap();
    let (folder, text) = (folder.path().to_str().unwrap(), text.to_str().unwrap());
    check(&send("/nowhere/a.mp4"), 2, &["/nowhere/a.mp4", "No such file"]);
    check(&send("v4l2:/dev/video99"), 2, &["/dev/video99", "No such file"]);
    check(&send(folder), 2, &[folder, "is a folder"]);
    check(&send(text), 2, &[text]);
    check(&send("/dev/null"), 2, &["/dev/null"]);
    let port = free_port();
    check(&send(&format!("rtsp://127.0.0.1:{port}/camera")), 2, &["rtsp://127.0.0.1"]);
}

#[test]
fn addresses_and_ports_that_cannot_be_used_are_named() {
    let to = |to: &str| run(&["send", "--to", to, "--seconds", "1"]);
    check(&to("no-such-host.invalid:5004"), 2, &["no-such-host.invalid"]);
    let taken = UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    check(&run(&["receive", "--listen", &port]), 2, &[&port, "in use"]);
    let words = ["send", "--to", "127.0.0.1:9", "--codec", "vp8", "--recovery", "refresh"];
    check(&run(&words), 2, &["only for h264"]);
    let frames = ["send", "--to", "127.0.0.1:9", "--frames", "/nowhere/frames"];
    check(&run(&frames), 2, &["/nowhere/frames"]);
    for words in [&["send"][..], &["send", "--to", "x"], &["receive", "--listen", "x"]] {
        assert_eq!(run(words).status.code(), Some(2), "{words:?}");
    }
}

fn film(path: &Path, fps: u32) {
    let caps = format!("video/x-raw,format=I420,width=320,height=240,framerate={fps}/1");
    let frames = format!("num-buffers={}", fps * 3);
    let location = format!("location={}", path.display());
    let words = ["-q", "videotestsrc", &frames, "!", &caps, "!", "x264enc", "speed-preset=1"];
    let status = Command::new("gst-launch-1.0")
        .args(words)
        .args(["!", "mp4mux", "!", "filesink", &location])
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_source_that_is_slower_or_faster_is_sent_as_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film.mp4");
    let send = |fps: u32| {
        film(&path, fps);
        let (to, source) = (format!("127.0.0.1:{}", free_port()), path.to_str().unwrap());
        let words = ["send", "--source", source, "--to", &to, "--bitrate", "1200k", "--json"];
        let words = [&words[..], &["--size", "320x240"]].concat();
        whole(&run(&words))
    };
    // The whole film is sent; a frame's share grows with the time between frames.
    let slow = send(10);
    let frames = number(&slow, "frames") + number(&slow, "frames_too_slow");
    assert!((28.0..=30.0).contains(&frames), "{slow}");
    assert!((9.0..11.0).contains(&number(&slow, "source_fps")), "{slow}");
    assert!(number(&slow, "target_bytes") > 11_000.0, "{slow}");
    assert_eq!(slow["frames_too_fast"], 0, "{slow}");
    let fast = send(60);
    assert!(number(&fast, "frames") <= 92.0, "{fast}");
    assert!(number(&fast, "frames_too_fast") > 60.0, "{fast}");
}

/// A sender after 30 pictures. On a busy machine the camera may take longer to start than a sender
/// waits; then it is started again, as by a service manager.
fn sender_with_pictures(words: &[&str], frames: &Path) -> Process {
    let mut sender = start(words);
    wait_up_to(BUSY_MOST, "no pictures", || {
        if sender.is_over() {
            let ended = std::mem::replace(&mut sender, start(words)).output();
            eprintln!("{}", String::from_utf8_lossy(&ended.stderr));
        }
        fs::read_to_string(frames).is_ok_and(|it| it.lines().count() > 30)
    });
    sender
}

const BUSY_MOST: Duration = Duration::from_secs(240);

#[test]
fn a_camera_that_vanishes_is_reported_and_ends_the_run() {
    let port = {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap().port()
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/camera.py");
    let mut camera =
        start_command(Command::new("/usr/bin/python3").args([script, &port.to_string()]));
    wait_up_to(BUSY_MOST, "no camera", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let address = format!("rtsp://user:secret@127.0.0.1:{port}/camera");
    let folder = tempfile::tempdir().unwrap();
    let frames = folder.path().join("frames");
    let file = frames.to_str().unwrap();
    let words = ["send", "--source", &address, "--to", "127.0.0.1:9", "--json", "--frames", file];
    let sender = sender_with_pictures(&words, &frames);
    camera.kill();
    let output = sender.output();
    check(&output, 1, &[&format!("rtsp://127.0.0.1:{port}/camera")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("secret"), "{said}");
    let lines = String::from_utf8_lossy(&output.stdout).lines().count();
    assert!(lines > 1, "statistics until the end: {lines}");
}
