//! A running controller, and a user of the command line.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::Value;

use crate::run::{CommandRunner, RunningController};

pub struct World {
    pub home: tempfile::TempDir,
    pub url: String,
    pub fingerprint: String,
    pub password: String,
    pub listens_at: SocketAddr,
    controller: Option<RunningController>,
}

/// Another program of the product, which `cargo test` builds beside this one.
pub fn program(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_BIN_EXE_roadweave-fleet")).with_file_name(name);
    if beside.exists() {
        return Some(beside);
    }
    let required = std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_some();
    assert!(!required, "{name} is not built: cargo test");
    eprintln!("skipped: {name} is not built (cargo test builds it)");
    None
}

/// A loopback address of this process alone, where no other program takes a free port.
fn address_of_its_own() -> SocketAddr {
    static WORLDS: AtomicU8 = AtomicU8::new(2);
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, WORLDS.fetch_add(1, Ordering::Relaxed), high, low);
    TcpListener::bind((host, 0)).unwrap().local_addr().unwrap()
}

impl World {
    pub fn new() -> Option<Self> {
        let mut world = Self::made(tempfile::tempdir().unwrap(), &[])?;
        world.start();
        Some(world)
    }

    pub fn made(home: tempfile::TempDir, options: &[&str]) -> Option<Self> {
        let program = program("roadweave-controller")?;
        let listens_at = address_of_its_own();
        let address = listens_at.to_string();
        let init = Command::new(&program)
            .args(["init", "--address", &address, "--listen", &address, "--folder"])
            .arg(home.path().join("controller"))
            .args(options)
            .output()
            .unwrap();
        let said = String::from_utf8(init.stdout).unwrap();
        let after = |mark: &str| {
            let rest = said.split(mark).nth(1).unwrap();
            rest.split_whitespace().next().unwrap().to_owned()
        };
        let (fingerprint, password) = (after("--fingerprint "), after("password: "));
        let url = format!("https://{address}");
        Some(Self { home, url, fingerprint, password, listens_at, controller: None })
    }

    pub fn start(&mut self) {
        let mut controller = Command::new(program("roadweave-controller").unwrap());
        controller.arg("run").arg("--folder").arg(self.home.path().join("controller"));
        self.controller = Some(RunningController::start(controller, self.listens_at));
    }

    pub fn log_in(&self, password: &str, fingerprint: &str) -> Output {
        let words = ["login", &self.url, "--user", "admin", "--fingerprint", fingerprint];
        self.with_password(&words, password)
    }

    pub fn with_password(&self, words: &[&str], password: &str) -> Output {
        self.fed(words, format!("{password}\n").as_bytes())
    }

    pub fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.prints(&[words, &["--json"]].concat())).unwrap()
    }

    pub fn failed(&self, words: &[&str]) -> String {
        self.fails(1, words)
    }
}

impl CommandRunner for World {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-fleet"));
        command.args(words).env("HOME", self.home.path()).env_remove("XDG_CONFIG_HOME");
        for name in ["URL", "KEY", "FINGERPRINT", "TENANT"] {
            command.env_remove(format!("ROADWEAVE_FLEET_{name}"));
        }
        command
    }
}
