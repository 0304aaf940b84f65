//! The clients that a server lets in, and what happens to sessions when they change.

use std::sync::Arc;

use roadweave_identity::{PeerPolicy as _, PublicKey, Refusal};
use roadweave_proto::Instant;

use super::Server;
use crate::peers::{Peer, Peers, PeersChange};
use crate::rate::Limit;

/// Changed clients handled in one turn: packets must not wait for thousands.
const CHANGED_AT_ONCE: usize = 32;

impl Server {
    /// Replaces the clients that may connect, and returns the former table, which may be dropped
    /// elsewhere.
    ///
    /// Sessions of clients that are gone or have other addresses end with the next calls of
    /// [`Node::handle_timeout`](crate::Node::handle_timeout), some at a time; other changes apply
    /// to them.
    pub fn replace_peers(&mut self, change: PeersChange) -> Arc<Peers> {
        let PeersChange { peers, changed } = change;
        self.shared.forget(changed.iter().filter(|key| peers.get(key).is_none()));
        self.changed.extend(changed);
        self.peers.replace(peers)
    }

    /// Refuses these keys from now on. Their sessions end with the next calls of
    /// [`Node::handle_timeout`](crate::Node::handle_timeout), until [`Server::is_settled`].
    pub fn revoke(&mut self, keys: impl IntoIterator<Item = PublicKey>) {
        let keys: Vec<PublicKey> = keys.into_iter().collect();
        self.shared.forget(keys.iter());
        self.peers.revoke(keys.iter().copied());
        self.changed.extend(keys.into_iter().filter(|key| self.sessions.by_key.contains_key(key)));
    }

    /// Whether all changes of clients were applied to their sessions.
    pub fn is_settled(&self) -> bool {
        self.changed.is_empty()
    }

    pub(super) fn settle_changed(&mut self, now: Instant) {
        for _ in 0..CHANGED_AT_ONCE {
            let Some(key) = self.changed.pop_first() else { return };
            // Its welcome may be outdated; the client comes again if it may.
            if let Some(standby) = self.standbys.of(&key) {
                self.end(now, standby, "the server's configuration of this client has changed");
            }
            let peer = self.let_in(&key);
            let Some(id) = self.sessions.by_key.get(&key).copied() else {
                if peer.is_err() {
                    self.end_streams_of(&key);
                }
                continue;
            };
            let Some(joined) = self.sessions.all.get_mut(&id) else { continue };
            match peer {
                Ok(peer) if peer.is_where(&joined.peer) => {
                    if peer.rate_limit != joined.peer.rate_limit {
                        joined.limits = peer.rate_limit.map(|rate| [Limit::new(rate); 2]);
                    }
                    joined.peer = peer;
                }
                Err(why @ (Refusal::Expired | Refusal::Revoked)) => {
                    self.end(now, id, &why.to_string())
                }
                // While no new client is let in, present ones stay.
                Err(Refusal::Forbidden) => {}
                _ => {
                    let reason = "the server's configuration of this client has changed";
                    self.end(now, id, reason);
                }
            }
        }
    }

    /// Ends the sessions of clients whose keys have expired, with the next calls of
    /// [`Node::handle_timeout`](crate::Node::handle_timeout), some at a time. Call it after setting
    /// the time of day of the table of peers.
    pub fn on_time_of_day(&mut self) {
        let keys = self.sessions.all.values().map(|joined| joined.key).chain(self.standbys.keys());
        let expired = keys.filter(|key| self.peers.check(key) == Err(Refusal::Expired));
        self.changed.extend(expired);
    }

    pub(super) fn let_in(&self, key: &PublicKey) -> Result<Arc<Peer>, Refusal> {
        self.peers.check(key)?;
        self.peers.get(key).ok_or(Refusal::Unknown)
    }
}
