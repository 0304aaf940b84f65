//! The uplinks that a client has, and the addresses of servers that are tried over each.

use std::net::SocketAddr;

use roadweave_identity::PublicKey;
use roadweave_types::{Instant, UplinkId};

use super::race::RACE_STAGGER;
use super::{Candidate, Client, Uplink};
use crate::node::Node as _;

impl Client {
    /// An uplink is there and has an address. Call it again when its address has changed.
    pub fn add_uplink(&mut self, now: Instant, id: UplinkId, name: &str) {
        let stagger = RACE_STAGGER * self.uplinks.len() as u32;
        let uplink = Uplink {
            name: name.to_owned(),
            since: now,
            heard: false,
            next_attempt: now + stagger,
            next_path: now,
            path_failures: 0,
            path_deadline: now,
        };
        self.uplinks.insert(id, uplink);
        self.pairs.reset_backoff(now, Some(id));
        self.choice.forget_rests();
        self.choice.on_doubt(now);
        self.outages.forget(id);
        self.on_lanes_or_uplinks(now);
        self.handle_timeout(now);
    }

    /// The first candidate's addresses are others from now on, for all uplinks that
    /// [`Client::set_servers_of`] has told nothing of; a session that is up lives on.
    pub fn set_servers(&mut self, now: Instant, servers: Vec<SocketAddr>) {
        self.config.candidates[0].addresses = servers;
        self.forget_pairs();
        self.handle_timeout(now);
    }

    /// From now on `servers` are the addresses of the candidate with `key` for one uplink, and its
    /// own count for the others only: a name that was looked up over an uplink says nothing of the
    /// others. With no address, its own count for it again.
    ///
    /// The uplink need not be there yet; what is known of it is forgotten with it.
    pub fn set_servers_of(
        &mut self,
        now: Instant,
        key: &PublicKey,
        uplink: UplinkId,
        servers: Vec<SocketAddr>,
    ) {
        let of_key = |candidate: &Candidate| candidate.key == *key;
        let Some(candidate) = self.config.candidates.iter().position(of_key) else { return };
        if servers.is_empty() {
            self.servers_of.remove(&(candidate, uplink));
        } else {
            self.servers_of.insert((candidate, uplink), servers);
        }
        if let Some(uplink) = self.uplinks.get_mut(&uplink) {
            (uplink.path_failures, uplink.path_deadline) = (0, now);
        }
        self.forget_pairs();
        self.handle_timeout(now);
    }

    /// The addresses that are tried over `uplink`, of the server that the client is with.
    pub fn servers_of(&self, uplink: UplinkId) -> &[SocketAddr] {
        self.addresses_of(self.choice.current(), uplink)
    }

    /// Forgets what is known of pairs that are none any more.
    pub(super) fn forget_pairs(&mut self) {
        let Self { uplinks, servers_of, config, pairs, .. } = self;
        pairs.retain(|(uplink, server)| {
            let leads_to = |(at, candidate): (usize, &Candidate)| {
                servers_of.get(&(at, uplink)).unwrap_or(&candidate.addresses).contains(&server)
            };
            uplinks.contains_key(&uplink) && config.candidates.iter().enumerate().any(leads_to)
        });
    }

    /// An uplink is gone; its path is closed, unless it is the last.
    pub fn remove_uplink(&mut self, now: Instant, id: UplinkId) {
        self.servers_of.retain(|(_, uplink), _| *uplink != id);
        self.uplinks.remove(&id);
        self.drop_attempts(now, "its uplink is gone", |attempt| attempt.pair.0 == id);
        if let Some(replacement) = self.replacement.take_if(|replacement| replacement.pair.0 == id)
        {
            self.close_connection(now, replacement.id, "its uplink is gone");
        }
        self.choice.on_doubt(now);
        self.outages.forget(id);
        self.forget_pairs();
        self.on_lanes_or_uplinks(now);
        self.handle_timeout(now);
    }
}
