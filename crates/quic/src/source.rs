//! Where an incoming packet is from.

use std::net::{IpAddr, SocketAddr};

use roadweave_proto::{Instant, UplinkId};

use crate::outbox::Ecn;

/// Where a packet arrived on this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// On the socket of an uplink of the client.
    Uplink(UplinkId),
    /// At an address of the server, if the socket reports it.
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
    /// When this machine received it, if known: round trips end then, and answers are owed from
    /// then, however late it was handed over.
    pub received: Option<Instant>,
}

impl Source {
    /// When a packet handed over at `now` was received: never later.
    pub(crate) fn received_by(&self, now: Instant) -> Instant {
        self.received.map_or(now, |received| received.min(now))
    }
}
