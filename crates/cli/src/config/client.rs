//! `client.toml`.

use std::path::PathBuf;

use ipnet::IpNet;
use roadweave_quic::PublicKey;
use serde::{Deserialize, Serialize};

use super::fields::{
    LaneFields, PrivateKey, TransportFields, TunFields, lane_configs, networks, state_directory,
    validate_lanes, validate_networks,
};
use super::{Fault, Validate};

/// The client's configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientFile {
    /// This client's name, for the server's logs.
    #[serde(default = "default_name")]
    pub name: String,
    /// This client's private key.
    pub private_key: PrivateKey,
    /// The server.
    pub server: ServerFields,
    /// The uplinks.
    #[serde(default)]
    pub uplinks: UplinkFields,
    /// The TUN device.
    #[serde(default)]
    pub tun: TunFields,
    /// What goes into the tunnel.
    #[serde(default)]
    pub routes: RouteFields,
    /// Where what strategies have learned is kept.
    #[serde(default = "state_directory")]
    pub state_directory: PathBuf,
    /// The transport.
    #[serde(default)]
    pub transport: TransportFields,
    /// The lanes, in the order in which they are asked.
    #[serde(default)]
    pub lanes: Vec<LaneFields>,
}

/// The server that a client connects to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerFields {
    /// Its addresses, `host:port`, tried in turn.
    pub addresses: Vec<String>,
    /// Its public key.
    pub public_key: PublicKey,
}

/// Which interfaces are uplinks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UplinkFields {
    /// Names of interfaces, `*` stands for anything; empty: every interface with a default route.
    pub include: Vec<String>,
    /// Names of interfaces that are no uplinks, whatever `include` says.
    pub exclude: Vec<String>,
}

/// What goes into the tunnel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouteFields {
    /// Destinations that are routed into the tunnel.
    #[serde(deserialize_with = "networks")]
    pub into_tunnel: Vec<IpNet>,
    /// Whether what comes from behind this box gets the client's inner address (source NAT).
    pub masquerade: bool,
}

impl Default for RouteFields {
    fn default() -> Self {
        let all = ["0.0.0.0/0", "::/0"];
        Self {
            into_tunnel: all.map(|prefix| prefix.parse().expect("a prefix")).to_vec(),
            masquerade: true,
        }
    }
}

fn default_name() -> String {
    "client".into()
}

impl ClientFile {
    /// The lanes of the uplink direction.
    pub fn lane_configs(&self) -> Vec<roadweave_tunnel::LaneConfig> {
        lane_configs(&self.lanes)
    }
}

impl Validate for ClientFile {
    fn validate(&self) -> Result<(), Fault> {
        self.private_key.validate()?;
        if self.server.addresses.is_empty() {
            let message = "server.addresses is empty; write addresses = [\"host:port\"]";
            return Err(Fault::new("server.addresses", message));
        }
        for (position, address) in self.server.addresses.iter().enumerate() {
            let port = address.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
            if !matches!(port, Some(Ok(1..))) {
                return Err(Fault::new(
                    format!("server.addresses.{position}"),
                    format!(
                        "server.addresses: \"{address}\" has no port; \
                         write \"host:port\", \"192.0.2.1:port\" or \"[2001:db8::1]:port\""
                    ),
                ));
            }
        }
        self.transport.validate()?;
        validate_networks("routes.into_tunnel", &self.routes.into_tunnel)?;
        validate_lanes(&self.lanes)
    }
}
