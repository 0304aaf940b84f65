//! `router.toml`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use roadweave_proto::Order;
use roadweave_tunnel::{ROUTER_LINKS_MAX, RouterLink, RouterPeer};
use serde::{Deserialize, Deserializer, Serialize};

use crate::metrics::LocalMetricsFields;
use crate::tun::TunFields;
use crate::values::{MtuBytes, Within, listen, networks, parsed, validate_networks};
use crate::{Fault, Validate};

/// The configuration file of a redundant router.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterFile {
    /// The virtual network identifier, the same at both ends.
    #[serde(default)]
    pub vni: Within<0, 0xff_ffff>,
    /// Whether it may listen on public addresses; `0.0.0.0` and `[::]` count as such.
    #[serde(default)]
    pub insecure: bool,
    /// This side's inner addresses, with the length of the network.
    #[serde(default, deserialize_with = "networks")]
    pub addresses: Vec<IpNet>,
    /// Destinations that are routed into the tunnel: what lies behind the other router.
    #[serde(default, deserialize_with = "networks")]
    pub into_tunnel: Vec<IpNet>,
    /// Source addresses allowed in packets from the tunnel; empty: all.
    #[serde(default, deserialize_with = "networks")]
    pub accept_sources: Vec<IpNet>,
    /// `reorder`: packets are delivered in order, and one that arrives after its turn is discarded;
    /// `pass`: each is delivered when its first copy arrives.
    #[serde(default)]
    pub ordering: RouterOrdering,
    /// The longest that a packet waits for earlier ones.
    #[serde(default)]
    pub max_buffer_ms: Within<1, 10_000, { Order::DEFAULT_BUFFER.as_millis() as i64 }>,
    /// The TUN device. Segments of 1,340 bytes over IPv6, as in the paper (section IV-A), have
    /// inner packets of 1,400 bytes and outer ones of 1,468.
    #[serde(default)]
    pub tun: TunFields<MtuBytes<1400>>,
    /// Metrics over HTTP, at a loopback address.
    pub metrics: Option<LocalMetricsFields>,
    /// The tunnel links.
    #[serde(default)]
    pub links: Vec<RouterLinkFields>,
}

/// A tunnel link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterLinkFields {
    /// A link's name in logs and statistics.
    pub name: String,
    /// The link's number, the same at both ends. Default: its place, from 0.
    pub number: Option<Within<0, 255>>,
    /// The address and port on this machine; links with the same address share a socket.
    #[serde(deserialize_with = "listen")]
    pub listen: SocketAddr,
    /// The interface that the link is bound to, whatever the routes; it needs one to the peer.
    pub interface: Option<String>,
    /// Address and port of the link's other end. Default: or `peer_within`.
    #[serde(default, deserialize_with = "peer")]
    pub peer: Option<SocketAddr>,
    /// Prefixes that the other end may appear from when it is behind a NAT. Default: or `peer`.
    #[serde(default, deserialize_with = "networks", skip_serializing_if = "Vec::is_empty")]
    pub peer_within: Vec<IpNet>,
}

/// The socket of a tunnel link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSocket {
    /// The address that it is bound to.
    pub listen: SocketAddr,
    /// The interface that it is bound to.
    pub interface: Option<String>,
}

/// The order of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouterOrdering {
    /// None: each packet leaves when its first copy comes.
    Pass,
    /// Packets wait for earlier ones (Networking'24, section III-B).
    #[default]
    Reorder,
}

fn peer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let what = "address of a peer; write \"192.0.2.1:6081\" or \"[2001:db8::1]:6081\"";
    parsed(&String::deserialize(deserializer)?, what).map(Some)
}

impl RouterFile {
    /// The distinct sockets, and the links that use them.
    pub fn links(&self) -> (Vec<LinkSocket>, Vec<RouterLink>) {
        let mut sockets: Vec<LinkSocket> = Vec::new();
        let link = |(place, link): (usize, &RouterLinkFields)| {
            let wanted = link.socket();
            let at = sockets.iter().position(|socket| *socket == wanted);
            let socket = at.unwrap_or_else(|| {
                sockets.push(wanted);
                sockets.len() - 1
            });
            RouterLink {
                name: link.name.clone(),
                number: link.number(place),
                socket: socket as u32,
                peer: match link.peer {
                    Some(address) => RouterPeer::At(address),
                    None => RouterPeer::Within(link.peer_within.clone()),
                },
            }
        };
        let links = self.links.iter().enumerate().map(link).collect();
        (sockets, links)
    }

    /// The order of packets.
    pub fn order(&self) -> Order {
        let max_buffer = self.max_buffer_ms.millis();
        match self.ordering {
            RouterOrdering::Pass => Order::Pass,
            RouterOrdering::Reorder => Order::Reorder { max_buffer },
        }
    }

    fn validate_link(&self, place: usize) -> Result<(), Fault> {
        let (before, link) = (&self.links[..place], &self.links[place]);
        let fault = |field: &str, message: String| {
            let message = format!("link \"{}\": {message}", link.name);
            Err(Fault::new(format!("links.{place}.{field}"), message))
        };
        if link.peer.is_some() != link.peer_within.is_empty() {
            let message = "write either peer, its other end's address, \
                           or peer_within, the prefixes from which it may make itself known";
            return fault("peer", message.into());
        }
        validate_networks(&format!("links.{place}.peer_within"), &link.peer_within)?;
        if link.listen.port() == 0 {
            return fault("listen", "port 0 is none that the other end could know".into());
        }
        if !self.insecure && is_public(link.listen.ip()) {
            let message = format!(
                "{} can be reached from anywhere, and this tunnel neither encrypts nor \
                 authenticates; listen on a private address, or write insecure = true where a \
                 firewall lets only the other router through",
                link.listen
            );
            return fault("listen", message);
        }
        // The unspecified IPv6 address covers both families.
        let is_dual = link.listen.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        if let Some(peer) = link.peer
            && !is_dual
            && peer.is_ipv4() != link.listen.is_ipv4()
        {
            let message = format!("{peer} cannot be reached from {}", link.listen);
            return fault("peer", message);
        }
        if link.interface.is_none()
            && let Some(peer) = link.peer
            && let Some(network) = self.into_tunnel.iter().find(|net| net.contains(&peer.ip()))
        {
            let message = format!(
                "{peer} lies in {network}, which is routed into the tunnel that it carries; \
                 name the interface by which it leaves"
            );
            return fault("peer", message);
        }
        if link.interface.is_none()
            && let Some((prefix, network)) = overlap(&link.peer_within, &self.into_tunnel)
        {
            let message = format!(
                "hosts of {prefix} lie in {network}, which is routed into the tunnel that they carry; \
                 name the interface by which it leaves"
            );
            return fault("peer_within", message);
        }
        for (other_place, other) in before.iter().enumerate() {
            if other.name == link.name {
                return fault("name", "another link has the same name".into());
            }
            if other.number(other_place) == link.number(place) {
                let message =
                    format!("its number {} is also that of \"{}\"", link.number(place), other.name);
                return fault("number", message);
            }
            if link.peer.is_some() && other.peer == link.peer && other.socket() == link.socket() {
                let message = format!(
                    "it has the addresses of \"{}\" at both ends; give it an interface or another port",
                    other.name
                );
                return fault("peer", message);
            }
        }
        Ok(())
    }
}

impl RouterLinkFields {
    fn socket(&self) -> LinkSocket {
        LinkSocket { listen: self.listen, interface: self.interface.clone() }
    }

    fn number(&self, place: usize) -> u8 {
        self.number.map_or(place as u8, |number| number.get() as u8)
    }
}

impl Validate for RouterFile {
    const HAS_SECRET: bool = false;

    fn validate(&self) -> Result<(), Fault> {
        if self.links.is_empty() || self.links.len() > ROUTER_LINKS_MAX {
            let message = format!(
                "there are {} links; write 1 to {ROUTER_LINKS_MAX} times [[links]]",
                self.links.len()
            );
            return Err(Fault::new("links", message));
        }
        validate_networks("into_tunnel", &self.into_tunnel)?;
        validate_networks("accept_sources", &self.accept_sources)?;
        (0..self.links.len()).try_for_each(|place| self.validate_link(place))
    }
}

fn overlap<'a>(left: &'a [IpNet], right: &'a [IpNet]) -> Option<(&'a IpNet, &'a IpNet)> {
    let pairs = left.iter().flat_map(|one| right.iter().map(move |other| (one, other)));
    pairs.into_iter().find(|(one, other)| one.contains(*other) || other.contains(*one))
}

/// Whether `address` is global or unspecified, so that packets from the Internet may reach it.
///
/// Source: the special-purpose address registries of IANA (RFC 6890).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_public_v4(mapped),
            None => is_public_v6(address),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    let is_carrier_grade = first == 100 && second & 0xc0 == 64;
    let is_for_benches = first == 198 && second & 0xfe == 18;
    !(address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || is_carrier_grade
        || is_for_benches)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let is_documentation = address.segments()[..2] == [0x2001, 0xdb8];
    !(address.is_loopback()
        || address.is_unique_local()
        || address.is_unicast_link_local()
        || is_documentation)
}

#[cfg(test)]
mod tests;
