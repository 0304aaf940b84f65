use super::*;
use crate::testing::{key, sign};

const CONTROLLER: u8 = 9;

fn chain(epoch: u64, seeds: &[u8]) -> Revocations {
    let mut chain = Revocations { log: Log::new(epoch), staged: None };
    for seed in seeds {
        let entry = chain.next(key(*seed));
        let head = Head { epoch, serial: entry.serial, hash: entry.hash() };
        take(&mut chain, &[entry], head).expect("taken");
    }
    chain
}

fn take(
    to: &mut Revocations,
    entries: &[Revocation],
    head: Head,
) -> Result<Vec<PublicKey>, RevocationError> {
    to.extend(entries, &sign(&head, CONTROLLER), [key(CONTROLLER)])
}

#[test]
fn entries_come_in_order_and_again() {
    let all = chain(0, &[1, 2, 3]);
    let mut proxy = Revocations::default();
    let (first, rest) = all.entries(0).split_at(1);
    let head = Head { epoch: 0, serial: 1, hash: first[0].hash() };
    assert_eq!(take(&mut proxy, first, head), Ok(vec![key(1)]));
    assert_eq!(take(&mut proxy, rest, all.head()), Ok(vec![key(2), key(3)]));
    assert_eq!(take(&mut proxy, all.entries(0), all.head()), Ok(vec![]));
    assert_eq!(proxy, all);
    assert!(proxy.is_revoked(&key(2)) && !proxy.is_revoked(&key(4)));
}

#[test]
fn a_gap_is_refused() {
    let all = chain(0, &[1, 2, 3]);
    let mut proxy = chain(0, &[1]);
    for entries in [all.entries(2), &[]] {
        let gap = RevocationError::Gap { serial: 3, held: 1 };
        assert_eq!(take(&mut proxy, entries, all.head()), Err(gap));
    }
    assert_eq!(proxy, chain(0, &[1]));
}

#[test]
fn a_hidden_entry_shows() {
    let mut proxy = chain(0, &[1, 2]);
    let hiding = chain(0, &[1]);
    let older = RevocationError::Older { serial: 1, held: 2 };
    assert_eq!(take(&mut proxy, hiding.entries(0), hiding.head()), Err(older));
    let other = chain(0, &[1, 3, 4]);
    let changed = RevocationError::Changed { serial: 3 };
    assert_eq!(take(&mut chain(0, &[1, 2]), other.entries(2), other.head()), Err(changed));
    let same_length = chain(0, &[1, 3]);
    let missing = RevocationError::Missing(1);
    assert_eq!(take(&mut proxy, same_length.entries(0), same_length.head()), Err(missing));
    assert!(proxy.is_revoked(&key(2)) && !proxy.is_revoked(&key(3)));
}

#[test]
fn a_fork_of_the_same_epoch_counts_once_nothing_is_missing() {
    for fork in [&[1, 2, 9][..], &[1, 2]] {
        let mut proxy = chain(4, &[1, 2, 3]);
        let forked = chain(4, fork);
        assert!(take(&mut proxy, forked.entries(0), forked.head()).is_err());
        assert!(proxy.is_revoked(&key(3)) && !proxy.is_revoked(&key(9)));
        let whole = chain(4, &[fork, &[8, 3]].concat());
        let after = forked.head().serial;
        assert!(take(&mut proxy, whole.entries(after), whole.head()).is_ok());
        assert_eq!(proxy, whole);
        let next = chain(4, &[fork, &[8, 3, 7]].concat());
        let after = whole.head().serial;
        assert_eq!(take(&mut proxy, next.entries(after), next.head()), Ok(vec![key(7)]));
        let former = chain(4, &[1, 2, 3, 5, 6, 7]);
        assert!(take(&mut proxy, former.entries(0), former.head()).is_err());
        assert_eq!(proxy.head(), next.head());
    }
}

#[test]
fn a_chain_includes_its_own_entries_alone() {
    let ours = chain(0, &[1, 2]);
    let other = chain(3, &[1, 3]);
    let is_included =
        |of: &Revocations, serial: u64| ours.includes(serial, &of.entries(serial - 1)[0].hash());
    assert!(ours.includes(0, &Digest::ZERO) && is_included(&ours, 1) && is_included(&ours, 2));
    assert!(is_included(&other, 1), "the same up to there");
    assert!(!is_included(&other, 2) && !is_included(&chain(0, &[1, 2, 4]), 3));
    assert!(!ours.includes(u64::MAX, &Digest::ZERO) && !ours.includes(0, &ours.head().hash));
}

#[test]
fn a_restored_controller_counts_once_nothing_is_missing() {
    let mut proxy = chain(0, &[1, 2]);
    let restored = chain(1, &[1, 5]);
    let missing = RevocationError::Missing(1);
    assert_eq!(take(&mut proxy, restored.entries(0), restored.head()), Err(missing));
    assert!(proxy.is_revoked(&key(2)) && !proxy.is_revoked(&key(5)));
    let whole = chain(1, &[1, 5, 2]);
    assert_eq!(take(&mut proxy, whole.entries(2), whole.head()), Ok(vec![key(5)]));
    assert_eq!(proxy, whole);
    let former = chain(0, &[1, 2, 3]);
    let older = RevocationError::Older { serial: 3, held: 3 };
    assert_eq!(take(&mut proxy, former.entries(2), former.head()), Err(older));
}

#[test]
fn only_a_controller_signs() {
    let all = chain(0, &[1]);
    let found =
        Revocations::default().extend(all.entries(0), &sign(&all.head(), 1), [key(CONTROLLER)]);
    assert_eq!(found, Err(RevocationError::Envelope(EnvelopeError::NotSigned)));
}

#[test]
fn what_is_kept_on_disk_proves_itself() {
    let all = chain(3, &[1, 2, 3]);
    let text = serde_json::to_string(&all).expect("JSON");
    assert_eq!(serde_json::from_str::<Revocations>(&text).expect("the same"), all);
    // Entries before a changed or removed one stay; entries after it do not count.
    let mut value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut changed = value.clone();
    changed["entries"][1]["key"] = key(4).to_string().into();
    value["entries"].as_array_mut().expect("entries").remove(1);
    for (value, held) in [(changed, 2), (value, 1)] {
        let read: Revocations = serde_json::from_value(value).expect("what can be read of it");
        assert_eq!(read.head().serial, held);
        assert_ne!(read.head(), all.head(), "it is seen that this is not what was signed");
        assert!(read.is_revoked(&key(1)) && !read.is_revoked(&key(3)));
    }
}
