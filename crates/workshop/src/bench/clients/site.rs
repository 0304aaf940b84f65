//! Where the bench of many clients happens: two namespaces, addresses for everybody, and the
//! server as a process.
//!
//! ```text
//!   clients                                        server
//!   10.128.0.0/13 on lo ── lan0 ══ cable ══ lan0 ── roadweave server = rw1 10.77.0.1/16
//!   path p of client n:                             10.77.0.0/16: an address for each client
//!   10.(128 + p).0.0/16 + n
//! ```
//!
//! The clients' namespace takes a whole range of addresses for its own, so that each path of each
//! client has one, though a socket serves many. Each namespace counts what its sockets had no room
//! for.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use roadweave_device::netns::NetNs;
use roadweave_device::{Instance, UdpOptions, UplinkSocket, random_bytes};
use roadweave_identity::{Identity, PublicKey};
use serde::Serialize;
use serde_json::Value;

use super::cores::Cores;
use crate::product;
use crate::sandbox::daemon::Daemon;
use crate::sandbox::{clock, connect, tunnel};

/// Where the server listens.
pub const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2)), 4433);
/// The server's inner address, to which streams go.
pub const SERVER_INNER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Clients that have addresses, inner and outer ones.
pub const CLIENTS_MAX: usize = 65_000;
/// Paths of a client.
pub const PATHS_MAX: u8 = 8;
/// On the sandbox's own file system.
const DIRECTORY: &str = "/run/roadweave-bench";
/// The server's TUN device, which names its instance too.
const SERVER_TUN: &str = "rw1";
/// For so long the server's first answer is waited for, seconds.
const START_MAX: u64 = 30;

/// The namespaces, the product, and a directory for files.
pub struct Site {
    /// Where the server runs.
    pub server: NetNs,
    /// Where all clients are.
    pub clients: NetNs,
    directory: PathBuf,
    product: PathBuf,
}

/// Who takes part.
pub struct Keys {
    /// The server's public key.
    pub server: PublicKey,
    /// The clients' own, in the order of their numbers.
    pub clients: Vec<Identity>,
}

/// What a server says of itself.
#[derive(Clone, Debug, Default)]
pub struct ServerWord {
    /// How many sessions it has.
    pub sessions: u64,
    /// Whom it has not let in at first, by kind.
    pub refusals: Value,
}

/// How many packets found no room in a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NoRoom {
    /// On the server's machine.
    pub server: u64,
    /// On the clients'.
    pub clients: u64,
}

impl NoRoom {
    /// How many since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self { server: self.server - earlier.server, clients: self.clients - earlier.clients }
    }
}

impl Site {
    /// Builds the namespaces; only inside a sandbox.
    ///
    /// # Errors
    /// When the system refuses something, or the product is missing.
    pub fn build() -> anyhow::Result<Self> {
        let directory = PathBuf::from(DIRECTORY);
        fs::create_dir_all(&directory).context("cannot make a directory for the bench")?;
        let (clients, server) = (NetNs::create("clients")?, NetNs::create("server")?);
        connect((&clients, "lan0", "198.51.100.1/24"), (&server, "lan0", "198.51.100.2/24"))?;
        clients.ip("route add local 10.128.0.0/13 dev lo")?;
        server.ip("route add 10.128.0.0/13 via 198.51.100.1 dev lan0")?;
        Ok(Self { server, clients, directory, product: product::program()? })
    }

    /// Makes keys for a server of `shards` and `clients` clients, and writes the server's file,
    /// which knows them. What an earlier server has kept is forgotten.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn prepare(&self, clients: usize, shards: u16) -> anyhow::Result<Keys> {
        let server = Identity::from_seed(random_bytes()?);
        let identity = |_| Ok(Identity::from_seed(random_bytes()?));
        let clients: Vec<Identity> = (0..clients).map(identity).collect::<anyhow::Result<_>>()?;
        let state = self.directory.join("state");
        if state.exists() {
            fs::remove_dir_all(&state).context("cannot remove what an earlier server has kept")?;
        }
        let mut file = format!(
            "listen = \"0.0.0.0:{port}\"\n\
             private_key = \"{private}\"\n\
             addresses = [\"{SERVER_INNER}/16\"]\n\
             allow_destinations = [\"{SERVER_INNER}\"]\n\
             masquerade = false\n\
             shards = {shards}\n\
             state_directory = {state:?}\n\
             [tun]\n\
             name = \"{SERVER_TUN}\"\n",
            port = SERVER.port(),
            private = server.to_base64(),
        );
        for (number, client) in clients.iter().enumerate() {
            let (key, address) = (client.public_key(), inner_address(number));
            writeln!(
                file,
                "[[peers]]\nname = \"client-{number}\"\npublic_key = \"{key}\"\n\
                 addresses = [\"{address}/32\"]"
            )?;
        }
        tunnel::write(&self.directory, "server.toml", &file)?;
        Ok(Keys { server: server.public_key(), clients })
    }

    /// Starts a server that knows those of the last [`Site::prepare`], on its cores and by `nicer`
    /// nicer than this process.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start_server(&self, cores: &Cores, nicer: i32) -> anyhow::Result<Daemon> {
        let mut command = self.server.command("nice");
        command.args(["-n", &nicer.to_string()]);
        cores.use_for_server(&mut command).arg(&self.product);
        command.arg("server").arg("--config").arg(self.directory.join("server.toml"));
        Daemon::start("server", &mut command, &self.directory)
    }

    /// How many packets sockets had no room for, so far.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn no_room(&self) -> anyhow::Result<NoRoom> {
        let of = |namespace: &NetNs| -> anyhow::Result<u64> {
            let read = || fs::read_to_string("/proc/thread-self/net/snmp");
            let text = namespace.enter(read)?.context("cannot read /proc/thread-self/net/snmp")?;
            no_room_of(&text).context("/proc/thread-self/net/snmp is malformed")
        };
        Ok(NoRoom { server: of(&self.server)?, clients: of(&self.clients)? })
    }

    /// Waits until a server that was started answers.
    ///
    /// # Errors
    /// When it ends or takes too long, with what it said last.
    pub fn wait_for(&self, server: &mut Daemon) -> anyhow::Result<()> {
        let deadline = clock::now() + std::time::Duration::from_secs(START_MAX);
        while ask_server().is_err() {
            server.check_running()?;
            if clock::now() > deadline {
                bail!("the server does not answer{}", server.last_words());
            }
            clock::sleep_until(clock::now() + std::time::Duration::from_millis(20));
        }
        Ok(())
    }
}

/// What the server says of itself now.
///
/// # Errors
/// When it does not answer.
pub fn ask_server() -> anyhow::Result<ServerWord> {
    let socket = Instance::new(SERVER_TUN)?.socket_path();
    let said = roadweave_device::local::request(Path::new(&socket), "summary", &Value::Null)?;
    let sessions = said["totals"]["sessions"].as_u64().context("the server tells no sessions")?;
    Ok(ServerWord { sessions, refusals: said["refusals"].clone() })
}

/// A socket for all addresses of the namespace of the calling thread, with as much room as the
/// product's or as told.
///
/// # Errors
/// When the system refuses.
pub fn open_socket(port: u16, room: Option<usize>) -> anyhow::Result<UplinkSocket> {
    let mut options = UdpOptions::server(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    options.buffer_size = room.unwrap_or(options.buffer_size);
    Ok(UplinkSocket::open(&options)?)
}

/// What the kernel says of UDP packets that a socket had no room for: two lines begin with `Udp:`,
/// the names and the figures.
fn no_room_of(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (names, figures) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|name| name == "RcvbufErrors")?;
    figures.split_whitespace().nth(place)?.parse().ok()
}

/// The inner address of the client with this number.
pub fn inner_address(number: usize) -> Ipv4Addr {
    numbered([10, 77], number + FIRST_INNER)
}

/// The address of a path of the client with this number.
pub fn outer_address(path: u8, number: usize) -> IpAddr {
    numbered([10, 128 + path], number + FIRST_OUTER).into()
}

/// The number of the client that has this address for one of its paths.
pub fn client_at(address: IpAddr) -> Option<usize> {
    let IpAddr::V4(address) = address else { return None };
    let [_, _, high, low] = address.octets();
    usize::from(u16::from_be_bytes([high, low])).checked_sub(FIRST_OUTER)
}

fn numbered([first, second]: [u8; 2], number: usize) -> Ipv4Addr {
    let [high, low] = (number as u16).to_be_bytes();
    Ipv4Addr::new(first, second, high, low)
}

/// The first is the network's, the second the server's.
const FIRST_INNER: usize = 2;
/// The first is the network's.
const FIRST_OUTER: usize = 1;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_path_of_every_client_has_an_address_that_leads_back() {
        let all: BTreeSet<_> = (0..PATHS_MAX)
            .flat_map(|path| (0..CLIENTS_MAX).map(move |number| outer_address(path, number)))
            .collect();
        assert_eq!(all.len(), CLIENTS_MAX * usize::from(PATHS_MAX));
        for number in [0, 1, 254, 255, 256, CLIENTS_MAX - 1] {
            assert_eq!(client_at(outer_address(3, number)), Some(number));
            assert_ne!(inner_address(number), SERVER_INNER);
        }
        assert_eq!(client_at(SERVER.ip()), Some(0x6402 - FIRST_OUTER), "a stranger's is too high");
        assert_eq!(client_at("10.128.0.0".parse().unwrap()), None);
    }

    #[test]
    fn what_the_kernel_says_of_full_sockets_is_understood() {
        let snmp = "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams NoPorts RcvbufErrors SndbufErrors\n\
                    Udp: 10 20 30 40\nUdpLite: InDatagrams\nUdpLite: 0\n";
        assert_eq!(no_room_of(snmp), Some(30));
        assert_eq!(no_room_of("Udp: InDatagrams\nUdp: 1\n"), None);
        let own = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
        assert!(no_room_of(&own).is_some(), "{own}");
    }
}
