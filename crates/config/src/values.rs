//! Values of fields that several files share: types and deserialisers that refuse invalid ones.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_proto::Rate;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Fault;

/// A whole number between `MIN` and `MAX`; `USUAL` is the default of a field that may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Within<const MIN: i64, const MAX: i64, const USUAL: i64 = 0>(i64);

impl<const MIN: i64, const MAX: i64, const USUAL: i64> Within<MIN, MAX, USUAL> {
    /// A default in the code; panics outside its bounds.
    pub const fn of(value: i64) -> Self {
        assert!(value >= MIN && value <= MAX, "a default is within its bounds");
        Self(value)
    }

    /// The number.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Mebibytes, in bytes.
    pub fn bytes(self) -> usize {
        usize::try_from(self.0.max(0).unsigned_abs() << 20).unwrap_or(usize::MAX)
    }

    /// Milliseconds.
    pub fn millis(self) -> Duration {
        Duration::from_millis(self.0.unsigned_abs())
    }
}

impl<const MIN: i64, const MAX: i64, const USUAL: i64> Default for Within<MIN, MAX, USUAL> {
    fn default() -> Self {
        Self::of(USUAL)
    }
}

impl<const MIN: i64, const MAX: i64, const USUAL: i64> TryFrom<i64> for Within<MIN, MAX, USUAL> {
    type Error = String;
    fn try_from(value: i64) -> Result<Self, String> {
        if (MIN..=MAX).contains(&value) {
            Ok(Self(value))
        } else {
            Err(format!("{value} is out of bounds, {MIN} to {MAX} is possible"))
        }
    }
}

impl<const MIN: i64, const MAX: i64, const USUAL: i64> From<Within<MIN, MAX, USUAL>> for i64 {
    fn from(value: Within<MIN, MAX, USUAL>) -> Self {
        value.0
    }
}

// Bounds of fields that several files have.
pub(crate) type ClientConnections = Within<64, 1_000_000, 16_384>;
pub(crate) type ClientMemoryMb = Within<4, 16_384, 64>;
pub(crate) type MtuBytes<const USUAL: i64> = Within<1280, 9000, USUAL>;
pub(crate) type RateMbps = Within<1, 1_000_000>;

impl RateMbps {
    /// Megabits per second.
    pub fn rate(self) -> Rate {
        Rate::from_kbps(self.0.unsigned_abs() * 1_000)
    }
}

/// Parses a server's address, `host:port`; returns its resolvable form and the port.
pub fn host_port(text: &str) -> Result<(String, u16), String> {
    let known = "write host:port, as \"192.0.2.1:4433\" or \"[2001:db8::1]:4433\"";
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(format!(
            "\"{text}\" is an IPv6 address without brackets, so its port is ambiguous; write \
             \"[{text}]:4433\""
        ));
    }
    let port = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((host, port @ 1..)) = port else {
        return Err(format!("\"{text}\": a port is missing; {known}"));
    };
    if host.is_empty() {
        return Err(format!("\"{text}\" has no host; {known}"));
    }
    // Eight groups and a port are unambiguous.
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

/// Brackets have no special meaning in patterns of interfaces; `field` is its path.
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

/// Validates that host bits are clear; `field` is the path of the list.
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

/// The default folder for what strategies have learned.
pub fn state_directory() -> PathBuf {
    "/var/lib/roadweave".into()
}

pub fn known_networks(texts: &str) -> Vec<IpNet> {
    texts.split(' ').map(|text| text.parse().expect("a network")).collect()
}

/// The value of `text`; the error says that it is no `what`.
pub fn parsed<T: FromStr, E: serde::de::Error>(text: &str, what: &str) -> Result<T, E> {
    text.parse().map_err(|_| E::custom(format!("\"{text}\" is no {what}")))
}

pub fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let what = "network; write an address and a length, as \"10.77.0.2/32\" or \"fd77::/64\"";
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| parsed(text, what)).collect()
}

pub fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    parsed(&text, "address; write one as \"10.77.0.2\" or \"fd77::2\"")
}

pub fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpAddr>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let what = "address; write one as \"10.77.0.1\" or \"fd77::1\"";
    texts.iter().map(|text| parsed(text, what)).collect()
}

/// Addresses with or without a length.
pub fn gateways<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let what = "address; write one as \"10.77.0.1/16\" or \"fd77::1\"";
    let texts = Vec::<String>::deserialize(deserializer)?;
    let read = |text: &String| text.parse().map(IpAddr::into).or_else(|_| parsed(text, what));
    texts.iter().map(read).collect()
}

pub fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let what = "address to listen on; \
                write \"[::]:4433\" for all, or \"192.0.2.1:4433\" for one";
    parsed(&String::deserialize(deserializer)?, what)
}
