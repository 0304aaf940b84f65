//! The thread as an event loop sees it, with and without a controller.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use roadweave_fleet::{Configuration, ControllerSessionEvent, Member, VerifiedServer, Version};
use roadweave_identity::PublicKey;
use roadweave_linux::netns::{WAIT_MAX, wait_or_show};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use super::*;
use crate::fleet::handle::{Fleet, FleetOptions};
use crate::fleet::testing::{Controller, ROOT, chain, key, name, published};
use crate::fleet::{JoinOptions, Membership, join};

fn joined(role: Role) -> (Controller, tempfile::TempDir, PublicKey) {
    let (controller, folder) = (Controller::start(), tempfile::tempdir().expect("a folder"));
    let (token, state_directory) = (controller.token(), folder.path().to_owned());
    let addresses = Vec::new();
    let options = JoinOptions { token, name: name("it"), role, addresses, state_directory };
    let own = join(options).expect("joined").key;
    (controller, folder, own)
}

fn start(directory: &Path, role: Role, offline_max: Option<Duration>) -> Fleet<String> {
    let membership = Membership::open(directory, role).expect("usable").expect("there");
    let merge = |text: Option<&str>| match text {
        Some(text) if text.contains("bad") => Err("line 1: bad".to_owned()),
        text => Ok((text.unwrap_or("the file alone").to_owned(), vec!["lanes".to_owned()])),
    };
    let options = FleetOptions { membership, merge: Box::new(merge), offline_max };
    Fleet::start(options, Waker::new().expect("a waker")).expect("started")
}

fn until(fleet: &Fleet<String>, mut is_done: impl FnMut(&FleetUpdates<String>) -> bool) {
    let state = || format!("{:?}", fleet.status(Instant::ZERO));
    wait_or_show(WAIT_MAX, state, || is_done(&fleet.updates()));
}

fn revoked(fleet: &Fleet<String>, seed: u8) -> u64 {
    let mut batch = 0;
    until(fleet, |updates| {
        batch = batch.max(updates.batch);
        updates.revoked == [key(seed)]
    });
    batch
}

fn box_of(seed: u8) -> Member {
    Member {
        key: key(seed),
        chain: chain(key(seed), &format!("bus-{seed}"), Role::Box, ROOT),
        addresses: vec![format!("10.77.0.{seed}/32").parse().expect("a prefix")],
        rate_kbps: Some(5_000),
        offline_max_s: None,
    }
}

fn names(updates: &FleetUpdates<String>) -> Option<Vec<&str>> {
    let members = updates.members.as_ref()?;
    Some(members.boxes.iter().map(|(_, peer)| peer.name.as_str()).collect())
}

#[test]
fn a_proxy_lets_in_by_the_table_ends_who_is_revoked_and_goes_on_alone() {
    let (controller, folder, own) = joined(Role::Proxy);
    let stranger = Member { chain: chain(key(8), "bus-8", Role::Box, 99), ..box_of(8) };
    controller.set_table(own, 1, vec![box_of(6), box_of(7), stranger]);
    let fleet = start(folder.path(), Role::Proxy, None);
    assert!(fleet.wait_in_step(Duration::from_secs(10)));
    until(&fleet, |updates| {
        names(updates).is_some_and(|mut names| {
            names.sort_unstable();
            names == ["bus-6", "bus-7"]
        })
    });
    controller.store().published = published(&[7]);
    let batch = revoked(&fleet, 7);
    hear(&fleet, &controller);
    assert!(!controller.store().said.iter().any(confirmed), "not before its session has ended");
    fleet.command(|it| it.ended = Some(batch));
    controller.wait_for(confirmed);
    controller.store().is_down = true;
    drop(fleet);
    let fleet = start(folder.path(), Role::Proxy, None);
    let updates = fleet.updates();
    assert_eq!((names(&updates), &updates.revoked), (Some(vec!["bus-6"]), &vec![key(7)]));
    assert!(!fleet.wait_in_step(Duration::from_millis(50)));
    let away = |status: FleetStatus| status.controller.is_none() && status.away_seconds.is_some();
    assert!(away(fleet.status(Instant::from_millis(1_000))));
}

fn hear(fleet: &Fleet<String>, controller: &Controller) {
    let is_heard =
        |event: &ControllerSessionEvent| matches!(event, ControllerSessionEvent::Samples(_));
    controller.store().said.retain(|event| !is_heard(event));
    let started = std::time::Instant::now();
    while !controller.store().said.iter().any(is_heard) {
        assert!(started.elapsed() < Duration::from_secs(20));
        let anchors = vec![("acme".to_owned(), Duration::from_micros(900))];
        let figures = ServerFigures { count: 0, sessions: Vec::new(), anchors };
        fleet.command(|it| it.figures = Some(figures));
        std::thread::sleep(Duration::from_millis(5));
    }
    let is_reported = ControllerSessionEvent::Anchors([(name("acme"), 1_000)].into());
    let said = &controller.store().said;
    assert_eq!(said.iter().filter(|event| **event == is_reported).count(), 1, "{said:?}");
}

#[test]
fn a_box_confirms_every_batch_of_revocations_by_itself() {
    let (controller, folder, _) = joined(Role::Box);
    let fleet = start(folder.path(), Role::Box, None);
    fleet.command(|it| it.session = Some(Some(key(1))));
    for serial in 1..=3 {
        controller.store().published = published(&[7, 8, 9][..serial]);
        let serial = serial as u64;
        controller.wait_for(
            |event| matches!(event, ControllerSessionEvent::Revoked(head) if head.serial == serial),
        );
    }
}

fn confirmed(event: &ControllerSessionEvent) -> bool {
    matches!(event, ControllerSessionEvent::Revoked(head) if head.serial == 1)
}

fn beside(folder: &Path) -> [PathBuf; 2] {
    ["fleet.0", "fleet.1"].map(|name| roadweave_linux::files::beside(&folder.join(name)))
}

/// Lets the disk hang: opening a pipe for writing waits for a reader.
fn hang(paths: &[PathBuf]) {
    for path in paths {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    }
}

#[test]
fn who_is_revoked_is_out_while_the_disk_hangs_and_a_stop_does_not_wait_for_it() {
    let (controller, folder, _) = joined(Role::Proxy);
    let fleet = start(folder.path(), Role::Proxy, None);
    assert!(fleet.wait_in_step(Duration::from_secs(10)));
    let pipes = beside(folder.path());
    hang(&pipes);
    controller.store().published = published(&[7]);
    revoked(&fleet, 7);
    controller.store().published = published(&[7, 8]);
    revoked(&fleet, 8);
    drop(fleet);
    for pipe in &pipes {
        let _ = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(pipe);
    }
}

#[test]
fn a_revocation_is_confirmed_once_it_is_on_the_disk() {
    let (controller, folder, _) = joined(Role::Proxy);
    let fleet = start(folder.path(), Role::Proxy, None);
    assert!(fleet.wait_in_step(Duration::from_secs(10)));
    let taken = beside(folder.path());
    taken.iter().for_each(|path| std::fs::create_dir(path).expect("made"));
    controller.store().published = published(&[7]);
    let batch = revoked(&fleet, 7);
    fleet.command(|it| it.ended = Some(batch));
    hear(&fleet, &controller);
    assert!(!controller.store().said.iter().any(confirmed), "a start would let it in again");
    assert!(fleet.status(Instant::ZERO).is_unwritten);
    taken.iter().for_each(|path| std::fs::remove_dir(path).expect("still there"));
    controller.wait_for(confirmed);
}

#[test]
fn a_configuration_that_cannot_be_used_is_refused_and_the_former_stays() {
    let (controller, folder, own) = joined(Role::Box);
    let fleet = start(folder.path(), Role::Box, None);
    fleet.command(|it| it.session = Some(Some(key(1))));
    let text = |text: &str| Configuration { text: text.to_owned(), approval: None };
    controller.desire(own, 1, text("good"));
    let version = |number| Version { epoch: 0, number };
    let in_force = |updates: &FleetUpdates<String>, number, text: &str| {
        updates.configuration == Some((Some(version(number)), text.to_owned()))
    };
    until(&fleet, |updates| in_force(updates, 1, "good"));
    controller.desire(own, 2, text("bad"));
    controller.wait_for(|event| {
        matches!(event, ControllerSessionEvent::Report(report) if report.version == version(2)
            && matches!(&report.outcome, Outcome::Refused { why } if why == "line 1: bad"))
    });
    let status = fleet.status(Instant::ZERO);
    assert!(status.documents.iter().any(|it| it.version == "0.2" && it.outcome == "refused"));
    assert_eq!(status.pinned, ["lanes"]);
    controller.desire(own, 3, text("better"));
    until(&fleet, |updates| in_force(updates, 3, "better"));
    fleet.command(|it| it.refuse = Some((version(3), "not while it runs".to_owned())));
    controller.wait_for(|event| {
        matches!(event, ControllerSessionEvent::Report(report) if report.version == version(3)
            && matches!(&report.outcome, Outcome::Refused { why } if why.contains("it runs")))
    });
}

#[test]
fn a_configuration_is_on_the_disk_before_it_is_in_force() {
    let (controller, folder, own) = joined(Role::Box);
    let pipes = beside(folder.path());
    let (met, has_met) = std::sync::mpsc::channel();
    let hanging = pipes.clone();
    let merge = move |text: Option<&str>| {
        if text.is_some() {
            hang(&hanging);
            met.send(()).expect("the test waits");
        }
        Ok((text.unwrap_or("the file alone").to_owned(), Vec::new()))
    };
    let membership = Membership::open(folder.path(), Role::Box).expect("usable").expect("there");
    let options = FleetOptions { membership, merge: Box::new(merge), offline_max: None };
    let fleet = Fleet::start(options, Waker::new().expect("a waker")).expect("started");
    fleet.command(|it| it.session = Some(Some(key(1))));
    let is_new = |updates: &FleetUpdates<String>| {
        updates.configuration.as_ref().is_some_and(|it| it.1 == "new")
    };
    controller.desire(own, 1, Configuration { text: "new".to_owned(), approval: None });
    has_met.recv_timeout(Duration::from_secs(20)).expect("it has come");
    std::thread::sleep(Duration::from_millis(200));
    assert!(!is_new(&fleet.updates()), "the disk does not have it yet");
    for pipe in pipes {
        std::thread::spawn(move || std::fs::read(&pipe));
    }
    until(&fleet, is_new);
}

#[test]
fn after_offline_max_no_member_is_admitted_until_a_controller_is_there() {
    let (controller, folder, _) = joined(Role::Proxy);
    controller.store().is_down = true;
    let fleet = start(folder.path(), Role::Proxy, Some(Duration::from_millis(300)));
    assert_eq!(fleet.updates().is_closed, None);
    until(&fleet, |updates| updates.is_closed == Some(true));
    until(&fleet, |_| fleet.status(Instant::ZERO).is_closed);
    controller.store().is_down = false;
    until(&fleet, |updates| updates.is_closed == Some(false));
}

#[test]
fn a_proxy_announces_the_inner_addresses_of_the_fleets_anchor() {
    let server = VerifiedServer {
        key: key(30),
        name: name("anchor"),
        site: None,
        addresses: vec!["192.0.2.7:4434".to_owned()],
        to_anchor_us: 0,
        last_resort: false,
    };
    let gateways = vec!["10.77.0.1/16".parse().expect("an address")];
    let egress = Egress { tenant: name("north"), anchor: server, rate_kbps: None, gateways };
    let (tenant, _) = anchor(&egress).expect("its address is valid");
    assert_eq!(tenant.gateways, egress.gateways);
}
