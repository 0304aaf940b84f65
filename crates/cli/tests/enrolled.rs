//! A fleet with its real controller, from the token to the revocation.
//!
//! ```text
//! box ═ eth1, eth2 ═► server: roadweave-controller :4400, roadweave server :4433
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests start programs, open sockets and wait"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::*;
use roadweave_device::netns::run_sandboxed;
use serde_json::Value;

/// Where boxes, proxies and people find the controller.
const CONTROLLER: &str = "198.51.100.1:4400";

/// A program of the fleet, which `cargo test --workspace` builds beside this one.
fn beside(name: &str) -> Option<PathBuf> {
    let beside = Path::new(PROGRAM).with_file_name(name);
    if beside.exists() {
        return Some(beside);
    }
    let required = std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_some();
    assert!(!required, "{name} is not built: cargo test --workspace");
    eprintln!("skipped: {name} is not built (cargo test --workspace builds it)");
    None
}

/// A road with a controller at the server's end, and an owner who is logged in there.
struct World {
    road: Road,
    programs: [PathBuf; 2],
    controller: Option<Daemon>,
}

impl World {
    fn new(programs: [PathBuf; 2]) -> Self {
        let road = Road::new();
        let mut init = road.server.command(&programs[0]);
        init.args(["init", "--address", CONTROLLER, "--listen", CONTROLLER, "--folder"]);
        let init = init.arg(road.path("controller")).output().unwrap();
        assert!(init.status.success(), "{init:?}");
        let said = text(&init.stdout);
        let after = |mark: &str| {
            let rest = said.split(mark).nth(1).unwrap();
            rest.split_whitespace().next().unwrap().to_owned()
        };
        let (fingerprint, password) = (after("--fingerprint "), after("password: "));
        let mut world = Self { road, programs, controller: None };
        world.start_controller();
        let url = format!("https://{CONTROLLER}");
        let login = ["login", &url, "--user", "admin", "--fingerprint", &fingerprint];
        let mut login = world.operator(&login).stdin(Stdio::piped()).spawn().unwrap();
        writeln!(login.stdin.take().unwrap(), "{password}").unwrap();
        assert!(login.wait().unwrap().success());
        world
    }

    fn start_controller(&mut self) {
        let mut command = self.road.server.command(&self.programs[0]);
        command.arg("run").arg("--folder").arg(self.road.path("controller"));
        self.controller = Some(Daemon::start(command, self.road.path("controller.log")));
        let listens = || std::net::TcpStream::connect(CONTROLLER).is_ok();
        let deadline = std::time::Instant::now() + WAIT_MAX;
        while !self.road.server.enter(listens).unwrap() {
            assert!(std::time::Instant::now() < deadline, "the controller does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn operator(&self, words: &[&str]) -> Command {
        let mut command = self.road.server.command(&self.programs[1]);
        command.args(words).env("HOME", self.road.path("")).env_remove("XDG_CONFIG_HOME");
        for name in ["URL", "KEY", "FINGERPRINT", "TENANT"] {
            command.env_remove(format!("ROADWEAVE_FLEET_{name}"));
        }
        command
    }

    /// What an operator's command answers.
    fn json(&self, words: &[&str]) -> Value {
        let output = self.operator(words).arg("--json").output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn token(&self, uses: u32) -> String {
        let made = self.json(&["token", "create", "--uses", &uses.to_string()]);
        made["join"].as_str().unwrap().to_owned()
    }

    /// `roadweave join` in the vehicle, with a state directory of this name.
    fn join(&self, token: &str, name: &str) -> Command {
        let mut command = self.road.vehicle.command(PROGRAM);
        command.args(["join", token, "--name", name, "--state-directory"]);
        command.arg(self.road.path(name));
        command
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn joined(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a test in a sandbox, if the programs are there.
fn in_world(name: &str, test: impl FnOnce(World)) {
    let programs = ["roadweave-controller", "roadweave-fleet"].map(beside);
    let [Some(controller), Some(operator)] = programs else { return };
    run_sandboxed(name, || test(World::new([controller, operator])));
}

#[test]
fn a_box_joins_by_a_token_once_and_a_used_up_token_says_so() {
    in_world("a_box_joins_by_a_token_once_and_a_used_up_token_says_so", |world| {
        let token = world.token(1);
        let said = joined(&world.join(&token, "bus-1").output().unwrap());
        assert!(said.contains("This box has joined: bus-1 of home"), "{said}");
        assert!(said.contains("Next: roadweave client --state-directory"), "{said}");
        // The same key again costs no use.
        let said = joined(&world.join(&token, "bus-1").output().unwrap());
        assert!(said.contains("was joined before"), "{said}");
        let refused = world.join(&token, "bus-2").output().unwrap();
        let why = text(&refused.stderr);
        assert!(!refused.status.success() && why.contains("the controller refuses"), "{why}");
        assert!(why.contains("token"), "{why}");
        let devices = world.json(&["device", "list"]);
        assert_eq!(devices.as_array().unwrap().len(), 1, "{devices:#}");
    });
}

/// Says that it is 1970, to programs that ask the C library.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    long result = syscall(SYS_clock_gettime, id, t);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) t->tv_sec = 60;
    return (int)result;
}
int gettimeofday(struct timeval *t, void *zone) {
    (void)zone;
    t->tv_sec = 60;
    t->tv_usec = 0;
    return 0;
}
time_t time(time_t *t) { if (t) *t = 60; return 60; }
"#;

#[test]
fn a_box_in_1970_joins() {
    in_world("a_box_in_1970_joins", |world| {
        let (source, library) = (world.road.path("clock.c"), world.road.path("clock.so"));
        std::fs::write(&source, CLOCK).unwrap();
        let mut cc = Command::new("cc");
        match cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status() {
            Ok(status) => assert!(status.success()),
            Err(error) => return eprintln!("skipped: no C compiler: {error}"),
        }
        let date = Command::new("date").arg("+%Y").env("LD_PRELOAD", &library).output().unwrap();
        assert_eq!(text(&date.stdout).trim(), "1970");
        let token = world.token(1);
        let mut join = world.join(&token, "bus-1");
        let said = joined(&join.env("LD_PRELOAD", &library).output().unwrap());
        assert!(said.contains("This box has joined"), "{said}");
    });
}
