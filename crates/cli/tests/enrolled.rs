//! A fleet with its real controller, from the token to the revocation.
//!
//! ```text
//! box ═ eth1, eth2 ═► server: controller :4400, server or proxy :4433 ── lan0 ──► cloud: anchor
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
use std::time::{Duration, Instant};

use common::*;
use roadweave_device::netns::{NetNs, run_sandboxed};
use rustix::process::Signal;
use serde_json::Value;

/// Where boxes, proxies and people find the controller.
const CONTROLLER: &str = "198.51.100.1:4400";
/// Where boxes find the server.
const SERVES_AT: &str = "198.51.100.1:4433";
/// Where proxies find the anchor.
const ANCHOR_AT: &str = "203.0.113.2:4434";

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
        let deadline = Instant::now() + WAIT_MAX;
        while !self.road.server.enter(listens).unwrap() {
            assert!(Instant::now() < deadline, "the controller does not listen");
            std::thread::sleep(Duration::from_millis(20));
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

    fn token(&self, role: &str) -> String {
        let made = self.json(&["token", "create", "--role", role]);
        made["join"].as_str().unwrap().to_owned()
    }

    /// A proxy or an anchor joins in `namespace`, by a token of its own.
    fn admit(&self, namespace: &NetNs, role: &str, (name, address): (&str, &str)) {
        let token = self.token(role);
        let mut join = namespace.command(PROGRAM);
        join.args(["join", &token, "--role", role, "--name", name, "--address", address]);
        let join = join.arg("--state-directory").arg(self.road.path(name)).output().unwrap();
        assert!(joined(&join).contains(&format!("This {role} has joined: {name} of home")));
    }

    /// A server and a box join, each by a token of its own, and start.
    fn start_both(&self) -> (Daemon, Daemon) {
        self.admit(&self.road.server, "proxy", ("fra-1", SERVES_AT));
        joined(&self.join(&self.token("box"), "bus-1").output().unwrap());
        self.write_files();
        let server = self.road.start_server();
        (server, self.road.start_client("client"))
    }

    /// Files that say where the state is, and name neither keys nor one another.
    fn write_files(&self) {
        let state = |name: &str| format!("state_directory = {:?}\n", self.road.path(name));
        let listen = format!("listen = \"{SERVES_AT}\"\naddresses = [\"10.77.0.1/16\"]\n");
        let tun = format!("[tun]\nname = \"{SERVER}\"\n");
        self.road.write("server.toml", state("fra-1") + &listen + &tun);
        let uplinks = "[uplinks]\ninclude = [\"eth1\", \"eth2\"]\n";
        let routes = "[routes]\ninto_tunnel = [\"10.77.0.0/16\"]\n";
        self.road.write("client.toml", state("bus-1") + uplinks + routes);
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
        let token = world.token("box");
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

#[test]
fn a_session_on_signed_documents_outlives_its_controller_and_ends_with_the_key() {
    in_world(
        "a_session_on_signed_documents_outlives_its_controller_and_ends_with_the_key",
        |world| {
            let mut world = world;
            let (server, client) = world.start_both();
            client.wait_for("joined");
            let road = &world.road;
            road.echo(&road.server, GATEWAY_V4);
            road.wait_for_paths(&["eth1", "eth2"]);
            road.wait_for_traffic();
            let page = roadweave(&["show", "--socket", &socket(CLIENT)]);
            assert!(
                text(&page.stdout).contains("fleet of home: box bus-1, controller at"),
                "{page:?}"
            );

            // Without a controller the session goes on, and comes again after both have restarted.
            world.controller.take().unwrap().kill();
            world.road.wait_for_traffic();
            client.interrupt();
            server.interrupt();
            let server = world.road.start_server();
            let client = world.road.start_client("client");
            client.wait_for("joined");
            world.road.wait_for_traffic();
            let away = |status: &Value| status["fleet"]["away_seconds"].as_f64().is_some();
            world.road.wait_for_status(SERVER, "away", away);

            world.start_controller();
            let there = |status: &Value| status["fleet"]["controller"].is_string();
            world.road.wait_for_status(SERVER, "the controller is back", there);
            let asked = Instant::now();
            let revoked = world.json(&["device", "revoke", "bus-1", "--reason", "stolen"]);
            let answered = asked.elapsed();
            assert!(server.count("left") > 0, "{}", server.log());
            assert!(answered < Duration::from_secs(2), "{answered:?}");
            let summary = revoked["summary"].as_str().unwrap();
            assert!(summary.starts_with("1 of 1"), "{revoked:#}");
            println!("revoked, ended and confirmed after {answered:?}");
            client.wait_for("key was revoked");
            let socket = world.road.socket_to(GATEWAY_V4);
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let _ = socket.send(b"is anybody there?");
            assert!(socket.recv(&mut [0; 100]).is_err());
            drop(client);
        },
    );
}

#[test]
fn proxy_and_anchor_join_by_tokens_and_go_on_without_their_controller() {
    in_world("proxy_and_anchor_join_by_tokens_and_go_on_without_their_controller", |mut world| {
        world.json(&["tenant", "egress", "home", "anchor"]);
        world.road.cloud.ip("route add default via 203.0.113.1").unwrap();
        world.admit(&world.road.cloud, "anchor", ("site-1", ANCHOR_AT));
        world.admit(&world.road.server, "proxy", ("fra-1", SERVES_AT));
        joined(&world.join(&world.token("box"), "bus-1").output().unwrap());
        world.write_files();
        let state = |name: &str| format!("state_directory = {:?}\n", world.road.path(name));
        let listens = |at: &str| format!("listen = {at:?}\n");
        let tun = "addresses = [\"10.77.0.1/16\"]\n[tun]\nname = \"rwa\"\n";
        world.road.write("anchor.toml", state("site-1") + &listens(ANCHOR_AT) + tun);
        world.road.write("proxy.toml", state("fra-1") + &listens(SERVES_AT));
        let start = |world: &World| {
            let anchor = world.road.start(&world.road.cloud, "anchor", "anchor");
            anchor.wait_for("the anchor runs");
            let proxy = world.road.start(&world.road.server, "proxy", "proxy");
            proxy.wait_for("the proxy runs");
            let client = world.road.start_client("client");
            client.wait_for("joined");
            anchor.wait_for("attached");
            world.road.wait_for_traffic();
            [anchor, proxy, client]
        };
        world.road.echo(&world.road.cloud, "0.0.0.0");
        let daemons = start(&world);
        world.controller.take().unwrap().kill();
        daemons.into_iter().rev().for_each(Daemon::interrupt);
        let [anchor, proxy, client] = start(&world);
        for at in ["rwa", "proxy"] {
            let status = world.road.show(at);
            assert!(status["fleet"]["away_seconds"].as_f64().is_some(), "{status:#}");
        }

        world.start_controller();
        let there = |status: &Value| status["fleet"]["controller"].is_string();
        for at in ["rwa", "proxy"] {
            world.road.wait_for_status(at, "the controller is back", there);
        }
        let asked = Instant::now();
        let revoked = world.json(&["device", "revoke", "bus-1", "--reason", "stolen"]);
        let answered = asked.elapsed();
        let summary = revoked["summary"].as_str().unwrap();
        assert!(summary.starts_with("2 of 2"), "{revoked:#}");
        assert!(answered < Duration::from_secs(2), "{answered:?}");
        assert!(proxy.count("left") > 0, "{}", proxy.log());
        assert_eq!(world.road.show("rwa")["legs"][0][1]["attachments"], 0);
        drop((anchor, client));
    });
}

#[test]
fn a_drain_by_the_controller_lasts_until_it_is_taken_back() {
    in_world("a_drain_by_the_controller_lasts_until_it_is_taken_back", |world| {
        let drain = |undo: &[&str]| world.json(&[&["proxy", "drain", "fra-1"], undo].concat());
        let wait = |expected: bool| {
            let is = |status: &Value| status["totals"]["draining"] == expected;
            world.road.wait_for_status(SERVER, &format!("draining: {expected}"), is);
        };
        let (server, client) = world.start_both();
        client.wait_for("joined");
        drain(&[]);
        wait(true);
        // A new start of the server changes nothing.
        client.interrupt();
        server.interrupt();
        let server = world.road.start_server();
        let client = world.road.start_client("client");
        client.wait_for("this server drains");
        wait(true);
        assert_eq!((client.count("joined"), server.count("joined")), (0, 0));
        // Who was refused comes by itself.
        drain(&["--undo"]);
        wait(false);
        client.wait_for("joined");
        // It was taken back while the server was away.
        drain(&[]);
        wait(true);
        client.interrupt();
        server.interrupt();
        drain(&["--undo"]);
        let server = world.road.start_server();
        let client = world.road.start_client("client");
        client.wait_for("joined");
        wait(false);
        // What a person on its machine wants is not the controller's to take back.
        let command = ["drain", "--socket", &socket(SERVER), "--wait", "0"];
        assert!(roadweave(&command).status.success());
        wait(true);
        drain(&[]);
        server.wait_for("the controller drains this side: nobody");
        drain(&["--undo"]);
        server.wait_for("the controller drains this side no more");
        wait(true);
        drop(client);
    });
}

/// How long a proxy may wait for a controller that hangs.
const SILENCE_MAX: Duration = Duration::from_secs(30);

#[test]
fn a_controller_that_hangs_is_told_and_nothing_waits_for_it() {
    in_world("a_controller_that_hangs_is_told_and_nothing_waits_for_it", |world| {
        let (_server, client) = world.start_both();
        client.wait_for("joined");
        let road = &world.road;
        road.echo(&road.server, GATEWAY_V4);
        road.wait_for_traffic();
        let there = |status: &Value| status["fleet"]["controller"].is_string();
        let patience = Instant::now() + 2 * WAIT_MAX;
        while !(there(&road.show(SERVER)) && there(&road.show(CLIENT))) {
            assert!(Instant::now() < patience, "{:#}", road.show(CLIENT)["fleet"]);
            std::thread::sleep(Duration::from_millis(100));
        }
        // The kernel goes on to take connections in its name.
        let controller = world.controller.as_ref().unwrap();
        controller.signal(Signal::STOP);
        let hung = Instant::now();
        client.interrupt();
        let client = road.start_client("client");
        client.wait_for("joined");
        road.wait_for_traffic();
        while there(&road.show(SERVER)) {
            assert!(hung.elapsed() < SILENCE_MAX + WAIT_MAX, "{:#}", road.show(SERVER)["fleet"]);
            std::thread::sleep(Duration::from_millis(100));
        }
        println!("a proxy has noticed after {:?}", hung.elapsed());
        road.wait_for_traffic();
        assert!(!there(&road.show(CLIENT)), "it has found nobody to speak with");
        controller.signal(Signal::CONT);
        let resumed = Instant::now();
        while !(there(&road.show(SERVER)) && there(&road.show(CLIENT))) {
            assert!(resumed.elapsed() < 4 * WAIT_MAX, "{:#}", road.show(SERVER)["fleet"]);
            std::thread::sleep(Duration::from_millis(100));
        }
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
        let token = world.token("box");
        let mut join = world.join(&token, "bus-1");
        let said = joined(&join.env("LD_PRELOAD", &library).output().unwrap());
        assert!(said.contains("This box has joined"), "{said}");
    });
}
