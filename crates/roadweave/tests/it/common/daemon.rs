//! A program that runs beside the test, and its log.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use roadweave_linux::netns::{WAIT_MAX, Watch, wait_until};
use rustix::process::{Pid, Signal, kill_process};

pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    pub fn start(mut command: Command, log: PathBuf) -> Self {
        let output = fs::File::create(&log).unwrap();
        let errors = output.try_clone().unwrap();
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().unwrap();
        Self { child, log }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub fn count(&self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    pub fn wait_for(&self, text: &str) {
        self.wait_for_count(text, 1);
    }

    pub fn wait_for_count(&self, text: &str, count: usize) {
        wait_until(&format!("{text:?} {count} times in the log"), || self.count(text) >= count);
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Makes it read its file again by SIGHUP, and waits until it has.
    pub fn reload(&self) {
        let before = self.count("were read again");
        self.signal(Signal::HUP);
        self.wait_for_count("were read again", before + 1);
    }

    pub fn wait(&mut self) -> Option<i32> {
        let watch = Watch::start();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(watch.elapsed() < WAIT_MAX, "it does not end:\n{}", self.log());
            sleep(Duration::from_millis(20));
        }
    }

    /// Ends it by SIGINT; the exit code must be 0.
    pub fn interrupt(mut self) {
        self.signal(Signal::INT);
        assert_eq!(self.wait(), Some(0), "{}", self.log());
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
}
