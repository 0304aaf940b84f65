//! The controller of the local fleet, and its operator.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use roadweave_linux::netns::NetNs;
use roadweave_terminal::program::find;
use serde_json::Value;

use super::world::CONTROLLER;
use crate::sandbox::clock;
use crate::sandbox::daemon::Daemon;

/// The only tenant, created by `init`.
pub const TENANT: &str = "home";
const PORT: u16 = 4400;
const LISTENS_MAX: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Controller {
    pub daemon: Daemon,
    operator: PathBuf,
    directory: PathBuf,
    namespace: NetNs,
}

impl Controller {
    pub fn start(namespace: &NetNs, directory: &Path) -> anyhow::Result<Self> {
        let program = |name: &str| {
            find(name).with_context(|| {
                format!(
                    "cannot find the program {name} beside this one or in PATH: build it with \
                     cargo build --package roadweave-control"
                )
            })
        };
        let (program, operator) = (program("roadweave-controller")?, program("roadweave-fleet")?);
        let (folder, address) = (directory.join("controller"), format!("{CONTROLLER}:{PORT}"));
        let mut init = namespace.command(&program);
        init.args(["init", "--tenant", TENANT, "--address", &address, "--listen", &address]);
        let said = output(init.arg("--folder").arg(&folder))?;
        let after = |mark: &str| {
            let word = said.split(mark).nth(1).and_then(|rest| rest.split_whitespace().next());
            word.with_context(|| format!("roadweave-controller init did not print \"{mark}\""))
        };
        let (fingerprint, password) = (after("--fingerprint ")?, after("password: ")?);
        let mut run = namespace.command(&program);
        run.arg("run").arg("--folder").arg(&folder);
        let mut controller = Self {
            daemon: Daemon::start("controller", &mut run, directory)?,
            operator,
            directory: directory.to_owned(),
            namespace: NetNs::open(namespace.name())?,
        };
        controller.wait_until_it_listens(&address)?;
        controller.log_in(&format!("https://{address}"), fingerprint, password)?;
        output(controller.operate().args(["tenant", "egress", TENANT, "anchor"]))?;
        Ok(controller)
    }

    pub fn token(&self, role: &str) -> anyhow::Result<String> {
        let output_text =
            output(self.operate().args(["token", "create", "--json", "--role", role]))?;
        let token: Value = serde_json::from_str(&output_text).context("a token is not JSON")?;
        Ok(token["join"].as_str().context("a token without text")?.to_owned())
    }

    fn wait_until_it_listens(&mut self, address: &str) -> anyhow::Result<()> {
        let begin = clock::now();
        while !self.namespace.enter(|| TcpStream::connect(address).is_ok())? {
            self.daemon.check_running()?;
            if clock::now() - begin > LISTENS_MAX {
                bail!("the controller did not start listening{}", self.daemon.last_words());
            }
            clock::sleep_until(clock::now() + POLL);
        }
        Ok(())
    }

    fn log_in(&self, url: &str, fingerprint: &str, password: &str) -> anyhow::Result<()> {
        let mut login = self.operate();
        login.args(["login", url, "--user", "admin", "--fingerprint", fingerprint]);
        login.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut login = login.spawn().context("cannot start roadweave-fleet")?;
        if let Some(mut input) = login.stdin.take() {
            writeln!(input, "{password}").context("cannot log in")?;
        }
        let ended = login.wait_with_output().context("cannot log in")?;
        let why = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success(), "cannot log in: {}", why.trim());
        Ok(())
    }

    fn operate(&self) -> Command {
        let mut command = self.namespace.command(&self.operator);
        command.env("HOME", &self.directory).env_remove("XDG_CONFIG_HOME");
        for name in ["URL", "KEY", "FINGERPRINT", "TENANT"] {
            command.env_remove(format!("ROADWEAVE_FLEET_{name}"));
        }
        command
    }
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed: {}", why.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
