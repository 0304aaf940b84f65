//! State that a server keeps about its clients beyond their sessions.
//!
//! All shards of a server share it, locked when sessions begin or end and for refusals only.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

use super::accounts::Accounts;
use super::refusals::Refusals;
use super::test_book::TestBook;
use crate::learned::Learned;

/// State that a server keeps about its clients and about refused ones; clones share it.
#[derive(Clone, Debug, Default)]
pub struct SharedState(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    memories: Mutex<Memories>,
    refusals: Mutex<Refusals>,
    /// Whether refusals are still to be logged as a number: read in every turn.
    has_suppressed: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Memories {
    pub(super) learned: Learned,
    pub(super) accounts: Accounts,
    pub(super) tests: TestBook,
}

impl SharedState {
    /// What the strategies have learned of the clients' networks, as last collected.
    pub fn learned(&self) -> Learned {
        self.lock().learned.clone()
    }

    /// Restores what [`SharedState::learned`] returned in an earlier run, for later sessions.
    pub fn restore(&self, learned: Learned) {
        self.lock().learned = learned;
    }

    /// Forgets clients that may not connect any more.
    pub fn forget<'a>(&self, keys: impl Iterator<Item = &'a PublicKey>) {
        let mut memories = self.lock();
        for key in keys {
            memories.learned.remove(&key.to_string());
            memories.accounts.forget(key);
            memories.tests.forget(key);
        }
    }

    /// How many clients were not let in, by kind.
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.0.refusals).counts()
    }

    pub(super) fn refuse<T>(&self, count: impl FnOnce(&mut Refusals) -> T) -> T {
        let mut refusals = lock(&self.0.refusals);
        let counted = count(&mut refusals);
        let has_suppressed = refusals.poll_timeout().is_some();
        self.0.has_suppressed.store(has_suppressed, Ordering::Relaxed);
        counted
    }

    pub(super) fn poll_summary(&self, now: Instant) -> Option<String> {
        let has_suppressed = self.0.has_suppressed.load(Ordering::Relaxed);
        has_suppressed.then(|| self.refuse(|refusals| refusals.poll_summary(now)))?
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let has_suppressed = self.0.has_suppressed.load(Ordering::Relaxed);
        has_suppressed.then(|| lock(&self.0.refusals).poll_timeout())?
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Memories> {
        lock(&self.0.memories)
    }
}

/// A shard that panicked with the lock held has at worst lost something of one client.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
