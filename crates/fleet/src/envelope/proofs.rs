//! Signatures that have held before.
//!
//! A signature that holds once holds for ever, and to prove it again costs some fifty times what it
//! costs to find it here. Who proves the same statements again and again, as a proxy does with each
//! change of its table, says once that this thread is to remember them.

use std::cell::RefCell;
use std::collections::BTreeSet;

use roadweave_identity::{PublicKey, Signature};

use crate::digest::Digest;

thread_local! {
    static PROOFS: RefCell<Proofs> = const { RefCell::new(Proofs::new()) };
}

/// Digests of what has held, in two generations: when the young one is full it becomes the old one,
/// and what the old one held is forgotten unless it was asked for since.
#[derive(Debug)]
struct Proofs {
    /// The most of a generation; 0 to remember nothing.
    most: usize,
    young: BTreeSet<Digest>,
    old: BTreeSet<Digest>,
}

/// This thread remembers at least the last `most` signatures that have held, each of them 32 bytes
/// and what a sorted set adds, and at most twice as many; none with 0, as at the start. What does
/// not hold is never remembered.
pub fn remember_proofs(most: usize) {
    PROOFS.with_borrow_mut(|proofs| *proofs = Proofs { most, ..Proofs::new() });
}

/// Whether the holder of `key` has signed `message`.
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
        // All three: another signature of the same message has to hold for itself.
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
    use roadweave_identity::Identity;

    fn proofs(most: usize) -> Proofs {
        Proofs { most, ..Proofs::new() }
    }

    #[test]
    fn what_was_proved_is_found_and_nothing_else_holds_by_it() {
        let (one, other) = (Identity::from_seed([1; 32]), Identity::from_seed([2; 32]));
        let mut proofs = proofs(4);
        let (good, stranger) = (one.sign(b"message"), other.sign(b"message"));
        for _ in 0..2 {
            assert!(proofs.holds(one.public_key(), b"message", &good));
            assert!(!proofs.holds(one.public_key(), b"message", &stranger));
            assert!(!proofs.holds(one.public_key(), b"other", &good));
            assert!(!proofs.holds(other.public_key(), b"message", &good));
        }
        assert_eq!(proofs.young.len(), 1, "what does not hold is not remembered");
    }

    #[test]
    fn memory_is_bounded_and_what_is_asked_for_stays() {
        let one = Identity::from_seed([1; 32]);
        let mut proofs = proofs(4);
        let often = one.sign(b"often");
        for number in 0..100u8 {
            assert!(proofs.holds(one.public_key(), &[number], &one.sign(&[number])));
            assert!(proofs.holds(one.public_key(), b"often", &often));
            assert!(proofs.young.len() <= 4 && proofs.old.len() <= 4);
        }
        let found = Digest::of([
            one.public_key().as_bytes().as_slice(),
            often.as_bytes().as_slice(),
            b"often",
        ]);
        assert!(proofs.young.contains(&found) || proofs.old.contains(&found));
    }

    #[test]
    fn nothing_is_remembered_unless_it_was_asked_for() {
        let one = Identity::from_seed([1; 32]);
        let mut proofs = proofs(0);
        assert!(proofs.holds(one.public_key(), b"message", &one.sign(b"message")));
        assert!(proofs.young.is_empty());
    }
}
