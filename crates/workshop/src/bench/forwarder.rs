//! `roadweave bench-forward`: the least that a tunnel can be, to measure others by.
//!
//! ```text
//! device ─► packet ─► UDP ─► packet ─► device        nothing sealed, ordered, acknowledged or known
//! ```
//!
//! It reads and writes by the same calls as ours. With `--offload` they carry runs of packets (GSO,
//! GRO), without it one each.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::Context as _;
use ipnet::IpNet;
use roadweave_device::netns::NetNs;
use roadweave_device::{
    Ecn, Interest, Outgoing, Poller, Token, Tun, TunOptions, UdpOptions, UplinkSocket,
};
use roadweave_quic::{Outbox, Route};

use super::tunnel::CLIENT_OUTER;
use crate::sandbox::daemon::Daemon;
use crate::sandbox::tunnel::Site;

/// What WireGuard's own tools give a device.
const MTU: u16 = 1420;

const DEVICE: Token = Token(0);
const SOCKET: Token = Token(1);

/// Carries packets between a device and a UDP socket, until it is killed
#[derive(Debug, clap::Args)]
pub struct ForwardArgs {
    /// The device to make.
    #[arg(long)]
    device: String,
    /// Its address, with the length of its network.
    #[arg(long)]
    address: IpNet,
    /// Where its packets come from.
    #[arg(long)]
    bind: SocketAddr,
    /// Where they go.
    #[arg(long)]
    peer: SocketAddr,
    /// Carry runs of packets in one call.
    #[arg(long)]
    offload: bool,
}

impl ForwardArgs {
    /// Forwards for ever.
    ///
    /// # Errors
    /// When the device or the socket cannot be opened, or fails.
    pub fn run(&self) -> anyhow::Result<()> {
        let mut device = Tun::open(&TunOptions {
            name: self.device.clone(),
            mtu: MTU,
            addresses: vec![self.address],
            offload: self.offload,
        })?;
        let mut socket = UplinkSocket::open(&UdpOptions::server(self.bind))?;
        let mut poller = Poller::new()?;
        poller.add(&device, DEVICE, Interest::Read)?;
        poller.add(&socket, SOCKET, Interest::Read)?;
        let route = Route { uplink: None, destination: self.peer, source: None, ecn: None };
        let (mut outbox, mut packets) = (Outbox::default(), Vec::new());
        loop {
            let ready = poller.wait(None).context("cannot wait")?;
            let tokens: Vec<Token> = ready.iter().map(|event| event.token).collect();
            for token in tokens {
                if token == DEVICE {
                    device
                        .read_batch(|packet| match self.offload {
                            true => outbox.push(route, packet),
                            false => _ = socket.send(&self.outgoing(packet, packet.len())),
                        })
                        .context("cannot read the device")?;
                    for run in outbox.runs() {
                        // What the kernel does not take is lost, as on a network.
                        socket.send(&self.outgoing(run.data, run.segment_size));
                    }
                    outbox.clear();
                } else {
                    let received = socket.recv(|it| packets.push(it.payload.to_vec()));
                    received.context("cannot receive")?;
                    device.write_batch(packets.drain(..));
                }
            }
        }
    }

    fn outgoing<'a>(&self, contents: &'a [u8], segment_size: usize) -> Outgoing<'a> {
        let (destination, ecn) = (self.peer, Ecn::NotCapable);
        Outgoing { destination, source: None, ecn, contents, segment_size }
    }
}

/// Both ends of a running forwarder; dropping it kills them.
#[derive(Debug)]
pub struct Forwarder {
    /// The server's process.
    pub server: Daemon,
    /// The client's process.
    pub client: Daemon,
    /// The server's address inside.
    pub address: IpAddr,
}

impl Forwarder {
    /// Starts both ends by this program, `program`, between the namespaces of `site`, over the way
    /// to `server`.
    ///
    /// # Errors
    /// When an end cannot be started or ends at once, with what it said.
    pub fn start(
        program: &Path,
        site: Site<'_>,
        server: IpAddr,
        offload: bool,
    ) -> anyhow::Result<Self> {
        let (network, port, roles) = match offload {
            true => (80, 4501, ["forward-runs-server", "forward-runs-client"]),
            false => (79, 4500, ["forward-server", "forward-client"]),
        };
        let outer = [CLIENT_OUTER, server].map(|address| SocketAddr::new(address, port));
        let start =
            |role: &'static str, namespace: &NetNs, host: u8, [bind, peer]: [SocketAddr; 2]| {
                let mut command = namespace.command(program);
                command.args(["bench-forward", "--device", &format!("fw{network}")]);
                command.args(["--address", &format!("10.{network}.0.{host}/24")]);
                command.args(["--bind", &bind.to_string(), "--peer", &peer.to_string()]);
                command.args(offload.then_some("--offload"));
                Daemon::start(role, &mut command, site.directory)
            };
        Ok(Self {
            server: start(roles[0], site.server, 1, [outer[1], outer[0]])?,
            client: start(roles[1], site.client, 2, outer)?,
            address: IpAddr::from([10, network, 0, 1]),
        })
    }

    /// # Errors
    /// When an end has ended, with what it said last.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        self.server.check_running()?;
        self.client.check_running()
    }
}
