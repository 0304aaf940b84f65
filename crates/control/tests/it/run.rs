//! Runs a program, and expects its success or failure.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub trait CommandRunner {
    fn command(&self, words: &[&str]) -> Command;

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn fed(&self, words: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(words);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    fn prints(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn refused(&self, words: &[&str]) -> String {
        self.fails(2, words)
    }

    fn fails(&self, code: i32, words: &[&str]) -> String {
        let output = self.run(words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert_eq!(output.stdout, b"", "{words:?}");
        said
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A controller that runs as long as this.
pub struct RunningController(pub Child);

impl RunningController {
    pub fn start(mut controller: Command, address: SocketAddr) -> Self {
        let running = Self(controller.stderr(Stdio::null()).spawn().unwrap());
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < end, "the controller does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        running
    }
}

impl Drop for RunningController {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
