//! Encoder targets: local socket, `roadweave encoder-feedback`, and HTTP event stream.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::spawn;

use crate::common::*;
use roadweave_node::local::request;
use rustix::process::Signal;
use serde_json::{Value, json};

struct Feedback {
    program: Child,
    lines: Receiver<String>,
}

impl Feedback {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave"));
        command.args(["encoder-feedback", "--socket", &socket(CLIENT)]).args(arguments);
        let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let reader = BufReader::new(program.stdout.take().unwrap());
        spawn(move || reader.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { program, lines }
    }

    fn wait_for(&self, what: &str, holds: impl Fn(u64, u64) -> bool) {
        let (began, mut last) = (Watch::start(), String::new());
        while began.elapsed() < WAIT_MAX {
            let Ok(line) = self.lines.recv_timeout(WAIT_MAX) else { break };
            let mut numbers = line.split(' ').map(|it| it.parse::<u64>().unwrap());
            if holds(numbers.next().unwrap(), numbers.next().unwrap()) {
                return;
            }
            last = line;
        }
        panic!("waited in vain: {what}; last came {last:?}");
    }
}

impl Drop for Feedback {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn get(camera: &NetNs) -> (BufReader<TcpStream>, String) {
    let mut socket = camera.enter(|| TcpStream::connect("192.168.50.1:1080").unwrap()).unwrap();
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let request = "GET /v1/encoder?interval_ms=20 HTTP/1.1\r\nHost: 192.168.50.1\r\n\r\n";
    socket.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(socket);
    let mut status = String::new();
    reader.read_line(&mut status).unwrap();
    (reader, status)
}

#[test]
fn an_encoder_hears_of_dead_links_and_of_a_client_that_ends_and_comes_back() {
    on_network(|network| {
        let camera = network.connect_camera();
        network.edit("client.toml", |text| {
            text + "[streams]\nlisten = \"192.168.50.1:1080\"\ntcp = \"tunnel\"\n"
        });
        let (_server, mut client) = network.start_both();
        network.wait_for_paths(&["eth1", "eth2"]);
        let ask = |method: &str, params: &Value| {
            request(socket(CLIENT).as_ref(), method, params).map_err(|error| error.to_string())
        };
        wait_until("a target", || {
            let targets = ask("encoder_targets", &Value::Null).unwrap();
            targets["real-time"]["frame_bytes"].as_u64() > Some(0)
        });
        let supersede = |lane: &str| {
            ask("supersede", &json!({ "lane": lane, "ssrc": 7, "timestamp": u32::MAX }))
        };
        assert_eq!(supersede("real-time").unwrap(), json!({ "packets": 0 }));
        for (answer, expected) in [
            (supersede("vide"), "vide"),
            (ask("subscribe", &json!({ "topic": "encoder", "interval_ms": 9 })), "10 to 1000"),
            (ask("subscribe", &json!({ "topic": "secrets" })), "secrets"),
        ] {
            let error = answer.unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let mut listening: Vec<_> = (0..4).map(|_| get(&camera)).collect();
        assert!(listening.iter().all(|(_, status)| status.starts_with("HTTP/1.1 200 ")));
        assert!(get(&camera).1.starts_with("HTTP/1.1 503 "));
        let mut text = String::new();
        while !text.contains("\ndata: ") {
            assert!(listening[0].0.read_line(&mut text).unwrap() > 0, "{text}");
        }
        assert!(text.contains("Content-Type: text/event-stream\r\n"), "{text}");
        assert!(text.contains("\"bitrate_bps\":"), "{text}");
        listening.truncate(1);
        wait_until("no room is made", || get(&camera).1.starts_with("HTTP/1.1 200 "));
        let feedback = Feedback::start(&["--lane", "real-time"]);
        feedback.wait_for("a target", |frame, rate| frame > 2_000 && rate > 100_000);
        for interface in ["eth1", "eth2"] {
            network.silence(interface, true);
        }
        feedback.wait_for("nothing arrives", |frame, _| frame == 0);
        for interface in ["eth1", "eth2"] {
            network.silence(interface, false);
        }
        feedback.wait_for("the links are back", |frame, _| frame > 2_000);
        client.signal(Signal::KILL);
        client.wait();
        feedback.wait_for("the client is gone", |frame, rate| (frame, rate) == (0, 0));
        let _client = network.start_joined("client");
        feedback.wait_for("the client is back", |frame, _| frame > 2_000);
        let unknown =
            roadweave(&["encoder-feedback", "--socket", &socket(CLIENT), "--lane", "no-such-lane"]);
        let error = String::from_utf8_lossy(&unknown.stderr);
        assert_eq!(unknown.status.code(), Some(2), "{error}");
        assert!(error.contains("no lane no-such-lane; there are"), "{error}");
    });
}
