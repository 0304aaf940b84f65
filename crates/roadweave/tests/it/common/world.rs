//! A fleet on the road, with its real controller at the server's end.
//!
//! ```text
//! box ═ eth1, eth2 ═► server: controller :4400, server or proxy :4433 ── lan0 ──► cloud: anchor
//! ```

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::*;

const CONTROLLER: &str = "198.51.100.1:4400";
pub const SERVES_AT: &str = "198.51.100.1:4433";
pub const ANCHOR_AT: &str = "203.0.113.2:4434";

const INNER: &str = "addresses = [\"10.77.0.1/16\"]\nallow_destinations = [\"10.77.0.1\"]\n";

pub const ANCHOR: &str = "rwa";

pub struct World {
    pub network: TestNetwork,
    programs: [PathBuf; 2],
    pub controller: Option<Daemon>,
    pub shards: u8,
}

impl World {
    pub fn new(programs: [PathBuf; 2]) -> Self {
        let network = TestNetwork::new();
        let mut init = network.server.command(&programs[0]);
        init.args(["init", "--address", CONTROLLER, "--listen", CONTROLLER, "--folder"]);
        let init = init.arg(network.path("controller")).output().unwrap();
        assert!(init.status.success(), "{init:?}");
        let said = text(&init.stdout);
        let after = |mark: &str| {
            let rest = said.split(mark).nth(1).unwrap();
            rest.split_whitespace().next().unwrap().to_owned()
        };
        let (fingerprint, password) = (after("--fingerprint "), after("password: "));
        let mut world = Self { network, programs, controller: None, shards: 1 };
        world.start_controller();
        let url = format!("https://{CONTROLLER}");
        let login = ["login", &url, "--user", "admin", "--fingerprint", &fingerprint];
        let mut login = world.operator(&login).stdin(Stdio::piped()).spawn().unwrap();
        writeln!(login.stdin.take().unwrap(), "{password}").unwrap();
        assert!(login.wait().unwrap().success());
        world
    }

    pub fn start_controller(&mut self) {
        let mut command = self.network.server.command(&self.programs[0]);
        command.arg("run").arg("--folder").arg(self.network.path("controller"));
        self.controller = Some(Daemon::start(command, self.network.path("controller.log")));
        let listens = || std::net::TcpStream::connect(CONTROLLER).is_ok();
        wait_until("the controller does not listen", || {
            self.network.server.enter(listens).unwrap()
        });
    }

    fn operator(&self, words: &[&str]) -> Command {
        let mut command = self.network.server.command(&self.programs[1]);
        command.args(words).env("HOME", self.network.path("")).env_remove("XDG_CONFIG_HOME");
        for name in ["URL", "KEY", "FINGERPRINT", "TENANT"] {
            command.env_remove(format!("ROADWEAVE_FLEET_{name}"));
        }
        command
    }

    pub fn json(&self, words: &[&str]) -> Value {
        let output = self.operator(words).arg("--json").output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn token(&self, role: &str) -> String {
        let made = self.json(&["token", "create", "--role", role]);
        made["join"].as_str().unwrap().to_owned()
    }

    pub fn admit(&self, namespace: &NetNs, role: &str, (name, address): (&str, &str)) {
        let token = self.token(role);
        let mut join = namespace.command(PROGRAM);
        join.args(["join", &token, "--role", role, "--name", name, "--address", address]);
        let join = join.arg("--state-directory").arg(self.network.path(name)).output().unwrap();
        assert!(joined(&join).contains(&format!("This {role} has joined: {name} of home")));
    }

    pub fn start_both(&self) -> (Daemon, Daemon) {
        self.admit(&self.network.server, "proxy", ("fra-1", SERVES_AT));
        joined(&self.join(&self.token("box"), "bus-1").output().unwrap());
        self.write_files();
        let server = self.network.start_server();
        (server, self.network.start_client("client"))
    }

    pub fn join_with_anchor(&self) {
        self.admit_anchor();
        self.admit(&self.network.server, "proxy", ("fra-1", SERVES_AT));
        joined(&self.join(&self.token("box"), "bus-1").output().unwrap());
        self.write_files();
        self.network.write("proxy.toml", self.serves("fra-1", SERVES_AT));
    }

    /// An anchor joins in the cloud, where the tenant's packets leave; its file is `anchor.toml`.
    pub fn admit_anchor(&self) {
        self.json(&["tenant", "egress", "home", "anchor"]);
        self.network.cloud.ip("route add default via 203.0.113.1").unwrap();
        self.admit(&self.network.cloud, "anchor", ("site-1", ANCHOR_AT));
        let tun = format!("{INNER}[tun]\nname = \"{ANCHOR}\"\n");
        self.network.write("anchor.toml", self.serves("site-1", ANCHOR_AT) + &tun);
    }

    pub fn start_with_anchor(&self) -> [Daemon; 3] {
        let (anchor, proxy) = (self.start_anchor(), self.start_proxy("proxy"));
        let client = self.network.start_joined("client");
        anchor.wait_for("attached");
        self.network.wait_for_traffic();
        [anchor, proxy, client]
    }

    pub fn start_anchor(&self) -> Daemon {
        let anchor = self.network.start(&self.network.cloud, "anchor", "anchor");
        anchor.wait_for("the anchor runs");
        anchor
    }

    pub fn start_proxy(&self, name: &str) -> Daemon {
        let proxy = self.network.start(&self.network.server, "proxy", name);
        proxy.wait_for("the proxy runs");
        proxy
    }

    pub fn state(&self, name: &str) -> String {
        format!("state_directory = {:?}\n", self.network.path(name))
    }

    pub fn serves(&self, name: &str, listen: &str) -> String {
        format!("{}listen = {listen:?}\n", self.state(name))
    }

    fn write_files(&self) {
        let shards = format!("shards = {}\n{INNER}", self.shards);
        let server = shards + &format!("[tun]\nname = \"{SERVER}\"\n");
        self.network.write("server.toml", self.serves("fra-1", SERVES_AT) + &server);
        let uplinks = "[uplinks]\ninclude = [\"eth1\", \"eth2\"]\n";
        let routes = "[routes]\ninto_tunnel = [\"10.77.0.0/16\"]\n";
        self.network.write("client.toml", self.state("bus-1") + uplinks + routes);
    }

    pub fn join(&self, token: &str, name: &str) -> Command {
        let mut command = self.network.vehicle.command(PROGRAM);
        command.args(["join", token, "--name", name, "--state-directory"]);
        command.arg(self.network.path(name));
        command
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn joined(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

pub fn in_world(test: impl FnOnce(World)) {
    let programs = ["roadweave-controller", "roadweave-fleet"].map(beside);
    let [Some(controller), Some(operator)] = programs else { return };
    run_sandboxed(|| test(World::new([controller, operator])));
}
