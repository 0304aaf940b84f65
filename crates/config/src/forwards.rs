//! Ports of a server's machine that are forwarded to devices behind its clients.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::lane::Ports;
use crate::peers::PeerFields;
use crate::values::address;

/// Ports that are forwarded to a client or a device behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardFields {
    /// The protocol of ports of this machine that are forwarded to a device behind a client, see
    /// configuration.md#port-forwards.
    pub protocol: ForwardProtocol,
    /// The port of this machine, or `[first, last]`.
    pub port: Ports,
    /// The device's address, one in `peers.addresses`; the forward is of its family.
    #[serde(deserialize_with = "address")]
    pub to: IpAddr,
    /// The device's port, or an equal number of ports. Default: as `forwards.port`.
    pub to_port: Option<Ports>,
}

/// The protocols of a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardProtocol {
    /// TCP only.
    Tcp,
    /// UDP only.
    Udp,
    /// TCP and UDP.
    Both,
}

impl ForwardProtocol {
    /// Whether TCP is forwarded.
    pub fn has_tcp(self) -> bool {
        self != Self::Udp
    }

    /// Whether UDP is forwarded.
    pub fn has_udp(self) -> bool {
        self != Self::Tcp
    }
}

impl ForwardFields {
    /// The ports of this machine.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.port.range()
    }

    /// The device's ports, as many.
    pub fn to_ports(&self) -> RangeInclusive<u16> {
        self.to_port.unwrap_or(self.port).range()
    }

    /// All networks of the target's client, of the family of `to`; empty without such a client.
    pub fn near(&self, peers: &[PeerFields]) -> Vec<IpNet> {
        let is_there = |peer: &&PeerFields| peer.addresses.iter().any(|net| net.contains(&self.to));
        let networks = peers.iter().find(is_there).map_or(&[][..], |peer| &peer.addresses);
        let same = networks.iter().filter(|net| net.addr().is_ipv4() == self.to.is_ipv4());
        same.map(IpNet::trunc).collect()
    }

    fn shared(&self, other: &Self) -> Option<u16> {
        let (tcp, udp) = (self.protocol.has_tcp(), self.protocol.has_udp());
        let same = tcp && other.protocol.has_tcp() || udp && other.protocol.has_udp();
        let (mine, others) = (self.ports(), other.ports());
        let first = *mine.start().max(others.start());
        (same && first <= *mine.end().min(others.end())).then_some(first)
    }

    fn taken<'a>(&self, own: &OwnPorts<'a>) -> Option<(u16, &'a str)> {
        let of = |has: bool, ports: &[(u16, &'a str)]| {
            ports.iter().copied().find(|(port, _)| has && self.ports().contains(port))
        };
        of(self.protocol.has_tcp(), &own.tcp).or_else(|| of(self.protocol.has_udp(), &own.udp))
    }

    fn fault(&self, peers: &[PeerFields], own: &OwnPorts<'_>) -> Option<(&'static str, String)> {
        for (field, ports) in [("port", self.ports()), ("to_port", self.to_ports())] {
            if *ports.start() == 0 || ports.is_empty() {
                return Some((field, "write a port from 1 to 65535, or [first, last]".to_owned()));
            }
        }
        if let Some((port, by)) = self.taken(own) {
            return Some(("port", format!("this server has port {port} itself, by `{by}`")));
        }
        let (count, to_count) = (self.ports().len(), self.to_ports().len());
        if count != to_count {
            let message = format!("{count} ports cannot lead to {to_count}; write as many");
            return Some(("to_port", message));
        }
        if count > RENUMBERED_MAX && self.ports() != self.to_ports() {
            let message =
                format!("more than {RENUMBERED_MAX} ports keep their numbers; leave it out");
            return Some(("to_port", message));
        }
        let to = self.to;
        let is_no_device = to.is_unspecified() || to.is_loopback() || to.is_multicast();
        if is_no_device || self.near(peers).is_empty() {
            let message = format!("{to} is none of a client's; write one in `peers.addresses`");
            return Some(("to", message));
        }
        None
    }
}

pub(crate) struct OwnPorts<'a> {
    pub(crate) tcp: Vec<(u16, &'a str)>,
    pub(crate) udp: Vec<(u16, &'a str)>,
}

pub(crate) fn validate_forwards(
    forwards: &[ForwardFields],
    peers: &[PeerFields],
    own: &OwnPorts<'_>,
) -> Result<(), Fault> {
    if forwards.len() > FORWARDS_MAX {
        let message = format!("forwards: there are {}; {FORWARDS_MAX} may be", forwards.len());
        return Err(Fault::new("forwards", message));
    }
    for (position, forward) in forwards.iter().enumerate() {
        let same_family = |other: &&ForwardFields| other.to.is_ipv4() == forward.to.is_ipv4();
        let mut before = forwards[..position].iter().filter(same_family);
        let twice = || {
            let port = before.find_map(|other| forward.shared(other))?;
            Some(("port", format!("{port} leads to another place already")))
        };
        if let Some((field, message)) = forward.fault(peers, own).or_else(twice) {
            let at = format!("forwards.{position}.{field}");
            return Err(Fault::new(&at, format!("forwards.{field}: {message}")));
        }
    }
    Ok(())
}

/// Each one costs every forwarded packet some nanoseconds.
const FORWARDS_MAX: usize = 64;
/// The maximum of renumbered ports in one forward: the kernel keeps a list of them.
const RENUMBERED_MAX: usize = 64;
