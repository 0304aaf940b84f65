//! Destinations that clients may reach through a server.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::values::validate_networks;

/// An exception from denied destinations: `address`, `prefix` or `address:port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllowedDestination {
    /// Its addresses.
    pub network: IpNet,
    /// One port of TCP and UDP; `None`: all.
    pub port: Option<u16>,
}

impl FromStr for AllowedDestination {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self { network: address.into(), port: None });
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(Self { network, port: None });
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() > 0 => {
                Ok(Self { network: address.ip().into(), port: Some(address.port()) })
            }
            _ => Err(format!(
                "\"{text}\" is no destination; write \"192.0.2.1\", \"192.0.2.0/24\", \
                 \"192.0.2.1:53\" or \"[2001:db8::1]:53\""
            )),
        }
    }
}

impl TryFrom<String> for AllowedDestination {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<AllowedDestination> for String {
    fn from(destination: AllowedDestination) -> Self {
        destination.to_string()
    }
}

impl fmt::Display for AllowedDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}", SocketAddr::new(self.network.addr(), port)),
            None => write!(f, "{}", self.network),
        }
    }
}

pub(crate) fn validate_destinations(
    denied: &[IpNet],
    allowed: &[AllowedDestination],
) -> Result<(), Fault> {
    validate_networks("deny_destinations", denied)?;
    let allowed: Vec<IpNet> = allowed.iter().map(|to| to.network).collect();
    validate_networks("allow_destinations", &allowed)
}

/// Link-local addresses, and those of clouds' metadata services, which hold secrets.
pub fn default_denied() -> Vec<IpNet> {
    DENIED.map(|prefix| prefix.parse().expect("a prefix")).to_vec()
}

const DENIED: [&str; 9] = [
    // The metadata service of nearly all clouds, 169.254.169.254.
    "169.254.0.0/16",
    "fe80::/10",
    // The same by NAT64 (RFC 6052).
    "64:ff9b::a9fe:0/112",
    // Alibaba Cloud.
    "100.100.100.200/32",
    // Azure's host agent.
    "168.63.129.16/32",
    // Amazon, Google, Oracle and Scaleway over IPv6.
    "fd00:ec2::254/128",
    "fd20:ce::254/128",
    "fd00:c1::a9fe:a9fe/128",
    "fd00:42::42/128",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_an_address_a_prefix_or_one_port() {
        let check = |text: &str, network: &str, port| {
            let network = network.parse().unwrap();
            assert_eq!(text.parse(), Ok(AllowedDestination { network, port }), "{text}");
        };
        check("192.0.2.1", "192.0.2.1/32", None);
        check("192.0.2.0/24", "192.0.2.0/24", None);
        check("192.0.2.1:53", "192.0.2.1/32", Some(53));
        check("2001:db8::1", "2001:db8::1/128", None);
        check("[2001:db8::1]:53", "2001:db8::1/128", Some(53));
        for text in ["", "a.example:53", "192.0.2.1:0", "192.0.2.1:70000", "192.0.2.0/24:53"] {
            let error = text.parse::<AllowedDestination>().unwrap_err();
            assert!(error.contains("\"192.0.2.1:53\""), "{error}");
        }
    }
}
