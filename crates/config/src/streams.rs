//! TCP connections that are carried as streams.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use roadweave_tunnel::{LANES_MAX, LaneConfig, StreamsConfig};
use serde::{Deserialize, Deserializer, Serialize};

use crate::Fault;
use crate::lane::{LaneFields, Ports};
use crate::strategy::StrategyName;
use crate::values::{Within, known_networks, listen, networks, validate_networks};

type ConnectionsMax = Within<1, 4_096, { StreamsConfig::STREAMS_MAX as i64 }>;
type FirstKb = Within<0, 1_024>;
type ConnectsPerSecond = Within<1, 10_000, 50>;

/// The LAN's connections that are carried as streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientStreams {
    /// The TCP address of the SOCKS5 and HTTP CONNECT proxy; `None`: no proxy.
    #[serde(deserialize_with = "listen_if")]
    pub listen: Option<SocketAddr>,
    /// How the LAN's connections go that match no rule.
    pub tcp: TcpWay,
    /// Exceptions; the first match counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<TcpRule>,
    /// The networks that may use the proxy.
    #[serde(deserialize_with = "networks")]
    pub from: Vec<IpNet>,
    /// The origins of pages whose players may report their buffers, such as
    /// `https://player.example`.
    pub origins: Vec<String>,
    /// Scheduler and recovery; docs/configuration.md lists them.
    pub strategy: StrategyName,
    /// The maximum of a client's open connections.
    pub connections_max: ConnectionsMax,
    /// Kilobytes at the start of each connection that are sent first.
    pub first_kb: FirstKb,
    /// Ports of hosts at which plain HTTP is inspected.
    pub http_ports: Vec<u16>,
}

impl Default for ClientStreams {
    fn default() -> Self {
        Self {
            listen: None,
            tcp: TcpWay::default(),
            rules: Vec::new(),
            // This machine, private networks (RFC 1918, RFC 4193) and link-local ones.
            from: known_networks(
                "127.0.0.0/8 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 ::1/128 fc00::/7 fe80::/10",
            ),
            origins: Vec::new(),
            strategy: default_strategy(),
            connections_max: ConnectionsMax::default(),
            first_kb: FirstKb::default(),
            http_ports: default_http_ports(),
        }
    }
}

/// How a TCP connection of the LAN is carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TcpWay {
    /// As packets.
    Tunnel,
    /// As a stream that begins at the box, if its destination answered recently.
    #[default]
    Split,
}

/// How TCP connections to some destinations are carried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpRule {
    /// Their networks; empty: all.
    #[serde(default, deserialize_with = "networks")]
    pub to: Vec<IpNet>,
    /// Their ports; empty: all.
    #[serde(default)]
    pub ports: Vec<Ports>,
    /// How they are carried.
    pub tcp: TcpWay,
}

impl TcpRule {
    /// The ports; empty: all.
    pub fn port_ranges(&self) -> Vec<RangeInclusive<u16>> {
        self.ports.iter().map(|ports| ports.range()).collect()
    }
}

/// The far end of the clients' streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerStreams {
    /// Scheduler and recovery; docs/configuration.md lists them.
    #[serde(default = "default_strategy")]
    pub strategy: StrategyName,
    /// The maximum of a client's open connections.
    #[serde(default)]
    pub connections_max: ConnectionsMax,
    /// Kilobytes at the start of each connection that are sent first.
    #[serde(default)]
    pub first_kb: FirstKb,
    /// Ports of hosts at which plain HTTP is inspected.
    #[serde(default = "default_http_ports")]
    pub http_ports: Vec<u16>,
    /// New connections of one client per second, averaged over some seconds.
    #[serde(default)]
    pub connects_per_second: ConnectsPerSecond,
}

/// How a proxy relays streams between its clients and their anchors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyStreams {
    /// Scheduler and recovery towards clients; docs/configuration.md lists them.
    #[serde(default = "default_strategy")]
    pub strategy: StrategyName,
}

/// The far end of the streams of an anchor's clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnchorStreams {
    /// The maximum of a client's open connections.
    #[serde(default)]
    pub connections_max: ConnectionsMax,
    /// Kilobytes at the start of each connection that are sent first.
    #[serde(default)]
    pub first_kb: FirstKb,
    /// Ports of hosts at which plain HTTP is inspected.
    #[serde(default = "default_http_ports")]
    pub http_ports: Vec<u16>,
    /// New connections of one client per second, averaged over some seconds.
    #[serde(default)]
    pub connects_per_second: ConnectsPerSecond,
    /// The maximum memory of all clients' streams together, MiB.
    #[serde(default)]
    pub memory_mb: Within<32, 1_048_576, 1_024>,
}

fn to_config(
    strategy: &StrategyName,
    connections_max: ConnectionsMax,
    first_kb: FirstKb,
) -> StreamsConfig {
    let StreamsConfig { lane, .. } = StreamsConfig::default();
    let head = first_kb.get().unsigned_abs() * 1_000;
    let lane = LaneConfig { strategy: strategy.get().clone(), ..lane };
    StreamsConfig { lane, streams_max: connections_max.get() as usize, head }
}

fn validate_place(lanes: &[LaneFields]) -> Result<(), Fault> {
    let name = StreamsConfig::default().lane.name;
    if let Some(position) = lanes.iter().position(|lane| lane.name == name) {
        let message = format!(
            "the lane that [streams] makes is called \"{name}\" as well; give this one another name"
        );
        return Err(Fault::new(format!("lanes.{position}.name"), message));
    }
    if lanes.len() >= LANES_MAX {
        let message = format!(
            "{} lanes are configured, and [streams] takes one of {LANES_MAX} that are possible",
            lanes.len()
        );
        return Err(Fault::new(format!("lanes.{}", LANES_MAX - 1), message));
    }
    Ok(())
}

fn validate_http_ports(ports: &[u16]) -> Result<(), Fault> {
    if ports.len() > HTTP_PORTS_MAX {
        let message = format!("{} ports; at most {HTTP_PORTS_MAX} are read", ports.len());
        return Err(Fault::new("streams.http_ports", message));
    }
    match ports.iter().position(|port| *port == 0) {
        Some(at) => {
            let message = "0 is no port; write http_ports = [] to read none";
            Err(Fault::new(format!("streams.http_ports.{at}"), message))
        }
        None => Ok(()),
    }
}

const HTTP_PORTS_MAX: usize = 16;

fn validate_without_uplink(strategy: &StrategyName) -> Result<(), Fault> {
    if strategy.get().uplink().is_none() {
        return Ok(());
    }
    let message = format!(
        "streams.strategy = \"{}\" is for clients, since a server has no uplinks",
        strategy.get()
    );
    Err(Fault::new("streams.strategy", message))
}

impl ProxyStreams {
    pub(crate) fn validate(&self, lanes: &[LaneFields]) -> Result<(), Fault> {
        validate_without_uplink(&self.strategy)?;
        validate_place(lanes)
    }

    pub(crate) fn to_config(of: Option<&Self>, lanes: &[LaneFields]) -> Option<StreamsConfig> {
        let StreamsConfig { lane, streams_max, head } = StreamsConfig::default();
        match of {
            Some(Self { strategy }) => {
                let lane = LaneConfig { strategy: strategy.get().clone(), ..lane };
                Some(StreamsConfig { lane, streams_max, head })
            }
            None => validate_place(lanes).is_ok().then(StreamsConfig::default),
        }
    }
}

impl AnchorStreams {
    pub(crate) fn validate(&self) -> Result<(), Fault> {
        validate_http_ports(&self.http_ports)
    }

    /// Converts it.
    pub fn to_config(&self) -> StreamsConfig {
        to_config(&default_strategy(), self.connections_max, self.first_kb)
    }
}

impl ClientStreams {
    /// Whether connections of the LAN may end at the box.
    pub fn splits(&self) -> bool {
        let ways = self.rules.iter().map(|rule| rule.tcp).chain([self.tcp]);
        ways.into_iter().any(|way| way == TcpWay::Split)
    }

    pub(crate) fn validate(&self, lanes: &[LaneFields]) -> Result<(), Fault> {
        if self.listen.is_none() && !self.splits() {
            let message = "[streams] takes no connection; leave out tcp = \"tunnel\" for those of the \
                           networks behind this box, or write listen = \"192.168.1.1:1080\", an \
                           address of this box, for applications that use a proxy, or leave the \
                           section out";
            return Err(Fault::new("streams", message));
        }
        for (position, rule) in self.rules.iter().enumerate() {
            validate_networks(&format!("streams.rules.{position}.to"), &rule.to)?;
            for (at, range) in rule.port_ranges().into_iter().enumerate() {
                if range.is_empty() {
                    let (first, last) = range.into_inner();
                    let message = format!(
                        "[{first}, {last}] holds no port; write the smaller one first, as [{last}, {first}]"
                    );
                    return Err(Fault::new(
                        format!("streams.rules.{position}.ports.{at}"),
                        message,
                    ));
                }
            }
        }
        validate_networks("streams.from", &self.from)?;
        validate_http_ports(&self.http_ports)?;
        for (position, origin) in self.origins.iter().enumerate() {
            let rest = ["https://", "http://"].iter().find_map(|it| origin.strip_prefix(it));
            let is_host = |rest: &str| {
                !rest.is_empty() && !rest.contains(['/', '*', '?', '#']) && rest.is_ascii()
            };
            if !rest.is_some_and(is_host) || origin.contains(|it: char| !it.is_ascii_graphic()) {
                let message = format!(
                    "\"{}\" is no origin of a page; write \"https://player.example\", with the port \
                     if it has one and nothing behind it",
                    origin.escape_debug()
                );
                return Err(Fault::new(format!("streams.origins.{position}"), message));
            }
        }
        validate_place(lanes)
    }

    /// Converts it.
    pub fn to_config(&self) -> StreamsConfig {
        to_config(&self.strategy, self.connections_max, self.first_kb)
    }
}

impl ServerStreams {
    pub(crate) fn validate(&self, lanes: &[LaneFields]) -> Result<(), Fault> {
        validate_without_uplink(&self.strategy)?;
        validate_http_ports(&self.http_ports)?;
        validate_place(lanes)
    }

    /// Converts it.
    pub fn to_config(&self) -> StreamsConfig {
        to_config(&self.strategy, self.connections_max, self.first_kb)
    }
}

fn default_strategy() -> StrategyName {
    StreamsConfig::default().lane.strategy.into()
}

fn default_http_ports() -> Vec<u16> {
    vec![80]
}

fn listen_if<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    listen(deserializer).map(Some)
}
