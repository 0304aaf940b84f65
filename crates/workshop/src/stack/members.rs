//! The programs of the stack: their files, with fresh keys, and what they tell of themselves.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_device::local::request;
use roadweave_device::netns::NetNs;
use roadweave_device::{Instance, random_bytes};
use roadweave_identity::Identity;
use serde_json::Value;

use super::world::{ANCHOR, BOXES, CLOUD_NETWORK, OPERATORS, PROXIES, World, vehicle_network};
use crate::sandbox::clock;
use crate::sandbox::daemon::Daemon;
use crate::sandbox::tunnel::write;

const PORT: u16 = 4433;
const ANCHOR_PORT: u16 = 4434;
/// For so long the stack may take to stand.
const STAND_BY_MAX: Duration = Duration::from_secs(45);
/// How often members are asked.
const POLL: Duration = Duration::from_millis(100);

/// The members of a fleet, running; dropping them kills them.
#[derive(Debug)]
pub struct Members {
    proxies: Vec<Member>,
    boxes: Vec<Member>,
    others: Vec<Daemon>,
}

/// A program with a local socket.
#[derive(Debug)]
struct Member {
    name: String,
    /// `None` once it was killed.
    daemon: Option<Daemon>,
    socket: PathBuf,
}

/// The keys of all.
struct Keys {
    anchor: Identity,
    proxies: Vec<Identity>,
    boxes: Vec<Identity>,
}

impl Members {
    /// Starts all: `product` is `roadweave`, `program` this one.
    ///
    /// # Errors
    /// When a file cannot be written or a program not be started.
    pub fn start(
        world: &World,
        directory: &Path,
        product: &Path,
        program: &Path,
    ) -> anyhow::Result<Self> {
        let keys = Keys::fresh()?;
        let start = |name: &'static str, role: &str, namespace: &NetNs, file: &Path| {
            let mut command = namespace.command(product);
            command.arg(role).arg("--config").arg(file);
            Daemon::start(name, &mut command, directory)
        };
        let mut others = Vec::new();
        for (vehicle, name) in world.vehicles.iter().zip(EMULATORS) {
            let text = toml::to_string(&vehicle.links).context("cannot express the links")?;
            let file = write(directory, &format!("{name}.toml"), &text)?;
            let mut command = Command::new(program);
            others.push(Daemon::start(
                name,
                command.arg("emulate").arg("--config").arg(file),
                directory,
            )?);
        }
        let file = write(directory, "anchor.toml", &keys.anchor_file(directory))?;
        others.push(start("anchor", "anchor", &world.anchor, &file)?);
        let mut proxies = Vec::new();
        for (index, (namespace, (name, _))) in world.proxies.iter().zip(PROXIES).enumerate() {
            let file =
                write(directory, &format!("{name}.toml"), &keys.proxy_file(index, directory))?;
            proxies.push(Member::new(name, start(name, "proxy", namespace, &file)?)?);
        }
        let mut boxes = Vec::new();
        for (number, (vehicle, name)) in world.vehicles.iter().zip(CLIENTS).enumerate() {
            let file =
                write(directory, &format!("{name}.toml"), &keys.client_file(number, directory))?;
            boxes.push(Member::new(name, start(name, "client", &vehicle.client, &file)?)?);
        }
        Ok(Self { proxies, boxes, others })
    }

    /// Waits until each box has a session at one proxy and stands by at the other.
    ///
    /// # Errors
    /// When a program ends, or it takes too long, with what a box said last.
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
                bail!("the boxes do not stand by after {} s{words}", STAND_BY_MAX.as_secs());
            }
            clock::sleep_until(clock::now() + POLL);
        }
    }

    /// The name of the proxy at which each box has its session.
    ///
    /// # Errors
    /// When a box has none.
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

    /// What a box tells of itself; `None` while it does not answer.
    pub fn status_of_box(&self, number: usize) -> Option<Value> {
        self.boxes[number].status()
    }

    /// Kills the proxy with the most sessions, as a power cut does; returns its name.
    ///
    /// # Errors
    /// When there is none left.
    pub fn kill_busiest_proxy(&mut self) -> anyhow::Result<String> {
        let busiest = self.proxies.iter_mut().max_by_key(|member| member.total("sessions"));
        let busiest = busiest.context("there is no proxy")?;
        busiest.daemon = None;
        Ok(busiest.name.clone())
    }

    /// # Errors
    /// When a program has ended that was not killed, with what it said last.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        let members = self.proxies.iter_mut().chain(&mut self.boxes);
        let daemons = members.filter_map(|member| member.daemon.as_mut());
        daemons.chain(&mut self.others).try_for_each(Daemon::check_running)
    }
}

impl Member {
    fn new(name: &str, daemon: Daemon) -> anyhow::Result<Self> {
        let socket = Instance::new(name)?.socket_path();
        Ok(Self { name: name.to_owned(), daemon: Some(daemon), socket })
    }

    fn status(&self) -> Option<Value> {
        self.daemon.as_ref()?;
        request(&self.socket, "status", &Value::Null).ok()
    }

    /// One of a proxy's totals.
    fn total(&self, name: &str) -> u64 {
        let status = self.status();
        status.and_then(|status| status["totals"][name].as_u64()).unwrap_or_default()
    }
}

impl Keys {
    fn fresh() -> anyhow::Result<Self> {
        let key = || -> anyhow::Result<Identity> { Ok(Identity::from_seed(random_bytes()?)) };
        let several = |count: usize| (0..count).map(|_| key()).collect::<anyhow::Result<_>>();
        Ok(Self { anchor: key()?, proxies: several(PROXIES.len())?, boxes: several(BOXES)? })
    }

    fn anchor_file(&self, directory: &Path) -> String {
        let proxies = self.proxies.iter().zip(PROXIES).map(|(key, (name, _))| {
            format!("[[proxies]]\nname = \"{name}\"\npublic_key = \"{}\"\n", key.public_key())
        });
        format!(
            "listen = \"{ANCHOR}:{ANCHOR_PORT}\"\ntenant = \"{TENANT}\"\nmasquerade = false\n\
             addresses = [\"10.77.0.1/24\"]\n{}[tun]\nname = \"anchor\"\n{}{}",
            own(&self.anchor, directory),
            proxies.collect::<String>(),
            self.devices("devices", "")
        )
    }

    fn proxy_file(&self, index: usize, directory: &Path) -> String {
        let (name, address) = PROXIES[index];
        format!(
            "instance = \"{name}\"\nlisten = \"{address}:{PORT}\"\n{}\
             [[tenants]]\nname = \"{TENANT}\"\ngateways = [\"10.77.0.1\"]\n\
             anchor = {{ public_key = \"{}\", addresses = [\"{ANCHOR}:{ANCHOR_PORT}\"] }}\n{}",
            own(&self.proxies[index], directory),
            self.anchor.public_key(),
            self.devices("peers", &format!("tenant = \"{TENANT}\"\n"))
        )
    }

    fn client_file(&self, number: usize, directory: &Path) -> String {
        let lists = ["[server]", "[[proxies]]"];
        let servers = lists.iter().zip(&self.proxies).zip(PROXIES);
        let servers = servers.map(|((list, key), (name, address))| {
            format!(
                "{list}\naddresses = [\"{address}:{PORT}\"]\npublic_key = \"{}\"\n\
                 name = \"{name}\"\nsite = \"{name}\"\n",
                key.public_key()
            )
        });
        let uplinks = OPERATORS.map(|name| format!("\"{name}\"")).join(", ");
        format!(
            "name = \"{name}\"\n{}{}[uplinks]\ninclude = [{uplinks}]\n[tun]\nname = \"{name}\"\n\
             [routes]\ninto_tunnel = [\"{CLOUD_NETWORK}\"]\nmasquerade = false\n\
             [[lanes]]\nname = \"video\"\nstrategy = \"xnc\"\n",
            own(&self.boxes[number], directory),
            servers.collect::<String>(),
            name = CLIENTS[number],
        )
    }

    /// The boxes, as proxies and the anchor know them.
    fn devices(&self, list: &str, more: &str) -> String {
        let device = |(number, key): (usize, &Identity)| {
            format!(
                "[[{list}]]\nname = \"{}\"\n{more}public_key = \"{}\"\n\
                 addresses = [\"10.77.0.{}/32\", \"{}\"]\n",
                CLIENTS[number],
                key.public_key(),
                number + 2,
                vehicle_network(number)
            )
        };
        self.boxes.iter().enumerate().map(device).collect()
    }
}

/// What each file has of its own.
fn own(key: &Identity, directory: &Path) -> String {
    let directory = directory.display();
    format!("private_key = \"{}\"\nstate_directory = \"{directory}\"\n", key.to_base64())
}

const TENANT: &str = "home";
const CLIENTS: [&str; BOXES] = ["box_1", "box_2"];
const EMULATORS: [&str; BOXES] = ["links_1", "links_2"];

#[cfg(test)]
mod tests {
    use roadweave_config::{AnchorFile, ClientFile, ProxyFile, load};

    use super::*;

    #[test]
    fn the_files_are_read_back_by_those_who_need_them() {
        let directory = tempfile::tempdir().unwrap();
        let (keys, at) = (Keys::fresh().unwrap(), directory.path());
        let path = write(at, "anchor.toml", &keys.anchor_file(at)).unwrap();
        let anchor: AnchorFile = load(&path).unwrap();
        assert_eq!((anchor.proxies.len(), anchor.devices.len()), (PROXIES.len(), BOXES));
        for index in 0..PROXIES.len() {
            let path = write(at, "proxy.toml", &keys.proxy_file(index, at)).unwrap();
            let proxy: ProxyFile = load(&path).unwrap();
            assert_eq!(proxy.peers.len(), BOXES);
        }
        for number in 0..BOXES {
            let path = write(at, "client.toml", &keys.client_file(number, at)).unwrap();
            let client: ClientFile = load(&path).unwrap();
            assert_eq!(client.servers().count(), PROXIES.len());
        }
    }
}
