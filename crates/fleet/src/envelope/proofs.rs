//! A cache of verified signatures.
//!
//! A verification costs some fifty look-ups: threads that repeat statements turn the cache on.

use std::cell::RefCell;
use std::collections::BTreeSet;

use roadweave_identity::{PublicKey, Signature};

use crate::digest::Digest;

thread_local! {
    static PROOFS: RefCell<Proofs> = const { RefCell::new(Proofs::new()) };
}

/// Two generations: a full young one replaces the old one, whose unused entries are dropped.
#[derive(Debug)]
struct Proofs {
    /// The size of a generation; 0: off.
    most: usize,
    young: BTreeSet<Digest>,
    old: BTreeSet<Digest>,
}

/// Lets this thread remember at least the last `most` verified signatures, at most twice as many,
/// 32 bytes each plus a sorted set's overhead; 0, the default: none. Failures are never remembered.
pub fn remember_proofs(most: usize) {
    PROOFS.with_borrow_mut(|proofs| *proofs = Proofs { most, ..Proofs::new() });
}

pub(super) fn holds(key: PublicKey, message: &[u8], signature: &Signature) -> bool {
    PROOFS.with_borrow_mut(|proofs| proofs.holds(key, message, signature))
}

impl Proofs {
    const fn new() -> Self {
        Self { most: 0, young: BTreeSet::new(), old: BTreeSet::new() }
    }

    fn holds(&mut self, key: PublicKey, message: &[u8], signature: &Signature) -> bool {
        if self.most == 0 {
            return key.verifies(message, signature);
        }
        // All three: another signature of the same message has to be verified itself.
        let proof = Digest::of([key.as_bytes(), signature.as_bytes().as_slice(), message]);
        if self.young.contains(&proof) {
            return true;
        }
        if !self.old.contains(&proof) && !key.verifies(message, signature) {
            return false;
        }
        if self.young.len() >= self.most {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(proof);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{identity, key};

    fn proofs(most: usize) -> Proofs {
        Proofs { most, ..Proofs::new() }
    }

    #[test]
    fn what_was_proved_is_found_and_nothing_else_holds_by_it() {
        let (good, stranger) = (identity(1).sign(b"message"), identity(2).sign(b"message"));
        for (most, remembered) in [(4, 1), (0, 0)] {
            let mut proofs = proofs(most);
            for _ in 0..2 {
                assert!(proofs.holds(key(1), b"message", &good));
                assert!(!proofs.holds(key(1), b"message", &stranger));
                assert!(!proofs.holds(key(1), b"other", &good));
                assert!(!proofs.holds(key(2), b"message", &good));
            }
            assert_eq!(proofs.young.len(), remembered, "what does not hold is not remembered");
        }
    }

    #[test]
    fn memory_is_bounded_and_what_is_asked_for_stays() {
        let one = identity(1);
        let mut proofs = proofs(4);
        let often = one.sign(b"often");
        for number in 0..100u8 {
            assert!(proofs.holds(key(1), &[number], &one.sign(&[number])));
            assert!(proofs.holds(key(1), b"often", &often));
            assert!(proofs.young.len() <= 4 && proofs.old.len() <= 4);
        }
        let key = key(1);
        let found = Digest::of([key.as_bytes(), often.as_bytes().as_slice(), b"often"]);
        assert!(proofs.young.contains(&found) || proofs.old.contains(&found));
    }
}
