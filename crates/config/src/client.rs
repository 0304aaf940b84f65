//! `client.toml`.

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use ipnet::IpNet;
use roadweave_identity::PublicKey;
use roadweave_proto::{ProbeUrl, ServerName, Technology, UplinkSelector};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::lane::{LaneFields, LaneNames, validate_deadlines, validate_lanes};
use crate::metrics::LocalMetricsFields;
use crate::packet_mark::{PacketMark, PacketMarks};
use crate::policy::{PolicyFields, UplinkTraits, validate_policies};
use crate::secret::PrivateKey;
use crate::streams::ClientStreams;
use crate::transport::TransportFields;
use crate::tun::TunFields;
use crate::values::{
    ClientMemoryMb, Within, addresses, host_port, known_networks, networks, state_directory,
    validate_networks, validate_pattern,
};
use crate::{Fault, Validate};

/// The client's configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientFile {
    /// This client's name in the server's logs.
    #[serde(default = "default_name")]
    pub name: String,
    /// This client's key, from `roadweave keygen`; without it the key of [`roadweave
    /// join`](fleet.md). Default: from the join.
    #[serde(default, skip_serializing_if = "PrivateKey::is_empty")]
    pub private_key: PrivateKey,
    /// The server; `None`: the proxies that the fleet names.
    pub server: Option<ServerFields>,
    /// Further servers, with the same fields, see configuration.md#several-servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proxies: Vec<ServerFields>,
    /// The uplinks.
    #[serde(default)]
    pub uplinks: UplinkFields,
    /// The bits of packet and connection marks that Roadweave may use, a mask such as
    /// `"0x00ff0000"`, see configuration.md#marks-of-packets-and-connections. Default: all 32 bits.
    #[serde(default)]
    pub packet_marks: PacketMarks,
    /// The TUN device.
    #[serde(default)]
    pub tun: TunFields,
    /// Traffic for the tunnel.
    #[serde(default)]
    pub routes: RouteFields,
    /// This machine's resolvers during a session, such as `["10.77.0.1"]`; an address of the server
    /// must be in its `allow_destinations`, see configuration.md#dns.
    #[serde(default, deserialize_with = "addresses")]
    pub dns: Vec<IpAddr>,
    /// Where state is kept across restarts, see configuration.md#what-is-kept-on-disk.
    #[serde(default = "state_directory")]
    pub state_directory: PathBuf,
    /// Resource limits.
    #[serde(default)]
    pub limits: ClientLimits,
    /// The LAN's connections that go as streams; `None`: none.
    pub streams: Option<ClientStreams>,
    /// Metrics over HTTP, at a loopback address.
    pub metrics: Option<LocalMetricsFields>,
    /// The transport.
    #[serde(default)]
    pub transport: TransportFields,
    /// The lanes, in order of matching.
    #[serde(default)]
    pub lanes: Vec<LaneFields>,
}

/// Resource limits of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientLimits {
    /// Maximum memory of one session, both directions, MiB, see configuration.md#memory.
    pub client_memory_mb: ClientMemoryMb,
}

/// The server that a client connects to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerFields {
    /// The server's addresses, `"host:port"`, tried in turn on every uplink; names are [looked
    /// up](configuration.md#how-the-server-is-found) over each uplink. Without `[server]`, the
    /// proxies of the [fleet](fleet.md). Default: from the fleet.
    pub addresses: Vec<String>,
    /// The server's public key; required with `[server]`. Default: from the fleet.
    pub public_key: PublicKey,
    /// A display name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The server's location; servers with the same site are expected to fail together.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub site: String,
    /// The round trip from the server to an egress that is elsewhere. Default: `0`.
    pub to_anchor_ms: Option<Within<0, 10_000>>,
}

impl ServerFields {
    /// Its addresses, already validated.
    pub fn names(&self) -> Vec<ServerName> {
        self.addresses.iter().filter_map(|address| address.parse().ok()).collect()
    }

    fn validate(&self, at: &str, own: Option<PublicKey>) -> Result<(), Fault> {
        if self.addresses.is_empty() {
            let message = format!("{at}.addresses is empty; write addresses = [\"host:port\"]");
            return Err(Fault::new(format!("{at}.addresses"), message));
        }
        for (position, address) in self.addresses.iter().enumerate() {
            if address.parse::<Ipv6Addr>().is_ok()
                && let Err(error) = host_port(address)
            {
                let field = format!("{at}.addresses.{position}");
                return Err(Fault::new(field, format!("{at}.addresses: {error}")));
            }
            if let Err(error) = address.parse::<ServerName>() {
                return Err(Fault::new(
                    format!("{at}.addresses.{position}"),
                    format!("{at}.addresses: \"{address}\" is {error}"),
                ));
            }
        }
        if own == Some(self.public_key) {
            let message = format!(
                "{at}.public_key is that of this client's own private_key; \
                 write the one that the server's side has printed"
            );
            return Err(Fault::new(format!("{at}.public_key"), message));
        }
        Ok(())
    }
}

/// Which interfaces are uplinks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UplinkFields {
    /// Interfaces that are uplinks, `*` matches anything; empty: all with a default route.
    pub include: Vec<String>,
    /// Interfaces that are never uplinks, even if `include` matches.
    pub exclude: Vec<String>,
    /// Interfaces of networks behind the box, which may use the tunnel and are closed to uplinks,
    /// `*` matches anything; empty: detected, see configuration.md#what-a-box-forwards.
    pub inside: Vec<String>,
    /// Whether the box forwards between uplinks, see configuration.md#what-a-box-forwards.
    pub forward: bool,
    /// The part of the uplinks' private networks that is reached outside the tunnel: `"gateway"`:
    /// the gateway alone; `true`: addresses near it; `false`: nothing; see
    /// configuration.md#what-leaves-outside-the-tunnel.
    pub local: LocalNetworks,
    /// Policies; the first match counts, and uplinks without one are equal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyFields>,
    /// The order in which technologies are tried; those left out come last.
    pub order: Vec<Technology>,
    /// `"http://host/path"`: a page that answers 204 with an empty body, to detect [captive
    /// portals](configuration.md#captive-portals).
    pub portal_probe: Option<String>,
}

impl Default for UplinkFields {
    fn default() -> Self {
        Self {
            include: Vec::new(),
            exclude: Vec::new(),
            inside: Vec::new(),
            forward: false,
            local: LocalNetworks::Gateway,
            policies: Vec::new(),
            order: Technology::ORDER.to_vec(),
            portal_probe: None,
        }
    }
}

/// The part of an uplink's own private network that is reached outside the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalNetworks {
    /// Nothing.
    None,
    /// Its gateway, such as a modem's pages.
    #[default]
    Gateway,
    /// Addresses near the gateway: a /24 of IPv4, a /64 of IPv6.
    Network,
}

impl Serialize for LocalNetworks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_bool(false),
            Self::Network => serializer.serialize_bool(true),
            Self::Gateway => serializer.serialize_str("gateway"),
        }
    }
}

impl<'de> Deserialize<'de> for LocalNetworks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Truth(bool),
            Word(String),
        }
        match Written::deserialize(deserializer) {
            Ok(Written::Truth(false)) => Ok(Self::None),
            Ok(Written::Truth(true)) => Ok(Self::Network),
            Ok(Written::Word(word)) if word == "gateway" => Ok(Self::Gateway),
            _ => Err(D::Error::custom("write \"gateway\", true or false")),
        }
    }
}

/// Traffic for the tunnel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouteFields {
    /// Destinations that are routed into the tunnel.
    #[serde(deserialize_with = "networks")]
    pub into_tunnel: Vec<IpNet>,
    /// Destinations that are routed outside the tunnel, see
    /// configuration.md#what-leaves-outside-the-tunnel.
    #[serde(deserialize_with = "networks")]
    pub exclude: Vec<IpNet>,
    /// Packets with this mark leave outside the tunnel: `"0x10"`, or `"0x10/0xff"` to ignore other
    /// bits; the default mask is `0xffff`.
    pub exclude_mark: Option<PacketMark>,
    /// Whether traffic from behind the box is translated to the client's inner address; if not, the
    /// server's `peers.addresses` must list the networks behind the box.
    pub masquerade: bool,
    /// Traffic before the first session: `closed`: refused; `open`: sent in the clear.
    pub before_join: BeforeJoin,
    /// Whether traffic for the tunnel stays refused after an orderly stop.
    pub kill_switch: bool,
    /// Networks from which the server may assign inner addresses, to this box and to itself.
    #[serde(deserialize_with = "networks")]
    pub accept: Vec<IpNet>,
}

/// The treatment of traffic for the tunnel until the first session is up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BeforeJoin {
    /// It is refused.
    #[default]
    Closed,
    /// It leaves outside the tunnel, in the clear.
    Open,
}

impl Default for RouteFields {
    fn default() -> Self {
        Self {
            into_tunnel: known_networks("0.0.0.0/0 ::/0"),
            exclude: Vec::new(),
            exclude_mark: None,
            masquerade: true,
            before_join: BeforeJoin::Closed,
            kill_switch: false,
            // Private (RFC 1918), shared (RFC 6598) and unique local (RFC 4193) space.
            accept: known_networks(
                "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7",
            ),
        }
    }
}

impl RouteFields {
    fn validate_excluded(&self) -> Result<(), Fault> {
        validate_networks("routes.exclude", &self.exclude)?;
        for (position, network) in self.exclude.iter().enumerate() {
            let field = format!("routes.exclude.{position}");
            if network.prefix_len() == 0 {
                let message = format!(
                    "{network} would leave nothing of its family to the tunnel; say in \
                     routes.into_tunnel what belongs into it"
                );
                return Err(Fault::new(field, message));
            }
            if self.into_tunnel.contains(network) {
                let message = format!("{network} is in routes.into_tunnel too; take it from one");
                return Err(Fault::new(field, message));
            }
        }
        Ok(())
    }
}

fn default_name() -> String {
    "client".into()
}

impl ClientFile {
    /// All servers, the first choice first; empty if the fleet names them.
    pub fn servers(&self) -> impl Iterator<Item = &ServerFields> {
        self.server.iter().chain(&self.proxies)
    }

    /// Which interfaces are uplinks.
    pub fn selector(&self) -> UplinkSelector {
        let UplinkFields { include, exclude, inside, .. } = self.uplinks.clone();
        UplinkSelector { include, exclude, inside }
    }
}

impl Validate for ClientFile {
    const RELOADED: &'static [&'static str] = &[
        "lanes",
        "uplinks.include",
        "uplinks.exclude",
        "uplinks.inside",
        "uplinks.order",
        "uplinks.policies",
        "uplinks.portal_probe",
        "routes.exclude",
        "routes.exclude_mark",
    ];

    fn validate(&self) -> Result<(), Fault> {
        self.private_key.validate()?;
        self.validate_servers()?;
        self.transport.validate()?;
        validate_networks("routes.into_tunnel", &self.routes.into_tunnel)?;
        self.routes.validate_excluded()?;
        if let Some(Err(why)) = self.routes.exclude_mark.map(|it| it.check(self.packet_marks)) {
            return Err(Fault::new("routes.exclude_mark", format!("routes.exclude_mark: {why}")));
        }
        validate_networks("routes.accept", &self.routes.accept)?;
        let UplinkFields { include, exclude, inside, .. } = &self.uplinks;
        for (field, names) in [("include", include), ("exclude", exclude), ("inside", inside)] {
            for (position, name) in names.iter().enumerate() {
                validate_pattern(&format!("uplinks.{field}.{position}"), name)?;
            }
        }
        validate_policies(&self.uplinks.policies)?;
        validate_order(&self.uplinks.order)?;
        validate_portal_probe(self.uplinks.portal_probe.as_deref())?;
        validate_lanes(LaneNames::PRODUCT, &self.lanes)?;
        validate_deadlines(&self.lanes)?;
        if let Some(streams) = &self.streams {
            streams.validate(&self.lanes)?;
        }
        self.validate_lanes_uplinks()
    }

    fn warnings(&self, _now_unix: u64) -> Vec<String> {
        self.uplinks.unnamed().map(str::to_owned).into_iter().collect()
    }
}

impl UplinkFields {
    /// The page that detects captive portals.
    pub fn portal_probe(&self) -> Option<ProbeUrl> {
        self.portal_probe.as_ref().and_then(|text| text.parse().ok())
    }

    /// The policy of an uplink: the first that fits.
    pub fn policy_of(&self, uplink: &UplinkTraits) -> Option<&PolicyFields> {
        self.policies.iter().find(|policy| policy.fits(uplink))
    }

    /// A warning, if neither uplinks nor interfaces behind the box are named.
    pub fn unnamed(&self) -> Option<&'static str> {
        let is_unnamed = self.include.is_empty() && self.inside.is_empty();
        is_unnamed.then_some(
            "uplinks.inside names no interface: one with an address and without a default route counts \
             as behind the box, and may use the tunnel and reach the networks there; write the names of \
             those that are",
        )
    }
}

impl ClientFile {
    fn validate_servers(&self) -> Result<(), Fault> {
        let own = self.private_key.identity().map(|identity| identity.public_key()).ok();
        if self.server.is_none() && !self.proxies.is_empty() {
            let message = "proxies: there is no [server] before them; write the one to be tried \
                           first as [server]";
            return Err(Fault::new("proxies", message));
        }
        let mut known: Vec<PublicKey> = Vec::new();
        for (position, server) in self.servers().enumerate() {
            let at = match position.checked_sub(1) {
                None => "server".to_owned(),
                Some(position) => format!("proxies.{position}"),
            };
            server.validate(&at, own)?;
            if self.private_key.is_written_as(&server.public_key) {
                let message = format!(
                    "{at}.public_key is this client's own private_key; write the public key that the \
                     server's side has printed"
                );
                return Err(Fault::new(format!("{at}.public_key"), message));
            }
            if known.contains(&server.public_key) {
                let message = "proxies.public_key: there is a server with this key before it; \
                               each has a key of its own, and several addresses where it needs them";
                return Err(Fault::new(format!("{at}.public_key"), message));
            }
            known.push(server.public_key);
        }
        Ok(())
    }

    fn validate_lanes_uplinks(&self) -> Result<(), Fault> {
        let uplinks = self.selector();
        for (position, lane) in self.lanes.iter().enumerate() {
            let strategy = lane.strategy.get();
            let Some(uplink) = strategy.uplink() else { continue };
            if let Err(error) = uplinks.check_name(uplink) {
                let message = format!("lane \"{}\": strategy = \"{strategy}\": {error}", lane.name);
                return Err(Fault::new(format!("lanes.{position}.strategy"), message));
            }
        }
        Ok(())
    }
}

fn validate_portal_probe(text: Option<&str>) -> Result<(), Fault> {
    let Some(text) = text else { return Ok(()) };
    match text.parse::<ProbeUrl>() {
        Ok(_) => Ok(()),
        Err(error) => {
            let message = format!("uplinks.portal_probe: \"{text}\" is {error}");
            Err(Fault::new("uplinks.portal_probe", message))
        }
    }
}

fn validate_order(order: &[Technology]) -> Result<(), Fault> {
    let twice = (1..order.len()).find(|at| order[..*at].contains(&order[*at]));
    match twice {
        Some(at) => {
            let message = format!("uplinks.order names \"{}\" twice; the first counts", order[at]);
            Err(Fault::new(format!("uplinks.order.{at}"), message))
        }
        None => Ok(()),
    }
}
