//! Symbols by ID, bounded in bytes and in age.
//!
//! The sender keeps here what it may have to code, the receiver what later equations may cover.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use bytes::Bytes;
use roadweave_types::Instant;

/// Symbols by a key that counts upwards, mostly; the oldest leave first.
#[derive(Debug)]
pub(crate) struct Pool {
    bytes_max: usize,
    bytes: usize,
    symbols: HashMap<u64, Held, BuildHasherDefault<KeyHasher>>,
    /// In the order of insertion. An entry whose symbol is gone, or was inserted anew since, is
    /// stale; stale entries are swept when they outnumber the others.
    order: VecDeque<(u64, Instant, u64)>,
    insertions: u64,
}

#[derive(Debug)]
struct Held {
    symbol: Bytes,
    insertion: u64,
}

impl Pool {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            symbols: HashMap::default(),
            order: VecDeque::new(),
            insertions: 0,
        }
    }

    /// Keeps `symbol`; returns how many others had to leave for it.
    pub(crate) fn insert(&mut self, now: Instant, key: u64, symbol: Bytes) -> u64 {
        self.remove(key);
        self.bytes += cost(&symbol);
        self.insertions += 1;
        self.symbols.insert(key, Held { symbol, insertion: self.insertions });
        self.order.push_back((key, now, self.insertions));
        let mut evicted = 0;
        while self.bytes > self.bytes_max {
            evicted += u64::from(self.pop_front());
        }
        evicted
    }

    pub(crate) fn get(&self, key: u64) -> Option<&Bytes> {
        self.symbols.get(&key).map(|held| &held.symbol)
    }

    pub(crate) fn remove(&mut self, key: u64) -> bool {
        let Some(held) = self.symbols.remove(&key) else { return false };
        self.bytes -= cost(&held.symbol);
        if self.order.len() > STALE_ENTRIES_MIN + 2 * self.symbols.len() {
            let symbols = &self.symbols;
            self.order.retain(|(key, _, insertion)| is_live(symbols, *key, *insertion));
        }
        true
    }

    /// Discards what is older than `age_max`; returns how many symbols.
    pub(crate) fn expire(&mut self, now: Instant, age_max: Duration) -> u64 {
        let mut expired = 0;
        while self.order.front().is_some_and(|(_, at, _)| now.since(*at) > age_max) {
            expired += u64::from(self.pop_front());
        }
        expired
    }

    /// Symbols held.
    pub(crate) fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Bytes held, with an allowance for the bookkeeping of each symbol.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Discards the oldest entry; returns whether a symbol went with it.
    fn pop_front(&mut self) -> bool {
        let Some((key, _, insertion)) = self.order.pop_front() else { return false };
        is_live(&self.symbols, key, insertion) && self.remove(key)
    }
}

fn is_live(
    symbols: &HashMap<u64, Held, BuildHasherDefault<KeyHasher>>,
    key: u64,
    insertion: u64,
) -> bool {
    symbols.get(&key).is_some_and(|held| held.insertion == insertion)
}

fn cost(symbol: &Bytes) -> usize {
    symbol.len() + OVERHEAD_BYTES
}

/// What a symbol costs beside its bytes: a slot of the table and an entry of the order.
const OVERHEAD_BYTES: usize = 128;

const STALE_ENTRIES_MIN: usize = 64;

/// A hash without a random key, so that no entropy is read. Keys lie in a window of IDs, so a peer
/// cannot make many of them collide.
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
    use super::*;

    const AGE_MAX: Duration = Duration::from_millis(700);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

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
    fn a_symbol_inserted_anew_has_the_age_of_its_last_insertion() {
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
}
