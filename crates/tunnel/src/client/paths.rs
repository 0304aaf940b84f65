//! A path over every uplink, to the session's address of the server, or to one that it knows.
//!
//! ```text
//! uplink ─► a path ─► usable
//!   ▲         └─ not usable in 5 s ─► closed ─► one to the next address, if there are several
//!   └─ a second later, if it cannot be opened
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use roadweave_proto::{Instant, PathSnapshot, PathStatus, UplinkId};
use roadweave_quic::{Connection, PathError};

use super::current::View;
use super::uplinks::{HELD_BACK_RETRY, Uplink};
use super::{Choice, Uplinks};

const PATH_RETRY: Duration = Duration::from_secs(1);
/// How long an address of the server has to answer before another is tried, if there is one.
const PATH_TIMEOUT: Duration = Duration::from_secs(5);

/// When the next path of an uplink is opened, and to which address.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathTry {
    next: Instant,
    /// Paths that were opened and not usable.
    failures: usize,
    /// When a path that is not usable by then is replaced by one to another address.
    deadline: Instant,
}

impl PathTry {
    pub(super) fn new(now: Instant) -> Self {
        Self { next: now, failures: 0, deadline: now }
    }

    pub(super) fn hurry(&mut self, now: Instant) {
        self.next = now;
    }

    pub(super) fn put_off(&mut self, until: Instant) {
        self.next = self.next.max(until);
    }

    pub(super) fn on_new_servers(&mut self, now: Instant) {
        (self.failures, self.deadline) = (0, now);
    }

    pub(super) fn on_usable(&mut self) {
        self.failures = self.failures.saturating_sub(1);
    }

    /// When a path is opened, by the status of the present one.
    fn due(&self, status: Option<PathStatus>) -> Option<Instant> {
        match status {
            None => Some(self.next),
            Some(PathStatus::Validating) => Some(self.deadline),
            Some(_) => None,
        }
    }
}

/// Opens and closes paths of the session that began at `joined_at`, as its uplinks need them.
pub(super) fn reconcile(
    now: Instant,
    connection: &mut Connection,
    joined_at: SocketAddr,
    uplinks: &mut Uplinks,
    choice: &Choice,
) {
    let is_due = |(id, uplink): &(&UplinkId, &Uplink)| {
        let status = path_on(connection, **id).map(|path| path.status);
        uplink.path.due(status).is_some_and(|due| due <= now)
    };
    let due = uplinks.all.iter().filter(is_due).map(|(id, _)| *id).collect();
    // The path with the lowest number is chosen while no round trip is known.
    for id in uplinks.by_rank(due) {
        let Some(uplink) = uplinks.all.get_mut(&id) else { continue };
        let path = path_on(connection, id).map(|path| (path.id, path.status));
        let servers = path_servers(joined_at, choice.servers(id));
        match path {
            None => {}
            Some((path, _)) if servers.len() > 1 => {
                uplink.path.deadline = now + PATH_TIMEOUT;
                // The last path stays until another uplink has one.
                if connection.close_path(now, path).is_err() {
                    continue;
                }
            }
            Some(_) => continue,
        }
        let server = servers[uplink.path.failures % servers.len()];
        let retry = if uplink.held_back.is_some() { HELD_BACK_RETRY } else { PATH_RETRY };
        (uplink.path.next, uplink.path.deadline) = (now + retry, now + PATH_TIMEOUT);
        match connection.open_path(now, id, server) {
            Ok(()) => uplink.path.failures = uplink.path.failures.wrapping_add(1),
            Err(PathError::Exists) => {}
            Err(error) => {
                tracing::debug!(uplink = uplink.name, %error, "cannot open a path yet");
            }
        }
    }
    let is_gone =
        |path: &&PathSnapshot| path.uplink.is_some_and(|uplink| !uplinks.all.contains_key(&uplink));
    let gone = connection.paths().iter().filter(is_gone).map(|path| path.id);
    for path in gone.collect::<Vec<_>>() {
        // The last path stays until another uplink has one.
        let _ = connection.close_path(now, path);
    }
}

pub(super) fn poll_timeout(joined_at: SocketAddr, view: &View<'_>) -> Option<Instant> {
    let connection = view.connection()?;
    let due = |(id, uplink): (&UplinkId, &Uplink)| {
        let status = path_on(connection, *id).map(|path| path.status);
        let servers = || path_servers(joined_at, view.choice.servers(*id));
        uplink.path.due(status).filter(|_| status.is_none() || servers().len() > 1)
    };
    view.uplinks.all.iter().filter_map(due).min()
}

fn path_on(connection: &Connection, uplink: UplinkId) -> Option<&PathSnapshot> {
    connection.paths().iter().find(|path| path.uplink == Some(uplink))
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
