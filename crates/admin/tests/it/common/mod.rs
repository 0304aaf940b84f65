//! Other processes around the program, and a socket that answers as a running instance does.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::Duration;

use roadweave_linux::netns::wait_or_show;
use serde_json::{Value, json};
use tempfile::TempDir;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_roadweave-admin");
pub const WAIT_MAX: Duration = Duration::from_secs(60);

pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers requests at `socket` until `answer` returns `None`.
pub fn serve(socket: &Path, answer: impl Fn(&Value) -> Option<Value> + Send + 'static) {
    let listener = UnixListener::bind(socket).unwrap();
    spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let request = serde_json::from_str(&line).unwrap_or_default();
            let Some(result) = answer(&request) else { return };
            let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": result });
            let _ = stream.write_all(format!("{answer}\n").as_bytes());
        }
    });
}

pub fn status(name: &str, uptime_seconds: f64, sessions: &[Value], uplinks: &[Value]) -> Value {
    json!({
        "role": "client", "name": name, "version": "0.1.0", "uptime_seconds": uptime_seconds,
        "tun": "rw0", "drops": {}, "log": { "lines_lost": 0 },
        "device": {
            "packets_read": 0, "bytes_read": 0, "packets_written": 0, "bytes_written": 0,
        },
        "sessions": sessions, "no_session": null, "uplinks": uplinks, "suppressed_notices": 0,
    })
}

pub struct Vehicle {
    pub folder: TempDir,
    reported: Arc<Mutex<Vec<Value>>>,
}

impl Vehicle {
    pub fn new() -> Self {
        let vehicle = Self { folder: TempDir::new().unwrap(), reported: Arc::default() };
        let reported = Arc::clone(&vehicle.reported);
        serve(&vehicle.path("rw0.sock"), move |request| {
            assert_eq!(request["method"], "tell_modem");
            reported.lock().unwrap().push(request["params"].clone());
            Some(json!({ "told": true }))
        });
        vehicle
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn set(&self, name: &str, content: &Value) {
        fs::write(self.path("new"), content.to_string()).unwrap();
        fs::rename(self.path("new"), self.path(name)).unwrap();
    }

    pub fn start(&self, command: &mut Command, said: &str) -> Process {
        let said = File::options().create(true).append(true).open(self.path(said)).unwrap();
        Process(command.stdout(Stdio::null()).stderr(said).spawn().unwrap())
    }

    pub fn start_modems(&self, words: &[&str]) -> Process {
        let mut command = Command::new(PROGRAM);
        command.args(["modems", "--bus", &self.bus(), "--root"]).arg(self.folder.path());
        command.arg("--socket").arg(self.path("rw0.sock")).args(words);
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        self.start(&mut command, "said")
    }

    pub fn bus(&self) -> String {
        format!("unix:path={}", self.path("bus").display())
    }

    pub fn reported(&self) -> Vec<Value> {
        self.reported.lock().unwrap().clone()
    }

    pub fn wait(&self, uplink: &str) -> Value {
        let before = self.reported().len();
        let new =
            || self.reported().split_off(before).into_iter().find(|it| it["uplink"] == uplink);
        let state = || format!("{uplink}: {:?}\n{}", self.reported(), self.read("said"));
        wait_or_show(WAIT_MAX, state, || new().is_some());
        new().unwrap()["facts"].clone()
    }

    pub fn wait_for_words(&self, words: &str, times: usize) {
        let said = || self.read("said").matches(words).count();
        wait_or_show(WAIT_MAX, || format!("{words}: {}", self.read("said")), || said() >= times);
        assert_eq!(said(), times, "{}", self.read("said"));
    }
}

pub fn is_installed(name: &str, words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null());
    let is_there = command.status().is_ok_and(|status| status.success());
    let is_required = std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_some();
    assert!(is_there || !is_required, "{name} is not installed");
    if !is_there {
        eprintln!("skipped: {name} is not installed");
    }
    is_there
}
