//! `server.toml`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use prefix_trie::joint::JointPrefixMap;
use roadweave_identity::PublicKey;
use roadweave_tunnel::Peer;
use roadweave_types::Rate;
use serde::{Deserialize, Serialize};
use toml::value::Datetime;

use crate::destinations::{AllowedDestination, default_denied};
use crate::lane::{LaneFields, LaneNames, lane_configs, validate_deadlines, validate_lanes};
use crate::secret::PrivateKey;
use crate::transport::TransportFields;
use crate::tun::TunFields;
use crate::values::{Within, listen, networks, state_directory, validate_networks};
use crate::{Fault, Validate};

/// The server's configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerFile {
    /// The UDP address to listen on.
    #[serde(default = "default_listen", deserialize_with = "listen")]
    pub listen: SocketAddr,
    /// The server's private key.
    pub private_key: PrivateKey,
    /// The server's inner addresses, with the length of the network that clients are in.
    #[serde(default = "default_addresses", deserialize_with = "networks")]
    pub addresses: Vec<IpNet>,
    /// Whether clients may reach one another.
    #[serde(default)]
    pub clients_reach_clients: bool,
    /// Whether what clients send leaves with this machine's own address (source NAT by nftables).
    #[serde(default = "default_masquerade")]
    pub masquerade: bool,
    /// Where clients may not go, besides the server's own addresses other than its inner ones.
    #[serde(default = "default_denied", deserialize_with = "networks")]
    pub deny_destinations: Vec<IpNet>,
    /// Where they may go all the same: addresses, prefixes, or an address with a port.
    #[serde(default)]
    pub allow_destinations: Vec<AllowedDestination>,
    /// The TUN device.
    #[serde(default)]
    pub tun: TunFields,
    /// Where what strategies have learned is kept.
    #[serde(default = "state_directory")]
    pub state_directory: PathBuf,
    /// What the server may take of the machine, and each client of the server.
    #[serde(default)]
    pub limits: ServerLimits,
    /// The transport.
    #[serde(default)]
    pub transport: TransportFields,
    /// The lanes, in the order in which they are asked.
    #[serde(default)]
    pub lanes: Vec<LaneFields>,
    /// The clients that may connect.
    #[serde(default)]
    pub peers: Vec<PeerFields>,
}

/// What a server may take of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerLimits {
    /// The most memory that all sessions may hold together, MiB.
    pub memory_mb: Within<64, 1_048_576>,
    /// The most memory that one session may hold in queues and for repairs, MiB.
    pub client_memory_mb: Within<4, 16_384>,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self { memory_mb: Within::of(1024), client_memory_mb: Within::of(64) }
    }
}

/// A client that may connect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerFields {
    /// Its name in logs and statistics.
    pub name: String,
    /// Its public key.
    pub public_key: PublicKey,
    /// Its inner addresses, and the prefixes behind it.
    #[serde(deserialize_with = "networks")]
    pub addresses: Vec<IpNet>,
    /// The moment at which its key expires, with a time zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Datetime>,
    /// The most that it may send, and receive, in megabits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit_mbps: Option<Within<1, 1_000_000>>,
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([0_u16; 8], 4433))
}

fn default_addresses() -> Vec<IpNet> {
    ["10.77.0.1/24", "fd77::1/64"].map(|prefix| prefix.parse().expect("a prefix")).to_vec()
}

const fn default_masquerade() -> bool {
    true
}

impl ServerFile {
    /// The lanes of the downlink direction.
    pub fn lane_configs(&self) -> Vec<roadweave_tunnel::LaneConfig> {
        lane_configs(&self.lanes)
    }

    /// The clients as the server wants them.
    pub fn peers(&self) -> Vec<(PublicKey, Peer)> {
        self.peers.iter().map(|peer| (peer.public_key, peer.to_peer())).collect()
    }
}

impl PeerFields {
    fn to_peer(&self) -> Peer {
        Peer {
            name: self.name.clone(),
            addresses: self.addresses.clone(),
            // Checked when the file was read.
            expires_unix: self.expires.as_ref().and_then(|moment| unix_seconds(moment).ok()),
            rate_limit: self
                .rate_limit_mbps
                .map(|limit| Rate::from_kbps(limit.get().unsigned_abs() * 1_000)),
        }
    }
}

/// The moment in seconds since 1970.
fn unix_seconds(moment: &Datetime) -> Result<u64, String> {
    let text = moment.to_string();
    let parsed: jiff::Timestamp = text.parse().map_err(|_| {
        format!(
            "expires = {text} is no moment; write one with a time zone, as 2027-01-31T00:00:00Z"
        )
    })?;
    Ok(parsed.as_second().max(0).unsigned_abs())
}

impl Validate for ServerFile {
    const HAS_SECRET: bool = true;

    fn validate(&self) -> Result<(), Fault> {
        self.private_key.validate()?;
        if self.addresses.is_empty() {
            let message = "addresses is empty; give the server an inner address, \
                           such as addresses = [\"10.77.0.1/24\"]";
            return Err(Fault::new("addresses", message));
        }
        validate_networks("deny_destinations", &self.deny_destinations)?;
        let allowed: Vec<IpNet> = self.allow_destinations.iter().map(|to| to.network).collect();
        validate_networks("allow_destinations", &allowed)?;
        self.transport.validate()?;
        let ServerLimits { memory_mb, client_memory_mb } = self.limits;
        if client_memory_mb.get() > memory_mb.get() {
            let message = format!(
                "limits.client_memory_mb = {} is more than limits.memory_mb = {}, which is for all \
                 clients together; write a number from 4 to {}",
                client_memory_mb.get(),
                memory_mb.get(),
                memory_mb.get()
            );
            return Err(Fault::new("limits.client_memory_mb", message));
        }
        validate_lanes(LaneNames::PRODUCT, &self.lanes)?;
        validate_deadlines(&self.lanes)?;
        for (position, lane) in self.lanes.iter().enumerate() {
            if lane.strategy.as_str().starts_with("single:") {
                let message = format!(
                    "lane \"{}\": strategy = \"{}\" is for clients, since a server has no uplinks; \
                     write \"xnc\" or \"minrtt\"",
                    lane.name,
                    lane.strategy.as_str()
                );
                return Err(Fault::new(format!("lanes.{position}.strategy"), message));
            }
        }
        let mut taken = Taken::default();
        (0..self.peers.len()).try_for_each(|position| self.validate_peer(position, &mut taken))
    }

    fn warnings(&self, now_unix: u64) -> Vec<String> {
        let expired = self.peers.iter().filter_map(|peer| {
            let moment = peer.expires.as_ref()?;
            unix_seconds(moment).is_ok_and(|at| at <= now_unix).then(|| {
                format!(
                    "peer \"{}\" is let in no more: its key expired at {moment}; renew `expires`, or \
                     remove the peer",
                    peer.name
                )
            })
        });
        expired.collect()
    }
}

/// What the peers before one have: by key and by prefix, so that thousands are checked in no time.
#[derive(Default)]
struct Taken {
    keys: BTreeMap<PublicKey, usize>,
    networks: JointPrefixMap<IpNet, usize>,
}

impl Taken {
    /// A prefix of a peer other than that at `position` which shares addresses with `network`, and
    /// the place of that peer.
    fn sharing(&self, position: usize, network: &IpNet) -> Option<(usize, IpNet)> {
        let around = self.networks.get_lpm(network);
        let mut shared = around.into_iter().chain(self.networks.children(network));
        let (taken, other) = shared.find(|(_, other)| **other != position)?;
        Some((*other, taken))
    }
}

impl ServerFile {
    /// Checks a peer by itself, and against those before it.
    fn validate_peer(&self, position: usize, taken: &mut Taken) -> Result<(), Fault> {
        let peer = &self.peers[position];
        let fault =
            |field: &str, message| Err(Fault::new(format!("peers.{position}.{field}"), message));
        let own = self.private_key.identity().map(|identity| identity.public_key());
        if own == Ok(peer.public_key) {
            let message = format!(
                "peer \"{}\": public_key is that of this server's own private_key; write the client's",
                peer.name
            );
            return fault("public_key", message);
        }
        if let Some(same) = taken.keys.insert(peer.public_key, position) {
            let same = &self.peers[same];
            let message = format!(
                "peers \"{}\" and \"{}\" have the same public_key; give each client its own",
                same.name, peer.name
            );
            return fault("public_key", message);
        }
        if peer.addresses.is_empty() {
            let message = format!(
                "peer \"{}\": addresses is empty; give it an inner address of its own, \
                 such as addresses = [\"10.77.0.2/32\"]",
                peer.name
            );
            return fault("addresses", message);
        }
        validate_networks(&format!("peers.{position}.addresses"), &peer.addresses)?;
        for (number, address) in peer.addresses.iter().enumerate() {
            let field = format!("addresses.{number}");
            if let Some(own) = self.addresses.iter().find(|own| address.contains(&own.addr())) {
                let message = format!(
                    "peer \"{}\": {address} holds the server's own address {}; \
                     give the client others",
                    peer.name,
                    own.addr()
                );
                return fault(&field, message);
            }
            if let Some((other, shared)) = taken.sharing(position, address) {
                let other = &self.peers[other];
                let message = format!(
                    "peers \"{}\" and \"{}\" share addresses, {shared} and {address}; \
                     give each client its own",
                    other.name, peer.name
                );
                return fault(&field, message);
            }
            taken.networks.insert(*address, position);
        }
        match peer.expires.as_ref().map(unix_seconds) {
            Some(Err(error)) => fault("expires", format!("peer \"{}\": {error}", peer.name)),
            _ => Ok(()),
        }
    }
}
