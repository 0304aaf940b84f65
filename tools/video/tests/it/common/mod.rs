//! The program under test and its environment.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A process that ends with its test.
pub struct Process(Option<Child>);

impl Process {
    pub fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    pub fn is_over(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    pub fn memory_kib(&self) -> u64 {
        let id = self.0.as_ref().unwrap().id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    pub fn kill(&mut self) {
        let child = self.0.as_mut().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn start(words: &[&str]) -> Process {
    start_command(Command::new(env!("CARGO_BIN_EXE_roadweave-video")).args(words))
}

pub fn start_command(command: &mut Command) -> Process {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    Process(Some(command.env_remove("ROADWEAVE_LOG").spawn().unwrap()))
}

pub fn run(words: &[&str]) -> Output {
    start(words).output()
}

fn start_line(line: &str) -> Process {
    start(&line.split_whitespace().collect::<Vec<_>>())
}

/// A receiver with these options that is already listening, and its port.
pub fn receiver(options: &str) -> (Process, u16) {
    let port = free_port();
    let receiver = start_line(&format!("receive --listen {port} --json {options}"));
    wait_until("nobody listens", || is_taken(port));
    (receiver, port)
}

pub fn sender(port: u16, options: &str) -> Process {
    send(&format!("127.0.0.1:{port}"), options)
}

pub fn send(to: &str, options: &str) -> Process {
    start_line(&format!("send --to {to} --json {options}"))
}

/// Forwards packets between a sender and the receiver at this port. `change` gets the packet and
/// whether it is an answer; it returns how many copies to forward.
pub fn relay(
    receiver: u16,
    mut change: impl FnMut(bool, &mut Vec<u8>) -> usize + Send + 'static,
) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let receiver = SocketAddr::from(([127, 0, 0, 1], receiver));
    thread::spawn(move || {
        let (mut sender, mut bytes) = (None, [0; 2048]);
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let is_answer = from == receiver;
            sender = if is_answer { sender } else { Some(from) };
            let Some(to) = (if is_answer { sender } else { Some(receiver) }) else { continue };
            let mut packet = bytes[..length].to_vec();
            for _ in 0..change(is_answer, &mut packet) {
                let _ = socket.send_to(&packet, to);
            }
        }
    });
    port
}

/// Checks the exit code, and that the last line on standard error contains `parts`.
pub fn check(output: &Output, code: i32, parts: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    let last = said.trim_end().lines().last().unwrap_or_default();
    assert!(last.starts_with("roadweave: "), "{said}");
    for part in parts {
        assert!(last.contains(part), "{part:?} is not in {said}");
    }
}

pub fn reports(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.last().unwrap()["span"], "whole", "{text}{said}");
    lines
}

pub fn whole(output: &Output) -> Value {
    reports(output).pop().unwrap()
}

pub fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn wait_until(what: &str, is_there: impl FnMut() -> bool) {
    wait_up_to(Duration::from_secs(30), what, is_there);
}

pub fn wait_up_to(most: Duration, what: &str, mut is_there: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_there() {
        assert!(began.elapsed() < most, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub fn is_taken(port: u16) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/udp").unwrap();
    sockets.contains(&format!(":{port:04X} "))
}

pub fn number(report: &Value, field: &str) -> f64 {
    report[field].as_f64().unwrap_or_else(|| panic!("no {field} in {report}"))
}

pub fn column(reports: &[Value], field: &str) -> Vec<f64> {
    reports.iter().map(|report| number(report, field)).collect()
}

pub fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The tunnel's program, which sends a lane's target and records superseded packets.
#[derive(Clone)]
pub struct Program {
    lane: Arc<Mutex<Value>>,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl Program {
    pub fn start(socket: &Path, lane: Value) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let program = Self { lane: Arc::new(Mutex::new(lane)), requests: Arc::default() };
        let own = program.clone();
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let program = own.clone();
                thread::spawn(move || program.serve(&stream));
            }
        });
        program
    }

    pub fn say(&self, lane: Value) {
        *self.lane.lock().unwrap() = lane;
    }

    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }

    fn serve(&self, mut stream: &UnixStream) {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        let asked: Value = serde_json::from_str(&line).unwrap();
        if asked["method"] == "supersede" {
            self.requests.lock().unwrap().push(asked["params"].clone());
            let answer = json!({ "id": asked["id"], "result": { "packets": 3 } });
            writeln!(stream, "{answer}").unwrap();
            return;
        }
        assert_eq!(asked["params"]["topic"], "encoder");
        let mut message =
            json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "topic": "encoder" } });
        while writeln!(stream, "{message}").is_ok() {
            thread::sleep(Duration::from_millis(10));
            let params = json!({ "lanes": { "real-time": *self.lane.lock().unwrap() } });
            message = json!({ "jsonrpc": "2.0", "method": "encoder", "params": params });
        }
    }
}

pub struct Rtp<'a> {
    pub timestamp: u32,
    pub ssrc: u32,
    pub marker: bool,
    pub frame: u16,
    pub payload: &'a [u8],
}

impl<'a> Rtp<'a> {
    pub fn read(packet: &'a [u8]) -> Option<Self> {
        let is_video = packet.len() > 28 && matches!(packet[1] & 0x7f, 96..=98);
        let four = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
        is_video.then(|| Self {
            timestamp: four(4),
            ssrc: four(8),
            marker: packet[1] & 0x80 != 0,
            frame: u16::from_be_bytes([packet[26], packet[27]]),
            payload: &packet[28..],
        })
    }

    /// Whether it begins a key frame of H.264: several units, the delimiter of two bytes first.
    pub fn begins_key_frame(&self) -> bool {
        match self.payload {
            [first, _, _, 9, _, _, _, kind, ..] => first & 31 == 24 && kind & 31 == 7,
            _ => false,
        }
    }
}
