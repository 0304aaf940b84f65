//! The fields that both files share, each a type that refuses what cannot be.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_device::TunSettings;
use roadweave_quic::{CongestionControl, Identity, TransportConfig};
use roadweave_tunnel::{FlowClass, LANES_MAX, LaneConfig, LaneRule, Strategy, default_lanes};
use roadweave_types::{Order, Pacing};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use super::Fault;

/// The longest name that Linux gives an interface (IFNAMSIZ, less its end).
const TUN_NAME_MAX: usize = 15;

/// A whole number between `MIN` and `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Within<const MIN: i64, const MAX: i64>(i64);

impl<const MIN: i64, const MAX: i64> Within<MIN, MAX> {
    /// # Panics
    /// When a default in the code is out of its own bounds.
    pub const fn of(value: i64) -> Self {
        assert!(value >= MIN && value <= MAX, "a default is within its bounds");
        Self(value)
    }

    /// The number.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// So many megabytes, in bytes.
    pub fn bytes(self) -> usize {
        usize::try_from(self.0.max(0).unsigned_abs() << 20).unwrap_or(usize::MAX)
    }

    fn millis(self) -> Duration {
        Duration::from_millis(self.0.unsigned_abs())
    }
}

impl<const MIN: i64, const MAX: i64> TryFrom<i64> for Within<MIN, MAX> {
    type Error = String;
    fn try_from(value: i64) -> Result<Self, String> {
        if (MIN..=MAX).contains(&value) {
            Ok(Self(value))
        } else {
            Err(format!("{value} is out of bounds, {MIN} to {MAX} is possible"))
        }
    }
}

impl<const MIN: i64, const MAX: i64> From<Within<MIN, MAX>> for i64 {
    fn from(value: Within<MIN, MAX>) -> Self {
        value.0
    }
}

/// A private key; never shown, and wiped when it is dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PrivateKey(Zeroizing<String>);

impl PrivateKey {
    /// The key pair.
    ///
    /// # Errors
    /// When the text is no key.
    pub fn identity(&self) -> Result<Identity, String> {
        Identity::from_base64(self.0.trim())
            .map_err(|error| format!("private_key is {error}; `roadweave keygen` makes one"))
    }

    /// The key pair, of which nothing is left here: a daemon's file lives as long as the daemon.
    ///
    /// # Errors
    /// As [`PrivateKey::identity`].
    pub fn take_identity(&mut self) -> Result<Identity, String> {
        std::mem::take(self).identity()
    }

    /// # Errors
    /// As [`PrivateKey::identity`].
    pub fn validate(&self) -> Result<(), Fault> {
        self.identity().map(drop).map_err(|message| Fault::new("private_key", message))
    }
}

impl<'de> Deserialize<'de> for PrivateKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

impl Serialize for PrivateKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// The name of a TUN device and of its instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TunName(String);

impl TryFrom<String> for TunName {
    type Error = String;
    fn try_from(name: String) -> Result<Self, String> {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if (1..=TUN_NAME_MAX).contains(&name.len()) && name.chars().all(good) {
            Ok(Self(name))
        } else {
            Err(format!(
                "\"{name}\" is no name for a device and its instance; \
                 write 1 to {TUN_NAME_MAX} lower-case letters, digits and underscores"
            ))
        }
    }
}

impl From<TunName> for String {
    fn from(name: TunName) -> Self {
        name.0
    }
}

/// The TUN device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TunFields {
    /// Its name, which also names the instance.
    pub name: TunName,
    /// The largest inner packet.
    pub mtu_bytes: Within<1280, 9000>,
    /// Whether the kernel may hand over segments of up to 64 KB.
    pub offload: bool,
}

impl Default for TunFields {
    fn default() -> Self {
        Self { name: TunName("rw0".into()), mtu_bytes: Within::of(1360), offload: true }
    }
}

impl TunFields {
    /// The settings.
    pub fn to_settings(&self) -> TunSettings {
        let mtu = self.mtu_bytes.get() as u16;
        TunSettings { name: self.name.0.clone(), mtu, offload: self.offload }
    }
}

/// The transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportFields {
    /// The congestion control of every path: `bbr` or `cubic`.
    pub congestion: CongestionControl,
    /// The round-trip time assumed before the first sample.
    pub initial_rtt_ms: Within<1, 10_000>,
    /// Silence after which a session is given up.
    pub idle_timeout_seconds: Within<10, 86_400>,
    /// How often an otherwise silent side says something.
    pub keep_alive_ms: Within<100, 60_000>,
    /// How often a path that stopped answering is probed.
    pub probe_interval_ms: Within<20, 10_000>,
    /// The most paths of a session.
    pub paths_max: Within<1, 32>,
    /// The largest UDP payload that path MTU discovery tries.
    pub mtu_max_bytes: Within<1200, 9000>,
}

impl Default for TransportFields {
    fn default() -> Self {
        let transport = TransportConfig::new([0; 32]);
        let millis = |duration: Duration| duration.as_millis() as i64;
        Self {
            congestion: transport.congestion,
            initial_rtt_ms: Within::of(millis(transport.initial_rtt)),
            idle_timeout_seconds: Within::of(transport.idle_timeout.as_secs() as i64),
            keep_alive_ms: Within::of(millis(transport.keep_alive)),
            probe_interval_ms: Within::of(millis(transport.probe_interval)),
            paths_max: Within::of(i64::from(transport.max_paths)),
            mtu_max_bytes: Within::of(i64::from(transport.mtu_max)),
        }
    }
}

impl TransportFields {
    /// # Errors
    /// When sessions would end between two signs of life.
    pub fn validate(&self) -> Result<(), Fault> {
        let idle_timeout_ms = self.idle_timeout_seconds.get() * 1000;
        if self.keep_alive_ms.get() < idle_timeout_ms {
            return Ok(());
        }
        let message = format!(
            "transport.keep_alive_ms = {} is no shorter than transport.idle_timeout_seconds = {}; \
             write less than {idle_timeout_ms}",
            self.keep_alive_ms.get(),
            self.idle_timeout_seconds.get()
        );
        Err(Fault::new("transport.keep_alive_ms", message))
    }

    /// The settings, with a seed for everything random that is no secret of TLS.
    pub fn to_config(&self, rng_seed: [u8; 32]) -> TransportConfig {
        TransportConfig {
            congestion: self.congestion,
            initial_rtt: self.initial_rtt_ms.millis(),
            idle_timeout: Duration::from_secs(self.idle_timeout_seconds.get().unsigned_abs()),
            keep_alive: self.keep_alive_ms.millis(),
            probe_interval: self.probe_interval_ms.millis(),
            max_paths: self.paths_max.get() as u32,
            mtu_max: self.mtu_max_bytes.get() as u16,
            ..TransportConfig::new(rng_seed)
        }
    }
}

/// A class of inner traffic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LaneFields {
    /// Its name in statistics.
    pub name: String,
    /// Scheduler and recovery; docs/configuration.md lists them.
    pub strategy: Strategy,
    /// The packet delay that its applications want.
    pub deadline_ms: Within<1, 60_000>,
    /// The age after which a packet is neither sent, nor repaired, nor delivered; without it the
    /// strategy's own, by which nothing is delivered less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after_ms: Option<Within<1, 10_000>>,
    /// The most bytes that wait for a free window.
    pub queue_max_bytes: Within<10_000, 1_000_000_000>,
    /// What is promised about the order of its packets: `pass`, `reorder` or `reorder-adaptive`.
    pub ordering: Ordering,
    /// The longest that a packet waits for those before it.
    pub max_buffer_ms: Within<1, 10_000>,
    /// When lanes compete for the paths, the smaller number comes first.
    pub rank: Within<0, 7>,
    /// What holds its packets back: `window` or `rate`.
    pub pacing: Pacing,
    /// Whether RTP's marker bit ends an encode range.
    pub rtp_frames: bool,
    /// Which packets it takes; without a rule, all that no lane before it takes.
    #[serde(rename = "match")]
    pub rule: MatchFields,
}

impl Default for LaneFields {
    fn default() -> Self {
        let lane = LaneConfig::new("default", Strategy::xnc());
        Self {
            name: lane.name,
            strategy: lane.strategy,
            deadline_ms: Within::of(lane.deadline.as_millis() as i64),
            expire_after_ms: None,
            queue_max_bytes: Within::of(lane.queue_bytes_max as i64),
            ordering: Ordering::Pass,
            max_buffer_ms: Within::of(Order::DEFAULT_BUFFER.as_millis() as i64),
            rank: Within::of(lane.rank as i64),
            pacing: lane.pacing,
            rtp_frames: lane.rtp_frames,
            rule: MatchFields::default(),
        }
    }
}

/// What a lane promises about the order of its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ordering {
    /// Nothing.
    #[default]
    Pass,
    /// All packets in order, late ones are discarded.
    Reorder,
    /// Each flow in order as long as waiting pays.
    ReorderAdaptive,
}

impl Ordering {
    fn to_order(self, max_buffer: Duration) -> Order {
        match self {
            Self::Pass => Order::Pass,
            Self::Reorder => Order::Reorder { max_buffer },
            Self::ReorderAdaptive => Order::Adaptive { max_buffer },
        }
    }
}

/// Which packets a lane takes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MatchFields {
    /// Kinds of flows: `real-time`, `interactive`, `tcp` or `other`.
    pub classes: Vec<FlowClass>,
    /// `tcp`, `udp` or `icmp`.
    pub protocols: Vec<Protocol>,
    /// Differentiated services code points.
    pub dscp: Vec<Within<0, 63>>,
    /// Where packets come from.
    #[serde(deserialize_with = "networks")]
    pub source: Vec<IpNet>,
    /// Where packets go.
    #[serde(deserialize_with = "networks")]
    pub destination: Vec<IpNet>,
    /// A port or the first and last of several, source or destination.
    pub ports: Option<Ports>,
    /// The same of the source alone.
    pub source_ports: Option<Ports>,
    /// The same of the destination alone.
    pub destination_ports: Option<Ports>,
}

/// Ports of TCP and UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "write a port, or [first, last]; ports go from 0 to 65535")]
pub enum Ports {
    /// This one.
    One(u16),
    /// The first and the last.
    Range([u16; 2]),
}

impl Ports {
    fn range(self) -> RangeInclusive<u16> {
        match self {
            Self::One(port) => port..=port,
            Self::Range([first, last]) => first..=last,
        }
    }
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP, of IPv4 and IPv6.
    Icmp,
}

impl LaneFields {
    fn to_config(&self) -> LaneConfig {
        use roadweave_wire::protocol;
        let numbers = |protocol: &Protocol| match protocol {
            Protocol::Tcp => vec![protocol::TCP],
            Protocol::Udp => vec![protocol::UDP],
            Protocol::Icmp => vec![protocol::ICMP, protocol::ICMPV6],
        };
        fn listed<V>(list: Vec<V>) -> Option<Vec<V>> {
            (!list.is_empty()).then_some(list)
        }
        LaneConfig {
            name: self.name.clone(),
            rule: LaneRule {
                classes: listed(self.rule.classes.clone()),
                protocols: listed(self.rule.protocols.iter().flat_map(numbers).collect()),
                dscp: listed(self.rule.dscp.iter().map(|code| code.get() as u8).collect()),
                source: listed(self.rule.source.clone()),
                destination: listed(self.rule.destination.clone()),
                ports: self.rule.ports.map(Ports::range),
                source_ports: self.rule.source_ports.map(Ports::range),
                destination_ports: self.rule.destination_ports.map(Ports::range),
            },
            rank: self.rank.get() as u8,
            pacing: self.pacing,
            order: self.ordering.to_order(self.max_buffer_ms.millis()),
            strategy: self.strategy.clone(),
            deadline: self.deadline_ms.millis(),
            expire_after: self.expire_after_ms.map(Within::millis),
            queue_bytes_max: self.queue_max_bytes.get() as usize,
            rtp_frames: self.rtp_frames,
        }
    }
}

/// The lanes of a file; without any, those of [`default_lanes`].
pub fn lane_configs(lanes: &[LaneFields]) -> Vec<LaneConfig> {
    match lanes {
        [] => default_lanes(),
        lanes => lanes.iter().map(LaneFields::to_config).collect(),
    }
}

/// Checks an address of a server, `host:port`; returns it as it can be looked up, and the port.
///
/// # Errors
/// Says what would be right.
pub fn host_port(text: &str) -> Result<(String, u16), String> {
    let known = "write host:port, as \"192.0.2.1:4433\" or \"[2001:db8::1]:4433\"";
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(format!(
            "\"{text}\" is an IPv6 address without brackets, so that its port cannot be told from it; \
             write \"[{text}]:4433\""
        ));
    }
    let port = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((host, port @ 1..)) = port else {
        return Err(format!("\"{text}\": a port is missing; {known}"));
    };
    if host.is_empty() {
        return Err(format!("\"{text}\" has no host; {known}"));
    }
    // Eight groups and a port: nothing else can be meant.
    if host.parse::<Ipv6Addr>().is_ok() {
        return Ok((format!("[{host}]:{port}"), port));
    }
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        if inner.parse::<Ipv6Addr>().is_err() {
            return Err(format!("\"{text}\": {inner} is no IPv6 address; {known}"));
        }
    } else if host.contains([':', '[', ']']) {
        return Err(format!("\"{text}\": {host} is no host; {known}"));
    }
    Ok((text.to_owned(), port))
}

/// Checks that a pattern for names of interfaces means what it seems to.
///
/// # Errors
/// Says what would be right; `field` is where it stands.
pub fn validate_pattern(field: &str, pattern: &str) -> Result<(), Fault> {
    if !pattern.contains(['[', ']', '{', '}']) {
        return Ok(());
    }
    let message = format!(
        "\"{pattern}\" holds brackets, which stand for themselves here; patterns know * for anything and ? \
         for one letter: write \"wwan?\" or \"wwan*\", or name each interface"
    );
    Err(Fault::new(field, message))
}

/// Checks what the types of single lanes cannot.
pub fn validate_lanes(lanes: &[LaneFields]) -> Result<(), Fault> {
    if lanes.len() > LANES_MAX {
        let message = format!("{} lanes are configured, {LANES_MAX} are possible", lanes.len());
        return Err(Fault::new(format!("lanes.{LANES_MAX}"), message));
    }
    for (position, lane) in lanes.iter().enumerate() {
        if lanes[..position].iter().any(|other| other.name == lane.name) {
            return Err(Fault::new(
                format!("lanes.{position}.name"),
                format!("two lanes are called \"{}\"; give each its own name", lane.name),
            ));
        }
        let expiry_ms = lane.to_config().keeps_for().as_millis();
        if i128::from(lane.deadline_ms.get()) > expiry_ms as i128 {
            return Err(Fault::new(
                format!("lanes.{position}.deadline_ms"),
                format!(
                    "lane \"{}\": deadline_ms = {} is above expire_after_ms = {}, so that nothing would \
                     be repaired in time; write a deadline of at most that, or a longer expiry",
                    lane.name,
                    lane.deadline_ms.get(),
                    expiry_ms
                ),
            ));
        }
        let rule = &lane.rule;
        for (field, ports) in [
            ("ports", rule.ports),
            ("source_ports", rule.source_ports),
            ("destination_ports", rule.destination_ports),
        ] {
            if let Some(Ports::Range([first, last])) = ports
                && first > last
            {
                return Err(Fault::new(
                    format!("lanes.{position}.match.{field}"),
                    format!(
                        "lane \"{}\": match.{field} = [{first}, {last}] is empty; \
                         write the lower port first",
                        lane.name
                    ),
                ));
            }
        }
        for (field, networks) in [("source", &rule.source), ("destination", &rule.destination)] {
            validate_networks(&format!("lanes.{position}.match.{field}"), networks)?;
        }
    }
    Ok(())
}

/// Checks that networks are written with the bits of the host clear; `field` is where they stand.
pub fn validate_networks(field: &str, networks: &[IpNet]) -> Result<(), Fault> {
    match networks.iter().enumerate().find(|(_, network)| network.addr() != network.network()) {
        None => Ok(()),
        Some((position, network)) => {
            let (host, all) = (IpNet::from(network.addr()), network.trunc());
            let message =
                format!("{network} is neither an address nor a network; write {host} or {all}");
            Err(Fault::new(format!("{field}.{position}"), message))
        }
    }
}

/// Where what strategies have learned is kept, by default.
pub fn state_directory() -> PathBuf {
    "/var/lib/roadweave".into()
}

/// Reads a list of networks.
///
/// # Errors
/// Says how a network is written.
pub fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let parse = |text: String| {
        text.parse().map_err(|_| {
            D::Error::custom(format!(
                "\"{text}\" is no network; write an address and a length, \
                 as \"10.77.0.2/32\" or \"fd77::/64\""
            ))
        })
    };
    Vec::<String>::deserialize(deserializer)?.into_iter().map(parse).collect()
}

/// Reads a list of addresses.
///
/// # Errors
/// Says how one is written.
pub fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpAddr>, D::Error> {
    let parse = |text: String| {
        text.parse().map_err(|_| {
            D::Error::custom(format!(
                "\"{text}\" is no address; write one as \"10.77.0.1\" or \"fd77::1\""
            ))
        })
    };
    Vec::<String>::deserialize(deserializer)?.into_iter().map(parse).collect()
}

/// Reads the address of a socket.
///
/// # Errors
/// Says how one is written.
pub fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| {
        D::Error::custom(format!(
            "\"{text}\" is no address to listen on; \
             write \"[::]:4433\" for all, or \"192.0.2.1:4433\" for one"
        ))
    })
}
