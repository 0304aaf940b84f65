use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use roadweave_fleet::{Candidate, Candidates, ControllerSessionEvent, Delegate, Grant};

use super::*;
use crate::fleet::Membership;
use crate::fleet::testing::{
    CONTROLLER, Controller, ROOT, chain, identity, key, name, published_by,
};

fn options(token: JoinToken, directory: &Path) -> JoinOptions {
    let state_directory = directory.to_owned();
    let (role, addresses) = (Role::Box, Vec::new());
    JoinOptions { token, name: name("bus-12"), role, addresses, state_directory }
}

fn attempt(controller: &Controller, folder: &tempfile::TempDir) -> Result<Joined, JoinError> {
    join(options(controller.token(), folder.path()))
}

fn joins(controller: &Controller) -> usize {
    let store = controller.store();
    store.said.iter().filter(|event| matches!(event, ControllerSessionEvent::Join { .. })).count()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn a_box_joins_once_and_starts_by_what_is_on_its_disk() {
    let (controller, folder) = (Controller::start(), folder());
    let store = StateStore::open(folder.path()).expect("made");
    let own = store.key().expect("made").public_key();
    drop(store);
    let proxy = Candidate {
        chain: chain(key(20), "fra-1", Role::Proxy, ROOT),
        site: name("fra"),
        addresses: vec!["192.0.2.1:4433".into()],
        to_anchor_us: 0,
        last_resort: false,
    };
    controller.desire(own, 1, Candidates { proxies: vec![proxy] });
    let joined = attempt(&controller, &folder).expect("joined");
    assert_eq!((joined.before, joined.key), (false, own), "the key of before stays");
    assert_eq!((joined.name, joined.tenant), (name("bus-12"), name("north")));
    assert!(joined.documents.iter().any(|(kind, _)| *kind == Kind::Candidates));
    let mode = std::fs::metadata(&joined.key_path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    controller.store().is_down = true;
    let again = attempt(&controller, &folder).expect("it has joined");
    assert!(again.before && again.key == own);
    assert_eq!(joins(&controller), 1, "which costs no use of the token");
    let membership = Membership::open(folder.path(), Role::Box).expect("usable").expect("there");
    let servers = membership.candidates().iter();
    let known: Vec<_> = servers.map(|server| (server.key, server.addresses.concat())).collect();
    assert_eq!(known, [(key(20), "192.0.2.1:4433".to_owned())]);
    assert_eq!(membership.identity().public_key(), own);
    let busy = attempt(&controller, &folder).expect_err("it runs");
    assert!(busy.to_string().contains("in use"), "{busy}");
    drop(membership);
    let other = Membership::open(folder.path(), Role::Proxy).expect_err("it is a box");
    assert!(other.to_string().contains("state of a box"), "{other}");
}

#[test]
fn a_refusal_is_reported_and_the_key_kept_for_the_next_time() {
    let (controller, folder) = (Controller::start(), folder());
    controller.store().admits = None;
    let error = attempt(&controller, &folder).expect_err("refused");
    assert!(error.to_string().contains("refuses: the token is used up"), "{error}");
    assert!(Membership::open(folder.path(), Role::Box).expect("usable").is_none());
    let own = StateStore::open(folder.path()).expect("free").key().expect("kept").public_key();
    controller.store().admits = Some(ROOT);
    assert_eq!(attempt(&controller, &folder).expect("joined").key, own);
}

#[test]
fn a_delegate_of_another_root_cannot_admit() {
    let (controller, folder) = (Controller::start(), folder());
    controller.store().admits = Some(CONTROLLER);
    let error = attempt(&controller, &folder).expect_err("not admitted");
    assert!(error.to_string().contains("welcome is invalid"), "{error}");
    assert!(Membership::open(folder.path(), Role::Box).expect("usable").is_none());
}

#[test]
fn without_a_controller_each_address_is_reported_with_the_reason() {
    let folder = folder();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let closed = closed.expect("a port");
    let mut token = Controller::start().token();
    let elsewhere = JoinToken { controller: key(77), ..token.clone() };
    token.addresses = vec![closed.to_string()];
    let error = join(options(token.clone(), folder.path())).expect_err("nobody there");
    let says = error.to_string();
    assert!(says.contains(&closed.to_string()) && says.contains("refused"), "{says}");
    let error = join(options(elsewhere, folder.path())).expect_err("another key");
    assert!(error.to_string().contains(&key(CONTROLLER).to_string()), "{error}");
    token.addresses = vec!["no address".into()];
    let error = join(options(token, folder.path())).expect_err("no address");
    assert!(error.to_string().contains("no address"), "{error}");
}

#[test]
fn with_its_key_a_box_that_lost_its_state_is_the_same_and_without_it_another() {
    let (controller, folder) = (Controller::start(), folder());
    let joined = attempt(&controller, &folder).expect("joined");
    let lose = |names: &[&str]| {
        names.iter().for_each(|name| _ = std::fs::remove_file(folder.path().join(name)));
        let membership = Membership::open(folder.path(), Role::Box).expect("usable");
        assert!(membership.is_none(), "it has to join again");
        attempt(&controller, &folder).expect("joined")
    };
    let again = lose(&["fleet.0", "fleet.1"]);
    assert_eq!((again.key, again.before), (joined.key, false));
    let other = lose(&["fleet.0", "fleet.1", "fleet.key", "fleet.lock"]);
    assert_ne!(other.key, joined.key);
    assert_eq!(joins(&controller), 3, "the controller decides what each costs");
}

#[test]
fn another_fleets_token_changes_nothing() {
    let (controller, folder) = (Controller::start(), folder());
    attempt(&controller, &folder).expect("joined");
    let of = |tenant, root| JoinToken { tenant: name(tenant), root, ..controller.token() };
    for other in [of("south", key(ROOT)), of("north", key(66)), of("south", key(66))] {
        let error = join(options(other, folder.path())).expect_err("it belongs to north");
        assert!(matches!(error, JoinError::Elsewhere { .. }), "{error}");
        assert!(error.to_string().contains("box bus-12 of north"), "{error}");
    }
    let of_role = JoinOptions { role: Role::Proxy, ..options(controller.token(), folder.path()) };
    assert!(matches!(join(of_role), Err(JoinError::Elsewhere { .. })), "it is a box");
}

fn persisted(directory: &Path) -> (PersistedState, Vec<Vec<u8>>) {
    let files = ["fleet.0", "fleet.1"].map(|name| std::fs::read(directory.join(name)));
    let persisted = StateStore::open(directory).expect("free").read().expect("there");
    (persisted, files.into_iter().flatten().collect())
}

#[test]
fn a_controller_that_has_moved_is_found_by_a_new_token_and_costs_no_use_of_it() {
    let (former, folder) = (Controller::start(), folder());
    let own = attempt(&former, &folder).expect("joined").key;
    former.store().is_down = true;
    let controller = Controller::start();
    controller.store().members.insert(own);
    let joined = attempt(&controller, &folder).expect("found");
    assert!(joined.before && joined.moved_to.is_some());
    assert_eq!(persisted(folder.path()).0.addresses(), controller.token().addresses);
    assert_eq!(joins(&controller), 0);
    controller.store().is_down = true;
    let again = attempt(&controller, &folder).expect("it has joined");
    assert!(again.before && again.moved_to.is_none());
    let before = persisted(folder.path()).1;
    let stranger = Controller::start();
    let error = attempt(&stranger, &folder).expect_err("not known there");
    assert!(error.to_string().contains("nothing was changed: the controller refuses"), "{error}");
    stranger.store().is_down = true;
    let error = attempt(&stranger, &folder).expect_err("not there");
    assert!(matches!(error, JoinError::Unchanged(_)), "{error}");
    assert_eq!(persisted(folder.path()).1, before);
}

#[test]
fn a_controllers_new_key_is_taken_by_the_word_of_a_root_and_a_forged_token_changes_nothing() {
    let (controller, folder) = (Controller::start(), folder());
    let own = attempt(&controller, &folder).expect("joined").key;
    let (before, files) = persisted(folder.path());
    let mut list = before.trust().list().clone();
    (list.number, list.controllers) = (7, vec![key(3)]);
    let moved = Controller::start();
    moved.store().members.insert(own);
    (moved.store().key, moved.store().published) = (3, published_by(3, &list, &[]));
    let forger = Controller::start();
    forger.store().members.insert(own);
    (forger.store().key, forger.store().published) = (66, moved.store().published.clone());
    let forged = JoinToken { controller: key(66), ..forger.token() };
    let error = join(options(forged, folder.path())).expect_err("no root names it");
    let says = error.to_string();
    assert!(says.contains("nothing was changed") && says.contains("no root"), "{says}");
    assert_eq!(persisted(folder.path()).1, files);
    let token = JoinToken { controller: key(3), ..moved.token() };
    let joined = join(options(token, folder.path())).expect("a root names it");
    assert!(joined.before);
    let (after, _) = persisted(folder.path());
    assert_eq!(after.addresses(), moved.token().addresses);
    assert_eq!(after.trust().controllers().collect::<Vec<_>>(), [key(3)]);
}

fn token_with_delegate(controller: &Controller, scope: Scope, grant: Grant) -> JoinToken {
    let statement = Statement {
        key: key(30),
        name: name("delegate"),
        role: Role::Delegate,
        scope,
        tags: Default::default(),
        grant: Some(grant),
    };
    let signed = Signed::sign(&statement, &identity(ROOT)).expect("signed");
    let delegate =
        Delegate { private_key: identity(30).to_base64(), chain: Chain::new(vec![signed]) };
    JoinToken { delegate: Some(delegate), ..controller.token() }
}

#[test]
fn a_delegate_in_the_token_signs_where_the_controller_cannot() {
    let (folder, controller) = (folder(), Controller::start());
    let grant = Grant { roles: [Role::Box].into(), tags: [name("buses")].into(), uses: Some(3) };
    let token = token_with_delegate(&controller, Scope::Tenant(name("north")), grant);
    let made = delegated(&options(token.clone(), folder.path()), key(5)).expect("within its grant");
    let trust = Trust::pinned(key(ROOT), key(CONTROLLER));
    let admitted = made.expect("a chain").verify(&trust).expect("it holds");
    assert_eq!(admitted.statement.key, key(5));
    assert_eq!(admitted.statement.tags, [name("buses")].into());
    let proxy = JoinOptions { role: Role::Proxy, ..options(token, folder.path()) };
    assert!(matches!(delegated(&proxy, key(5)), Err(JoinError::Delegate(_))));
}

#[test]
fn a_pools_delegate_for_all_tenants_makes_proxies_for_all() {
    let (folder, controller) = (folder(), Controller::start());
    let roles = [Role::Proxy, Role::Box].into();
    let grant = Grant { roles, tags: Default::default(), uses: Some(3) };
    let token = token_with_delegate(&controller, Scope::All, grant);
    let trust = Trust::pinned(key(ROOT), key(CONTROLLER));
    for (role, scope) in
        [(Role::Proxy, Scope::All), (Role::Box, Scope::Tenant(token.tenant.clone()))]
    {
        let options = JoinOptions { role, ..options(token.clone(), folder.path()) };
        let made = delegated(&options, key(5)).expect("within its grant").expect("a chain");
        assert_eq!(made.verify(&trust).expect("it holds").statement.scope, scope, "{role:?}");
    }
}
