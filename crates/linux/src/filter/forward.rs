//! Ports that are forwarded, as nft reads them.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// Ports that lead to a device behind a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Whether TCP is forwarded.
    pub tcp: bool,
    /// Whether UDP is forwarded.
    pub udp: bool,
    /// The ports of this machine.
    pub ports: RangeInclusive<u16>,
    /// The device's address, within a client's networks.
    pub to: IpAddr,
    /// The ports of the device, as many.
    pub to_ports: RangeInclusive<u16>,
    /// The networks of the same client, of the family of the device's address.
    pub near: Vec<IpNet>,
}

impl Forward {
    pub(super) fn protocols(&self) -> impl Iterator<Item = &'static str> {
        let all = [("tcp", self.tcp), ("udp", self.udp)].into_iter();
        all.filter(|(_, is)| *is).map(|(name, _)| name)
    }

    pub(super) fn matches(&self) -> impl Iterator<Item = String> {
        let version = if self.to.is_ipv4() { "ipv4" } else { "ipv6" };
        let ports = range(&self.ports);
        self.protocols().map(move |of| format!("meta nfproto {version} {of} dport {ports}"))
    }

    pub(super) fn target(&self, protocol: &str) -> String {
        let (to, ports, to_ports) = (self.to, self.ports.clone(), self.to_ports.clone());
        if ports == to_ports {
            return to.to_string();
        }
        if ports.len() == 1 {
            return SocketAddr::new(to, *to_ports.start()).to_string();
        }
        // nft chooses a port of a range.
        let pairs = ports.zip(to_ports).map(|(from, to)| format!("{from} : {to}"));
        format!("{to} : {protocol} dport map {{ {} }}", pairs.collect::<Vec<_>>().join(", "))
    }
}

pub(super) fn range(ports: &RangeInclusive<u16>) -> String {
    match (ports.start(), ports.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    }
}
