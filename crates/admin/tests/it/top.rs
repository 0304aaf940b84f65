//! `roadweave top` restores a real terminal, made by util-linux's `script`; skipped without it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use roadweave_linux::netns::{wait_or_show, wait_until};

use crate::common::*;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

fn instance(folder: &Path) -> PathBuf {
    let socket = folder.join("rw0.sock");
    let mut status = status("bus\u{1b}]0;owned\u{7}", 12.5, &[], &[]);
    status["no_session"] = json!("nobody answers");
    serve(&socket, move |_| Some(status.clone()));
    socket
}

struct Top {
    script: Child,
    screen: PathBuf,
}

impl Top {
    fn start(folder: &Path, socket: &Path) -> Option<Self> {
        Self::start_after("", folder, socket)
    }

    fn start_after(before: &str, folder: &Path, socket: &Path) -> Option<Self> {
        let screen = folder.join("screen");
        let command = format!(
            "{before}stty rows 24 cols 80; {PROGRAM} top --socket {}; echo ended with $?; stty -a",
            socket.display()
        );
        let mut script = Command::new("script");
        script.args(["--quiet", "--flush", "--command", &command]).arg(&screen);
        script.stdin(Stdio::piped()).stdout(Stdio::null()).env("TERM", "xterm");
        match script.spawn() {
            Ok(script) => Some(Self { script, screen }),
            Err(error) => {
                assert!(std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_none(), "script: {error}");
                eprintln!("skipped: no program script: {error}");
                None
            }
        }
    }

    fn drawn(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.screen).unwrap_or_default()).into_owned()
    }

    fn wait_for(&self, text: &str) {
        let state = || format!("{text:?} never came:\n{:?}", self.drawn());
        wait_or_show(WAIT_MAX, state, || self.drawn().contains(text));
    }

    fn press(&mut self, keys: &[u8]) {
        self.script.stdin.as_mut().unwrap().write_all(keys).unwrap();
    }

    fn check_restored(self) {
        self.wait_for("ended with 0");
        self.wait_for("icanon");
        let drawn = self.drawn();
        let after = &drawn[drawn.rfind(LEAVE).expect("it left its screen")..];
        let settings = &after[after.find("speed").unwrap()..];
        let words: Vec<&str> = settings.split([' ', ';', '\r', '\n']).collect();
        assert!(words.contains(&"icanon") && words.contains(&"echo"), "{settings}");
        let cursor = ["\u{1b}[?25h", "\u{1b}[?25l"].map(|text| drawn.rfind(text));
        assert!(cursor[0] > cursor[1], "the cursor is back: {drawn:?}");
        assert!(!drawn.contains("\u{1b}]0;"), "a name steers the terminal: {drawn:?}");
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[test]
fn keys_and_signals_end_it_and_the_terminal_is_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let socket = instance(folder.path());
    for ending in ["q", "\u{3}", "SIGTERM"] {
        let Some(mut top) = Top::start(folder.path(), &socket) else { return };
        top.wait_for("nobody answers");
        assert!(top.drawn().contains(ENTER));
        match ending {
            "SIGTERM" => {
                let program = Pid::from_raw(program_below(top.script.id()).cast_signed()).unwrap();
                kill_process(program, Signal::TERM).unwrap();
            }
            keys => top.press(keys.as_bytes()),
        }
        top.check_restored();
        fs::remove_file(folder.path().join("screen")).unwrap();
    }
}

fn program_below(script: u32) -> u32 {
    let children = |id: u32| fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let mut open = vec![script];
    while let Some(id) = open.pop() {
        let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap();
        if name.starts_with("roadweave-adm") {
            return id;
        }
        open.extend(children(id).split_whitespace().map(|id| id.parse::<u32>().unwrap()));
    }
    panic!("top does not run");
}

#[test]
fn it_ends_with_its_terminal_even_without_a_hangup_signal() {
    let folder = tempfile::tempdir().unwrap();
    let socket = instance(folder.path());
    for before in ["", "trap '' HUP; "] {
        let Some(top) = Top::start_after(before, folder.path(), &socket) else { return };
        top.wait_for("nobody answers");
        let program = program_below(top.script.id());
        drop(top);
        wait_until(&format!("its end with its terminal, {before:?}"), || {
            fs::read_to_string(format!("/proc/{program}/comm")).is_err()
        });
        fs::remove_file(folder.path().join("screen")).unwrap();
    }
}

fn top(socket: &Path) -> Output {
    Command::new(PROGRAM).args(["top", "--socket"]).arg(socket).output().unwrap()
}

#[test]
fn without_a_terminal_or_an_instance_it_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let no_socket = folder.path().join("rw0.sock");
    let no_terminal = top(&no_socket);
    let said = String::from_utf8_lossy(&no_terminal.stderr).into_owned();
    assert_eq!(no_terminal.status.code(), Some(2), "{said}");
    assert!(said.contains("standard output is not a terminal"), "{said}");
    assert!(no_terminal.stdout.is_empty());
    let Some(top) = Top::start(folder.path(), &no_socket) else { return };
    top.wait_for("ended with 1");
    let drawn = top.drawn();
    assert!(drawn.contains("nothing runs at") && !drawn.contains(ENTER), "{drawn:?}");
}
