//! Symbols by ID, bounded in bytes and in age.
//!
//! ```text
//! key        ... 61 62 63 64 65 66 67 ...      counts upwards, mostly
//! ring slot      61 62 63  0  1  2  3          key modulo the length of the ring
//! stragglers     3                             displaced by 67: a map, nearly always empty
//! ```
//!
//! The sender stores what it may have to code, the receiver what later equations may cover.
//! Neighbours are adjacent, so that a look-up costs an index and a comparison. The ring grows while
//! it is at least half full; keys too far apart for it share slots, and the map has the older one.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::Instant;

/// Symbols by a key that mostly counts upwards; the oldest are discarded first.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    bytes_max: usize,
    bytes: usize,
    len: usize,
    /// Empty, or a power of two.
    ring: Vec<Slot>,
    stragglers: HashMap<u64, Held, BuildHasherDefault<KeyHasher>>,
    /// In the order of insertion. Stale entries are swept when they outnumber the others.
    order: VecDeque<Insertion>,
    insertions: u64,
}

#[derive(Clone, Copy, Debug)]
struct Insertion {
    key: u64,
    at: Instant,
    /// The number of earlier insertions. Times do not identify insertions: many are equal.
    number: u64,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    key: u64,
    held: Option<Held>,
}

#[derive(Clone, Debug)]
struct Held {
    symbol: Bytes,
    /// Of its [`Insertion`].
    number: u64,
}

impl Pool {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Stores `symbol`; returns the number of others discarded for it.
    pub(crate) fn insert(&mut self, now: Instant, key: u64, symbol: Bytes) -> u64 {
        self.remove(key);
        self.bytes += cost(&symbol);
        self.len += 1;
        let number = self.insertions;
        self.insertions += 1;
        self.order.push_back(Insertion { key, at: now, number });
        self.place(key, Held { symbol, number });
        let mut evicted = 0;
        while self.bytes > self.bytes_max {
            evicted += u64::from(self.pop_front());
        }
        evicted
    }

    pub(crate) fn get(&self, key: u64) -> Option<&Bytes> {
        self.held(key).map(|held| &held.symbol)
    }

    pub(crate) fn remove(&mut self, key: u64) -> bool {
        let Some(held) = self.take(key) else { return false };
        self.bytes -= cost(&held.symbol);
        self.len -= 1;
        if self.len == 0 && self.ring.len() > RING_IDLE_MAX {
            self.ring = Vec::new();
        }
        if self.order.len() > STALE_ENTRIES_MIN + 2 * self.len {
            let mut order = std::mem::take(&mut self.order);
            order.retain(|entry| self.is_live(*entry));
            self.order = order;
        }
        true
    }

    pub(crate) fn expire(&mut self, now: Instant, age_max: Duration) -> u64 {
        self.expire_before(now - age_max)
    }

    pub(crate) fn expire_before(&mut self, oldest: Instant) -> u64 {
        let mut expired = 0;
        while self.order.front().is_some_and(|entry| entry.at < oldest) {
            expired += u64::from(self.pop_front());
        }
        expired
    }

    /// Discards the oldest symbols until `bytes` bytes are freed or none is left; returns how many.
    pub(crate) fn shed(&mut self, bytes: usize) -> u64 {
        let target = self.bytes.saturating_sub(bytes);
        let mut shed = 0;
        while self.bytes > target {
            shed += u64::from(self.pop_front());
        }
        shed
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes stored, with an allowance for the bookkeeping of each symbol.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Discards the oldest entry; returns whether a symbol was discarded with it.
    fn pop_front(&mut self) -> bool {
        let Some(entry) = self.order.pop_front() else { return false };
        self.is_live(entry) && self.remove(entry.key)
    }

    fn is_live(&self, entry: Insertion) -> bool {
        self.held(entry.key).is_some_and(|held| held.number == entry.number)
    }

    fn held(&self, key: u64) -> Option<&Held> {
        let slot = self.ring.get(self.slot_of(key))?;
        if slot.key == key && slot.held.is_some() {
            return slot.held.as_ref();
        }
        if self.stragglers.is_empty() { None } else { self.stragglers.get(&key) }
    }

    fn take(&mut self, key: u64) -> Option<Held> {
        let slot = self.slot_of(key);
        let slot = self.ring.get_mut(slot)?;
        if slot.key == key && slot.held.is_some() {
            return slot.held.take();
        }
        if self.stragglers.is_empty() { None } else { self.stragglers.remove(&key) }
    }

    fn place(&mut self, key: u64, held: Held) {
        let slot = self.slot_of(key);
        let is_taken = self.ring.get(slot).is_none_or(|slot| slot.held.is_some());
        if is_taken && 2 * self.len > self.ring.len() {
            self.grow();
        }
        self.place_in_ring(key, held);
    }

    fn place_in_ring(&mut self, key: u64, held: Held) {
        let slot = self.slot_of(key);
        let slot = &mut self.ring[slot];
        if let Some(displaced) = slot.held.replace(held) {
            self.stragglers.insert(slot.key, displaced);
        }
        slot.key = key;
    }

    fn grow(&mut self) {
        let slots = (2 * self.ring.len()).max(RING_MIN);
        let ring = std::mem::replace(&mut self.ring, vec![Slot::default(); slots]);
        let held = ring.into_iter().filter_map(|slot| Some((slot.key, slot.held?)));
        for (key, held) in held.chain(std::mem::take(&mut self.stragglers)) {
            self.place_in_ring(key, held);
        }
    }

    fn slot_of(&self, key: u64) -> usize {
        // For an empty ring this is beyond its end, as intended.
        key as usize & self.ring.len().wrapping_sub(1)
    }
}

fn cost(symbol: &Bytes) -> usize {
    symbol.len() + OVERHEAD_BYTES
}

/// The cost of a symbol beside its bytes: two slots of the ring, 48 bytes each, and an entry.
const OVERHEAD_BYTES: usize = 128;

const RING_MIN: usize = 64;

/// The longest ring kept while no symbol is stored.
const RING_IDLE_MAX: usize = 1024;

const STALE_ENTRIES_MIN: usize = 64;

/// A hash without a random key, so no entropy is read. Keys lie in a window of IDs: few collide.
#[derive(Debug, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::test_support::at;

    const AGE_MAX: Duration = Duration::from_millis(700);

    fn bytes(length: usize) -> Bytes {
        Bytes::from(vec![7; length])
    }

    #[test]
    fn the_oldest_leave_when_bytes_run_out() {
        let mut pool = Pool::new(3 * (100 + OVERHEAD_BYTES));
        for key in 0..3 {
            assert_eq!(pool.insert(at(key), key, bytes(100)), 0);
        }
        assert_eq!(pool.insert(at(3), 3, bytes(101)), 2);
        assert!(pool.get(0).is_none() && pool.get(1).is_none() && pool.get(2).is_some());
        assert_eq!(pool.insert(at(4), 4, bytes(10_000)), 3);
        assert_eq!((pool.len(), pool.bytes()), (0, 0));
    }

    #[test]
    fn the_oldest_are_shed_and_no_more_than_need_be() {
        let mut pool = Pool::new(1 << 20);
        (0..10).for_each(|key| _ = pool.insert(at(key), key, bytes(100)));
        assert_eq!(pool.shed(101), 1);
        assert_eq!(pool.shed(2 * (100 + OVERHEAD_BYTES)), 2);
        assert!(pool.get(2).is_none() && pool.get(3).is_some());
        assert_eq!((pool.shed(usize::MAX), pool.shed(1), pool.bytes()), (7, 0, 0));
    }

    #[test]
    fn a_reinserted_symbol_has_the_age_of_its_last_insertion() {
        let mut pool = Pool::new(1 << 20);
        pool.insert(at(0), 1, bytes(10));
        pool.insert(at(0), 2, bytes(10));
        pool.insert(at(500), 1, bytes(20));
        assert_eq!(pool.expire(at(700), AGE_MAX), 0);
        assert_eq!(pool.expire(at(701), AGE_MAX), 1);
        assert_eq!(pool.get(1).map(Bytes::len), Some(20));
        assert_eq!(pool.expire(at(1201), AGE_MAX), 1);
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn symbols_removed_leave_no_trail() {
        let mut pool = Pool::new(1 << 20);
        pool.insert(at(0), 0, bytes(10));
        for key in 1..100_000 {
            pool.insert(at(0), key, bytes(10));
            assert!(pool.remove(key));
            assert!(!pool.remove(key));
            assert!(pool.order.len() <= STALE_ENTRIES_MIN + 3, "{}", pool.order.len());
        }
        assert!(pool.get(0).is_some());
    }

    #[test]
    fn symbols_reinserted_at_the_same_time_leave_no_stale_entries() {
        let mut pool = Pool::new(1 << 20);
        for step in 0..100_000 {
            pool.insert(at(0), step % 3, bytes(10));
            assert!(pool.order.len() <= STALE_ENTRIES_MIN + 2 * 3, "{}", pool.order.len());
        }
        assert_eq!(pool.len(), 3);
    }

    #[test]
    fn stragglers_come_home_when_the_ring_grows() {
        let mut pool = Pool::new(1 << 20);
        pool.insert(at(0), 0, bytes(1));
        pool.insert(at(0), RING_MIN as u64, bytes(2));
        assert_eq!(pool.stragglers.len(), 1);
        (1..RING_MIN as u64).for_each(|key| _ = pool.insert(at(0), key, bytes(3)));
        pool.insert(at(0), RING_MIN as u64 + 1, bytes(4));
        assert_eq!((pool.ring.len(), pool.stragglers.len()), (2 * RING_MIN, 0));
        assert_eq!(pool.get(0).map(Bytes::len), Some(1));
    }

    #[test]
    fn a_long_ring_goes_when_it_is_empty() {
        let mut pool = Pool::new(1 << 20);
        (0..2_000).for_each(|key| _ = pool.insert(at(0), key, bytes(10)));
        assert!(pool.ring.len() >= 2_000);
        assert_eq!(pool.expire(at(701), AGE_MAX), 2_000);
        assert_eq!((pool.ring.len(), pool.get(5)), (0, None));
        pool.insert(at(800), 5, bytes(10));
        assert!(pool.get(5).is_some());
    }

    proptest! {
        /// Keys side by side and far apart, so that they share slots of the ring.
        #[test]
        fn a_pool_holds_what_a_map_would(
            steps in prop::collection::vec((0u64..200, 0u64..20, any::<bool>()), 1..400),
        ) {
            let (mut pool, mut reference) = (Pool::new(1 << 20), BTreeMap::new());
            for (low, high, is_insertion) in steps {
                let key = low + high * 256;
                if is_insertion {
                    let symbol = bytes(key as usize);
                    pool.insert(at(0), key, symbol.clone());
                    reference.insert(key, symbol);
                } else {
                    prop_assert_eq!(pool.remove(key), reference.remove(&key).is_some());
                }
                prop_assert_eq!(pool.len(), reference.len());
                prop_assert!(pool.ring.len() <= RING_MIN.max(4 * pool.order.len()));
                let bytes: usize = reference.values().map(cost).sum();
                prop_assert_eq!(pool.bytes(), bytes);
            }
            for key in 0..20 * 256 {
                prop_assert_eq!(pool.get(key), reference.get(&key));
            }
        }
    }
}
