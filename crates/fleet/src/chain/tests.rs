use std::collections::BTreeSet;

use proptest::prelude::*;
use roadweave_identity::Identity;

use super::*;
use crate::name::Name;
use crate::revocation::Head;
use crate::statement::{Grant, Role, Scope};

const ROOT: u8 = 1;
const CONTROLLER: u8 = 2;

fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32])
}

fn key(seed: u8) -> PublicKey {
    identity(seed).public_key()
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn tags(tags: &[&str]) -> BTreeSet<Name> {
    tags.iter().map(|tag| name(tag)).collect()
}

fn statement(seed: u8, role: Role, tenant: &str) -> Statement {
    let scope = Scope::Tenant(name(tenant));
    Statement { key: key(seed), name: name("x"), role, scope, tags: tags(&[]), grant: None }
}

fn grant(roles: &[Role], uses: Option<u32>) -> Grant {
    Grant { roles: roles.iter().copied().collect(), tags: tags(&["bus", "tram"]), uses }
}

fn delegate(seed: u8, tenant: &str, roles: &[Role], uses: Option<u32>) -> Statement {
    let grant = Some(grant(roles, uses));
    Statement { grant, ..statement(seed, Role::Delegate, tenant) }
}

/// Each statement signed by the seed beside it.
fn chain(steps: &[(u8, &Statement)]) -> Chain {
    let sign = |(by, statement): &(u8, &Statement)| {
        Signed::sign(*statement, &identity(*by)).expect("signed")
    };
    Chain::new(steps.iter().map(sign).collect())
}

fn trust() -> Trust {
    Trust::pinned(key(ROOT), key(CONTROLLER))
}

#[test]
fn a_chain_leads_from_the_root_to_a_box() {
    let direct = statement(5, Role::Box, "north");
    let admitted = chain(&[(ROOT, &direct)]).verify(&trust()).expect("admitted");
    assert_eq!((admitted.statement, admitted.issuers), (direct.clone(), vec![]));
    let token = delegate(4, "north", &[Role::Box], Some(3));
    let admitted = chain(&[(ROOT, &token), (4, &direct)]).verify(&trust()).expect("admitted");
    assert_eq!(admitted.issuers, [Issuer { key: key(4), uses: Some(3) }]);
}

#[test]
fn nobody_is_admitted_by_a_stranger_or_by_the_controller() {
    let direct = statement(5, Role::Box, "north");
    for by in [CONTROLLER, 5, 9] {
        let why = ChainError::Signature { step: 1, why: EnvelopeError::NotSigned };
        assert_eq!(chain(&[(by, &direct)]).verify(&trust()), Err(why));
    }
    assert_eq!(Chain::new(vec![]).verify(&trust()), Err(ChainError::Length(0)));
}

#[test]
fn a_delegate_stays_within_tenant_roles_and_tags() {
    let token = delegate(4, "north", &[Role::Box], None);
    let exceeds = Err(ChainError::Exceeds { step: 2, key: key(4) });
    let through = |last: &Statement| chain(&[(ROOT, &token), (4, last)]).verify(&trust());
    let fine = Statement { tags: tags(&["bus"]), ..statement(5, Role::Box, "north") };
    assert!(through(&fine).is_ok());
    assert_eq!(through(&statement(5, Role::Box, "south")), exceeds);
    assert_eq!(through(&statement(5, Role::Proxy, "north")), exceeds);
    assert_eq!(through(&Statement { scope: Scope::All, ..fine.clone() }), exceeds);
    assert_eq!(through(&Statement { tags: tags(&["admin"]), ..fine }), exceeds);
    assert_eq!(through(&delegate(5, "north", &[Role::Box], None)), exceeds);
}

#[test]
fn a_box_signs_for_nobody() {
    let one = statement(4, Role::Box, "north");
    let other = statement(5, Role::Box, "north");
    let found = chain(&[(ROOT, &one), (4, &other)]).verify(&trust());
    assert_eq!(found, Err(ChainError::Exceeds { step: 2, key: key(4) }));
    // Even one to whom somebody gave a grant by mistake.
    let odd = Statement { grant: Some(grant(&[Role::Box], None)), ..one };
    let found = chain(&[(ROOT, &odd), (4, &other)]).verify(&trust());
    assert_eq!(found, Err(ChainError::Exceeds { step: 2, key: key(4) }));
}

#[test]
fn a_delegate_passes_on_no_more_than_it_has() {
    let pool = delegate(3, "north", &[Role::Delegate, Role::Box], Some(10));
    let last = statement(5, Role::Box, "north");
    let through = |token: &Statement| {
        chain(&[(ROOT, &pool), (3, token), (4, &last)]).verify(&trust()).map(|_| ())
    };
    let exceeds = Err(ChainError::Exceeds { step: 2, key: key(3) });
    assert_eq!(through(&delegate(4, "north", &[Role::Box], Some(10))), Ok(()));
    assert_eq!(through(&delegate(4, "north", &[Role::Box], Some(11))), exceeds);
    assert_eq!(through(&delegate(4, "north", &[Role::Box], None)), exceeds);
    assert_eq!(through(&delegate(4, "north", &[Role::Box, Role::Proxy], Some(1))), exceeds);
}

#[test]
fn a_key_stands_in_a_chain_once() {
    let both = [Role::Delegate, Role::Box];
    let token = delegate(4, "north", &both, None);
    let again = statement(4, Role::Box, "north");
    let found = chain(&[(ROOT, &token), (4, &again)]).verify(&trust());
    assert_eq!(found, Err(ChainError::Twice { step: 2, key: key(4) }));
    let below = delegate(5, "north", &both, None);
    let found = chain(&[(ROOT, &token), (4, &below), (5, &again)]).verify(&trust());
    assert_eq!(found, Err(ChainError::Twice { step: 3, key: key(4) }));
}

#[test]
fn who_revokes_a_delegate_revokes_what_it_signed() {
    let controller = identity(CONTROLLER);
    let token = delegate(4, "north", &[Role::Box], None);
    let last = statement(5, Role::Box, "north");
    let chain = chain(&[(ROOT, &token), (4, &last)]);
    let mut trust = trust();
    assert!(chain.verify(&trust).is_ok());
    let entry = trust.revocations().next(key(4));
    let head = Head { epoch: 0, serial: 1, hash: entry.hash() };
    let head = Signed::sign(&head, &controller).expect("signed");
    trust.revocations_mut().extend(&[entry], &head, [controller.public_key()]).expect("taken");
    assert_eq!(chain.verify(&trust), Err(ChainError::Revoked { step: 1, key: key(4) }));
}

proptest! {
    /// Whoever signs and whatever is claimed: admitted is only what a model of the rules admits.
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
                (by, Statement { grant, ..statement(about, roles[role], "north") })
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
