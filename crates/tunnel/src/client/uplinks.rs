//! The uplinks that a client has, and the addresses of servers that are tried over each.

use std::net::SocketAddr;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::{Instant, UplinkId};

use super::ports::Port;
use super::race::RACE_STAGGER;
use super::{Candidate, Client, Uplink};
use crate::node::Node as _;

/// For how long after it has come an uplink waits for others that come, at most.
const PUT_OFF_MAX: Duration = Duration::from_millis(800);

impl Client {
    /// An uplink is there and has an address. Call it again when its address has changed.
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
        self.outages.forget(id);
        self.on_lanes_or_uplinks(now);
        self.handle_timeout(now);
    }

    /// Things may be different from now on over `uplink`, or over all: attempts begin soon again.
    pub(super) fn on_new_chance(&mut self, now: Instant, uplink: Option<UplinkId>) {
        self.pairs.reset_backoff(now, uplink);
        self.patience.on_sign_of_life();
    }

    /// Another uplink of this rank is there: those of a higher one that have not begun yet begin
    /// later, and not ever later where one comes and goes.
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

    /// The first candidate's addresses are others from now on, for all uplinks that
    /// [`Client::set_servers_of`] has told nothing of; a session that is up lives on.
    pub fn set_servers(&mut self, now: Instant, servers: Vec<SocketAddr>) {
        if self.config.candidates[0].addresses != servers {
            self.patience.on_sign_of_life();
        }
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
