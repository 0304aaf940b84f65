//! `anchor.toml`.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use roadweave_identity::PublicKey;
use roadweave_tunnel::Peer;
use serde::{Deserialize, Serialize};

use crate::destinations::{AllowedDestination, default_denied, validate_destinations};
use crate::fleet::FleetFields;
use crate::metrics::MetricsFields;
use crate::packet_mark::PacketMarks;
use crate::peers::{PeerFields, PeersCheck, expired_peers};
use crate::proxy::validate_tenant_name;
use crate::secret::PrivateKey;
use crate::server::{default_addresses, default_masquerade};
use crate::streams::AnchorStreams;
use crate::transport::TransportFields;
use crate::tun::TunFields;
use crate::values::{ClientConnections, RateMbps, listen, networks, state_directory};
use crate::{Fault, Validate};

/// The configuration file of an anchor, which holds one tenant's inner addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnchorFile {
    /// The UDP address to listen on for proxies.
    #[serde(default = "default_anchor_listen", deserialize_with = "listen")]
    pub listen: SocketAddr,
    /// As [`crate::ServerFile::private_key`].
    #[serde(default, skip_serializing_if = "PrivateKey::is_empty")]
    pub private_key: PrivateKey,
    /// The tenant's name, the same at its proxies. Default: from the join.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// As [`crate::ServerFile::addresses`].
    #[serde(default = "default_addresses", deserialize_with = "networks")]
    pub addresses: Vec<IpNet>,
    /// As [`crate::ServerFile::clients_reach_clients`].
    #[serde(default)]
    pub clients_reach_clients: bool,
    /// As [`crate::ServerFile::masquerade`].
    #[serde(default = "default_masquerade")]
    pub masquerade: bool,
    /// As [`crate::ServerFile::deny_destinations`].
    #[serde(default = "default_denied", deserialize_with = "networks")]
    pub deny_destinations: Vec<IpNet>,
    /// As [`crate::ServerFile::allow_destinations`].
    #[serde(default)]
    pub allow_destinations: Vec<AllowedDestination>,
    /// As [`crate::ServerFile::client_connections`].
    #[serde(default)]
    pub client_connections: ClientConnections,
    /// As [`crate::ClientFile::packet_marks`].
    #[serde(default)]
    pub packet_marks: PacketMarks,
    /// The TUN device.
    #[serde(default)]
    pub tun: TunFields,
    /// Where the newest binding of each client is kept.
    #[serde(default = "state_directory")]
    pub state_directory: PathBuf,
    /// As [`crate::ProxyFile::leg_rate_mbps`].
    pub leg_rate_mbps: Option<RateMbps>,
    /// The most that all clients together may send, and receive, Mbit/s. Default: any.
    pub rate_limit_mbps: Option<RateMbps>,
    /// Metrics over HTTP.
    pub metrics: Option<MetricsFields>,
    /// The transport.
    #[serde(default)]
    pub transport: TransportFields,
    /// The far end of the clients' streams; `None`: no streams.
    pub streams: Option<AnchorStreams>,
    /// The proxies that may connect.
    #[serde(default)]
    pub proxies: Vec<ProxyFields>,
    /// The clients that may connect.
    #[serde(default)]
    pub devices: Vec<PeerFields>,
    /// How the anchor takes part in its fleet.
    #[serde(default)]
    pub fleet: FleetFields,
}

/// A proxy, as an anchor knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyFields {
    /// A proxy's name in logs and statistics.
    pub name: String,
    /// Its public key.
    pub public_key: PublicKey,
}

/// The port that an anchor listens on by default.
pub const ANCHOR_PORT: u16 = 4434;

fn default_anchor_listen() -> SocketAddr {
    SocketAddr::from(([0_u16; 8], ANCHOR_PORT))
}

impl AnchorFile {
    /// The clients.
    pub fn devices(&self) -> Vec<(PublicKey, Peer)> {
        let device = |device: &PeerFields| {
            (device.public_key, Peer { tenant: self.tenant.clone(), ..device.to_peer() })
        };
        self.devices.iter().map(device).collect()
    }

    /// The proxies.
    pub fn proxies(&self) -> Vec<(PublicKey, Peer)> {
        let proxy =
            |proxy: &ProxyFields| (proxy.public_key, Peer::new(proxy.name.clone(), Vec::new()));
        self.proxies.iter().map(proxy).collect()
    }
}

impl Validate for AnchorFile {
    const RELOADED: &'static [&'static str] =
        &["devices", "proxies", "deny_destinations", "allow_destinations", "fleet.accept"];

    fn validate(&self) -> Result<(), Fault> {
        self.private_key.validate()?;
        if !self.tenant.is_empty() {
            validate_tenant_name("tenant", &self.tenant)?;
        }
        if self.addresses.is_empty() {
            let message = "addresses is empty; give the anchor an inner address, \
                           such as addresses = [\"10.77.0.1/16\"]";
            return Err(Fault::new("addresses", message));
        }
        validate_destinations(&self.deny_destinations, &self.allow_destinations)?;
        self.streams.iter().try_for_each(AnchorStreams::validate)?;
        self.fleet.validate()?;
        self.transport.validate()?;
        for (position, proxy) in self.proxies.iter().enumerate() {
            let same = |other: &&ProxyFields| other.public_key == proxy.public_key;
            if let Some(other) = self.proxies[..position].iter().find(same) {
                let message = format!(
                    "proxies \"{}\" and \"{}\" have the same public_key; give each its own",
                    other.name, proxy.name
                );
                return Err(Fault::new(format!("proxies.{position}.public_key"), message));
            }
        }
        PeersCheck::new("devices", &self.private_key, &self.addresses, None).check(&self.devices)
    }

    fn warnings(&self, now_unix: u64) -> Vec<String> {
        expired_peers(&self.devices, now_unix)
    }
}
