//! Connections whose handshake is done and that are not sessions.
//!
//! ```text
//! connected ─► waits for hello ─► is welcomed, waits for its use ─► session
//!                  │ 5 s              │ 5 s, or the client uses another
//!                  ▼                  ▼
//!                closed             closed
//! ```
//!
//! A valid key may open connections without end: their number is bounded, and its oldest goes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use roadweave_quic::ConnectionId;

pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The most waiting connections of one key: a box races four modems, a few times each.
const PER_KEY_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    max: usize,
    entries: BTreeMap<ConnectionId, (Instant, PublicKey)>,
    by_key: BTreeMap<PublicKey, BTreeSet<ConnectionId>>,
    by_age: BTreeSet<(Instant, ConnectionId)>,
    /// Handshakes that the endpoint has ignored so far for want of room.
    crowded_out: u64,
}

impl Waiting {
    pub(super) fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    pub(super) fn add(
        &mut self,
        now: Instant,
        id: ConnectionId,
        key: PublicKey,
    ) -> Option<ConnectionId> {
        self.remove(id);
        let of_key = self.by_key.get(&key);
        let gone = match of_key.filter(|ids| ids.len() >= PER_KEY_MAX) {
            Some(ids) => ids.first().copied(),
            None if self.entries.len() >= self.max => {
                let crowded = self.by_key.values().max_by_key(|ids| ids.len());
                crowded.and_then(|ids| ids.first().copied())
            }
            None => None,
        };
        self.entries.insert(id, (now, key));
        self.by_key.entry(key).or_default().insert(id);
        self.by_age.insert((now, id));
        gone
    }

    pub(super) fn crowded_out_since(&mut self, ignored: u64) -> u64 {
        ignored - std::mem::replace(&mut self.crowded_out, ignored)
    }

    pub(super) fn contains(&self, id: ConnectionId) -> bool {
        self.entries.contains_key(&id)
    }

    pub(super) fn remove(&mut self, id: ConnectionId) {
        let Some((since, key)) = self.entries.remove(&id) else { return };
        self.by_age.remove(&(since, id));
        if let Some(ids) = self.by_key.get_mut(&key) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_key.remove(&key);
            }
        }
    }

    pub(super) fn silent(&self, now: Instant) -> Vec<ConnectionId> {
        let too_long = |(since, _): &&(Instant, ConnectionId)| now >= *since + HELLO_TIMEOUT;
        self.by_age.iter().take_while(too_long).map(|(_, id)| *id).collect()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.by_age.first().map(|(since, _)| *since + HELLO_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;

    use super::*;
    use crate::testing::at;

    const MAX: usize = 4096;

    fn key(number: u32) -> PublicKey {
        let mut seed = [0; 32];
        seed[..4].copy_from_slice(&number.to_be_bytes());
        Identity::from_seed(seed).public_key()
    }

    fn add(waiting: &mut Waiting, millis: u64, id: u64, key: PublicKey) -> Option<u64> {
        let gone = waiting.add(at(millis), ConnectionId(id), key);
        gone.iter().for_each(|id| waiting.remove(*id));
        gone.map(|id| id.0)
    }

    #[test]
    fn a_key_has_so_many_and_the_oldest_of_the_same_key_goes() {
        let mut waiting = Waiting::new(MAX);
        assert_eq!(add(&mut waiting, 0, 0, key(1)), None);
        for id in 1..=PER_KEY_MAX as u64 {
            assert_eq!(add(&mut waiting, id, id, key(2)), None);
        }
        assert_eq!(add(&mut waiting, 20, 90, key(2)), Some(1));
        assert_eq!(add(&mut waiting, 20, 91, key(2)), Some(2));
        assert!(waiting.contains(ConnectionId(0)), "another key's is untouched");
    }

    #[test]
    fn when_all_room_is_taken_the_most_crowded_key_gives_way() {
        let mut waiting = Waiting::new(MAX);
        let keys: Vec<PublicKey> = (0..MAX as u32).map(key).collect();
        for (id, key) in (0..).zip(&keys[1..]) {
            assert_eq!(add(&mut waiting, id, id, *key), None);
        }
        assert_eq!(add(&mut waiting, 9_000, 9_000, keys[1]), None);
        assert_eq!(add(&mut waiting, 9_001, 9_001, keys[0]), Some(0), "its key had two");
        assert_eq!(waiting.entries.len(), MAX);
    }

    #[test]
    fn a_welcome_restarts_the_wait() {
        let mut waiting = Waiting::new(MAX);
        (0..3).for_each(|id| _ = add(&mut waiting, id * 10, id, key(1)));
        add(&mut waiting, 3_000, 0, key(1));
        assert_eq!(waiting.poll_timeout(), Some(at(5_010)));
        assert_eq!(waiting.silent(at(5_500)), [ConnectionId(1), ConnectionId(2)]);
        (0..3).for_each(|id| waiting.remove(ConnectionId(id)));
        assert!(waiting.by_key.is_empty() && waiting.by_age.is_empty());
    }
}
