//! What a server keeps of its clients beyond their sessions.
//!
//! All shards of a server have it in common: whichever of them a client comes to the next time, it
//! finds what it has left behind, and what it has used up; and who is not let in is one line,
//! whichever of them refuses. It is touched when sessions begin and end, and for refusals, never
//! for a packet.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

use super::accounts::Accounts;
use super::refusals::Refusals;
use super::speedtest::TestBook;
use crate::learned::Learned;

/// What a server keeps of its clients, and of those it refused; a clone is the same.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    memories: Mutex<Memories>,
    refusals: Mutex<Refusals>,
    /// Whether refusals were left out that are to be told as a number: asked in every turn.
    has_suppressed: AtomicBool,
}

/// What is kept of all clients, by their keys.
#[derive(Debug, Default)]
pub(super) struct Memories {
    /// What the strategies of sessions have learned, some time ago or until their end.
    pub(super) learned: Learned,
    pub(super) accounts: Accounts,
    pub(super) tests: TestBook,
}

impl Kept {
    /// What the strategies have learned of the clients' networks, as far as they were asked.
    pub fn learned(&self) -> Learned {
        self.lock().learned.clone()
    }

    /// Takes up what [`Kept::learned`] gave in an earlier life, for the sessions to come.
    pub fn restore(&self, learned: Learned) {
        self.lock().learned = learned;
    }

    /// Forgets clients who may not connect any more.
    pub fn forget<'a>(&self, keys: impl Iterator<Item = &'a PublicKey>) {
        let mut memories = self.lock();
        for key in keys {
            memories.learned.remove(&key.to_string());
            memories.accounts.forget(key);
            memories.tests.forget(key);
        }
    }

    /// Who was not let in, by kind.
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.0.refusals).counts()
    }

    /// Counts a refusal, or some.
    pub(super) fn refuse<T>(&self, count: impl FnOnce(&mut Refusals) -> T) -> T {
        let mut refusals = lock(&self.0.refusals);
        let told = count(&mut refusals);
        let has_suppressed = refusals.poll_timeout().is_some();
        self.0.has_suppressed.store(has_suppressed, Ordering::Relaxed);
        told
    }

    /// What to tell of the refusals that were left out, if that is due.
    pub(super) fn poll_summary(&self, now: Instant) -> Option<String> {
        let has_suppressed = self.0.has_suppressed.load(Ordering::Relaxed);
        has_suppressed.then(|| self.refuse(|refusals| refusals.poll_summary(now)))?
    }

    /// When [`Kept::poll_summary`] has something to tell.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let has_suppressed = self.0.has_suppressed.load(Ordering::Relaxed);
        has_suppressed.then(|| lock(&self.0.refusals).poll_timeout())?
    }

    /// What is kept of all clients, to be changed.
    pub(super) fn lock(&self) -> MutexGuard<'_, Memories> {
        lock(&self.0.memories)
    }
}

/// Locks what is kept: a shard that failed with it locked has at worst forgotten something of one
/// client.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
