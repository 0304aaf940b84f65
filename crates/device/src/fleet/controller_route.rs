//! The routes to a controller, and the look-up of its addresses over each.
//!
//! ```text
//! a box without a session ─► each uplink: its own name servers, a socket bound to it
//! a box with a session    ─► the machine's routes, and so the tunnel; else the uplinks
//! a server                ─► the machine's routes and its resolver
//! ```

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Weak;

use roadweave_proto::{ServerHost, ServerName};

use crate::lookup::{self, Network, Request};
use crate::socket::with_scope;
use crate::{Gateway, Uplink};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControllerRoute {
    System,
    Uplink(Uplink),
}

impl ControllerRoute {
    pub(super) fn interface(&self) -> Option<&str> {
        match self {
            Self::System => None,
            Self::Uplink(uplink) => Some(&uplink.name),
        }
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::System, Self::System) => true,
            (Self::Uplink(one), Self::Uplink(other)) => {
                one.index == other.index && one.addresses == other.addresses
            }
            _ => false,
        }
    }

    pub(super) fn with_scope(&self, address: SocketAddr) -> SocketAddr {
        match self {
            Self::System => address,
            Self::Uplink(uplink) => with_scope(address, uplink.index),
        }
    }

    /// Looks up `names`. Blocks for some seconds, and stops soon after `interest` is dropped.
    pub(super) fn look_up(&self, names: &[ServerName], interest: &Weak<()>) -> Addresses {
        match self {
            Self::System => names.iter().map(by_system).fold(Addresses::default(), Addresses::and),
            Self::Uplink(uplink) => {
                let request = request(uplink, names);
                let found = request.known().unwrap_or_else(|| lookup::run(request, interest));
                Addresses { found: found.servers, reason: found.reason }
            }
        }
    }
}

impl std::fmt::Display for ControllerRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.interface().unwrap_or("this machine's routes"))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) found: Vec<SocketAddr>,
    pub(super) reason: Option<String>,
}

impl Addresses {
    fn and(mut self, other: Self) -> Self {
        self.found.extend(other.found);
        self.reason = self.reason.or(other.reason);
        self
    }
}

fn by_system(name: &ServerName) -> Addresses {
    let host = match name.host() {
        ServerHost::Address(address) => {
            let found = vec![SocketAddr::new(*address, name.port())];
            return Addresses { found, reason: None };
        }
        ServerHost::Name(host) => host,
    };
    match (host.as_str(), name.port()).to_socket_addrs() {
        Ok(found) => Addresses { found: found.take(ADDRESSES_MAX).collect(), reason: None },
        Err(error) => {
            Addresses { found: Vec::new(), reason: Some(format!("{name} has no address: {error}")) }
        }
    }
}

fn request(uplink: &Uplink, names: &[ServerName]) -> Request {
    let gateways = [uplink.gateway_v4, uplink.gateway_v6];
    Request {
        names: names.to_vec(),
        network: Network {
            interface: uplink.name.clone(),
            index: uplink.index,
            gateways: gateways.into_iter().flatten().filter_map(Gateway::address).collect(),
            advertised: Vec::new(),
        },
        ipv4: uplink.is_usable(true),
        ipv6: uplink.is_usable(false),
        prefixes: Vec::new(),
    }
}

const ADDRESSES_MAX: usize = 8;
