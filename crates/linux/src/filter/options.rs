//! What the filters allow and change.

use std::net::IpAddr;

use ipnet::IpNet;
use roadweave_proto::Marks;

use super::forward::Forward;
use crate::{Apart, Excluded, Interface};

/// What the filters allow and change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterOptions {
    /// The TUN's name.
    pub tun: String,
    /// Its MTU, bytes; TCP segments through it are clamped to fit.
    pub mtu: u16,
    /// The TUN's own addresses, reachable only from this machine and the tunnel.
    pub own_addresses: Vec<IpAddr>,
    /// A server's inner networks.
    pub inner: Vec<IpNet>,
    /// Whether packets out of the tunnel get an address of this machine.
    pub masquerade: bool,
    /// `Some`: packets into the tunnel get the TUN's own address, except from these prefixes.
    pub masquerade_into_tun: Option<Vec<IpNet>>,
    /// What leaves a box outside the tunnel, unless it came out of it. With `masquerade_into_tun`
    /// it gets the address of the outgoing interface.
    pub excluded: Excluded,
    /// Ports of a server's machine that are forwarded to devices behind its clients.
    pub forwards: Vec<Forward>,
    /// Whether sockets of this machine have addresses of `inner`.
    pub client_sockets: bool,
    /// What is forwarded.
    pub forwarding: Forwarding,
    /// Separates this end from neighbours with equal inner addresses; nothing passes between.
    pub apart: Option<Apart>,
    /// The share of the kernel's tables for each client of a server, or each host behind a box.
    pub share: Option<Share>,
    /// The marks of forwarded packets, and of packets for sockets of this machine.
    pub marks: Marks,
    /// Whether to turn forwarding on, as a server, or a box with a network behind it, needs.
    pub forward: bool,
}

impl FilterOptions {
    /// Filters of a TUN, without NAT.
    pub fn new(tun: &str, mtu: u16, forwarding: Forwarding) -> Self {
        Self {
            tun: tun.to_owned(),
            mtu,
            own_addresses: Vec::new(),
            inner: Vec::new(),
            masquerade: false,
            masquerade_into_tun: None,
            excluded: Excluded::default(),
            forwards: Vec::new(),
            client_sockets: false,
            forwarding,
            apart: None,
            share: None,
            marks: Marks::default(),
            forward: true,
        }
    }
}

/// What this machine forwards. Its own packets, answers, and its own redirections always pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// Anything that the machine's routes and firewall let pass.
    Open,
    /// A vehicle's box: nothing from its uplinks.
    Box {
        /// The interfaces that are no uplinks. All others are, including those added later.
        inside: Vec<Interface>,
        /// The machine's addresses on `inside`; not reachable from uplinks.
        addresses: Vec<IpAddr>,
        /// Whether connections may begin on one uplink and leave by another.
        between_uplinks: bool,
    },
    /// A server. Forwarding between interfaces other than the TUN stays as it was before.
    Server {
        /// Whether connections may begin outside and enter the tunnel.
        outside_to_tunnel: bool,
        /// Whether clients reach each other.
        clients_reach_clients: bool,
        /// Destinations denied from the tunnel, beside this machine's except `own_addresses`.
        denied: Vec<IpNet>,
        /// Exceptions from `denied`.
        allowed: Vec<Destination>,
    },
}

/// A destination that is allowed although its network is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its addresses.
    pub network: IpNet,
    /// One port of TCP and UDP; `None`: all.
    pub port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) ipv4: bool,
    pub(super) ipv6: bool,
}

/// The share of one source in the kernel's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Maximum concurrent connections, at most a quarter of the kernel's table.
    pub connections: u32,
    /// Prefixes that are one source each (longest match); any other address is its own source.
    pub prefixes: Vec<IpNet>,
}

impl Default for Share {
    fn default() -> Self {
        Self { connections: 8_192, prefixes: Vec::new() }
    }
}
