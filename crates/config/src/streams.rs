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
    /// The TCP address of the SOCKS5 and HTTP proxy for the LAN, such as `"192.168.1.1:1080"`; its
    /// connections are carried as [streams](streams.md). Default: off.
    #[serde(deserialize_with = "listen_if")]
    pub listen: Option<SocketAddr>,
    /// TCP connections from behind the box, with a section `[streams]`: `split`:
    /// [streams](streams.md#without-a-proxy) if their destination answered recently; `tunnel`:
    /// packets.
    pub tcp: TcpWay,
    /// Exceptions; the first match counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<TcpRule>,
    /// Networks that may use `streams.listen`; connections over an uplink are never accepted.
    #[serde(deserialize_with = "networks")]
    pub from: Vec<IpNet>,
    /// Web origins, such as `"https://player.example"`, whose players may report their buffers at
    /// `/v1/qoe` of `streams.listen` ([streams.md](streams.md)) and listen at `/v1/encoder`
    /// ([video.md](video.md#encoder-targets)).
    pub origins: Vec<String>,
    /// The strategy of [streams](streams.md), in a `patient` lane; those of an anchor use its
    /// proxy's.
    pub strategy: StrategyName,
    /// Maximum open connections of a client; one address behind the box has at most 512, and an end
    /// two thirds of its limit of open files.
    pub connections_max: ConnectionsMax,
    /// Kilobytes at the start of what this end sends in a connection that precede all other
    /// streams.
    pub first_kb: FirstKb,
    /// At most 16 ports of hosts where [plain HTTP](streams.md#plain-http) is read; `[]`: none.
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
    /// Destination addresses or prefixes; the first `[[streams.rules]]` that matches overrides
    /// `streams.tcp`. Default: all.
    #[serde(default, deserialize_with = "networks")]
    pub to: Vec<IpNet>,
    /// Destination ports, each a port or `[first, last]`. Default: all.
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
    /// As [`ClientStreams::strategy`].
    #[serde(default = "default_strategy")]
    pub strategy: StrategyName,
    /// As [`ClientStreams::connections_max`].
    #[serde(default)]
    pub connections_max: ConnectionsMax,
    /// As [`ClientStreams::first_kb`].
    #[serde(default)]
    pub first_kb: FirstKb,
    /// As [`ClientStreams::http_ports`].
    #[serde(default = "default_http_ports")]
    pub http_ports: Vec<u16>,
    /// With a section `[streams]`, connections of [streams](streams.md) end at this machine: the
    /// most that a client may open in a second, averaged over some seconds.
    #[serde(default)]
    pub connects_per_second: ConnectsPerSecond,
}

/// How a proxy relays streams between its clients and their anchors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyStreams {
    /// The strategy for frames of [streams](streams.md#through-proxies) to boxes; applies without
    /// the section as well, if `[[lanes]]` leaves room for their lane.
    #[serde(default = "default_strategy")]
    pub strategy: StrategyName,
}

/// The far end of the streams of an anchor's clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnchorStreams {
    /// As [`ClientStreams::connections_max`].
    #[serde(default)]
    pub connections_max: ConnectionsMax,
    /// As [`ClientStreams::first_kb`].
    #[serde(default)]
    pub first_kb: FirstKb,
    /// As [`ClientStreams::http_ports`].
    #[serde(default = "default_http_ports")]
    pub http_ports: Vec<u16>,
    /// As [`ServerStreams::connects_per_second`].
    #[serde(default)]
    pub connects_per_second: ConnectsPerSecond,
    /// Maximum memory of the streams of all clients, MiB; beyond it the largest are reset.
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

    /// How streams are relayed beside these lanes, if they are.
    pub fn to_config(of: Option<&Self>, lanes: &[LaneFields]) -> Option<StreamsConfig> {
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
