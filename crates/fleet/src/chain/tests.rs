use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::name::Name;
use crate::revocation::Head;
use crate::statement::{Grant, Role, Scope};
use crate::testing::{chain, key, name, sign, statement};

const ROOT: u8 = 1;
const CONTROLLER: u8 = 2;

fn tags(tags: &[&str]) -> BTreeSet<Name> {
    tags.iter().map(|tag| name(tag)).collect()
}

fn grant(roles: &[Role], uses: Option<u32>) -> Grant {
    Grant { roles: roles.iter().copied().collect(), tags: tags(&["bus", "tram"]), uses }
}

fn delegate(seed: u8, roles: &[Role], uses: Option<u32>) -> Statement {
    Statement { grant: Some(grant(roles, uses)), ..statement(seed, Role::Delegate) }
}

fn trust() -> Trust {
    Trust::pinned(key(ROOT), key(CONTROLLER))
}

#[test]
fn a_chain_leads_from_the_root_to_a_box() {
    let direct = statement(5, Role::Box);
    let admitted = chain(&[(ROOT, &direct)]).verify(&trust()).expect("admitted");
    assert_eq!((admitted.statement, admitted.issuers), (direct.clone(), vec![]));
    let token = delegate(4, &[Role::Box], Some(3));
    let admitted = chain(&[(ROOT, &token), (4, &direct)]).verify(&trust()).expect("admitted");
    assert_eq!(admitted.issuers, [Issuer { key: key(4), uses: Some(3) }]);
}

#[test]
fn strangers_and_the_controller_cannot_admit_keys() {
    let direct = statement(5, Role::Box);
    for by in [CONTROLLER, 5, 9] {
        let why = ChainError::Signature { step: 1, why: EnvelopeError::NotSigned };
        assert_eq!(chain(&[(by, &direct)]).verify(&trust()), Err(why));
    }
    assert_eq!(Chain::new(vec![]).verify(&trust()), Err(ChainError::Length(0)));
}

#[test]
fn a_delegate_stays_within_tenant_roles_and_tags() {
    let token = delegate(4, &[Role::Box], None);
    let exceeds = Err(ChainError::Exceeds { step: 2, key: key(4) });
    let through = |last: &Statement| chain(&[(ROOT, &token), (4, last)]).verify(&trust());
    let fine = Statement { tags: tags(&["bus"]), ..statement(5, Role::Box) };
    assert!(through(&fine).is_ok());
    let south = Scope::Tenant(name("south"));
    assert_eq!(through(&Statement { scope: south, ..fine.clone() }), exceeds);
    assert_eq!(through(&statement(5, Role::Proxy)), exceeds);
    assert_eq!(through(&Statement { scope: Scope::All, ..fine.clone() }), exceeds);
    assert_eq!(through(&Statement { tags: tags(&["admin"]), ..fine }), exceeds);
    assert_eq!(through(&delegate(5, &[Role::Box], None)), exceeds);
}

#[test]
fn a_box_cannot_sign_for_another_key() {
    let one = statement(4, Role::Box);
    let other = statement(5, Role::Box);
    let found = chain(&[(ROOT, &one), (4, &other)]).verify(&trust());
    assert_eq!(found, Err(ChainError::Exceeds { step: 2, key: key(4) }));
    let odd = Statement { grant: Some(grant(&[Role::Box], None)), ..one };
    let found = chain(&[(ROOT, &odd), (4, &other)]).verify(&trust());
    assert_eq!(found, Err(ChainError::Exceeds { step: 2, key: key(4) }));
}

#[test]
fn a_delegate_passes_on_no_more_than_it_has() {
    let pool = delegate(3, &[Role::Delegate, Role::Box], Some(10));
    let last = statement(5, Role::Box);
    let through = |token: &Statement| {
        chain(&[(ROOT, &pool), (3, token), (4, &last)]).verify(&trust()).map(|_| ())
    };
    let exceeds = Err(ChainError::Exceeds { step: 2, key: key(3) });
    assert_eq!(through(&delegate(4, &[Role::Box], Some(10))), Ok(()));
    assert_eq!(through(&delegate(4, &[Role::Box], Some(11))), exceeds);
    assert_eq!(through(&delegate(4, &[Role::Box], None)), exceeds);
    assert_eq!(through(&delegate(4, &[Role::Box, Role::Proxy], Some(1))), exceeds);
}

#[test]
fn a_key_stands_in_a_chain_once() {
    let both = [Role::Delegate, Role::Box];
    let token = delegate(4, &both, None);
    let again = statement(4, Role::Box);
    let found = chain(&[(ROOT, &token), (4, &again)]).verify(&trust());
    assert_eq!(found, Err(ChainError::Twice { step: 2, key: key(4) }));
    let below = delegate(5, &both, None);
    let found = chain(&[(ROOT, &token), (4, &below), (5, &again)]).verify(&trust());
    assert_eq!(found, Err(ChainError::Twice { step: 3, key: key(4) }));
}

#[test]
fn who_revokes_a_delegate_revokes_what_it_signed() {
    let token = delegate(4, &[Role::Box], None);
    let last = statement(5, Role::Box);
    let chain = chain(&[(ROOT, &token), (4, &last)]);
    let mut trust = trust();
    assert!(chain.verify(&trust).is_ok());
    let entry = trust.revocations().next(key(4));
    let head = Head { epoch: 0, serial: 1, hash: entry.hash() };
    let head = sign(&head, CONTROLLER);
    trust.revocations.extend(&[entry], &head, [key(CONTROLLER)]).expect("taken");
    assert_eq!(chain.verify(&trust), Err(ChainError::Revoked { step: 1, key: key(4) }));
}

proptest! {
    #[test]
    fn random_chains_are_admitted_only_by_the_rules(
        steps in prop::collection::vec((0_u8..4, 0_u8..4, 0_usize..4, prop::bool::ANY), 0..6),
    ) {
        let roles = [Role::Delegate, Role::Box, Role::Proxy, Role::Delegate];
        let statements: Vec<(u8, Statement)> = steps
            .iter()
            .map(|&(by, about, role, with_grant)| {
                let grants = [Role::Delegate, Role::Box];
                let grant = with_grant.then(|| grant(&grants, None));
                (by, Statement { grant, ..statement(about, roles[role]) })
            })
            .collect();
        let refs: Vec<(u8, &Statement)> = statements.iter().map(|(by, s)| (*by, s)).collect();
        let found = chain(&refs).verify(&trust()).is_ok();
        let mut expected = (1..=CHAIN_MAX).contains(&statements.len());
        for (index, (by, statement)) in statements.iter().enumerate() {
            expected &= match index.checked_sub(1).map(|index| &statements[index].1) {
                None => *by == ROOT,
                Some(above) => {
                    key(*by) == above.key
                        && above.role == Role::Delegate
                        && above.grant.is_some()
                        && statement.role != Role::Proxy
                        && statements[..index].iter().all(|(_, it)| it.key != statement.key)
                }
            };
        }
        prop_assert_eq!(found, expected);
    }
}
