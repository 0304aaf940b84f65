//! Revoked keys, as a hash chain with a signed head.
//!
//! ```text
//! entry 1 ◄─ entry 2 ◄─ entry 3        each names the hash of the one before
//!                          ▲
//!                Head{epoch, serial, hash}, signed by a controller
//! ```
//!
//! An attacker with the controller's database cannot remove an entry unseen: later hashes would
//! differ, and a shorter chain has an older head than proxies hold. A controller restored from a
//! backup begins a new epoch with its own chain; it counts once it contains every key of the former
//! chain, which the proxies hand back ([`Revocations::entries`]). The same holds for a fork of the
//! same epoch, made when a database lost its last entries.

use std::collections::BTreeMap;

use roadweave_identity::PublicKey;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::envelope::{EnvelopeError, Payload, Signed};

const ENTRIES_MAX: usize = 65_536;

/// A revoked key. Reason and owner are left out: each member of each tenant gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revocation {
    /// Counts up by one from 1.
    pub serial: u64,
    /// The key. What it has signed for others does not count either.
    pub key: PublicKey,
    /// The hash of the entry before, [`Digest::ZERO`] for the first.
    pub previous: Digest,
}

impl Revocation {
    /// The hash in the next entry.
    pub fn hash(&self) -> Digest {
        let serial = self.serial.to_be_bytes();
        Digest::of([&serial[..], self.key.as_bytes(), self.previous.as_bytes()])
    }
}

/// The end of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The epoch of the controller.
    pub epoch: u64,
    /// The serial of the last entry, 0 without any.
    pub serial: u64,
    /// The hash of that entry.
    pub hash: Digest,
}

impl Head {
    /// The head of a chain without entries.
    pub const EMPTY: Self = Self { epoch: 0, serial: 0, hash: Digest::ZERO };
}

impl Payload for Head {
    const TYPE: &'static str = "application/vnd.roadweave.revocations+json";
}

/// The revoked keys that one side knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "StoredRevocations", into = "StoredRevocations")]
pub struct Revocations {
    log: Log,
    /// Another chain, of a later epoch or a fork, until it contains all keys of this one.
    staged: Option<Log>,
}

#[derive(Serialize, Deserialize)]
struct StoredRevocations {
    epoch: u64,
    entries: Vec<Revocation>,
}

#[derive(Clone, Debug, PartialEq)]
struct Log {
    head: Head,
    entries: Vec<Revocation>,
    serials: BTreeMap<PublicKey, u64>,
}

impl Default for Revocations {
    fn default() -> Self {
        Self { log: Log::new(0), staged: None }
    }
}

impl Revocations {
    /// The most entries that are held.
    pub const MAX: usize = ENTRIES_MAX;

    /// Whether `key` was revoked.
    pub fn is_revoked(&self, key: &PublicKey) -> bool {
        self.log.serials.contains_key(key)
    }

    /// Its end.
    pub fn head(&self) -> Head {
        self.log.head
    }

    /// The entries after `serial`, ascending.
    pub fn entries(&self, serial: u64) -> &[Revocation] {
        let from = usize::try_from(serial).unwrap_or(usize::MAX).min(self.log.entries.len());
        &self.log.entries[from..]
    }

    /// Whether this chain has this entry; every chain has 0.
    pub fn includes(&self, serial: u64, hash: &Digest) -> bool {
        let Some(before) = serial.checked_sub(1) else { return *hash == Digest::ZERO };
        let entry = usize::try_from(before).ok().and_then(|at| self.log.entries.get(at));
        entry.is_some_and(|entry| entry.hash() == *hash)
    }

    /// The entry that revokes `key` next; [`Revocations::head`] is to be signed once it is added.
    pub fn next(&self, key: PublicKey) -> Revocation {
        let Head { serial, hash, .. } = self.log.head;
        Revocation { serial: serial + 1, key, previous: hash }
    }

    /// Takes entries signed by one of `controllers`, and returns the newly revoked keys. Entries
    /// that are held are skipped.
    ///
    /// # Errors
    /// If no such key has signed, entries are missing or changed, or the head is older than the one
    /// held. Nothing is changed then.
    pub fn extend(
        &mut self,
        entries: &[Revocation],
        head: &Signed<Head>,
        controllers: impl IntoIterator<Item = PublicKey>,
    ) -> Result<Vec<PublicKey>, RevocationError> {
        let (head, _) = head.verify_by(controllers)?;
        let held = self.log.head;
        let older = RevocationError::Older { serial: head.serial, held: held.serial };
        if head.epoch < held.epoch {
            return Err(older);
        }
        let is_later = head.epoch > held.epoch;
        let is_other = !self.log.is_continued_by(entries);
        if is_other && (is_later || self.is_fork(entries, head.epoch)) {
            let is_shorter = !is_later && head.serial < held.serial;
            return self.stage(entries, head).map_err(|error| match error {
                RevocationError::Missing(_) if is_shorter => older,
                error => error,
            });
        }
        if head.serial < held.serial {
            return Err(older);
        }
        let added = self.log.extend(entries, head)?;
        self.staged = None;
        Ok(added)
    }

    /// Whether `entries` are another chain from its beginning, or continue one that has begun.
    fn is_fork(&self, entries: &[Revocation], epoch: u64) -> bool {
        let has_begun = self.staged.as_ref().is_some_and(|staged| staged.head.epoch == epoch);
        entries.first().is_some_and(|first| first.serial == 1 || has_begun)
    }

    /// Replaces this chain with the other one once that revokes all of its keys.
    fn stage(
        &mut self,
        entries: &[Revocation],
        head: Head,
    ) -> Result<Vec<PublicKey>, RevocationError> {
        let is_first = entries.first().is_none_or(|entry| entry.serial == 1);
        let mut staged = match self.staged.take() {
            Some(staged) if !is_first && staged.head.epoch == head.epoch => staged,
            _ => Log::new(head.epoch),
        };
        staged.extend(entries, head)?;
        let missing = self.log.serials.keys().filter(|key| !staged.serials.contains_key(key));
        let missing = missing.count();
        if missing > 0 {
            self.staged = Some(staged);
            return Err(RevocationError::Missing(missing));
        }
        let former = std::mem::replace(&mut self.log, staged);
        let keys = self.log.serials.keys();
        Ok(keys.filter(|key| !former.serials.contains_key(key)).copied().collect())
    }
}

impl Log {
    fn new(epoch: u64) -> Self {
        let head = Head { epoch, ..Head::EMPTY };
        Self { head, entries: Vec::new(), serials: BTreeMap::new() }
    }

    fn is_continued_by(&self, entries: &[Revocation]) -> bool {
        match entries.iter().find(|entry| entry.serial > self.head.serial) {
            Some(next) => next.serial == self.head.serial + 1 && next.previous == self.head.hash,
            None => entries.last().is_some_and(|last| last.hash() == self.head.hash),
        }
    }

    fn extend(
        &mut self,
        entries: &[Revocation],
        head: Head,
    ) -> Result<Vec<PublicKey>, RevocationError> {
        let mut end = Head { epoch: head.epoch, ..self.head };
        let new = entries.iter().filter(|entry| entry.serial > self.head.serial);
        for entry in new.clone() {
            if entry.serial != end.serial + 1 {
                return Err(RevocationError::Gap { serial: entry.serial, held: end.serial });
            }
            if entry.previous != end.hash {
                return Err(RevocationError::Changed { serial: entry.serial });
            }
            end = Head { serial: entry.serial, hash: entry.hash(), ..end };
        }
        if end.serial < head.serial {
            return Err(RevocationError::Gap { serial: head.serial, held: end.serial });
        }
        if end != head {
            return Err(RevocationError::Changed { serial: head.serial });
        }
        if end.serial as usize > ENTRIES_MAX {
            return Err(RevocationError::TooMany);
        }
        let mut added = Vec::new();
        for entry in new {
            if self.serials.insert(entry.key, entry.serial).is_none() {
                added.push(entry.key);
            }
        }
        self.entries.extend(entries.iter().filter(|e| e.serial > self.head.serial).cloned());
        self.head = head;
        Ok(added)
    }
}

impl From<Revocations> for StoredRevocations {
    fn from(revocations: Revocations) -> Self {
        let Log { head, entries, .. } = revocations.log;
        Self { epoch: head.epoch, entries }
    }
}

/// An entry changed on disk ends the chain before it, whose end is not the signed one then.
impl From<StoredRevocations> for Revocations {
    fn from(stored: StoredRevocations) -> Self {
        let mut log = Log::new(stored.epoch);
        for entry in stored.entries {
            let head = Head { epoch: stored.epoch, serial: entry.serial, hash: entry.hash() };
            if log.extend(std::slice::from_ref(&entry), head).is_err() {
                break;
            }
        }
        Self { log, staged: None }
    }
}

/// Why revocations do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevocationError {
    /// No trusted key has signed the head.
    #[error("the head of the revocations: {0}")]
    Envelope(#[from] EnvelopeError),
    /// The head is older than the one held: entries were hidden, or the database is a copy.
    #[error("the revocations end at {serial}, but {held} are held: the controller's are older")]
    Older {
        /// The head's serial.
        serial: u64,
        /// The serial held.
        held: u64,
    },
    /// Entries are missing in between.
    #[error("revocation {serial} came after {held}: those between are missing")]
    Gap {
        /// The serial that came.
        serial: u64,
        /// The last one held.
        held: u64,
    },
    /// An entry is not the signed one.
    #[error("revocation {serial} or an earlier one differs from the signed one")]
    Changed {
        /// Its serial, or that of the head.
        serial: u64,
    },
    /// The other chain, of a later epoch or a fork, lacks keys of this one.
    #[error("{0} revoked keys are missing in the revocations of the controller")]
    Missing(usize),
    /// There are too many entries.
    #[error("there are more than {ENTRIES_MAX} revocations")]
    TooMany,
}

#[cfg(test)]
mod tests;
