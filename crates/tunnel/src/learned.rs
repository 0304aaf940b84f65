//! What strategies learn of the networks outlives their sessions.

use std::collections::BTreeMap;

use roadweave_identity::PublicKey;

use crate::session::Session;

/// What the lanes' strategies have learned, as JSON by the lane's name, by the peer's public key.
pub type Learned = BTreeMap<String, BTreeMap<String, String>>;

/// Keeps what a session with `peer` has learned, if its strategies learn anything.
pub(crate) fn keep_learned(learned: &mut Learned, peer: &PublicKey, session: &Session) {
    let newest = session.learned();
    if !newest.is_empty() {
        learned.entry(peer.to_string()).or_default().extend(newest);
    }
}
