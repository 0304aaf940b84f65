use super::*;
use crate::statement::{Role, Statement};
use crate::testing::{self, chain, delegate, key, sign, statement};

const ROOT: u8 = 1;
const CONTROLLER: u8 = 9;
const PROXY: u8 = 20;

fn member_by(seed: u8, steps: &[(u8, &Statement)], by: u8) -> Member {
    let last = statement(seed, Role::Box);
    let mut steps = steps.to_vec();
    steps.push((by, &last));
    let addresses = vec![format!("10.77.0.{seed}/32").parse().expect("a prefix")];
    Member { addresses, ..testing::member(seed, chain(&steps)) }
}

fn member(seed: u8) -> Member {
    member_by(seed, &[], ROOT)
}

fn trust() -> Trust {
    Trust::pinned(key(ROOT), key(CONTROLLER))
}

fn signed_head(table: &Table, number: u64, by: u8) -> Signed<TableHead> {
    sign(&table.head_for(key(PROXY), Version { epoch: 0, number }), by)
}

fn table(seeds: &[u8], number: u64) -> Table {
    let desired = Table::of(seeds.iter().map(|seed| member(*seed)));
    let mut table = Table::default();
    let head = Some(signed_head(&desired, number, CONTROLLER));
    let change = TableChange { head, ..desired.since(&table) };
    assert_eq!(table.change(change, &trust(), key(PROXY)), Ok(true));
    table
}

fn admitted(table: &Table, trust: &Trust) -> Vec<PublicKey> {
    table.admission(trust).admitted.iter().map(|(who, _)| who.statement.key).collect()
}

#[test]
fn a_change_is_in_force_with_its_head() {
    let mut table = table(&[2, 3], 1);
    let desired = Table::of([member(3), member(4), member(5)]);
    let TableChange { set, gone, .. } = desired.since(&table);
    let part = |set, gone, head| TableChange { anew: false, set, gone, head };
    assert_eq!(table.change(part(set, vec![], None), &trust(), key(PROXY)), Ok(false));
    assert!(admitted(&table, &trust()).contains(&key(2)), "not yet");
    let head = Some(signed_head(&desired, 2, CONTROLLER));
    assert_eq!(table.change(part(vec![], gone, head), &trust(), key(PROXY)), Ok(true));
    let mut expected = vec![key(3), key(4), key(5)];
    expected.sort();
    assert_eq!(admitted(&table, &trust()), expected);
}

#[test]
fn a_table_that_was_tampered_with_is_refused_as_a_whole() {
    let mut table = table(&[2, 3], 1);
    let before = table.clone();
    let desired = Table::of([member(2), member(3), member(4)]);
    let mut refused = |change: TableChange| table.change(change, &trust(), key(PROXY));
    let change = |by, number| {
        let head = Some(signed_head(&desired, number, by));
        TableChange { head, ..desired.since(&before) }
    };
    let not_signed = EnvelopeError::NotSigned;
    assert_eq!(refused(change(8, 2)), Err(TableError::Envelope(not_signed)));
    let version = Version { epoch: 0, number: 1 };
    let older = DocumentError::Older { version, held: version };
    assert_eq!(refused(change(CONTROLLER, 1)), Err(TableError::Document(older)));
    let without = TableChange { set: vec![], ..change(CONTROLLER, 2) };
    assert_eq!(refused(without), Err(TableError::Changed));
    let with =
        TableChange { set: vec![member(4).into(), member(6).into()], ..change(CONTROLLER, 2) };
    assert_eq!(refused(with), Err(TableError::Changed));
    assert_eq!(table, before);
}

#[test]
fn what_is_read_from_a_disk_proves_itself() {
    let table = table(&[2, 3], 1);
    let text = serde_json::to_string(&table).expect("JSON");
    let read = |text: &str| serde_json::from_str::<Table>(text).expect("a table");
    let mut same = read(&text);
    assert_eq!(same.check(&trust(), key(PROXY)), Ok(()));
    assert_eq!(same, table);
    let other = DocumentError::OtherSubject;
    assert_eq!(read(&text).check(&trust(), key(7)), Err(TableError::Document(other)));
    let changed = text.replacen("10.77.0.2/32", "10.77.0.3/32", 1);
    assert_ne!(changed, text);
    assert_eq!(read(&changed).check(&trust(), key(PROXY)), Err(TableError::Changed));
}

#[test]
fn the_controller_alone_admits_no_key() {
    let borrowed = Member { key: key(7), ..member(5) };
    let desired = Table::of([member(2), member_by(6, &[], CONTROLLER), borrowed]);
    let Admission { admitted, refused } = desired.admission(&trust());
    assert_eq!(admitted.len(), 1);
    let why = |seed| refused.iter().find(|(k, _)| *k == key(seed)).map(|(_, why)| *why);
    let not_signed = ChainError::Signature { step: 1, why: EnvelopeError::NotSigned };
    assert_eq!(why(6), Some(Refused::Chain(not_signed)));
    assert_eq!(why(7), Some(Refused::OtherKey));
}

#[test]
fn a_delegate_signs_for_as_many_as_it_may() {
    let token = delegate(8, &[Role::Box], Some(2));
    let table = Table::of((30..35).map(|seed| member_by(seed, &[(ROOT, &token)], 8)));
    let Admission { admitted, refused } = table.admission(&trust());
    assert_eq!(admitted.len(), 2);
    assert!(refused.len() == 3 && refused.iter().all(|(_, why)| *why == Refused::Uses));
}

#[test]
fn a_root_that_counts_no_more_takes_its_members_with_it() {
    let table = table(&[2, 3], 1);
    assert_eq!(admitted(&table, &trust()).len(), 2);
    let mut rotated = trust();
    let list = crate::TrustList { number: 1, roots: vec![key(5)], ..rotated.list().clone() };
    rotated.replace(&sign(&list, ROOT)).expect("taken");
    assert_eq!(admitted(&table, &rotated).len(), 0, "what was proved before counts no more");
}

#[test]
fn memory_is_bounded_while_a_head_is_waited_for() {
    let mut table = Table::default();
    let mut large = member(2);
    large.addresses = vec![large.addresses[0]; 800];
    let (mut parts, mut held) = (0, 0);
    let found = loop {
        let mut bytes = [1; 32];
        bytes[..4].copy_from_slice(&u32::to_be_bytes(parts));
        let member = Member { key: PublicKey::from_bytes(bytes), ..large.clone() };
        let set = vec![member.into()];
        let change = TableChange { set, ..Default::default() };
        held = held.max(table.pending_bytes);
        parts += 1;
        if let Err(error) = table.change(change, &trust(), key(PROXY)) {
            break error;
        }
    };
    assert_eq!(found, TableError::TooMany);
    assert!(held <= PENDING_BYTES_MAX && parts > 1_000 && table.pending.is_empty());
}

#[test]
fn a_delegate_cannot_have_others_sign_for_as_many_again() {
    let both = |seed| delegate(seed, &[Role::Box, Role::Delegate], Some(2));
    let pool = both(8);
    let members = (30..34).map(|seed| {
        let token = both(seed + 10);
        member_by(seed, &[(ROOT, &pool), (8, &token)], seed + 10)
    });
    let table = Table::of(members);
    let Admission { admitted, refused } = table.admission(&trust());
    assert_eq!((admitted.len(), refused.len()), (2, 2));
}

#[test]
fn the_key_that_a_token_carries_connects_nowhere() {
    let token = delegate(8, &[Role::Box], None);
    let table = Table::of([testing::member(8, chain(&[(ROOT, &token)]))]);
    assert_eq!(table.admission(&trust()).refused, [(key(8), Refused::Role)]);
}

#[test]
fn a_member_that_no_message_could_carry_is_refused() {
    let mut large = member(2);
    large.addresses = vec![large.addresses[0]; 2_000];
    let change = TableChange { set: vec![large.into()], ..Default::default() };
    let found = Table::default().change(change, &trust(), key(PROXY));
    assert_eq!(found, Err(TableError::TooLarge));
}
