//! State that strategies have learned of the networks, kept across sessions.

use std::collections::BTreeMap;

use roadweave_identity::PublicKey;

use crate::session::Session;

/// JSON by lane name, by the peer's public key.
pub type Learned = BTreeMap<String, BTreeMap<String, String>>;

pub(crate) fn keep_learned(learned: &mut Learned, peer: &PublicKey, session: &Session) {
    let newest = session.learned();
    if !newest.is_empty() {
        learned.entry(peer.to_string()).or_default().extend(newest);
    }
}
