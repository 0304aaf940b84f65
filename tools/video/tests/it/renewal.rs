//! A silent path: the sender restarts with a key frame, and the receiver resumes with it at once.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::common::{self, Process, Program, Rtp, column, lines, number, receiver, reports, whole};

fn lane(renewals: u64) -> Value {
    json!({ "frame_bytes": 12_000, "bitrate_bps": 3_000_000, "renewals": renewals })
}

fn sender(port: u16, socket: &Path, options: &str) -> Process {
    let feedback = format!("--feedback {} --lane real-time", socket.display());
    common::sender(port, &format!("{feedback} --size 320x240 {options}"))
}

/// A round: the first frame held back, the key frame's number, source and timestamp, and when its
/// last packet passed, in ms since the Unix epoch.
#[derive(Clone, Copy, Debug)]
struct Round {
    held_from: u16,
    key: u16,
    ssrc: u32,
    timestamp: u32,
    at_ms: f64,
}

struct Link {
    socket: UdpSocket,
    receiver: SocketAddr,
    program: Program,
    held: Vec<Vec<u8>>,
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
            if now > next_late && now < Duration::from_secs(6) && !packet.begins_key_frame() {
                next_late += Duration::from_secs(1);
                late = Some((Instant::now(), bytes.to_vec()));
                continue;
            }
            if self.frames.is_empty() {
                let is_middle = !packet.marker && self.key != Some(packet.frame);
                if now < next_round || !is_middle || packet.begins_key_frame() {
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
        if self.frames.len() >= 3 && packet.begins_key_frame() {
            self.key = Some(packet.frame);
            let (held_from, key) = (self.frames[0], packet.frame);
            let Rtp { ssrc, timestamp, .. } = *packet;
            let round = Round { held_from, key, ssrc, timestamp, at_ms: 0.0 };
            self.rounds.lock().unwrap().push(round);
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
            std::mem::take(&mut self.held).iter().for_each(|bytes| self.pass(bytes));
        }
    }

    fn pass(&self, bytes: &[u8]) {
        let _ = self.socket.send_to(bytes, self.receiver);
    }
}

#[test]
fn a_key_frame_behind_three_that_are_missing_is_shown_at_once() {
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
        program: program.clone(),
        held: Vec::new(),
        frames: Vec::new(),
        renewals: 0,
        key: None,
        rounds: Arc::clone(&rounds),
    };
    thread::spawn(move || link.run());
    let sender = sender(to, &socket, "--seconds 14 --fps 15");
    let sent = whole(&sender.output());
    let reports = reports(&receiver.output());
    let whole = reports.last().unwrap();
    let rounds = rounds.lock().unwrap().clone();
    assert!(rounds.len() >= 2 && program.requests().len() >= rounds.len(), "{rounds:?} {sent}");
    let lines = lines(&file);
    let shown = lines.iter().map(|it| (number(it, "number") as u16, number(it, "shown_unix_ms")));
    let shown: Vec<(u16, f64)> = shown.collect();
    let mut after = Vec::new();
    let requests = program.requests();
    for Round { held_from, key, ssrc, timestamp, at_ms } in rounds {
        // Superseded is all until just before the key frame, on a clock of 90 kHz.
        let is_of_it = |word: &Value| {
            let before = timestamp.wrapping_sub(word["timestamp"].as_u64().unwrap() as u32);
            word["lane"] == "real-time" && word["ssrc"] == ssrc && (1..18_000).contains(&before)
        };
        assert!(requests.iter().any(is_of_it), "{timestamp} of {ssrc}: {requests:?}");
        let first = shown.iter().find(|(number, _)| *number >= held_from);
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
}
