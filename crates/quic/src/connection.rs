//! One connection.

use std::net::SocketAddr;

use bytes::Bytes;
use roadweave_types::{Instant, PathId, PathSnapshot, UplinkId};

use crate::event::{Event, MessageError, PathError, SendError};
use crate::identity::PublicKey;
use crate::outbox::Outbox;
use crate::stats::{ConnectionStats, PathStats};

/// A connection to one peer over any number of paths.
#[derive(Debug, Default)]
pub struct Connection {
    snapshots: Vec<PathSnapshot>,
    outbox: Outbox,
}

#[allow(unused_variables, clippy::unused_self, missing_docs)]
impl Connection {
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }
    pub fn send_on(
        &mut self,
        now: Instant,
        path: PathId,
        datagram: Bytes,
        token: u64,
    ) -> Result<(), SendError> {
        Err(SendError::Closed(datagram))
    }
    pub fn send_feedback_on(
        &mut self,
        now: Instant,
        path: PathId,
        datagram: Bytes,
    ) -> Result<(), SendError> {
        Err(SendError::Closed(datagram))
    }
    pub fn feedback_due(&self, now: Instant) -> Option<PathId> {
        None
    }
    pub fn send_message(&mut self, message: Bytes) -> Result<(), MessageError> {
        Err(MessageError::Closed)
    }
    /// Brings [`Connection::paths`] up to `now`.
    pub fn refresh(&mut self, now: Instant) {}
    pub fn paths(&self) -> &[PathSnapshot] {
        &self.snapshots
    }
    pub fn open_path(&mut self, now: Instant, uplink: UplinkId) -> Result<(), PathError> {
        Err(PathError::Closed)
    }
    pub fn close_path(&mut self, now: Instant, path: PathId) -> Result<(), PathError> {
        Err(PathError::Closed)
    }
    pub fn set_standby(
        &mut self,
        now: Instant,
        path: PathId,
        standby: bool,
    ) -> Result<(), PathError> {
        Err(PathError::Closed)
    }
    pub fn max_datagram_size(&self) -> usize {
        0
    }
    pub fn close(&mut self, now: Instant, code: u32, reason: &str) {}
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    pub fn handle_timeout(&mut self, now: Instant) {}
    pub fn flush(&mut self, now: Instant) {}
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }
    pub fn peer(&self) -> Option<PublicKey> {
        None
    }
    pub fn remote_address(&self, path: PathId) -> Option<SocketAddr> {
        None
    }
    pub fn path_stats(&self, path: PathId) -> Option<PathStats> {
        None
    }
    pub fn stats(&self) -> ConnectionStats {
        ConnectionStats::default()
    }
}
