//! The paths of a standby: one on each uplink that it should use.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_proto::{Instant, PathSnapshot, UplinkId};
use roadweave_quic::Connection;

use crate::client::uplinks::Uplinks;

#[derive(Debug, Default)]
pub(super) struct StandbyPaths {
    next: BTreeMap<UplinkId, Instant>,
}

impl StandbyPaths {
    /// `wanted`: the uplinks to use, of `all`.
    pub(super) fn reconcile(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        server: SocketAddr,
        wanted: &[UplinkId],
        all: &Uplinks,
    ) {
        let is_kept = |path: &PathSnapshot| path.uplink.is_some_and(|it| wanted.contains(&it));
        let carries = connection.paths().iter().any(|path| path.is_usable() && is_kept(path));
        let mut gone = Vec::new();
        for path in connection.paths() {
            let Some(uplink) = path.uplink else { continue };
            // A path that was needed recently may be needed again.
            let is_young = self.next.get(&uplink).is_some_and(|until| *until > now);
            let is_spare = carries && !is_kept(path) && !is_young;
            if is_spare || !all.all.contains_key(&uplink) {
                gone.push(path.id);
            }
        }
        for path in gone {
            // The last path stays until another uplink has one.
            let _ = connection.close_path(now, path);
        }
        for uplink in wanted {
            let next = self.next.entry(*uplink).or_insert(now);
            if !has_path(connection, *uplink) && *next <= now {
                *next = now + PATH_RETRY;
                let _ = connection.open_path(now, *uplink, server);
            }
        }
        connection.flush(now);
    }

    pub(super) fn poll_timeout(
        &self,
        connection: &Connection,
        wanted: &[UplinkId],
    ) -> Option<Instant> {
        let missing = wanted.iter().filter(|uplink| !has_path(connection, **uplink));
        missing.map(|uplink| self.next.get(uplink).copied().unwrap_or(Instant::ZERO)).min()
    }
}

fn has_path(connection: &Connection, uplink: UplinkId) -> bool {
    connection.paths().iter().any(|path| path.uplink == Some(uplink))
}

const PATH_RETRY: Duration = Duration::from_secs(5);
