//! Connections that stand by: their clients have sessions with other servers.
//!
//! ```text
//! hello, standby ─► welcomed, idle ─┬─ hello, join, or data ─► session
//!                                   └─ gone, or another of the same key ─► closed
//! ```
//!
//! A key has one standby, so none takes others' places. When all are taken, more are refused.

use std::collections::BTreeMap;

use roadweave_identity::PublicKey;
use roadweave_quic::ConnectionId;

#[derive(Debug)]
pub(super) struct Standbys {
    max: usize,
    by_key: BTreeMap<PublicKey, ConnectionId>,
    keys: BTreeMap<ConnectionId, PublicKey>,
}

impl Standbys {
    pub(super) fn new(max: usize) -> Self {
        Self { max, by_key: BTreeMap::new(), keys: BTreeMap::new() }
    }

    /// Returns the former standby of the same key, if any.
    pub(super) fn add(
        &mut self,
        id: ConnectionId,
        key: PublicKey,
    ) -> Result<Option<ConnectionId>, Full> {
        if self.by_key.len() >= self.max && !self.by_key.contains_key(&key) {
            return Err(Full);
        }
        let before = self.by_key.insert(key, id);
        before.iter().for_each(|before| _ = self.keys.remove(before));
        self.keys.insert(id, key);
        Ok(before)
    }

    pub(super) fn contains(&self, id: ConnectionId) -> bool {
        self.keys.contains_key(&id)
    }

    pub(super) fn remove(&mut self, id: ConnectionId) {
        if let Some(key) = self.keys.remove(&id) {
            self.by_key.remove(&key);
        }
    }

    pub(super) fn of(&self, key: &PublicKey) -> Option<ConnectionId> {
        self.by_key.get(key).copied()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = PublicKey> {
        self.by_key.keys().copied()
    }

    pub(super) fn count(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn ids(&self) -> Vec<ConnectionId> {
        self.keys.keys().copied().collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;

    use super::*;

    #[test]
    fn a_key_has_one_and_a_full_house_takes_no_other() {
        let key = |number| Identity::from_seed([number; 32]).public_key();
        let mut standbys = Standbys::new(2);
        assert_eq!(standbys.add(ConnectionId(1), key(1)), Ok(None));
        assert_eq!(standbys.add(ConnectionId(2), key(2)), Ok(None));
        assert_eq!(standbys.add(ConnectionId(3), key(3)), Err(Full));
        assert_eq!(standbys.add(ConnectionId(4), key(1)), Ok(Some(ConnectionId(1))));
        assert!(!standbys.contains(ConnectionId(1)) && standbys.contains(ConnectionId(4)));
        standbys.remove(ConnectionId(1));
        assert_eq!(standbys.of(&key(1)), Some(ConnectionId(4)), "the older one is gone already");
        standbys.remove(ConnectionId(4));
        assert_eq!(standbys.add(ConnectionId(5), key(3)), Ok(None));
        assert_eq!(standbys.ids(), [ConnectionId(2), ConnectionId(5)]);
        assert_eq!(standbys.keys.len(), standbys.by_key.len());
    }
}
