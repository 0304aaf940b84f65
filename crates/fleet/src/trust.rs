//! Whom a box, proxy or anchor trusts, and how that changes: by the word of a root, not of the
//! controller.

use std::collections::BTreeSet;

use roadweave_identity::PublicKey;
use serde::{Deserialize, Serialize};

use crate::envelope::{EnvelopeError, Payload, Signed};
use crate::revocation::Revocations;

/// The most keys of each sort.
const KEYS_MAX: usize = 16;

/// Who counts, as a root says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustList {
    /// Lists replace those with lower numbers.
    pub number: u64,
    /// Begun anew when a controller is restored from a backup, whose versions lie in the past.
    /// Nothing of a later epoch counts before a root has begun it.
    pub epoch: u64,
    /// The root keys, at which chains of statements begin.
    pub roots: Vec<PublicKey>,
    /// Keys kept apart, which may sign the next list when the roots are lost.
    pub spares: Vec<PublicKey>,
    /// Who signs documents, heads and tables, and holds the other end of streams.
    pub controllers: Vec<PublicKey>,
    /// People without one of whom no configuration counts; empty: the controller suffices.
    #[serde(default)]
    pub approvers: Vec<PublicKey>,
}

impl Payload for TrustList {
    const TYPE: &'static str = "application/vnd.roadweave.trust+json";
}

/// Whom this side trusts now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trust {
    list: TrustList,
    /// Controllers of former lists who have signed what is held, until it is signed anew.
    #[serde(default)]
    former: BTreeSet<PublicKey>,
    /// The revocations that it has heard of.
    revocations: Revocations,
}

impl Trust {
    /// What a box learns from its join token: one root, one controller.
    pub fn pinned(root: PublicKey, controller: PublicKey) -> Self {
        Self::of(TrustList {
            number: 0,
            epoch: 0,
            roots: vec![root],
            spares: Vec::new(),
            controllers: vec![controller],
            approvers: Vec::new(),
        })
    }

    /// Trust in a list that this side has made itself.
    pub fn of(list: TrustList) -> Self {
        Self { list, former: BTreeSet::new(), revocations: Revocations::default() }
    }

    /// Takes a newer list that one of the roots or spares of today has signed. Returns whether it
    /// is another than before.
    ///
    /// # Errors
    /// When nobody who counts has signed the list, it is older, or nobody would count after it.
    pub fn replace(&mut self, signed: &Signed<TrustList>) -> Result<bool, TrustError> {
        // Revocations do not count here: a stolen controller could withdraw the roots by them.
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
            return Err(TrustError::Nobody);
        }
        let former = std::mem::replace(&mut self.list, list);
        self.former.extend(former.controllers);
        Ok(true)
    }

    /// The list of today.
    pub fn list(&self) -> &TrustList {
        &self.list
    }

    /// The root keys, at which chains of statements begin.
    pub fn roots(&self) -> impl Iterator<Item = PublicKey> {
        self.list.roots.iter().copied()
    }

    /// Who may speak as the controller.
    pub fn controllers(&self) -> impl Iterator<Item = PublicKey> {
        self.list.controllers.iter().copied().filter(|key| !self.is_revoked(key))
    }

    /// Who may have signed what is held: a controller that has retired since, too. Of what comes
    /// now it counts for nothing.
    pub(crate) fn signers(&self) -> impl Iterator<Item = PublicKey> {
        let former = self.former.iter().copied().filter(|key| !self.is_revoked(key));
        self.controllers().chain(former)
    }

    /// Keeps those of former lists that have signed something of what is held.
    pub(crate) fn retain_former(&mut self, mut is_needed: impl FnMut(&PublicKey) -> bool) {
        let of_today = &self.list.controllers;
        self.former.retain(|key| !of_today.contains(key) && is_needed(key));
    }

    /// Whether `key` was withdrawn.
    pub fn is_revoked(&self, key: &PublicKey) -> bool {
        self.revocations.is_revoked(key)
    }

    /// The revocations heard of.
    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// The revocations heard of, to be added to.
    pub fn revocations_mut(&mut self) -> &mut Revocations {
        &mut self.revocations
    }
}

/// Why a list of trust does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// Nobody who counts has signed it.
    #[error("the list of trust: {0}")]
    Envelope(#[from] EnvelopeError),
    /// There is a newer one, or another of this number.
    #[error("the list of trust has number {number}, and {held} is held")]
    Older {
        /// Its number.
        number: u64,
        /// The number of the one in force.
        held: u64,
    },
    /// Nobody would be trusted any more.
    #[error("the list of trust names no root or no controller")]
    Nobody,
    /// More keys than anybody needs.
    #[error("the list of trust names more than {KEYS_MAX} keys of a sort")]
    TooMany,
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadweave_identity::Identity;

    fn identity(seed: u8) -> Identity {
        Identity::from_seed([seed; 32])
    }

    fn key(seed: u8) -> PublicKey {
        identity(seed).public_key()
    }

    fn list(number: u64, root: u8, spare: u8) -> TrustList {
        TrustList {
            number,
            epoch: 0,
            roots: vec![key(root)],
            spares: vec![key(spare)],
            controllers: vec![key(9)],
            approvers: vec![],
        }
    }

    fn signed(list: &TrustList, by: u8) -> Signed<TrustList> {
        Signed::sign(list, &identity(by)).expect("signed")
    }

    #[test]
    fn a_root_or_a_spare_rotates_and_nobody_else() {
        let mut trust = Trust::pinned(key(1), key(9));
        let stranger = trust.replace(&signed(&list(1, 2, 3), 9));
        assert_eq!(stranger, Err(TrustError::Envelope(EnvelopeError::NotSigned)));
        assert_eq!(trust.replace(&signed(&list(1, 2, 3), 1)), Ok(true));
        // The former root is none any more; the spare is.
        assert!(trust.replace(&signed(&list(2, 1, 3), 1)).is_err());
        assert_eq!(trust.replace(&signed(&list(2, 4, 3), 3)), Ok(true));
        assert_eq!(trust.roots().collect::<Vec<_>>(), [key(4)]);
    }

    #[test]
    fn an_older_list_never_comes_back() {
        let mut trust = Trust::pinned(key(1), key(9));
        let (first, second) = (signed(&list(1, 1, 3), 1), signed(&list(2, 1, 4), 1));
        assert_eq!(trust.replace(&second), Ok(true));
        assert_eq!(trust.replace(&second), Ok(false));
        assert_eq!(trust.replace(&first), Err(TrustError::Older { number: 1, held: 2 }));
        let other = TrustList { approvers: vec![key(5)], ..list(2, 1, 4) };
        assert_eq!(
            trust.replace(&signed(&other, 1)),
            Err(TrustError::Older { number: 2, held: 2 })
        );
    }

    #[test]
    fn a_list_that_would_lock_everybody_out_is_refused() {
        let mut trust = Trust::pinned(key(1), key(9));
        let nobody = TrustList { controllers: vec![], ..list(1, 1, 3) };
        assert_eq!(trust.replace(&signed(&nobody, 1)), Err(TrustError::Nobody));
    }
}
