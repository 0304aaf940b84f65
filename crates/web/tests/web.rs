//! The program over TCP, without a browser. Its client is a socket with always the same status.

#![allow(clippy::disallowed_methods, reason = "the test starts the program")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::{Duration, Instant};

use roadweave_linux::netns::{WAIT_MAX, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_roadweave-web");

struct Instance {
    socket: PathBuf,
    ended: Arc<AtomicBool>,
    changes: Arc<Mutex<Vec<Value>>>,
}

impl Instance {
    fn start(folder: &Path, uplinks: &[&str]) -> Self {
        let socket = folder.join("rw0.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let changes: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (is_over, asked) = (Arc::clone(&ended), Arc::clone(&changes));
        let uplink = |name: &&str| json!({ "name": name, "heard": true, "servers": [] });
        let uplinks: Vec<Value> = uplinks.iter().map(uplink).collect();
        let begun = Instant::now();
        spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                let request: Value = serde_json::from_str(&line).unwrap();
                let result = if request["method"] == "status" {
                    status(begun.elapsed().as_secs_f64() + 1.0, &uplinks)
                } else {
                    asked.lock().unwrap().push(request.clone());
                    json!({ "notice": null })
                };
                let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": result });
                let _ = stream.write_all(format!("{answer}\n").as_bytes());
            }
        });
        Self { socket, ended, changes }
    }

    fn changes(&self) -> Vec<Value> {
        self.changes.lock().unwrap().clone()
    }

    fn end(self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.socket).unwrap().write_all(b"\n");
        fs::remove_file(&self.socket).unwrap();
    }
}

fn status(seconds: f64, uplinks: &[Value]) -> Value {
    json!({
        "role": "client", "name": "bus\u{202e}", "version": "0.1.0", "uptime_seconds": seconds,
        "tun": "rw0", "drops": {}, "log": { "lines_lost": 0 },
        "device": {
            "packets_read": 0, "bytes_read": (seconds * 1e6) as u64, "packets_written": 0,
            "bytes_written": 0,
        },
        "sessions": [], "no_session": "nobody answers", "uplinks": uplinks,
        "suppressed_notices": 0,
    })
}

struct Program {
    child: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Program {
    fn start(more: &[&str]) -> (Self, Instance) {
        let folder = tempfile::tempdir().unwrap();
        let instance = Instance::start(folder.path(), &["wwan0", "wlan0"]);
        (Self::start_in(folder, more), instance)
    }

    fn start_in(folder: TempDir, more: &[&str]) -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = command(folder.path(), &address.to_string()).args(more).spawn().unwrap();
        let program = Self { child, address, folder };
        wait_until("it listens", || TcpStream::connect(address).is_ok());
        program
    }

    fn token(&self) -> String {
        fs::read_to_string(self.folder.path().join("token")).unwrap().trim().to_owned()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream
    }

    fn ask(&self, line: &str, fields: &[&str], content: &str) -> (u16, String) {
        let mut stream = self.connect();
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let length = content.len();
        let request = format!(
            "{line} HTTP/1.1\r\n{fields}Content-Length: {length}\r\nConnection: close\r\n\r\n{content}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        let status = answer.get(9..12).and_then(|status| status.parse().ok());
        (status.unwrap_or(0), answer)
    }

    fn host(&self) -> String {
        format!("Host: {}", self.address)
    }

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}", self.token())
    }

    fn state(&self) -> Value {
        let (status, answer) = self.ask("GET /api/v1/state", &[&self.host(), &self.bearer()], "");
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    fn samples(&self) -> usize {
        self.state()["samples"]["rows"].as_array().unwrap().len()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(folder: &Path, address: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["--listen", address, "--token-file"]).arg(folder.join("token"));
    command.arg("--socket").arg(folder.join("rw0.sock")).args(["--log", "warn"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

const JSON: &str = "Content-Type: application/json";

#[test]
fn without_the_token_there_is_the_empty_page_alone() {
    let (program, _instance) = Program::start(&[]);
    let (host, token) = (program.host(), program.token());
    let check = |line: &str, fields: &[&str], expected: u16| {
        let fields = [&[host.as_str()], fields].concat();
        let (status, answer) = program.ask(line, &fields, "");
        assert_eq!(status, expected, "{line} {fields:?}\n{answer}");
        assert!(!answer.contains("bus"), "{answer}");
        let head = answer.to_lowercase();
        for field in [
            "content-security-policy: default-src 'none'; script-src 'self'",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            "referrer-policy: no-referrer",
        ] {
            assert!(head.contains(field), "{line}: {field}\n{answer}");
        }
        assert!(!head.contains("access-control") && !head.contains("set-cookie"), "{answer}");
    };
    check("GET /", &[], 200);
    check("HEAD /", &[], 200);
    check("POST /", &[], 405);
    for line in ["GET /api/v1/state", "POST /api/v1/uplinks", "POST /api/v1/lanes", "GET /api/v1/x"]
    {
        check(line, &["Authorization: Bearer x"], 401);
        check(&format!("{line}?token={token}"), &[], 401);
    }
    check("OPTIONS /api/v1/state", &["Origin: http://evil.example"], 403);
    check("GET /../../etc/passwd", &[], 404);
}

#[test]
fn another_page_gets_nothing_with_the_token_either() {
    let (program, instance) = Program::start(&[]);
    let (host, bearer) = (program.host(), program.bearer());
    let content = r#"{"uplink":"wwan0","paused":true}"#;
    let check = |fields: &[&str], expected: u16| {
        let fields = [&[bearer.as_str(), JSON], fields].concat();
        let (status, answer) = program.ask("POST /api/v1/uplinks", &fields, content);
        assert_eq!(status, expected, "{fields:?}\n{answer}");
    };
    let origin = format!("Origin: http://{}", program.address);
    check(&[&format!("Host: evil.example:{}", program.address.port())], 421);
    check(&[&host, "Origin: http://evil.example"], 403);
    check(&[&host, "Sec-Fetch-Site: cross-site", &origin], 403);
    assert_eq!(instance.changes(), [] as [Value; 0]);
    check(&[&host, "Sec-Fetch-Site: same-origin", &origin], 200);
    let changes = instance.changes();
    let expected = json!({ "uplink": "wwan0", "paused": true, "force": false });
    assert_eq!((changes.len(), &changes[0]["params"]), (1, &expected));
}

#[test]
fn a_change_is_what_is_asked_for_or_nothing() {
    let (program, instance) = Program::start(&[]);
    let (host, bearer) = (program.host(), program.bearer());
    let ask = |path: &str, content_type: &str, content: &str| {
        let content_type = format!("Content-Type: {content_type}");
        let line = format!("POST /api/v1/{path}");
        program.ask(&line, &[&host, &bearer, &content_type], content).0
    };
    let json = "application/json";
    let pause = r#"{"uplink":"wwan0","paused":true}"#;
    assert_eq!(ask("uplinks", "text/plain", pause), 415);
    assert_eq!(ask("uplinks", "application/x-www-form-urlencoded", pause), 415);
    assert_eq!(ask("uplinks", json, r#"{"uplink":"wwan0","paused":true,"force":true}"#), 400);
    assert_eq!(ask("uplinks", json, r#"{"uplink":"wwan0"}"#), 400);
    assert_eq!(ask("uplinks", json, "\u{0}"), 400);
    assert_eq!(ask("lanes", json, r#"{"lane":"tcp","strategy":"none such"}"#), 400);
    assert_eq!(ask("uplinks", json, &format!("{pause}{}", " ".repeat(5_000))), 413);
    assert_eq!(instance.changes(), [] as [Value; 0]);
    assert_eq!(ask("lanes", json, r#"{"lane":"tcp","strategy":"redundant"}"#), 200);
    assert_eq!(instance.changes()[0]["method"], "set_strategy");
    drop(program);
    let (program, instance) = Program::start(&["--read-only"]);
    let (host, bearer) = (program.host(), program.bearer());
    assert_eq!(program.ask("POST /api/v1/uplinks", &[&host, &bearer, JSON], pause).0, 403);
    assert_eq!(instance.changes(), [] as [Value; 0]);
    assert_eq!(program.state()["read_only"], true);
}

#[test]
fn a_client_that_dies_is_shown_and_its_return_too() {
    let (program, instance) = Program::start(&[]);
    wait_until("figures", || program.samples() > 2);
    let state = program.state();
    assert_eq!((&state["away"], &state["name"]), (&Value::Null, &json!("bus\\u{202e}")));
    assert!(state["samples"]["rows"][2][2][0].as_u64().is_some_and(|kbps| kbps > 1_000), "{state}");
    instance.end();
    wait_until("it is away", || {
        program.state()["away"].as_str().is_some_and(|it| it.contains("rw0.sock"))
    });
    let samples = program.samples();
    wait_until("time goes on", || program.samples() > samples);
    let _instance = Instance::start(program.folder.path(), &["wwan0"]);
    wait_until("it is back", || program.state()["away"].is_null());
    let events = program.state()["events"].to_string();
    assert!(events.contains("it answers again"), "{events}");
}

#[test]
fn who_is_slow_or_silent_is_left_and_others_are_served() {
    let (program, _instance) = Program::start(&[]);
    let mut drip = program.connect();
    drip.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
    let silent = program.connect();
    let begun = Instant::now();
    let is_over = |stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        match (&*stream).read(&mut [0; 512]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    };
    wait_until("the drip is left", || {
        let _ = (&drip).write_all(b"a");
        is_over(&drip)
    });
    wait_until("the silent one is left", || is_over(&silent));
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    let (status, answer) =
        program.ask("GET /", &[&program.host(), &format!("X: {}", "a".repeat(20_000))], "");
    assert_eq!(status, 431, "{answer}");
    let many: String = (0..70).map(|number| format!("\r\nX-{number}: 1")).collect();
    assert_eq!(program.ask("GET /", &[&(program.host() + &many)], "").0, 431);
    assert_eq!(program.state()["role"], "client");
}

fn resident(program: &Program) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn processor_ticks(program: &Program) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", program.child.id())).unwrap();
    let fields = stat.rsplit(") ").next().unwrap().split(' ');
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_caller_that_does_not_read_costs_little_and_blocks_nothing() {
    let (program, _instance) = Program::start(&[]);
    wait_until("samples", || program.samples() > 20);
    let before = resident(&program);
    let request =
        format!("GET /api/v1/state HTTP/1.1\r\n{}\r\n{}\r\n\r\n", program.host(), program.bearer());
    // One address may have 8 connections; each of these asks a thousand times.
    let deaf: Vec<TcpStream> = (0..6).map(|_| program.connect()).collect();
    for stream in &deaf {
        stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        for _ in 0..1_000 {
            if (&*stream).write_all(request.as_bytes()).is_err() {
                break;
            }
        }
    }
    let spent = processor_ticks(&program);
    assert_eq!(program.state()["role"], "client");
    let spent = processor_ticks(&program) - spent;
    assert!(spent < 500, "{spent} ticks");
    let grown = resident(&program).saturating_sub(before);
    assert!(grown < 8 * 1024, "{grown} KiB more");
}

#[test]
fn without_the_token_connections_have_few_requests_and_give_way() {
    let (program, _instance) = Program::start(&[]);
    let answers = |bearer: &str| {
        let mut stream = program.connect();
        let host = program.host();
        let request = format!("GET /api/v1/state?after=9999 HTTP/1.1\r\n{host}\r\n{bearer}\r\n");
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let _ = stream.write_all(request.repeat(100).as_bytes());
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers);
        String::from_utf8_lossy(&answers).matches("HTTP/1.1 ").count()
    };
    assert_eq!(answers(""), 32);
    assert_eq!(answers(&format!("{}\r\n", program.bearer())), 100);
    let begun = Instant::now();
    // New ones come faster than the old ones end.
    for round in 0..20 {
        let silent: Vec<TcpStream> = (0..12).map(|_| program.connect()).collect();
        assert_eq!(program.state()["role"], "client");
        let is_over =
            |mut stream: &TcpStream| stream.read(&mut [0; 64]).is_ok_and(|read| read == 0);
        assert!(round > 0 || silent[..5].iter().all(is_over));
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

/// With an interface `lan` of 192.168.50.1; then runs the script `after`.
fn in_namespace(folder: &Path, address: &str, after: &str) -> Option<Output> {
    if !Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|it| it.success()) {
        println!("skipped: no network namespace can be made here");
        return None;
    }
    let script = format!(
        "lan() {{ ip link add lan type bridge; ip address add 192.168.50.1/24 dev lan; \
         ip link set lan up; }}; lan; \"$@\" & program=$!; {after}; wait $program"
    );
    let program = command(folder, address);
    let mut command = Command::new("timeout");
    command.args(["20", "unshare", "--net", "sh", "-c", &script, "sh", PROGRAM]);
    Some(command.args(program.get_args()).output().unwrap())
}

#[test]
fn an_interface_that_is_recreated_or_becomes_an_uplink_ends_it_for_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let instance = Instance::start(folder.path(), &["wwan0"]);
    let (address, anew) = ("192.168.50.1:808", "sleep 6; ss -ltn; ip link del lan; lan");
    let Some(output) = in_namespace(folder.path(), address, anew) else { return };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("192.168.50.1%lan:808"), "it listened: {said}");
    // The check may fall between the deletion and the new interface.
    let said = String::from_utf8_lossy(&output.stderr);
    let word = if said.contains("no interface") { "no interface has it" } else { "stopped" };
    refused(&output, 1, word);
    instance.end();
    let _instance = Instance::start(folder.path(), &["lan"]);
    let output = in_namespace(folder.path(), address, ":").unwrap();
    refused(&output, 1, "is an uplink");
}

fn refused(output: &Output, code: i32, word: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(word), "{word:?} is not in {said}");
}

#[test]
fn the_address_is_printed_when_it_is_asked_for() {
    let (program, _instance) = Program::start(&[]);
    let address = program.address.to_string();
    let run = |listen: &str, words: &str| {
        command(program.folder.path(), listen).args(words.split_whitespace()).output().unwrap()
    };
    let printed = |listen: &str, words: &str| {
        String::from_utf8(run(listen, &format!("--address {words}")).stdout).unwrap()
    };
    let text = printed(&address, "--qr");
    let expected = format!("http://{address}/#token={}\n", program.token());
    assert!(text.starts_with(&expected) && text.contains('█'), "{text}");
    for (listen, words, origin) in [
        ("127.0.0.1:808", "--host box.lan", "https://box.lan/#"),
        ("192.168.50.1:808", "--host box.lan", "http://box.lan:808/#"),
        ("0.0.0.0:808", "--anywhere", "http://localhost:808/#"),
    ] {
        assert!(printed(listen, words).starts_with(origin), "{listen} {words}");
    }
    refused(&run("0.0.0.0:808", "--address --anywhere --qr"), 2, "--host");
    refused(&run("0.0.0.0:0", ""), 2, "--anywhere");
    refused(&run("127.0.0.1:0", "--host http://x"), 2, "only a name");
    let mut program = program;
    program.child.kill().unwrap();
    let mut said = String::new();
    program.child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    program.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!said.contains("token"), "{said}");
}
