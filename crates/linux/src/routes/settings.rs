//! What a client routes, and what a session grants.

use ipnet::IpNet;
use roadweave_proto::UplinkSelector;

use super::Excluded;

/// What a client routes.
#[derive(Clone, Debug)]
pub struct RouteSettings {
    /// Destinations of the tunnel; `0.0.0.0/0` and `::/0`: everything that is not behind this box.
    pub into_tunnel: Vec<IpNet>,
    /// What leaves outside the tunnel nevertheless.
    pub excluded: Excluded,
    /// Whether packets for the tunnel are refused before the first session.
    pub closed_before_join: bool,
    /// The part of the uplinks' own private networks that is reached outside the tunnel.
    pub local: LocalNetworks,
    /// Networks that a server may grant.
    pub accept: Vec<IpNet>,
    /// Which interfaces are uplinks.
    pub selector: UplinkSelector,
}

/// The part of an uplink's own private network that is reached outside the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalNetworks {
    /// Nothing.
    None,
    /// Its gateway, such as a modem's pages.
    Gateway,
    /// Addresses near the gateway: a /24 of IPv4, a /64 of IPv6.
    Network,
}

/// What a session leads into the tunnel in addition to [`RouteSettings`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The addresses of the TUN. A family without an address stays closed.
    pub addresses: Vec<IpNet>,
    /// The server's own inner addresses.
    pub gateways: Vec<IpNet>,
    /// Networks that are reached through the server only.
    pub networks: Vec<IpNet>,
    /// The MTU of the TUN, bytes.
    pub mtu: u32,
}
