//! Where a packet that comes in is from.

use std::net::{IpAddr, SocketAddr};

use roadweave_types::UplinkId;

use crate::outbox::Ecn;

/// Where a packet arrived on this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// On the socket of an uplink of the client.
    Uplink(UplinkId),
    /// At an address of the server, if the socket tells.
    Address(Option<IpAddr>),
}

/// Where a packet came from and how it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The address it came from.
    pub remote: SocketAddr,
    /// Where it arrived.
    pub local: Local,
    /// The congestion bits it arrived with.
    pub ecn: Option<Ecn>,
}
