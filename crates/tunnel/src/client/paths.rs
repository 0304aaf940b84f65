//! A path over every uplink, and the user's policy for each.
//!
//! ```text
//! uplinks ─► a path each ─► its name and its policy, for this side and for the server
//!    └─ to the session's address of the server, or to one that this uplink knows
//!            packets in and out ─► bytes of the day ─► beyond a cap, another policy
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_proto::wire::Control;
use roadweave_proto::{Instant, PathId, PathSnapshot, PathStatus, Policy, UplinkId};
use roadweave_quic::PathError;

use super::notices::Notice;
use super::portals::HELD_BACK_RETRY;
use super::uplinks::Uplink;
use super::{Client, Current};
use crate::node::Node as _;

const PATH_RETRY: Duration = Duration::from_secs(1);
/// After a silence of this length any packet means that coverage is back.
const NO_COVERAGE: Duration = Duration::from_secs(2);
/// How long an address of the server has to answer before another is tried, if there is one.
const PATH_TIMEOUT: Duration = Duration::from_secs(5);

impl Client {
    pub(super) fn reconcile_paths(&mut self, now: Instant) {
        let Some(current) = &self.current else { return };
        let (id, joined_at) = (current.id, current.pair.1);
        // The path with the lowest number is chosen while no round trip is known.
        let by_rank = self.uplinks.by_rank();
        let Some(connection) = self.endpoint.connection_mut(id) else { return };
        for id in &by_rank {
            let Some(uplink) = self.uplinks.all.get_mut(id) else { continue };
            let path = connection.paths().iter().find(|path| path.uplink == Some(*id));
            let path = path.map(|path| (path.id, path.status));
            let is_tried = match path {
                None => uplink.next_path <= now,
                Some((_, status)) => {
                    status == PathStatus::Validating && uplink.path_deadline <= now
                }
            };
            if !is_tried {
                continue;
            }
            let home = self.choice.current;
            let all = &self.config.candidates[home].addresses;
            let known = self.uplinks.servers_of.get(&(home, *id)).unwrap_or(all);
            let servers = path_servers(joined_at, known);
            match path {
                None => {}
                Some((path, _)) if servers.len() > 1 => {
                    uplink.path_deadline = now + PATH_TIMEOUT;
                    // The last path stays until another uplink has one.
                    if connection.close_path(now, path).is_err() {
                        continue;
                    }
                }
                Some(_) => continue,
            }
            let server = servers[uplink.path_failures % servers.len()];
            let is_held_back = uplink.held_back.is_some();
            let retry = if is_held_back { HELD_BACK_RETRY } else { PATH_RETRY };
            (uplink.next_path, uplink.path_deadline) = (now + retry, now + PATH_TIMEOUT);
            match connection.open_path(now, *id, server) {
                Ok(()) => uplink.path_failures = uplink.path_failures.wrapping_add(1),
                Err(PathError::Exists) => {}
                Err(error) => {
                    tracing::debug!(uplink = uplink.name, %error, "cannot open a path yet");
                }
            }
        }
        let is_gone = |path: &PathSnapshot| {
            path.uplink.is_some_and(|uplink| !self.uplinks.all.contains_key(&uplink))
        };
        let gone = connection.paths().iter().filter(|path| is_gone(path));
        for path in gone.map(|path| path.id).collect::<Vec<_>>() {
            // The last path stays until another uplink has one.
            let _ = connection.close_path(now, path);
        }
    }

    pub(super) fn on_path_usable(&mut self, path: PathId) {
        let uplink = self.uplink_of(path);
        if let Some(uplink) = uplink.and_then(|uplink| self.uplinks.all.get_mut(&uplink)) {
            uplink.path_failures = uplink.path_failures.saturating_sub(1);
        }
    }

    /// An uplink has new addresses: its path is probed at once, so that the server learns where to
    /// send even if there is nothing to send. `addresses` is text for a notice.
    pub fn on_new_addresses(&mut self, now: Instant, uplink: UplinkId, addresses: String) {
        let Some(Uplink { name, next_path, .. }) = self.uplinks.all.get_mut(&uplink) else {
            return;
        };
        *next_path = now;
        let uplink_name = name.clone();
        self.race.on_sign_of_life(now, Some(uplink));
        let current = self.current.as_ref().map(|current| current.id);
        if let Some(connection) = current.and_then(|id| self.endpoint.connection_mut(id)) {
            connection.suspect_path_on(now, uplink);
        }
        self.notify(now, Notice::Moved { uplink: uplink_name, addresses });
        self.handle_timeout(now);
    }

    fn uplink_of(&self, path: PathId) -> Option<UplinkId> {
        self.paths().iter().find(|known| known.id == path)?.uplink
    }

    pub(super) fn next_path_try(&self) -> Option<Instant> {
        let connection = self.connection()?;
        let due = |(id, uplink): (&UplinkId, &Uplink)| {
            let path = connection.paths().iter().find(|path| path.uplink == Some(*id));
            match path.map(|path| path.status) {
                None => Some(uplink.next_path),
                Some(PathStatus::Validating) if self.may_lead_elsewhere(*id) => {
                    Some(uplink.path_deadline)
                }
                Some(_) => None,
            }
        };
        self.uplinks.all.iter().filter_map(due).min()
    }

    fn may_lead_elsewhere(&self, uplink: UplinkId) -> bool {
        self.current
            .as_ref()
            .is_some_and(|current| path_servers(current.pair.1, self.servers_of(uplink)).len() > 1)
    }

    pub(super) fn name_paths(&mut self) {
        let paths: Vec<PathId> = self.paths().iter().map(|path| path.id).collect();
        for path in paths {
            self.name_path(path);
        }
    }

    pub(super) fn name_path(&mut self, path: PathId) -> Option<String> {
        let uplink = self.uplinks.all.get(&self.uplink_of(path)?)?.name.clone();
        let Current { id, session, .. } = self.current.as_mut()?;
        let id = *id;
        session.name_path(path, &uplink);
        self.send_control(id, &Control::PathName { path, uplink: uplink.clone() });
        Some(uplink)
    }

    pub(super) fn apply_policies(&mut self) {
        let Some(id) = self.current.as_ref().map(|current| current.id) else { return };
        if self.uplinks.policies.is_empty() {
            return;
        }
        let Some(connection) = self.endpoint.connection(id) else { return };
        let wanted = |path: &PathSnapshot| Some((path.id, self.uplinks.policy_of(path)?));
        let wanted: BTreeMap<PathId, Policy> =
            connection.paths().iter().filter_map(wanted).collect();
        let Some(current) = &mut self.current else { return };
        let known = std::mem::replace(&mut current.path_policies, wanted.clone());
        for (path, policy) in wanted {
            if known.get(&path).copied().unwrap_or_default() == policy {
                continue;
            }
            if let Some(connection) = self.endpoint.connection_mut(id) {
                connection.set_policy(path, policy);
            }
            self.send_control(id, &Control::PathPolicy { path, policy });
        }
    }

    pub(super) fn count_packet(&mut self, uplink: UplinkId, bytes: u64) {
        let Some(Uplink { heard, .. }) = self.uplinks.all.get_mut(&uplink) else { return };
        *heard = true;
        self.uplinks.count(uplink, || bytes);
    }

    /// A packet of a probe or a connection; a stranger's says nothing about the way to a server.
    pub(super) fn on_heard(&mut self, now: Instant, uplink: UplinkId) {
        self.race.heard_on = Some(uplink);
        self.uplinks.all.get_mut(&uplink).into_iter().for_each(|it| it.port.on_heard(now));
        let silence = now.since(std::mem::replace(&mut self.last_heard, now));
        if self.current.is_none() && self.has_choice() && silence >= NO_COVERAGE {
            self.on_coverage_back(now);
        }
    }
}

/// The addresses to which a path may lead, at least one, the preferred one first. An uplink that
/// knows no address of that family may lack it, behind a NAT64. An impostor at another address
/// lacks the connection's keys, so its path is not validated.
fn path_servers(joined_at: SocketAddr, known: &[SocketAddr]) -> Vec<SocketAddr> {
    if known.is_empty() || known.contains(&joined_at) {
        return vec![joined_at];
    }
    let mut servers: Vec<SocketAddr> = known.iter().take(PATH_SERVERS_MAX).copied().collect();
    let has_family = known.iter().any(|server| server.is_ipv4() == joined_at.is_ipv4());
    servers.insert(if has_family { 0 } else { servers.len() }, joined_at);
    servers
}

const PATH_SERVERS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(joined_at: &str, known: &[&str], expected: &[&str]) {
        let address = |text: &&str| text.parse::<SocketAddr>().expect("an address");
        let known: Vec<SocketAddr> = known.iter().map(address).collect();
        let expected: Vec<SocketAddr> = expected.iter().map(address).collect();
        assert_eq!(path_servers(address(&joined_at), &known), expected);
    }

    #[test]
    fn paths_lead_to_the_address_of_the_session_unless_the_uplink_lacks_its_family() {
        let (four, six) = ("192.0.2.1:4433", "[2001:db8::1]:4433");
        check(four, &[], &[four]);
        check(four, &[four], &[four]);
        check(four, &[six, four], &[four]);
        // Another address of this family: forged, or the way within this network.
        check(four, &["192.0.2.66:4433"], &[four, "192.0.2.66:4433"]);
        let behind_nat64 = "[64:ff9b::192.0.2.1]:4433";
        check(four, &[behind_nat64], &[behind_nat64, four]);
        check(behind_nat64, &[four], &[four, behind_nat64]);
    }
}
