//! Read access to a world.

use roadweave_emulate::{Direction, LinkStats};
use roadweave_proto::{Instant, PathStatus};
use roadweave_tunnel::{ClientEvent, Notice, ServerEvent, SessionStatus, UplinkReport};

use super::{CrossStats, World};

impl World {
    /// Whether the client's session is up.
    pub fn is_joined(&self) -> bool {
        matches!(self.client_events.last(), Some((_, ClientEvent::Joined { .. })))
    }

    /// Whether all links have a usable path at the client.
    pub fn all_paths_usable(&self) -> bool {
        self.client.end.status().is_some_and(|status| {
            let usable = |name: &String| {
                status.paths.iter().any(|path| {
                    path.uplink.as_ref() == Some(name) && path.status == PathStatus::Usable
                })
            };
            self.wires.iter().all(|wire| usable(&wire.name))
        })
    }

    /// Status of the client's session, once it is up.
    pub fn client_status(&self) -> Option<SessionStatus> {
        self.client.end.status()
    }

    /// The client's reports of its uplinks.
    pub fn uplinks(&self) -> Vec<UplinkReport> {
        self.client.end.uplinks(self.now)
    }

    /// Status of the server's sessions.
    pub fn server_status(&self) -> Vec<SessionStatus> {
        self.server.end.status()
    }

    /// Session events of the client with their times.
    pub fn client_events(&self) -> &[(Instant, ClientEvent)] {
        &self.client_events
    }

    /// Notices of the client with their times.
    pub fn notices(&self) -> &[(Instant, Notice)] {
        &self.notices
    }

    /// Events of the server with their times.
    pub fn server_events(&self) -> &[(Instant, ServerEvent)] {
        &self.server_events
    }

    /// Number of links.
    pub fn links(&self) -> usize {
        self.wires.len()
    }

    /// Statistics of one direction of a link, with cross traffic.
    pub fn link_stats(&self, link: usize, direction: Direction) -> &LinkStats {
        self.wires[link].link(direction).stats()
    }

    /// Cross traffic in [`World::link_stats`].
    pub fn cross_stats(&self, link: usize, direction: Direction) -> &CrossStats {
        self.wires[link].cross_stats(direction)
    }

    /// Queued bytes in one direction of a link.
    pub fn link_queue_bytes(&mut self, link: usize, direction: Direction) -> usize {
        self.wires[link].link_mut(direction).queue_bytes(self.now)
    }

    /// UDP payload that left one direction of a link in vain: corrupted (see [`World::tamper`]),
    /// blocked or misdirected (see [`World::set_hostility`]), or too late for QUIC's replay window.
    pub fn useless_bytes(&self, link: usize, direction: Direction) -> u64 {
        self.wires[link].useless_bytes(direction)
    }

    /// Packets without a link.
    pub fn undeliverable(&self) -> u64 {
        self.undeliverable
    }
}
