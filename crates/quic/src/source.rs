//! Where a packet that comes in is from.

use std::net::{IpAddr, SocketAddr};

use roadweave_proto::{Instant, UplinkId};

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
    /// When this side's machine got it, if that is known: round trips end then, and what this side
    /// owes for it begins, however late it was handed over.
    pub received: Option<Instant>,
}

impl Source {
    /// When the packet was received that is handed over at `now`: never later.
    pub(crate) fn received_by(&self, now: Instant) -> Instant {
        self.received.map_or(now, |received| received.min(now))
    }
}
