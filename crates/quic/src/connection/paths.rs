//! What the user does with paths: opens, closes and restricts them.

use std::net::SocketAddr;

use roadweave_proto::{Delays, Instant, PathId, Policy, UplinkId};

use super::{Connection, ConnectionPhase, Wish};
use crate::event::PathError;
use crate::stats::{EcnMarking, PathStats};

impl Connection {
    /// Asks for a path over `uplink` to `server`, an address of the peer. It opens as soon as the
    /// peer allows; [`Event::PathUsable`](crate::Event::PathUsable) follows when it carries
    /// datagrams. It is closed where the peer does not answer. An uplink may get a new path, with
    /// another [`PathId`], later.
    ///
    /// # Errors
    /// Only clients open paths, one for each uplink, as many as the settings allow.
    pub fn open_path(
        &mut self,
        now: Instant,
        uplink: UplinkId,
        server: SocketAddr,
    ) -> Result<(), PathError> {
        if !self.is_client {
            return Err(PathError::NotClient);
        }
        if self.phase == ConnectionPhase::Closed {
            return Err(PathError::Closed);
        }
        let taken = self.paths.iter().any(|path| path.uplink == Some(uplink));
        if taken || self.wished_since(uplink).is_some() {
            return Err(PathError::Exists);
        }
        if self.paths.len() + self.wishes.len() >= self.config.max_paths as usize {
            return Err(PathError::TooMany);
        }
        self.wishes.push_back(Wish { uplink, server, since: now });
        self.want_flush(now);
        Ok(())
    }

    /// Since when a path over `uplink` waits for the peer to allow it; `None` if none waits.
    pub fn wished_since(&self, uplink: UplinkId) -> Option<Instant> {
        let wish = self.wishes.iter().find(|wish| wish.uplink == uplink);
        wish.map(|wish| wish.since)
    }

    /// Closes a path for good. Datagrams in flight on it are reported lost, then
    /// [`Event::PathClosed`](crate::Event::PathClosed) follows.
    ///
    /// # Errors
    /// There must be such a path, and another besides it.
    pub fn close_path(&mut self, now: Instant, path: PathId) -> Result<(), PathError> {
        use noq_proto::ClosePathError;
        if self.phase == ConnectionPhase::Closed {
            return Err(PathError::Closed);
        }
        let known = self.path(path).ok_or(PathError::Unknown)?.quic_id();
        let code = noq_proto::TransportErrorCode::APPLICATION_ABANDON_PATH;
        match self.quic.close_path(self.epoch.to_std(now), known, code.into()) {
            Ok(()) => {
                self.process(now);
                self.want_flush(now);
                Ok(())
            }
            Err(ClosePathError::ClosedPath) => Err(PathError::Unknown),
            Err(ClosePathError::LastOpenPath | ClosePathError::MultipathNotNegotiated) => {
                Err(PathError::Last)
            }
        }
    }

    /// Sets how a path may be used: its snapshots show it, and feedback keeps to it.
    pub fn set_policy(&mut self, path: PathId, policy: Policy) {
        let Some(index) = self.index(path) else { return };
        self.paths[index].policy = policy;
        if let Some(snapshot) = self.snapshots.all.get_mut(index) {
            snapshot.policy = policy;
        }
    }

    /// Counts a datagram sent on `path` as redundant, or as not.
    pub fn account(&mut self, path: PathId, bytes: u32, is_redundant: bool) {
        let Some(index) = self.index(path) else { return };
        let stats = &mut self.paths[index].stats;
        let counter =
            if is_redundant { &mut stats.redundant_bytes } else { &mut stats.source_bytes };
        *counter += u64::from(bytes);
        let left = self.paths[index].redundancy_left();
        if let Some(snapshot) = self.snapshots.all.get_mut(index) {
            snapshot.redundancy_left = left;
        }
    }

    /// The peer's address on a path.
    pub fn remote_address(&self, path: PathId) -> Option<SocketAddr> {
        Some(self.path(path)?.remote)
    }

    /// The round trips of a path since its last change of address.
    pub fn round_trips(&self, path: PathId) -> Option<Delays> {
        Some(self.path(path)?.gate.meter().round_trips)
    }

    /// Whether the packets of a path leave marked as ECN-capable.
    pub fn ecn_marking(&self, path: PathId) -> Option<EcnMarking> {
        Some(self.path(path)?.ecn.marking)
    }

    /// Counters of a path.
    pub fn path_stats(&self, path: PathId) -> Option<PathStats> {
        Some(self.path(path)?.stats)
    }
}
