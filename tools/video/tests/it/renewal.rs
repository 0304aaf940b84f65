//! A silent path: the sender restarts with a key frame, and the receiver resumes with it at once.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::common::{
    self, Process, Program, Rtp, column, lines, number, receiver, reports, wait_until, whole,
};

fn lane(renewals: u64) -> Value {
    json!({ "frame_bytes": 12_000, "bitrate_bps": 3_000_000, "renewals": renewals })
}

/// A sender that follows the program at `socket`.
fn sender(port: u16, socket: &Path, options: &str) -> Process {
    let feedback = format!("--feedback {} --lane real-time", socket.display());
    common::sender(port, &format!("{feedback} --size 320x240 {options}"))
}

/// The key frames received by a socket: source and time.
fn key_frames(socket: UdpSocket) -> Arc<Mutex<Vec<(u32, u32)>>> {
    let found = Arc::<Mutex<Vec<(u32, u32)>>>::default();
    let own = Arc::clone(&found);
    thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok(length) = socket.recv(&mut bytes) {
            if let Some(packet) = Rtp::read(&bytes[..length])
                && packet.begins_key_frame("h264")
            {
                own.lock().unwrap().push((packet.ssrc, packet.timestamp));
            }
        }
    });
    found
}

#[test]
fn a_counter_that_rises_brings_a_key_frame_and_a_word_and_one_that_begins_anew_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("rw.sock");
    let program = Program::start(&socket, lane(7));
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = receiver.local_addr().unwrap().port();
    let keys = key_frames(receiver);
    let sender = sender(port, &socket, "--seconds 12");
    wait_until("no first key frame", || keys.lock().unwrap().len() == 1);
    thread::sleep(Duration::from_secs(1));
    assert!(program.told().is_empty());

    let mut told = Vec::new();
    for renewals in [8, 9] {
        program.say(lane(renewals));
        let expected = told.len() + 1;
        // The first key frame was not requested, and has no report.
        let is_there = || keys.lock().unwrap().len() == expected + 1;
        wait_until("no word", || program.told().len() == expected && is_there());
        told = program.told();
        let (ssrc, timestamp) = *keys.lock().unwrap().last().unwrap();
        let word = told.last().unwrap();
        assert_eq!((&word["lane"], &word["ssrc"]), (&json!("real-time"), &json!(ssrc)));
        // Just after the previous frame, on a clock of 90 kHz.
        let before = timestamp.wrapping_sub(word["timestamp"].as_u64().unwrap() as u32);
        assert!((1..9_000).contains(&before), "{word}, and the key frame has {timestamp}");
        thread::sleep(Duration::from_millis(500));
    }
    // A restarted program, and other changes.
    let other = json!({ "frame_bytes": 11_000, "bitrate_bps": 3_000_000 });
    for (anew, lane) in [(true, lane(0)), (true, lane(20)), (false, lane(3)), (false, other)] {
        if anew {
            program.begin_anew(lane)
        } else {
            program.say(lane)
        }
        thread::sleep(Duration::from_millis(500));
    }
    assert_eq!((program.told().len(), keys.lock().unwrap().len()), (2, 3));
    let sent = whole(&sender.output());
    assert_eq!(number(&sent, "renewals"), 2.0, "{sent}");
    assert_eq!(number(&sent, "key_frames_asked"), 0.0, "{sent}");
}

/// A round: the first frame held back, the number of the key frame, and when its last packet
/// passed, in ms since the Unix epoch.
#[derive(Clone, Copy, Debug)]
struct Round {
    held_from: u16,
    key: u16,
    at_ms: f64,
}

/// A path that is silent from time to time.
struct Link {
    socket: UdpSocket,
    receiver: SocketAddr,
    codec: &'static str,
    program: Program,
    held: Vec<Vec<u8>>,
    /// The frames with packets held back.
    frames: Vec<u16>,
    renewals: u64,
    key: Option<u16>,
    rounds: Arc<Mutex<Vec<Round>>>,
}

impl Link {
    fn run(mut self) {
        let (mut sender, mut bytes) = (None, [0; 2048]);
        let began = Instant::now();
        let (mut next_late, mut next_round) = (Duration::from_secs(2), Duration::from_secs(7));
        let mut late: Option<(Instant, Vec<u8>)> = None;
        while let Ok((length, from)) = self.socket.recv_from(&mut bytes) {
            let bytes = &bytes[..length];
            if from == self.receiver {
                let _ = sender.map(|sender| self.socket.send_to(bytes, sender));
                continue;
            }
            sender = Some(from);
            let now = began.elapsed();
            if let Some((_, late)) = late.take_if(|(at, _)| at.elapsed().as_millis() > 300) {
                self.pass(&late);
            }
            let Some(packet) = Rtp::read(bytes) else {
                self.pass(bytes);
                continue;
            };
            // Late packets make the receiver's wait as long as possible.
            if now > next_late
                && now < Duration::from_secs(6)
                && !packet.begins_key_frame(self.codec)
            {
                next_late += Duration::from_secs(1);
                late = Some((Instant::now(), bytes.to_vec()));
                continue;
            }
            if self.frames.is_empty() {
                // From the middle of a frame on.
                let is_middle = !packet.marker && self.key != Some(packet.frame);
                if now < next_round || !is_middle || packet.begins_key_frame(self.codec) {
                    self.forward(&packet, bytes);
                    continue;
                }
                next_round += Duration::from_secs(2);
            }
            self.hold(&packet, bytes);
        }
    }

    /// Holds packets back until a key frame begins behind three frames.
    fn hold(&mut self, packet: &Rtp<'_>, bytes: &[u8]) {
        if self.frames.len() >= 3 && packet.begins_key_frame(self.codec) {
            self.key = Some(packet.frame);
            let held_from = self.frames[0];
            self.rounds.lock().unwrap().push(Round { held_from, key: packet.frame, at_ms: 0.0 });
            self.frames.clear();
            self.forward(packet, bytes);
            return;
        }
        self.held.push(bytes.to_vec());
        if !self.frames.contains(&packet.frame) {
            self.frames.push(packet.frame);
            if self.frames.len() == 3 {
                self.renewals += 1;
                self.program.say(lane(self.renewals));
            }
        }
    }

    fn forward(&mut self, packet: &Rtp<'_>, bytes: &[u8]) {
        self.pass(bytes);
        if self.key == Some(packet.frame) && packet.marker {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            self.rounds.lock().unwrap().last_mut().unwrap().at_ms = now.as_secs_f64() * 1e3;
            self.key = None;
        } else if self.key.is_none() && !self.held.is_empty() && packet.frame.is_multiple_of(8) {
            // The held packets arrive much later.
            std::mem::take(&mut self.held).iter().for_each(|bytes| self.pass(bytes));
        }
    }

    fn pass(&self, bytes: &[u8]) {
        let _ = self.socket.send_to(bytes, self.receiver);
    }
}

/// Checks the receiver behind a path that is silent four times.
fn fall_silent(codec: &'static str) {
    let folder = tempfile::tempdir().unwrap();
    let (socket, file) = (folder.path().join("rw.sock"), folder.path().join("shown"));
    let program = Program::start(&socket, lane(0));
    let (receiver, port) = receiver(&format!("--seconds 16 --frames {}", file.display()));
    let link = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = link.local_addr().unwrap().port();
    let rounds = Arc::<Mutex<Vec<Round>>>::default();
    let link = Link {
        socket: link,
        receiver: ([127, 0, 0, 1], port).into(),
        codec,
        program: program.clone(),
        held: Vec::new(),
        frames: Vec::new(),
        renewals: 0,
        key: None,
        rounds: Arc::clone(&rounds),
    };
    thread::spawn(move || link.run());
    let sender = sender(to, &socket, &format!("--seconds 14 --codec {codec} --fps 15"));
    let sent = whole(&sender.output());
    let reports = reports(&receiver.output());
    let whole = reports.last().unwrap();
    let rounds = rounds.lock().unwrap().clone();
    assert!(rounds.len() >= 2 && program.told().len() >= rounds.len(), "{rounds:?} {sent}");
    let lines = lines(&file);
    let shown = lines.iter().map(|it| (number(it, "number") as u16, number(it, "shown_unix_ms")));
    let shown: Vec<(u16, f64)> = shown.collect();
    let mut after = Vec::new();
    for Round { held_from, key, at_ms } in rounds {
        let first = shown.iter().find(|(number, _)| *number >= held_from);
        // No part of a missing frame is shown.
        assert!(first.is_some_and(|it| it.0 == key), "{first:?}, not {key}, after {held_from}");
        after.push(first.unwrap().1 - at_ms);
    }
    // A busy machine may show only some at once; without the jump it would show none.
    assert!(after.iter().any(|ms| *ms < 60.0), "{after:?} {whole}");
    // The wait would be longer, and late packets do not lengthen it.
    assert!(number(&reports[6], "gap_wait_ms") > 150.0, "{:?}", reports[6]);
    assert!(number(whole, "gap_wait_ms") <= number(&reports[6], "gap_wait_ms"), "{whole}");
    assert!(number(whole, "jumps") >= after.len() as f64, "{whole}");
    let asked = column(&reports[8..reports.len() - 1], "key_frame_requests").iter().sum::<f64>();
    assert!(asked <= 1.0, "key frames are asked for that are there: {reports:?}");
    eprintln!("{codec}: {after:?} ms {asked} {whole}");
}

#[test]
fn a_key_frame_behind_three_that_are_missing_is_shown_at_once() {
    fall_silent("h264");
}
