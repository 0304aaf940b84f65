//! The keys that a box, proxy or anchor trusts; only a root changes them, not the controller.

use std::collections::BTreeSet;

use roadweave_identity::PublicKey;
use serde::{Deserialize, Serialize};

use crate::envelope::{EnvelopeError, Payload, Signed};
use crate::revocation::Revocations;

/// Of each sort.
const KEYS_MAX: usize = 16;

/// The trusted keys, signed by a root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustList {
    /// Higher numbers replace lower ones.
    pub number: u64,
    /// Begins again when a controller is restored from a backup, whose versions are older. Nothing
    /// of a later epoch counts before a root has begun it.
    pub epoch: u64,
    /// The root keys, where chains of statements begin.
    pub roots: Vec<PublicKey>,
    /// Keys kept apart, which may sign the next list when the roots are lost.
    pub spares: Vec<PublicKey>,
    /// The keys that sign documents, heads and tables, and terminate streams.
    pub controllers: Vec<PublicKey>,
    /// One of these keys must approve each configuration; empty: no approval is needed.
    #[serde(default)]
    pub approvers: Vec<PublicKey>,
}

impl Payload for TrustList {
    const TYPE: &'static str = "application/vnd.roadweave.trust+json";
}

/// The current trust of one side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trust {
    list: TrustList,
    /// Retired controllers that have signed what is held, until it is signed again.
    #[serde(default)]
    former: BTreeSet<PublicKey>,
    pub(crate) revocations: Revocations,
}

impl Trust {
    /// The trust of a join token: one root, one controller.
    pub fn pinned(root: PublicKey, controller: PublicKey) -> Self {
        let (roots, controllers) = (vec![root], vec![controller]);
        Self::of(TrustList { roots, controllers, ..TrustList::default() })
    }

    /// Trust in a list of one's own.
    pub fn of(list: TrustList) -> Self {
        Self { list, former: BTreeSet::new(), revocations: Revocations::default() }
    }

    /// Takes a newer list signed by a current root or spare. Returns whether it differs.
    pub fn replace(&mut self, signed: &Signed<TrustList>) -> Result<bool, TrustError> {
        // A stolen controller could revoke the roots, so revocations are ignored.
        let signers = self.list.roots.iter().chain(&self.list.spares).copied();
        let (list, _) = signed.verify_by(signers)?;
        if list.number == self.list.number && list == self.list {
            return Ok(false);
        }
        if list.number <= self.list.number || list.epoch < self.list.epoch {
            return Err(TrustError::Older { number: list.number, held: self.list.number });
        }
        let sorts = [&list.roots, &list.spares, &list.controllers, &list.approvers];
        if sorts.iter().any(|keys| keys.len() > KEYS_MAX) {
            return Err(TrustError::TooMany);
        }
        if list.roots.is_empty() || list.controllers.is_empty() {
            return Err(TrustError::NoKeys);
        }
        let former = std::mem::replace(&mut self.list, list);
        self.former.extend(former.controllers);
        Ok(true)
    }

    /// The current list.
    pub fn list(&self) -> &TrustList {
        &self.list
    }

    /// The root keys, at which chains of statements begin.
    pub fn roots(&self) -> impl Iterator<Item = PublicKey> {
        self.list.roots.iter().copied()
    }

    /// The keys of controllers.
    pub fn controllers(&self) -> impl Iterator<Item = PublicKey> {
        self.list.controllers.iter().copied().filter(|key| !self.is_revoked(key))
    }

    /// Retired controllers too, for nothing new.
    pub(crate) fn signers(&self) -> impl Iterator<Item = PublicKey> {
        let former = self.former.iter().copied().filter(|key| !self.is_revoked(key));
        self.controllers().chain(former)
    }

    pub(crate) fn retain_former(&mut self, mut is_needed: impl FnMut(&PublicKey) -> bool) {
        let of_today = &self.list.controllers;
        self.former.retain(|key| !of_today.contains(key) && is_needed(key));
    }

    /// Whether `key` was revoked.
    pub fn is_revoked(&self, key: &PublicKey) -> bool {
        self.revocations.is_revoked(key)
    }

    /// The known revocations.
    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    #[error("the trust list: {0}")]
    Envelope(#[from] EnvelopeError),
    #[error("the trust list has number {number}, but {held} is held")]
    Older { number: u64, held: u64 },
    #[error("the trust list names no root or no controller")]
    NoKeys,
    #[error("the trust list names more than {KEYS_MAX} keys of a sort")]
    TooMany,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{key, sign};

    fn list(number: u64, root: u8, spare: u8) -> TrustList {
        let pinned = Trust::pinned(key(root), key(9));
        TrustList { number, spares: vec![key(spare)], ..pinned.list().clone() }
    }

    #[test]
    fn only_a_root_or_a_spare_rotates() {
        let mut trust = Trust::pinned(key(1), key(9));
        let stranger = trust.replace(&sign(&list(1, 2, 3), 9));
        assert_eq!(stranger, Err(TrustError::Envelope(EnvelopeError::NotSigned)));
        assert_eq!(trust.replace(&sign(&list(1, 2, 3), 1)), Ok(true));
        assert!(trust.replace(&sign(&list(2, 1, 3), 1)).is_err());
        assert_eq!(trust.replace(&sign(&list(2, 4, 3), 3)), Ok(true));
        assert_eq!(trust.roots().collect::<Vec<_>>(), [key(4)]);
    }

    #[test]
    fn an_older_list_never_comes_back() {
        let mut trust = Trust::pinned(key(1), key(9));
        let (first, second) = (sign(&list(1, 1, 3), 1), sign(&list(2, 1, 4), 1));
        assert_eq!(trust.replace(&second), Ok(true));
        assert_eq!(trust.replace(&second), Ok(false));
        assert_eq!(trust.replace(&first), Err(TrustError::Older { number: 1, held: 2 }));
        let other = TrustList { approvers: vec![key(5)], ..list(2, 1, 4) };
        assert_eq!(trust.replace(&sign(&other, 1)), Err(TrustError::Older { number: 2, held: 2 }));
    }

    #[test]
    fn a_list_that_would_lock_everybody_out_is_refused() {
        let mut trust = Trust::pinned(key(1), key(9));
        let no_controller = TrustList { controllers: vec![], ..list(1, 1, 3) };
        assert_eq!(trust.replace(&sign(&no_controller, 1)), Err(TrustError::NoKeys));
    }
}
