//! The candidates: the servers that a client may use, and their addresses over each uplink.
//!
//! ```text
//! named again ─► it keeps its place and its state; a session with it lives on
//! not named ─► the session with it goes to the standby, or ends and starts again elsewhere
//! new ─► it is measured soon
//! ```
//!
//! A server with another key is another server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::UplinkId;

/// A server that a client may join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its public key.
    pub key: PublicKey,
    /// Its name, for people.
    pub name: String,
    /// Its site: what fails together.
    pub site: String,
    /// Its addresses, tried in turn; empty until [`Client::set_servers_of`] if not known yet.
    ///
    /// [`Client::set_servers_of`]: super::Client::set_servers_of
    pub addresses: Vec<SocketAddr>,
    /// The round trip from it to where inner packets leave.
    pub to_anchor: Duration,
    /// Whether it is used only if no other is available: it has no room.
    pub last_resort: bool,
}

impl Candidate {
    /// The only server.
    pub fn only(key: PublicKey, addresses: Vec<SocketAddr>) -> Self {
        let (name, site, to_anchor) = (String::new(), String::new(), Duration::ZERO);
        Self { key, name, site, addresses, to_anchor, last_resort: false }
    }
}

/// The most candidates of a client.
pub const CANDIDATES_MAX: usize = 5;

/// The first [`CANDIDATES_MAX`] of `wanted`, each key once, from at least two sites if possible.
pub fn admit(wanted: Vec<Candidate>) -> Vec<Candidate> {
    let mut admitted: Vec<Candidate> = Vec::new();
    for candidate in wanted {
        let is_known = admitted.iter().any(|known| known.key == candidate.key);
        let is_of_other_site = admitted.iter().all(|known| known.site != candidate.site);
        if is_known {
            continue;
        } else if admitted.len() < CANDIDATES_MAX {
            admitted.push(candidate);
        } else if is_of_other_site && admitted.iter().all(|it| it.site == admitted[0].site) {
            admitted.truncate(CANDIDATES_MAX - 1);
            admitted.push(candidate);
        }
    }
    admitted
}

#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) all: Vec<Candidate>,
    of_uplink: BTreeMap<(usize, UplinkId), Vec<SocketAddr>>,
}

impl Candidates {
    pub(super) fn new(all: Vec<Candidate>) -> Self {
        Self { all, ..Self::default() }
    }

    pub(super) fn position(&self, key: &PublicKey) -> Option<usize> {
        self.all.iter().position(|candidate| candidate.key == *key)
    }

    /// The index that each of `wanted` has until they replace these candidates.
    pub(super) fn before(&self, wanted: &[Candidate]) -> Vec<Option<usize>> {
        wanted.iter().map(|candidate| self.position(&candidate.key)).collect()
    }

    pub(super) fn addresses(&self, candidate: usize, uplink: UplinkId) -> &[SocketAddr] {
        let all = || self.all.get(candidate).map_or(&[][..], |it| it.addresses.as_slice());
        self.of_uplink.get(&(candidate, uplink)).map_or_else(all, Vec::as_slice)
    }

    /// Without any in `all` the candidate's own count again. Returns whether something changed.
    pub(super) fn set_addresses(&mut self, of: (usize, UplinkId), all: Vec<SocketAddr>) -> bool {
        let before = match all.is_empty() {
            true => self.of_uplink.remove(&of),
            false => self.of_uplink.insert(of, all),
        };
        before.as_ref() != self.of_uplink.get(&of)
    }

    pub(super) fn forget_uplink(&mut self, gone: UplinkId) {
        self.of_uplink.retain(|(_, uplink), _| *uplink != gone);
    }

    pub(super) fn probed(&self, uplink: UplinkId, server: SocketAddr) -> Option<usize> {
        (0..self.all.len()).find(|it| self.addresses(*it, uplink).first() == Some(&server))
    }

    pub(super) fn lead_to(&self, uplink: UplinkId, server: SocketAddr) -> bool {
        (0..self.all.len()).any(|it| self.addresses(it, uplink).contains(&server))
    }

    /// `before`: the former index of each. Those that stay keep their addresses over an uplink.
    pub(super) fn replace(&mut self, all: Vec<Candidate>, before: &[Option<usize>]) {
        let place = |at: usize| before.iter().position(|it| *it == Some(at));
        let of_uplink = std::mem::take(&mut self.of_uplink).into_iter();
        let stays = |((at, uplink), servers)| Some(((place(at)?, uplink), servers));
        *self = Self { all, of_uplink: of_uplink.filter_map(stays).collect() };
    }
}
