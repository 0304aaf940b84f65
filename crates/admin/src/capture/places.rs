//! Which path a UDP packet took: the instance knows paths by their addresses, and tells of both.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use roadweave_device::local;
use roadweave_device::status::{RoleStatus, Status};
use roadweave_tunnel::SessionStatus;

/// A path of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) peer: String,
    pub(super) path: u32,
    pub(super) uplink: Option<String>,
}

/// The paths of an instance, by what is known of a packet.
#[derive(Debug)]
pub(super) struct Places {
    socket: PathBuf,
    /// By the other end's address, and at a client the uplink as well: all go to one server.
    places: BTreeMap<(Option<String>, SocketAddr), Place>,
    /// When the instance may be asked again.
    next: Instant,
}

impl Places {
    pub(super) fn new(socket: &Path, status: &Status) -> Self {
        let places = places(status);
        Self { socket: socket.to_owned(), places, next: Instant::now() + INTERVAL }
    }

    /// The path of a packet, if it belongs to one.
    pub(super) fn find(&mut self, uplink: Option<&str>, remote: SocketAddr) -> Option<&Place> {
        let now = Instant::now();
        if now >= self.next {
            // Of one that is busy or gone the last word stands.
            if let Ok(status) = local::status(&self.socket) {
                self.places = places(&status);
            }
            // One with thousands of clients is not asked all the time.
            self.next = Instant::now() + INTERVAL.max(now.elapsed() * 20);
        }
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        self.places.get(&(uplink.map(str::to_owned), remote))
    }
}

fn places(status: &Status) -> BTreeMap<(Option<String>, SocketAddr), Place> {
    let (sessions, has_uplinks) = match &status.role {
        RoleStatus::Client(client) => (&client.sessions[..], true),
        RoleStatus::Server(server) => (&server.sessions[..], false),
        _ => (&[][..], false),
    };
    let of_session = |session: &SessionStatus| {
        let peer = session.peer.clone();
        let path = move |path: &roadweave_tunnel::PathStatusReport| {
            let remote: SocketAddr = path.remote.as_ref()?.parse().ok()?;
            let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
            let uplink = path.uplink.clone();
            let key = (uplink.clone().filter(|_| has_uplinks), remote);
            Some((key, Place { peer: peer.clone(), path: path.id, uplink }))
        };
        session.paths.iter().filter_map(path).collect::<Vec<_>>()
    };
    sessions.iter().flat_map(of_session).collect()
}

/// How often the instance is asked at most.
const INTERVAL: Duration = Duration::from_secs(1);
