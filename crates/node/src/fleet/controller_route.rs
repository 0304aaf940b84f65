//! The routes to a controller, and look-ups of its addresses. A box with a session uses the
//! machine's routes, so the tunnel; else each uplink with its name servers. Servers use the former.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Weak;

use roadweave_linux::lookup::{self, Found, LookupRequest, Network};
use roadweave_linux::socket::with_scope;
use roadweave_linux::{Gateway, Uplink};
use roadweave_proto::{ServerHost, ServerName};

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

    /// Blocks for some seconds.
    pub(super) fn look_up(&self, names: &[ServerName], interest: &Weak<()>) -> Found {
        match self {
            Self::System => names.iter().fold(Found::default(), by_system),
            Self::Uplink(uplink) => {
                let request = request(uplink, names);
                request.known().unwrap_or_else(|| lookup::run(request, interest))
            }
        }
    }
}

impl std::fmt::Display for ControllerRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.interface().unwrap_or("this machine's routes"))
    }
}

fn by_system(mut found: Found, name: &ServerName) -> Found {
    match name.host() {
        ServerHost::Address(address) => {
            found.servers.push(SocketAddr::new(*address, name.port()));
        }
        ServerHost::Name(host) => match (host.as_str(), name.port()).to_socket_addrs() {
            Ok(addresses) => found.servers.extend(addresses.take(ADDRESSES_MAX)),
            Err(error) => {
                found.reason.get_or_insert_with(|| format!("{name} has no address: {error}"));
            }
        },
    }
    found
}

fn request(uplink: &Uplink, names: &[ServerName]) -> LookupRequest {
    let gateways = [uplink.gateway_v4, uplink.gateway_v6];
    LookupRequest {
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
