//! `server.toml`.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::destinations::{AllowedDestination, default_denied, validate_destinations};
use crate::fleet::FleetFields;
use crate::forwards::{ForwardFields, OwnPorts, validate_forwards};
use crate::lane::{LaneFields, validate_served_lanes};
use crate::metrics::MetricsFields;
use crate::packet_mark::PacketMarks;
use crate::peers::{PeerFields, PeersCheck, expired_peers};
use crate::secret::PrivateKey;
use crate::speedtest::SpeedtestFields;
use crate::streams::ServerStreams;
use crate::transport::TransportFields;
use crate::tun::TunFields;
use crate::values::{
    ClientConnections, ClientMemoryMb, Within, known_networks, listen, networks, state_directory,
};
use crate::{Fault, Validate};

/// The server's configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerFile {
    /// The UDP address to listen on.
    #[serde(default = "default_listen", deserialize_with = "listen")]
    pub listen: SocketAddr,
    /// This machine's key; without it the key of [`roadweave
    /// join`](fleet.md#add-proxies-anchors-and-boxes). Default: from the join.
    #[serde(default, skip_serializing_if = "PrivateKey::is_empty")]
    pub private_key: PrivateKey,
    /// This machine's inner addresses, with the prefix length of the clients' network.
    #[serde(default = "default_addresses", deserialize_with = "networks")]
    pub addresses: Vec<IpNet>,
    /// Whether clients may reach each other.
    #[serde(default)]
    pub clients_reach_clients: bool,
    /// Whether traffic of clients and of the networks behind them is translated to this machine's
    /// address (nftables); also applies to [streams](streams.md#the-address-that-hosts-see).
    #[serde(default = "default_masquerade")]
    pub masquerade: bool,
    /// Prefixes that clients may not reach through this machine. Default: see
    /// configuration.md#what-clients-may-reach.
    #[serde(default = "default_denied", deserialize_with = "networks")]
    pub deny_destinations: Vec<IpNet>,
    /// Exceptions, including services on this machine itself: `"address"`, `"prefix"`, or
    /// `"address:port"` for one port of TCP and UDP.
    #[serde(default)]
    pub allow_destinations: Vec<AllowedDestination>,
    /// Ports of this machine that are forwarded to devices behind clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forwards: Vec<ForwardFields>,
    /// Maximum concurrent connections of each address or prefix of a client, see
    /// configuration.md#what-a-client-takes-of-the-kernels-tables.
    #[serde(default)]
    pub client_connections: ClientConnections,
    /// Threads that share the clients, see configuration.md#shards.
    #[serde(default)]
    pub shards: Within<1, 64, 1>,
    /// As [`crate::ClientFile::packet_marks`].
    #[serde(default)]
    pub packet_marks: PacketMarks,
    /// The TUN device.
    #[serde(default)]
    pub tun: TunFields,
    /// As [`crate::ClientFile::state_directory`].
    #[serde(default = "state_directory")]
    pub state_directory: PathBuf,
    /// Resource limits, in total and for each client.
    #[serde(default)]
    pub limits: ServerLimits,
    /// Metrics over HTTP.
    pub metrics: Option<MetricsFields>,
    /// The far end of the clients' streams; `None`: no streams.
    pub streams: Option<ServerStreams>,
    /// Limits of clients' speed tests.
    #[serde(default)]
    pub speedtest: SpeedtestFields,
    /// The transport.
    #[serde(default)]
    pub transport: TransportFields,
    /// The lanes, in order of matching.
    #[serde(default)]
    pub lanes: Vec<LaneFields>,
    /// The clients that may connect.
    #[serde(default)]
    pub peers: Vec<PeerFields>,
    /// How the server takes part in its fleet.
    #[serde(default)]
    pub fleet: FleetFields,
}

/// Resource limits of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerLimits {
    /// Maximum memory of all sessions together, MiB, see configuration.md#memory.
    pub memory_mb: Within<64, 1_048_576, 1024>,
    /// As [`crate::ClientLimits::client_memory_mb`].
    pub client_memory_mb: ClientMemoryMb,
}

/// The port that a server or a proxy listens on by default.
pub const SERVER_PORT: u16 = 4433;

pub(crate) fn default_listen() -> SocketAddr {
    SocketAddr::from(([0_u16; 8], SERVER_PORT))
}

pub(crate) fn default_addresses() -> Vec<IpNet> {
    known_networks("10.77.0.1/16 fd77::1/64")
}

pub(crate) const fn default_masquerade() -> bool {
    true
}

impl ServerLimits {
    pub(crate) fn validate(self) -> Result<(), Fault> {
        let Self { memory_mb, client_memory_mb } = self;
        if client_memory_mb.get() <= memory_mb.get() {
            return Ok(());
        }
        let message = format!(
            "limits.client_memory_mb = {} is more than limits.memory_mb = {}, which is for all \
             clients together; write a number from 4 to {}",
            client_memory_mb.get(),
            memory_mb.get(),
            memory_mb.get()
        );
        Err(Fault::new("limits.client_memory_mb", message))
    }

    fn validate_shards(self, shards: Within<1, 64, 1>) -> Result<(), Fault> {
        let (share, least) = (self.memory_mb.get() / shards.get(), self.client_memory_mb.get());
        if share >= least {
            return Ok(());
        }
        let message = format!(
            "shards = {} leaves each {share} MiB of limits.memory_mb = {}, less than \
             limits.client_memory_mb = {least}; write up to {} shards, or other limits",
            shards.get(),
            self.memory_mb.get(),
            (self.memory_mb.get() / least).max(1)
        );
        Err(Fault::new("shards", message))
    }
}

impl Validate for ServerFile {
    const RELOADED: &'static [&'static str] =
        &["peers", "deny_destinations", "allow_destinations", "forwards", "fleet.accept"];

    fn validate(&self) -> Result<(), Fault> {
        self.private_key.validate()?;
        if self.addresses.is_empty() {
            let message = "addresses is empty; give the server an inner address, \
                           such as addresses = [\"10.77.0.1/16\"]";
            return Err(Fault::new("addresses", message));
        }
        validate_destinations(&self.deny_destinations, &self.allow_destinations)?;
        self.fleet.validate()?;
        self.transport.validate()?;
        self.limits.validate()?;
        self.limits.validate_shards(self.shards)?;
        validate_served_lanes(&self.lanes)?;
        if let Some(streams) = &self.streams {
            streams.validate(&self.lanes)?;
        }
        PeersCheck::new("peers", &self.private_key, &self.addresses, None).check(&self.peers)?;
        let metrics = self.metrics.iter().map(|it| (it.listen.port(), "metrics.listen"));
        let own = OwnPorts { tcp: metrics.collect(), udp: vec![(self.listen.port(), "listen")] };
        validate_forwards(&self.forwards, &self.peers, &own)
    }

    fn warnings(&self, now_unix: u64) -> Vec<String> {
        expired_peers(&self.peers, now_unix)
    }
}
