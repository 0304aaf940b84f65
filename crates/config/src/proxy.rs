//! `proxy.toml`.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use roadweave_identity::PublicKey;
use roadweave_proto::ServerName;
use roadweave_tunnel::{ProxyConfig, ProxyTenant, TENANTS_MAX};
use serde::{Deserialize, Serialize};

use crate::fleet::ProxyFleetFields;
use crate::lane::{LaneFields, validate_served_lanes};
use crate::metrics::MetricsFields;
use crate::peers::{PeerFields, PeersCheck, expired_peers};
use crate::secret::PrivateKey;
use crate::server::{ServerLimits, default_listen};
use crate::speedtest::SpeedtestFields;
use crate::streams::ProxyStreams;
use crate::transport::TransportFields;
use crate::tun::TunName;
use crate::values::{MtuBytes, RateMbps, gateways, listen, state_directory};
use crate::{Fault, Validate};

/// The proxy's configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyFile {
    /// The name of the instance, and of its socket for `show`.
    #[serde(default = "default_instance")]
    pub instance: TunName,
    /// As [`crate::ServerFile::listen`].
    #[serde(default = "default_listen", deserialize_with = "listen")]
    pub listen: SocketAddr,
    /// As [`crate::ServerFile::private_key`].
    #[serde(default, skip_serializing_if = "PrivateKey::is_empty")]
    pub private_key: PrivateKey,
    /// The MTU of the clients' TUN devices; use that of the anchors.
    #[serde(default)]
    pub mtu_bytes: MtuBytes<1360>,
    /// What a leg carries in each direction, Mbit/s. Default: any.
    pub leg_rate_mbps: Option<RateMbps>,
    /// Where learned state of strategies is kept.
    #[serde(default = "state_directory")]
    pub state_directory: PathBuf,
    /// Resource limits, in total and for each client.
    #[serde(default)]
    pub limits: ServerLimits,
    /// Metrics over HTTP.
    pub metrics: Option<MetricsFields>,
    /// The transport.
    #[serde(default)]
    pub transport: TransportFields,
    /// The lanes, in order of matching.
    #[serde(default)]
    pub lanes: Vec<LaneFields>,
    /// How streams are relayed between clients and anchors.
    pub streams: Option<ProxyStreams>,
    /// Limits of clients' speed tests.
    #[serde(default)]
    pub speedtest: SpeedtestFields,
    /// The tenants with their anchors, in addition to those that the fleet names.
    #[serde(default)]
    pub tenants: Vec<ProxyTenantFields>,
    /// The clients that may connect.
    #[serde(default)]
    pub peers: Vec<PeerFields>,
    /// How the proxy takes part in its fleet.
    #[serde(default)]
    pub fleet: ProxyFleetFields,
}

/// A tenant of a proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyTenantFields {
    /// The tenant's name, which its clients sign: letters, digits, `-`, `_`, `.`; after a join
    /// `[[tenants]]` is optional, and tenants of the
    /// [fleet](fleet.md#add-proxies-anchors-and-boxes) are added.
    pub name: String,
    /// Its anchor.
    pub anchor: AnchorFields,
    /// The anchor's own inner addresses, such as `"10.77.0.1/16"`; with the length of the clients'
    /// network, [`uplinks.local`](configuration.md#what-leaves-outside-the-tunnel) of clients never
    /// takes that network for an uplink's.
    #[serde(default, deserialize_with = "gateways")]
    pub gateways: Vec<IpNet>,
    /// The most that all its clients may send, and receive, at this proxy, Mbit/s. Default: any.
    pub rate_limit_mbps: Option<RateMbps>,
}

/// An anchor, as a proxy knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnchorFields {
    /// Addresses or names of the anchor with ports, tried in turn; names are [looked
    /// up](fleet.md#what-a-leg-is) by this machine's name servers.
    pub addresses: Vec<String>,
    /// The anchor's public key.
    pub public_key: PublicKey,
}

fn default_instance() -> TunName {
    TunName::try_from("proxy".to_owned()).expect("a name")
}

impl ProxyFile {
    /// The tenants and their anchors.
    pub fn proxy_config(&self) -> ProxyConfig {
        let tenant = |tenant: &ProxyTenantFields| ProxyTenant {
            name: tenant.name.clone(),
            anchor: tenant.anchor.public_key,
            addresses: Vec::new(),
            gateways: tenant.gateways.clone(),
            rate_limit: tenant.rate_limit_mbps.map(RateMbps::rate),
        };
        let tenants = self.tenants.iter().map(tenant).collect();
        ProxyConfig { tenants, leg_rate: self.leg_rate_mbps.map(RateMbps::rate) }
    }

    /// The anchors' addresses, in the order of the tenants.
    pub fn anchor_names(&self) -> Vec<(PublicKey, Vec<ServerName>)> {
        let of = |tenant: &ProxyTenantFields| {
            let addresses = tenant.anchor.addresses.iter();
            (tenant.anchor.public_key, addresses.filter_map(|it| it.parse().ok()).collect())
        };
        self.tenants.iter().map(of).collect()
    }

    fn validate_tenants(&self) -> Result<(), Fault> {
        if self.tenants.len() > TENANTS_MAX {
            let message =
                format!("tenants has {}; up to {TENANTS_MAX} are possible", self.tenants.len());
            return Err(Fault::new("tenants", message));
        }
        for (position, tenant) in self.tenants.iter().enumerate() {
            let at = |field: &str| format!("tenants.{position}.{field}");
            validate_tenant_name(&at("name"), &tenant.name)?;
            if self.tenants[..position].iter().any(|other| other.name == tenant.name) {
                let message = format!("two tenants are called \"{}\"", tenant.name);
                return Err(Fault::new(at("name"), message));
            }
            if tenant.anchor.addresses.is_empty() {
                let message = "anchor.addresses is empty; write an address with a port, \
                               as \"203.0.113.1:4434\"";
                return Err(Fault::new(at("anchor.addresses"), message));
            }
            for (number, address) in tenant.anchor.addresses.iter().enumerate() {
                if let Err(error) = address.parse::<ServerName>() {
                    let field = at(&format!("anchor.addresses.{number}"));
                    let message = format!("anchor.addresses: \"{address}\" is {error}");
                    return Err(Fault::new(field, message));
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn validate_tenant_name(field: &str, name: &str) -> Result<(), Fault> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=roadweave_proto::wire::TENANT_MAX).contains(&name.len()) && name.chars().all(is_plain) {
        return Ok(());
    }
    let message = format!(
        "\"{name}\" is no name for a tenant; write 1 to {} letters, digits, '-', '_' and '.'",
        roadweave_proto::wire::TENANT_MAX
    );
    Err(Fault::new(field, message))
}

impl Validate for ProxyFile {
    const RELOADED: &'static [&'static str] = &["peers", "tenants"];

    fn validate(&self) -> Result<(), Fault> {
        self.private_key.validate()?;
        self.transport.validate()?;
        self.limits.validate()?;
        validate_served_lanes(&self.lanes)?;
        if let Some(streams) = &self.streams {
            streams.validate(&self.lanes)?;
        }
        self.validate_tenants()?;
        let tenants: Vec<&str> = self.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        PeersCheck::new("peers", &self.private_key, &[], Some(&tenants)).check(&self.peers)
    }

    fn warnings(&self, now_unix: u64) -> Vec<String> {
        expired_peers(&self.peers, now_unix)
    }
}
