//! The uplinks of a client, and the addresses of servers tried over each.

use std::net::SocketAddr;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::{Instant, UplinkId};

use super::ports::Port;
use super::race::RACE_STAGGER;
use super::{Candidate, Client, Uplink};
use crate::node::Node as _;

const PUT_OFF_MAX: Duration = Duration::from_millis(800);

impl Client {
    /// Adds an uplink that has an address. Call it again when the address has changed.
    pub fn add_uplink(&mut self, now: Instant, id: UplinkId, name: &str) {
        let rank = self.ranks.get(name).copied().unwrap_or(0);
        let is_earlier = |id: &&UplinkId| !self.is_held_back(**id) && self.rank_of(**id) <= rank;
        let earlier = self.uplinks.keys().filter(is_earlier).count();
        let stagger = RACE_STAGGER * earlier as u32;
        self.put_off_race(now, rank);
        let before = self.uplinks.remove(&id);
        let uplink = Uplink {
            name: name.to_owned(),
            since: now,
            heard: false,
            port: before.as_ref().map_or(Port::new(now), |before| before.port),
            held_back: before.and_then(|before| before.held_back),
            next_attempt: now + stagger,
            next_path: now,
            path_failures: 0,
            path_deadline: now,
        };
        self.uplinks.insert(id, uplink);
        self.on_new_chance(now, Some(id));
        self.choice.forget_rests();
        self.choice.on_doubt(now);
        self.outages.blocked.remove(&id);
        self.on_lanes_or_uplinks(now);
        self.handle_timeout(now);
    }

    pub(super) fn on_new_chance(&mut self, now: Instant, uplink: Option<UplinkId>) {
        self.pairs.reset_backoff(now, uplink);
        self.patience.on_sign_of_life();
    }

    /// Delays uplinks of a higher rank that have not begun, by [`PUT_OFF_MAX`] in total at most.
    fn put_off_race(&mut self, now: Instant, rank: u8) {
        let later: Vec<UplinkId> =
            self.uplinks.keys().copied().filter(|id| self.rank_of(*id) > rank).collect();
        for id in later {
            let Some(uplink) = self.uplinks.get_mut(&id) else { continue };
            if (now..uplink.since + PUT_OFF_MAX).contains(&uplink.next_attempt) {
                uplink.next_attempt += RACE_STAGGER;
            }
        }
    }

    /// Sets the addresses of the candidate with `key` for one uplink only: a name that was looked
    /// up over one uplink says nothing about others. Without any, the candidate's own count again.
    ///
    /// The uplink need not exist yet; its addresses are forgotten with it.
    pub fn set_servers_of(
        &mut self,
        now: Instant,
        key: &PublicKey,
        uplink: UplinkId,
        servers: Vec<SocketAddr>,
    ) {
        let of_key = |candidate: &Candidate| candidate.key == *key;
        let Some(candidate) = self.config.candidates.iter().position(of_key) else { return };
        let place = (candidate, uplink);
        let before = match servers.is_empty() {
            true => self.servers_of.remove(&place),
            false => self.servers_of.insert(place, servers),
        };
        if before.as_ref() != self.servers_of.get(&place) {
            self.patience.on_sign_of_life();
        }
        if let Some(uplink) = self.uplinks.get_mut(&uplink) {
            (uplink.path_failures, uplink.path_deadline) = (0, now);
        }
        self.forget_pairs();
        self.handle_timeout(now);
    }

    /// The addresses of the current server that are tried over `uplink`.
    pub fn servers_of(&self, uplink: UplinkId) -> &[SocketAddr] {
        self.addresses_of(self.choice.current, uplink)
    }

    pub(super) fn forget_pairs(&mut self) {
        let Self { uplinks, servers_of, config, pairs, .. } = self;
        pairs.retain(|(uplink, server)| {
            let leads_to = |(at, candidate): (usize, &Candidate)| {
                servers_of.get(&(at, uplink)).unwrap_or(&candidate.addresses).contains(&server)
            };
            uplinks.contains_key(&uplink) && config.candidates.iter().enumerate().any(leads_to)
        });
    }

    /// Removes an uplink; its path is closed, unless it is the last.
    pub fn remove_uplink(&mut self, now: Instant, id: UplinkId) {
        self.servers_of.retain(|(_, uplink), _| *uplink != id);
        self.uplinks.remove(&id);
        self.drop_attempts(now, "its uplink is gone", |attempt| attempt.pair.0 == id);
        if let Some(replacement) = self.replacement.take_if(|replacement| replacement.pair.0 == id)
        {
            self.close_connection(now, replacement.id, "its uplink is gone");
        }
        self.choice.on_doubt(now);
        self.outages.blocked.remove(&id);
        self.forget_pairs();
        self.on_lanes_or_uplinks(now);
        self.handle_timeout(now);
    }
}
