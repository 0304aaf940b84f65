//! The program under test, and what stands around it.

#![allow(dead_code, reason = "each test uses some of it")]

use std::net::UdpSocket;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A process that ends with its test.
pub struct Process(Option<Child>);

impl Process {
    /// What it has printed, once it is over.
    pub fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    /// Ends it at once.
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

/// Starts `roadweave-video` with these words.
pub fn start(words: &[&str]) -> Process {
    start_command(Command::new(env!("CARGO_BIN_EXE_roadweave-video")).args(words))
}

/// Starts a program whose output is kept.
pub fn start_command(command: &mut Command) -> Process {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    Process(Some(command.env_remove("ROADWEAVE_LOG").spawn().unwrap()))
}

/// Runs `roadweave-video` with these words to its end.
pub fn run(words: &[&str]) -> Output {
    start(words).output()
}

/// The lines of statistics of a run, the last of which is about the whole.
pub fn reports(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.last().unwrap()["span"], "whole", "{text}{said}");
    lines
}

/// The last report of a run.
pub fn whole(output: &Output) -> Value {
    reports(output).pop().unwrap()
}

/// A UDP port that is free.
pub fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until `is_there` says so.
pub fn wait_until(what: &str, mut is_there: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_there() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether somebody listens at this UDP port.
pub fn is_taken(port: u16) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/udp").unwrap();
    sockets.contains(&format!(":{port:04X} "))
}

/// A number of a report.
pub fn number(report: &Value, field: &str) -> f64 {
    report[field].as_f64().unwrap_or_else(|| panic!("no {field} in {report}"))
}
