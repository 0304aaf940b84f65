//! One end of many connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::BytesMut;
use roadweave_types::{Instant, UplinkId};

use crate::config::{ConfigError, TransportConfig};
use crate::connection::Connection;
use crate::epoch::Epoch;
use crate::event::{ConnectError, ConnectionId, EndpointEvent, Refusal};
use crate::identity::{Identity, PublicKey};
use crate::outbox::{Ecn, Outbox};

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

/// Says who may connect; asked at each handshake.
pub trait PeerPolicy: Send + Sync {
    /// Whether the holder of `key` may connect.
    ///
    /// # Errors
    ///
    /// Why not; both sides learn it.
    fn check(&self, key: &PublicKey) -> Result<(), Refusal>;
}

/// One end of many connections.
#[derive(Debug, Default)]
pub struct Endpoint {
    outbox: Outbox,
}

#[allow(unused_variables, clippy::unused_self, missing_docs)]
impl Endpoint {
    pub fn client(
        epoch: Epoch,
        config: &TransportConfig,
        identity: Arc<Identity>,
        server_key: PublicKey,
    ) -> Result<Self, ConfigError> {
        Ok(Self::default())
    }
    pub fn server(
        epoch: Epoch,
        config: &TransportConfig,
        identity: Arc<Identity>,
        allowed: Arc<dyn PeerPolicy>,
    ) -> Result<Self, ConfigError> {
        Ok(Self::default())
    }
    pub fn connect(
        &mut self,
        now: Instant,
        uplink: UplinkId,
        server: SocketAddr,
    ) -> Result<ConnectionId, ConnectError> {
        Err(ConnectError::NotClient)
    }
    /// The connection that may have something new.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        source: Source,
        packet: BytesMut,
    ) -> Option<ConnectionId> {
        None
    }
    /// The connections that may have something new, ascending; their timers have run.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<ConnectionId> {
        Vec::new()
    }
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    pub fn poll_event(&mut self) -> Option<EndpointEvent> {
        None
    }
    pub fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        None
    }
    pub fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        None
    }
    /// Ascending. Connections whose `Closed` event was polled leave by themselves at the next call of a `handle_` function.
    pub fn connection_ids(&self) -> Vec<ConnectionId> {
        Vec::new()
    }
    /// Answers to packets of no connection.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }
}
