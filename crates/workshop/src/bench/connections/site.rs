//! Where the bench of many connections happens: boxes with a LAN each, one server, and a host
//! beyond it.
//!
//! ```text
//!   lan N 192.168.(50 + N).2-33 ── box N: roadweave client ══ 198.51.(100 + N).0/24 ══ server: roadweave
//!                                                                                     │ server
//!                                                                    host 203.0.113.2 ┘
//! ```

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_device::Instance;
use roadweave_device::netns::NetNs;
use roadweave_device::random_bytes;
use roadweave_identity::Identity;
use serde_json::Value;

use crate::product;
use crate::sandbox::daemon::Daemon;
use crate::sandbox::{clock, connect, tunnel};

/// The host to which all connections lead.
pub const HOST: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 2), 8080);
/// The most connections of a box that are open at a time, as the configuration bounds them.
pub const OPEN_MAX: usize = 4_096;
/// Addresses of applications behind a box, each of which may have a share of its connections.
pub const APPLICATIONS: u8 = 32;
/// The most boxes.
pub const BOXES_MAX: usize = 8;
/// For so long the host's first answer is waited for.
const HOST_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// On the sandbox's own file system.
const DIRECTORY: &str = "/run/roadweave-bench";
/// The port of the server.
const PORT: u16 = 4433;
/// The server's TUN device, which names its instance too.
const SERVER_TUN: &str = "rws";
/// The names under which the processes' logs are kept.
const BOX_NAMES: [&str; BOXES_MAX] =
    ["box-0", "box-1", "box-2", "box-3", "box-4", "box-5", "box-6", "box-7"];

/// The namespaces, and who runs in them.
pub struct Site {
    /// Where the host is.
    host: NetNs,
    directory: PathBuf,
    answering: Option<Daemon>,
    /// The boxes.
    pub boxes: Vec<OneBox>,
    /// The server's process.
    pub server: Daemon,
}

/// A box and the network behind it.
pub struct OneBox {
    /// Where its applications are.
    pub lan: NetNs,
    /// Where it answers them, as a SOCKS5 proxy.
    pub entrance: SocketAddr,
    /// Its process.
    pub client: Daemon,
    number: usize,
    socket: PathBuf,
    /// Held for its life: the namespace ends with it.
    _namespace: NetNs,
}

impl OneBox {
    /// The address of the application with this number, whose numbers begin anew after a while.
    pub fn application(&self, number: u64) -> SocketAddr {
        let [a, b, c, _] = lan_address(self.number);
        let host = 2 + u8::try_from(number % u64::from(APPLICATIONS)).expect("it is below");
        SocketAddr::from(([a, b, c, host], 0))
    }
}

impl Site {
    /// Builds the namespaces and starts a server and so many boxes; only inside a sandbox.
    ///
    /// # Errors
    /// When the system refuses something, or the product is missing.
    pub fn build(boxes: usize) -> anyhow::Result<Self> {
        let directory = PathBuf::from(DIRECTORY);
        fs::create_dir_all(&directory).context("cannot make a directory for the bench")?;
        let product = product::program()?;
        let (server, host) = (NetNs::create("server")?, NetNs::create("host")?);
        connect((&server, "out0", "203.0.113.1/24"), (&host, "lan0", "203.0.113.2/24"))?;
        host.ip("route add 10.77.0.0/24 via 203.0.113.1")?;
        let identity = Identity::from_seed(random_bytes()?);
        let mut file = server_file(&identity);
        let mut prepared = Vec::new();
        for (number, name) in BOX_NAMES.into_iter().enumerate().take(boxes) {
            let client = Identity::from_seed(random_bytes()?);
            writeln!(
                file,
                "[[peers]]\nname = \"box-{number}\"\npublic_key = \"{}\"\n\
                 addresses = [\"10.77.0.{}/32\"]",
                client.public_key(),
                number + 2
            )?;
            let (namespace, lan) = (NetNs::create(name)?, NetNs::create(&format!("lan-{number}"))?);
            let outer = |end| format!("198.51.{}.{end}/24", 100 + number);
            let inner = |end| format!("192.168.{}.{end}/24", 50 + number);
            let up = format!("up{number}");
            let applications = (2..2 + APPLICATIONS).map(inner).collect::<Vec<_>>();
            connect((&namespace, "lan0", &outer(1)), (&server, &up, &outer(2)))?;
            connect((&namespace, "eth0", &inner(1)), (&lan, "eth0", &applications[0]))?;
            for address in &applications[1..] {
                lan.ip(&format!("address add {address} dev eth0"))?;
            }
            let name = format!("box-{number}.toml");
            let text = client_file(number, &client, &identity);
            prepared.push((namespace, lan, tunnel::write(&directory, &name, &text)?));
        }
        let config = tunnel::write(&directory, "server.toml", &file)?;
        let mut command = server.command(&product);
        command.arg("server").arg("--config").arg(config);
        let server_process = Daemon::start("server", &mut command, &directory)?;
        let mut all = Vec::new();
        for (number, (namespace, lan, config)) in prepared.into_iter().enumerate() {
            let mut command = namespace.command(&product);
            command.arg("client").arg("--config").arg(config);
            all.push(OneBox {
                lan,
                number,
                entrance: entrance(number),
                client: Daemon::start(BOX_NAMES[number], &mut command, &directory)?,
                socket: Instance::new(&box_tun(number))?.socket_path(),
                _namespace: namespace,
            });
        }
        let mut site =
            Self { host, directory, answering: None, boxes: all, server: server_process };
        site.begin_host()?;
        Ok(site)
    }

    /// Starts the host, which lets go of all connections that it held.
    ///
    /// # Errors
    /// When the process cannot be started, or does not answer.
    pub fn begin_host(&mut self) -> anyhow::Result<()> {
        self.answering = None;
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = self.host.command(&program);
        command.arg("bench-host").arg("--listen").arg(HOST.to_string());
        let host = self.answering.insert(Daemon::start("host", &mut command, &self.directory)?);
        let deadline = clock::now() + HOST_MAX;
        while self.host.enter(|| TcpStream::connect(HOST))?.is_err() {
            host.check_running()?;
            if clock::now() > deadline {
                bail!("the host does not answer{}", host.last_words());
            }
            clock::sleep_until(clock::now() + POLL);
        }
        Ok(())
    }

    /// # Errors
    /// When a process has ended, with what it said last.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        self.server.check_running()?;
        self.answering.iter_mut().try_for_each(Daemon::check_running)?;
        self.boxes.iter_mut().try_for_each(|one| one.client.check_running())
    }

    /// Connections that are open at the server, and at all boxes.
    ///
    /// # Errors
    /// When one of them does not tell.
    pub fn open(&self) -> anyhow::Result<(u64, u64)> {
        let server = Instance::new(SERVER_TUN)?.socket_path();
        let open = |said: Value| {
            said["streams"]["connections"].as_u64().context("no connections are told")
        };
        let ask = |socket: &PathBuf, what: &str| {
            roadweave_device::local::request(socket, what, &Value::Null)
                .with_context(|| format!("{} does not answer", socket.display()))
        };
        let mut at_boxes = 0;
        for one in &self.boxes {
            at_boxes += open(ask(&one.socket, "status")?)?;
        }
        Ok((open(ask(&server, "summary")?)?, at_boxes))
    }

    /// Ends all processes.
    ///
    /// # Errors
    /// When one had ended before, with what it said last.
    pub fn stop(self) -> anyhow::Result<()> {
        for one in self.boxes {
            one.client.stop()?;
        }
        self.server.stop()
    }
}

fn box_tun(number: usize) -> String {
    format!("rwc{number}")
}

fn entrance(number: usize) -> SocketAddr {
    SocketAddr::from((lan_address(number), 1080))
}

/// The address of a box in its LAN.
fn lan_address(number: usize) -> [u8; 4] {
    [192, 168, 50 + u8::try_from(number).expect("at most BOXES_MAX"), 1]
}

fn server_file(identity: &Identity) -> String {
    format!(
        "listen = \"0.0.0.0:{PORT}\"\n\
         private_key = \"{}\"\n\
         addresses = [\"10.77.0.1/24\"]\n\
         masquerade = false\n\
         client_connections = 1000000\n\
         state_directory = \"{DIRECTORY}/state\"\n\
         [tun]\n\
         name = \"{SERVER_TUN}\"\n\
         [streams]\n\
         connections_max = {OPEN_MAX}\n\
         connects_per_second = 10000\n",
        identity.to_base64()
    )
}

fn client_file(number: usize, client: &Identity, server: &Identity) -> String {
    format!(
        "name = \"box-{number}\"\n\
         private_key = \"{private}\"\n\
         [server]\n\
         addresses = [\"198.51.{net}.2:{PORT}\"]\n\
         public_key = \"{public}\"\n\
         [uplinks]\n\
         include = [\"lan0\"]\n\
         [tun]\n\
         name = \"{tun}\"\n\
         [routes]\n\
         into_tunnel = [\"203.0.113.0/24\"]\n\
         masquerade = false\n\
         [streams]\n\
         listen = \"{entrance}\"\n\
         tcp = \"tunnel\"\n\
         connections_max = {OPEN_MAX}\n",
        private = client.to_base64(),
        net = 100 + number,
        public = server.public_key(),
        tun = box_tun(number),
        entrance = entrance(number),
    )
}

#[cfg(test)]
mod tests {
    use roadweave_config::{ClientFile, ServerFile, load};

    use super::*;

    #[test]
    fn the_files_are_read_back_by_those_who_need_them() {
        let directory = tempfile::tempdir().unwrap();
        let (client, server) =
            (Identity::from_seed(random_bytes().unwrap()), Identity::from_seed([7; 32]));
        let written = |name, text: &str| tunnel::write(directory.path(), name, text).unwrap();
        let file: ServerFile = load(&written("server.toml", &server_file(&server))).unwrap();
        assert_eq!(file.streams.unwrap().connections_max.get() as usize, OPEN_MAX);
        let file: ClientFile =
            load(&written("box.toml", &client_file(3, &client, &server))).unwrap();
        assert_eq!(file.streams.unwrap().listen, Some(entrance(3)));
        assert_eq!(file.server.unwrap().public_key, server.public_key());
    }
}
