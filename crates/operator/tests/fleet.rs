//! The command line against a controller that runs, as a user meets them.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, missing_docs, reason = "tests")]

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A controller that runs, and a user's home.
struct World {
    home: tempfile::TempDir,
    url: String,
    fingerprint: String,
    password: String,
    controller: Child,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.controller.kill();
        let _ = self.controller.wait();
    }
}

/// The controller's program, which `cargo test --workspace` builds beside this one.
fn program() -> Option<PathBuf> {
    let beside =
        Path::new(env!("CARGO_BIN_EXE_roadweave-fleet")).with_file_name("roadweave-controller");
    if beside.exists() {
        return Some(beside);
    }
    let required = std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_some();
    assert!(!required, "roadweave-controller is not built: cargo test --workspace");
    eprintln!("skipped: roadweave-controller is not built (cargo test --workspace builds it)");
    None
}

impl World {
    fn new() -> Option<Self> {
        let program = program()?;
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("controller");
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let init = Command::new(&program)
            .args(["init", "--address", &address, "--listen", &address, "--folder"])
            .arg(&folder)
            .output()
            .unwrap();
        let said = String::from_utf8(init.stdout).unwrap();
        let after = |mark: &str| {
            let rest = said.split(mark).nth(1).unwrap();
            rest.split_whitespace().next().unwrap().to_owned()
        };
        let (fingerprint, password) = (after("--fingerprint "), after("password: "));
        let mut controller = Command::new(&program);
        controller.arg("run").arg("--folder").arg(&folder).stderr(Stdio::null());
        let controller = controller.spawn().unwrap();
        let world =
            Self { home, url: format!("https://{address}"), fingerprint, password, controller };
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "the controller does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(world)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-fleet"));
        command.args(words).env("HOME", self.home.path()).env_remove("XDG_CONFIG_HOME");
        for name in ["URL", "KEY", "FINGERPRINT", "TENANT"] {
            command.env_remove(format!("ROADWEAVE_FLEET_{name}"));
        }
        command
    }

    fn log_in(&self, password: &str, fingerprint: &str) -> Output {
        let words = ["login", &self.url, "--user", "admin", "--fingerprint", fingerprint];
        let mut child = self
            .command(&words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(child.stdin.take().unwrap(), "{password}").unwrap();
        child.wait_with_output().unwrap()
    }

    /// What a command prints.
    fn prints(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.prints(&[words, &["--json"]].concat())).unwrap()
    }

    /// What a command that is refused says.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn an_owner_logs_in_makes_tokens_and_links_and_logs_out() {
    let Some(world) = World::new() else { return };
    assert!(world.refused(&["device", "list"]).contains("not logged in"));
    let wrong = world.log_in("wrong password", &world.fingerprint);
    assert_eq!(wrong.status.code(), Some(2));
    let other = world.log_in(&world.password, &["00"; 32].join(":"));
    assert!(String::from_utf8_lossy(&other.stderr).contains("is not the controller with this"));
    let right = world.log_in(&world.password, &world.fingerprint);
    assert!(right.status.success(), "{}", String::from_utf8_lossy(&right.stderr));

    let shown = world.prints(&["token", "create", "--uses", "3", "--tag", "tram"]);
    assert!(shown.contains("roadweave join rw1_") && shown.contains('█'), "{shown}");
    let made = world.json(&["token", "create"]);
    assert!(made["join"].as_str().unwrap().starts_with("rw1_"));
    assert_eq!(world.json(&["token", "list"]).as_array().unwrap().len(), 2);
    let name = made["token"]["id"].as_str().unwrap();
    world.prints(&["token", "remove", name]);

    let key = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqow";
    let bad = ["proxy", "add", "fra-1", "--public-key", key, "--address", "192.0.2.1:4433"];
    assert!(world.refused(&bad).contains("public_key"));
    let config = world.home.path().join("tram.toml");
    std::fs::write(&config, "[routes]\ninto_tunnel = [\"0.0.0.0/0\"]\n").unwrap();
    let file = config.to_str().unwrap();
    let pushed = world.json(&["config", "push", file, "--tag", "tram", "--wave", "5%"]);
    assert_eq!(pushed["rollout"]["settings"]["waves"], serde_json::json!([5, 100]));
    assert_eq!(pushed["config"]["id"], "tag-tram-1");
    world.prints(&["rollout", "pause", "tag-tram-1"]);
    assert!(world.prints(&["rollout", "list"]).contains("paused"));
    std::fs::write(&config, "[routes\n").unwrap();
    assert!(world.refused(&["config", "push", file]).contains("tram.toml"));

    let secret = world.prints(&["key", "create", "ci", "--role", "viewer"]).trim().to_owned();
    let as_key = ["--url", &world.url, "--key", &secret, "--fingerprint", &world.fingerprint];
    world.prints(&[&["device", "list"], &as_key[..]].concat());
    assert!(world.refused(&[&["token", "create"], &as_key[..]].concat()).contains("operator"));
    assert!(world.prints(&["audit", "--check"]).starts_with("whole: "));
    assert!(world.prints(&["audit"]).contains("person:admin"));
    assert!(world.prints(&["status"]).contains("person:admin of home, owner"));
    world.prints(&["logout"]);
    assert!(world.refused(&["device", "list"]).contains("not logged in"));
}
