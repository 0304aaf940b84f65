//! Changes the candidates while the client runs.
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

use roadweave_proto::Instant;
use roadweave_proto::wire::Reason;

use super::race::{After, PREFERRED_SERVER_DELAY};
use super::{Candidate, Client, admit};
use crate::node::Node as _;

impl Client {
    /// The candidates.
    pub fn servers(&self) -> &[Candidate] {
        &self.config.candidates
    }

    /// Chooses among `wanted` from now on, as far as they are [admitted](admit); the server in use
    /// is, if it is among them. An empty list is ignored.
    ///
    /// Addresses of [`Client::set_servers_of`] are kept for those that stay.
    pub fn set_candidates(&mut self, now: Instant, mut wanted: Vec<Candidate>) {
        let own = self.server().key;
        wanted.sort_by_key(|candidate| candidate.key != own);
        let wanted = admit(wanted);
        if wanted.is_empty() || wanted == self.config.candidates {
            return;
        }
        let keys: Vec<_> = self.config.candidates.iter().map(|it| it.key).collect();
        let place = |before: usize| wanted.iter().position(|it| Some(&it.key) == keys.get(before));
        if self.standby.target.is_some_and(|target| place(target).is_none()) {
            self.retarget(now, None, NAMED_NO_MORE);
        }
        if self.standby.tried().is_some_and(|tried| place(tried).is_none()) {
            self.drop_challenger(now, NAMED_NO_MORE);
        }
        if place(self.choice.current).is_none() {
            self.leave_home(now);
        }
        let servers_of = std::mem::take(&mut self.uplinks.servers_of).into_iter();
        let stays = |((at, uplink), servers)| Some(((place(at)?, uplink), servers));
        self.uplinks.servers_of = servers_of.filter_map(stays).collect::<BTreeMap<_, _>>();
        self.standby.on_candidates(place);
        let before: Vec<Option<usize>> =
            wanted.iter().map(|it| keys.iter().position(|key| *key == it.key)).collect();
        self.choice.set_candidates(now, &wanted, &before);
        // Earlier answers from these addresses were another server's.
        let new = wanted.iter().zip(&before).filter(|(_, before)| before.is_none());
        let new: Vec<SocketAddr> = new.flat_map(|(it, _)| it.addresses.clone()).collect();
        self.race.pairs.retain(|(_, server)| !new.contains(&server));
        self.config.candidates = wanted;
        self.race.attempt_backoff.on_sign_of_life();
        if self.has_choice() {
            self.current.iter_mut().for_each(|current| current.session.keep_unfinished());
            if self.outages.cannot_pass() {
                self.on_move(now, Reason::Other);
            }
        }
        self.forget_pairs();
        self.handle_timeout(now);
    }

    fn leave_home(&mut self, now: Instant) {
        self.standby.goal = None;
        if self.standby.ready.is_some() {
            return self.switch(now, NAMED_NO_MORE);
        }
        if let Some(replacement) = self.race.replacement.take() {
            self.close_connection(now, replacement.id, NAMED_NO_MORE);
        }
        self.drop_attempts(now, NAMED_NO_MORE, |_| true);
        self.leave(now, NAMED_NO_MORE, After::Restart);
        self.choice.home_first_until = now + PREFERRED_SERVER_DELAY;
    }
}

const NAMED_NO_MORE: &str = "the server is named no more";
