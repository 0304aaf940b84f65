//! A path over every uplink, and what the user wants of each.
//!
//! ```text
//! uplinks ─► a path each ─► its name and its policy, for this side and for the server
//!            packets in and out ─► bytes of the month ─► beyond the cap, another policy
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_quic::{ConnectionId, PathError};
use roadweave_types::{Instant, PathId, PathSnapshot, PathStatus, Policy, UplinkId};
use roadweave_wire::Control;

use super::{Client, Uplink, is_capped};
use crate::status::PathStatusReport;

/// How often an uplink without a path gets a new try.
const PATH_RETRY: Duration = Duration::from_secs(1);

impl Client {
    /// Opens paths over uplinks that have none, and closes those of uplinks that are gone.
    pub(super) fn reconcile_paths(&mut self, now: Instant) {
        let Some(current) = &self.current else { return };
        let Some(connection) = self.endpoint.connection_mut(current.id) else { return };
        let with_path: Vec<(PathId, Option<UplinkId>)> =
            connection.paths().iter().map(|path| (path.id, path.uplink)).collect();
        for (id, uplink) in &mut self.uplinks {
            let has_path = with_path.iter().any(|(_, on)| *on == Some(*id));
            if has_path || uplink.next_path > now {
                continue;
            }
            uplink.next_path = now + PATH_RETRY;
            if let Err(error) = connection.open_path(now, *id)
                && error != PathError::Exists
            {
                tracing::debug!(uplink = uplink.name, %error, "cannot open a path yet");
            }
        }
        for (path, uplink) in with_path {
            if uplink.is_some_and(|uplink| !self.uplinks.contains_key(&uplink)) {
                // The last path stays until another uplink has one.
                let _ = connection.close_path(now, path);
            }
        }
    }

    pub(super) fn next_path_try(&self, id: ConnectionId) -> Option<Instant> {
        let connection = self.endpoint.connection(id)?;
        let has_path =
            |id: &UplinkId| connection.paths().iter().any(|path| path.uplink == Some(*id));
        self.uplinks
            .iter()
            .filter(|(id, _)| !has_path(id))
            .map(|(_, uplink)| uplink.next_path)
            .min()
    }

    pub(super) fn name_paths(&mut self, id: ConnectionId) {
        let paths: Vec<PathId> = self
            .endpoint
            .connection(id)
            .map(|connection| connection.paths().iter().map(|path| path.id).collect())
            .unwrap_or_default();
        for path in paths {
            self.name_path(id, path);
        }
    }

    /// Tells the server over which uplink a path runs, for its statistics. Returns the uplink's name.
    pub(super) fn name_path(&mut self, id: ConnectionId, path: PathId) -> Option<String> {
        let uplink = self.endpoint.connection(id).and_then(|connection| {
            connection.paths().iter().find(|known| known.id == path)?.uplink
        });
        let uplink = self.uplinks.get(&uplink?)?.name.clone();
        if let Some(current) = self.current.as_mut().filter(|current| current.id == id) {
            current.session.name_path(path, &uplink);
        }
        self.send_control(id, &Control::PathName { path, uplink: uplink.clone() });
        Some(uplink)
    }

    /// Gives the paths of the session the policies of their uplinks, and tells the server, where anything
    /// has changed.
    pub(super) fn apply_policies(&mut self) {
        let Some(id) = self.current.as_ref().map(|current| current.id) else { return };
        if self.policies.is_empty() {
            return;
        }
        let Some(connection) = self.endpoint.connection(id) else { return };
        let wanted = |path: &PathSnapshot| {
            let name = &self.uplinks.get(&path.uplink?)?.name;
            let policy = self.policies.get(name)?.after(self.usage.of(name));
            (path.status != PathStatus::Validating).then_some((path.id, policy))
        };
        let wanted: BTreeMap<PathId, Policy> =
            connection.paths().iter().filter_map(wanted).collect();
        for (path, policy) in &wanted {
            let known = self.path_policies.get(path).copied().unwrap_or_default();
            if known == *policy {
                continue;
            }
            if let Some(connection) = self.endpoint.connection_mut(id) {
                connection.set_policy(*path, *policy);
            }
            self.send_control(id, &Control::PathPolicy { path: *path, policy: *policy });
        }
        self.path_policies = wanted;
    }

    /// A packet came in over an uplink. What one with a cap has carried is counted.
    pub(super) fn on_heard(&mut self, uplink: UplinkId, bytes: u64) {
        let Some(Uplink { name, heard, .. }) = self.uplinks.get_mut(&uplink) else { return };
        *heard = true;
        if is_capped(&self.policies, name) {
            self.usage.add(name, bytes);
        }
    }

    /// `reports`, with what their uplinks carry in the month.
    pub(super) fn with_usage(&self, mut reports: Vec<PathStatusReport>) -> Vec<PathStatusReport> {
        for report in &mut reports {
            let Some(name) = &report.uplink else { continue };
            let cap = self.policies.get(name).and_then(|policy| policy.monthly_cap_bytes);
            report.monthly_cap_bytes = cap;
            report.month_bytes = cap.map(|_| self.usage.of(name));
        }
        reports
    }
}
