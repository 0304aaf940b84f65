//! The members of the fleet: joined by tokens, started, and monitored.
//!
//! The controller creates a token for each role; `roadweave join` uses it in each namespace. All
//! members receive signed documents: who may connect, and addresses of proxies and anchor.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use roadweave_linux::Instance;
use roadweave_linux::netns::NetNs;
use roadweave_node::local::request;
use serde_json::Value;

use super::controller::Controller;
use super::world::{ANCHOR, BOXES, CLOUD_NETWORK, PROXIES, StackWorld};
use crate::demo::scenario::OPERATORS;
use crate::sandbox::clock;
use crate::sandbox::daemon::Daemon;
use crate::sandbox::tunnel::{start_emulator, write};

const PORT: u16 = 4433;
const ANCHOR_PORT: u16 = 4434;
const STAND_BY_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Members {
    controller: Option<Controller>,
    proxies: Vec<StackMember>,
    boxes: Vec<StackMember>,
    others: Vec<Daemon>,
}

#[derive(Debug)]
struct StackMember {
    name: String,
    daemon: Option<Daemon>,
    socket: PathBuf,
}

struct Starter<'a> {
    controller: &'a Controller,
    product: &'a Path,
    directory: &'a Path,
}

impl Members {
    pub fn start(
        world: &StackWorld,
        directory: &Path,
        product: &Path,
        program: &Path,
    ) -> anyhow::Result<Self> {
        let controller = Controller::start(&world.controller, directory)?;
        let mut others = Vec::new();
        for (vehicle, name) in world.vehicles.iter().zip(EMULATORS) {
            others.push(start_emulator(name, program, &vehicle.links, directory)?);
        }
        let starter = Starter { controller: &controller, product, directory };
        let anchor = format!("{ANCHOR}:{ANCHOR_PORT}");
        others.push(starter.start(&world.anchor, "anchor", ("anchor", &anchor), &anchor_file())?);
        let mut proxies = Vec::new();
        for (namespace, (name, address)) in world.proxies.iter().zip(PROXIES) {
            let address = format!("{address}:{PORT}");
            let file = format!("instance = \"{name}\"\nlisten = \"{address}\"\n");
            let daemon = starter.start(namespace, "proxy", (name, &address), &file)?;
            proxies.push(StackMember::new(name, daemon)?);
        }
        let mut boxes = Vec::new();
        for (vehicle, name) in world.vehicles.iter().zip(CLIENTS) {
            let daemon = starter.start(&vehicle.client, "box", (name, ""), &client_file(name))?;
            boxes.push(StackMember::new(name, daemon)?);
        }
        Ok(Self { controller: Some(controller), proxies, boxes, others })
    }

    pub fn wait_until_all_stand_by(&mut self) -> anyhow::Result<()> {
        let begin = clock::now();
        loop {
            self.check_running()?;
            let sum = |name: &str| -> u64 { self.proxies.iter().map(|it| it.total(name)).sum() };
            let all = BOXES as u64;
            if sum("sessions") == all && sum("standbys") == all {
                return Ok(());
            }
            if clock::now() - begin > STAND_BY_MAX {
                let words = self.boxes.iter().filter_map(|member| member.daemon.as_ref());
                let words: String = words.map(Daemon::last_words).collect();
                bail!("the boxes have no standby after {} s{words}", STAND_BY_MAX.as_secs());
            }
            clock::sleep_until(clock::now() + POLL);
        }
    }

    pub fn proxies_of_boxes(&self) -> anyhow::Result<Vec<String>> {
        let of_box = |number| {
            let status = self.status_of_box(number).context("a box does not answer")?;
            let at = status["sessions"][0]["peer"].as_str().unwrap_or_default();
            let known = PROXIES
                .iter()
                .find(|(name, address)| at.starts_with(&address.to_string()) || at == *name);
            let (name, _) = known.with_context(|| format!("box {number} is at \"{at}\""))?;
            Ok((*name).to_owned())
        };
        (0..BOXES).map(of_box).collect()
    }

    pub fn status_of_box(&self, number: usize) -> Option<Value> {
        self.boxes[number].status()
    }

    pub fn kill_controller(&mut self) {
        self.controller = None;
    }

    /// Kills the proxy with the most sessions, like a power cut; returns its name.
    pub fn kill_busiest_proxy(&mut self) -> anyhow::Result<String> {
        let busiest = self.proxies.iter_mut().max_by_key(|member| member.total("sessions"));
        let busiest = busiest.context("there is no proxy")?;
        busiest.daemon = None;
        Ok(busiest.name.clone())
    }

    pub fn check_running(&mut self) -> anyhow::Result<()> {
        let members = self.proxies.iter_mut().chain(&mut self.boxes);
        let daemons = members.filter_map(|member| member.daemon.as_mut());
        let controller = self.controller.as_mut().map(|it| &mut it.daemon);
        daemons.chain(&mut self.others).chain(controller).try_for_each(Daemon::check_running)
    }
}

impl StackMember {
    fn new(name: &str, daemon: Daemon) -> anyhow::Result<Self> {
        let socket = Instance::new(name)?.socket_path();
        Ok(Self { name: name.to_owned(), daemon: Some(daemon), socket })
    }

    fn status(&self) -> Option<Value> {
        self.daemon.as_ref()?;
        request(&self.socket, "status", &Value::Null).ok()
    }

    fn total(&self, name: &str) -> u64 {
        let status = self.status();
        status.and_then(|status| status["totals"][name].as_u64()).unwrap_or_default()
    }
}

impl Starter<'_> {
    fn start(
        &self,
        namespace: &NetNs,
        role: &str,
        (name, address): (&'static str, &str),
        file: &str,
    ) -> anyhow::Result<Daemon> {
        let state = self.directory.join(name);
        let token = self.controller.token(role)?;
        let mut join = namespace.command(self.product);
        join.args(["join", &token, "--role", role, "--name", name, "--state-directory"])
            .arg(&state);
        if !address.is_empty() {
            join.args(["--address", address]);
        }
        let joined = join.output().context("cannot start roadweave join")?;
        let why = String::from_utf8_lossy(&joined.stderr);
        ensure!(joined.status.success(), "{name} cannot join: {}", why.trim());
        let file = format!("state_directory = {state:?}\n{file}");
        let file = write(self.directory, &format!("{name}.toml"), &file)?;
        let mut command = namespace.command(self.product);
        command.arg(if role == "box" { "client" } else { role }).arg("--config").arg(file);
        Daemon::start(name, &mut command, self.directory)
    }
}

fn anchor_file() -> String {
    format!(
        "listen = \"{ANCHOR}:{ANCHOR_PORT}\"\ntenant = \"{}\"\nmasquerade = false\n\
         addresses = [\"10.77.0.1/16\"]\n[tun]\nname = \"anchor\"\n",
        super::controller::TENANT
    )
}

fn client_file(name: &str) -> String {
    let uplinks = OPERATORS.map(|name| format!("\"{name}\"")).join(", ");
    format!(
        "[uplinks]\ninclude = [{uplinks}]\n[tun]\nname = \"{name}\"\n\
         [routes]\ninto_tunnel = [\"{CLOUD_NETWORK}\"]\n\
         [[lanes]]\nname = \"video\"\nstrategy = \"xnc\"\n"
    )
}

const CLIENTS: [&str; BOXES] = ["box_1", "box_2"];
const EMULATORS: [&str; BOXES] = ["links_1", "links_2"];
