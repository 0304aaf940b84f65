//! What can be seen of a world from outside.

use roadweave_emulate::{Direction, LinkStats};
use roadweave_proto::{Instant, PathStatus};
use roadweave_tunnel::{ClientEvent, Notice, ServerEvent, SessionStatus, UplinkReport};

use super::{CrossStats, World};

impl World {
    /// Whether the client's session is up.
    pub fn is_joined(&self) -> bool {
        matches!(self.client_events.last(), Some((_, ClientEvent::Joined { .. })))
    }

    /// Whether the client has a usable path over every link.
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

    /// What the client tells of its session, once it is up.
    pub fn client_status(&self) -> Option<SessionStatus> {
        self.client.end.status()
    }

    /// What the client tells of the ways to its server.
    pub fn uplinks(&self) -> Vec<UplinkReport> {
        self.client.end.uplinks(self.now)
    }

    /// What the server tells of its sessions.
    pub fn server_status(&self) -> Vec<SessionStatus> {
        self.server.end.status()
    }

    /// What the client had to tell of its sessions, and when.
    pub fn client_events(&self) -> &[(Instant, ClientEvent)] {
        &self.client_events
    }

    /// What else a person should know from the client, and when.
    pub fn notices(&self) -> &[(Instant, Notice)] {
        &self.notices
    }

    /// What the server had to tell, and when.
    pub fn server_events(&self) -> &[(Instant, ServerEvent)] {
        &self.server_events
    }

    /// How many links there are.
    pub fn links(&self) -> usize {
        self.wires.len()
    }

    /// What has passed through one direction of a link, cross traffic included.
    pub fn link_stats(&self, link: usize, direction: Direction) -> &LinkStats {
        self.wires[link].link(direction).stats()
    }

    /// The part of [`World::link_stats`] that is cross traffic.
    pub fn cross_stats(&self, link: usize, direction: Direction) -> &CrossStats {
        self.wires[link].cross_stats(direction)
    }

    /// Bytes that wait for capacity in one direction of a link.
    pub fn link_queue_bytes(&mut self, link: usize, direction: Direction) -> usize {
        self.wires[link].link_mut(direction).queue_bytes(self.now)
    }

    /// Bytes of UDP payload that came out of one direction of a link to no use: corrupted (see
    /// [`World::tamper`]), kept back or led elsewhere (see [`World::set_hostility`]), or overtaken
    /// by more packets than QUIC remembers.
    pub fn useless_bytes(&self, link: usize, direction: Direction) -> u64 {
        self.wires[link].useless_bytes(direction)
    }

    /// Packets for which there was no link any more.
    pub fn undeliverable(&self) -> u64 {
        self.undeliverable
    }
}
