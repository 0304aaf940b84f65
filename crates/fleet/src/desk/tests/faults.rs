//! What may go wrong between a controller and its members, by messages of either that are not what
//! they should be, and by disks that are older than the fleet.

use super::*;
use crate::revocation::Revocation;

/// The versions of the configuration that a stream's agent has taken.
fn taken(stream: &Stream) -> Option<Version> {
    stream.agent.kept().taken().get(&Kind::Configuration).copied()
}

/// A box on a stream, with a configuration in force.
fn configured(published: &Arc<Published>) -> Stream {
    let mut stream = Stream::new(member(BOX, Role::Box, published), BOX, true, published);
    let (version, envelope) = configuration(7, "a = 1");
    stream.desk.desire(Kind::Configuration, version, envelope);
    stream.turn(1);
    assert_eq!(texts(&stream.events).last(), Some(&Some("a = 1")));
    stream
}

fn configuration_of(
    (epoch, number): (u64, u64),
    subject: u8,
    text: &str,
    by: u8,
) -> Signed<Document<Configuration>> {
    let version = Version { epoch, number };
    let body = Configuration { text: text.into(), approval: None };
    Signed::sign(&Document { subject: key(subject), version, body }, &identity(by)).expect("signed")
}

fn table(number: u64, seeds: &[u8]) -> Arc<PublishedTable> {
    let members = seeds.iter().map(|seed| Member {
        key: key(*seed),
        chain: chain(*seed, Role::Box, ROOT),
        addresses: vec![],
        rate_kbps: None,
        offline_max_s: None,
    });
    let (table, version) = (Table::of(members), Version { epoch: 0, number });
    let head = table.head_for(key(PROXY), version);
    let head = Signed::sign(&head, &identity(CONTROLLER)).expect("signed");
    Arc::new(PublishedTable { version, table, head })
}

fn admitted(agent: &Agent) -> Vec<PublicKey> {
    agent.admission().admitted.iter().map(|(_, member)| member.key).collect()
}

#[test]
fn documents_of_another_fleet_of_another_box_or_altered_change_nothing() {
    let published = published(0, &[]);
    let mut stream = configured(&published);
    let kept = serde_json::to_value(stream.agent.kept()).expect("JSON");
    let good = configuration_of((0, 8), BOX, "b = 2", CONTROLLER).into_envelope();
    let mut altered = serde_json::to_value(&good).expect("JSON");
    let payload = altered["payload"].as_str().expect("base64").to_owned();
    altered["payload"] = payload.replacen(&payload[20..24], "AAAA", 1).into();
    let mut unsigned = serde_json::to_value(&good).expect("JSON");
    unsigned["signatures"] = serde_json::json!([]);
    let mut bad = vec![
        // Another fleet's controller, the root, the box itself.
        configuration_of((0, 8), BOX, "b = 2", 60).into_envelope(),
        configuration_of((0, 8), BOX, "b = 2", ROOT).into_envelope(),
        configuration_of((0, 8), BOX, "b = 2", BOX).into_envelope(),
        configuration_of((0, 8), 6, "b = 2", CONTROLLER).into_envelope(),
        // An epoch that no root has begun.
        configuration_of((1, 1), BOX, "b = 2", CONTROLLER).into_envelope(),
        // A list of proxies in the place of a configuration.
        document(BOX, 8, Candidates { proxies: vec![] }).1,
    ];
    bad.extend([altered, unsigned].map(|it| serde_json::from_value(it).expect("an envelope")));
    let count = bad.len();
    for document in bad {
        stream.agent.handle_frame(at(2), Down::Desired { kind: Kind::Configuration, document });
        stream.turn(2);
    }
    assert_eq!(stream.warnings().len(), count, "{:?}", stream.warnings());
    assert_eq!(serde_json::to_value(stream.agent.kept()).expect("JSON"), kept);
    let document = good;
    stream.agent.handle_frame(at(3), Down::Desired { kind: Kind::Configuration, document });
    stream.turn(3);
    assert_eq!(texts(&stream.events).last(), Some(&Some("b = 2")), "the good one still counts");
}

#[test]
fn an_older_version_that_is_replayed_changes_nothing_also_after_a_restart() {
    let published = published(0, &[]);
    let stream = configured(&published);
    let mut stream = Stream::new(restart(&stream.agent, BOX, Role::Box), BOX, true, &published);
    let told = texts(&stream.events).len();
    for number in [1, 6, 7] {
        let document = configuration_of((0, number), BOX, "old = 1", CONTROLLER).into_envelope();
        stream.agent.handle_frame(at(2), Down::Desired { kind: Kind::Configuration, document });
        stream.turn(2);
    }
    assert_eq!(texts(&stream.events).len(), told);
    assert_eq!(taken(&stream), Some(Version { epoch: 0, number: 7 }));
}

#[test]
fn a_box_that_was_off_over_epochs_takes_the_newest_and_nothing_of_those_before() {
    let mut stream = configured(&published(0, &[]));
    // Twice the controller was restored while the box was off; what is new has a lower number.
    let now = published(2, &[30, 31]);
    stream = Stream::new(restart(&stream.agent, BOX, Role::Box), BOX, true, &now);
    let newest = configuration_of((2, 1), BOX, "c = 3", CONTROLLER);
    let version = Version { epoch: 2, number: 1 };
    stream.desk.desire(Kind::Configuration, version, newest.into_envelope());
    stream.turn(5);
    assert_eq!(texts(&stream.events).last(), Some(&Some("c = 3")), "{:?}", stream.warnings());
    assert!(stream.agent.kept().trust().is_revoked(&key(31)));
    for epoch in [0, 1] {
        let document = configuration_of((epoch, 99), BOX, "old = 1", CONTROLLER).into_envelope();
        stream.agent.handle_frame(at(6), Down::Desired { kind: Kind::Configuration, document });
        stream.turn(6);
    }
    assert_eq!(taken(&stream), Some(version));
    assert_eq!(texts(&stream.events).last(), Some(&Some("c = 3")));
}

#[test]
fn a_proxy_from_an_old_image_ends_who_was_revoked_since_and_takes_the_newest_table() {
    let before = published(0, &[]);
    let mut stream = Stream::new(member(PROXY, Role::Proxy, &before), PROXY, true, &before);
    stream.desk.desire_table(table(1, &[BOX, 6]), None);
    stream.turn(1);
    let image = restart(&stream.agent, PROXY, Role::Proxy);
    // Life went on: a key was withdrawn, and another box came.
    let now = published(0, &[BOX]);
    stream.desk.publish(now.clone());
    stream.desk.desire_table(table(2, &[6, 7]), Some(&table(1, &[BOX, 6])));
    stream.turn(2);
    assert_eq!(admitted(&stream.agent).len(), 2);
    // The image knows nothing of that, until it has a controller.
    assert!(admitted(&image).contains(&key(BOX)));
    let mut stream = Stream::new(image, PROXY, true, &now);
    stream.desk.desire_table(table(2, &[6, 7]), Some(&table(1, &[BOX, 6])));
    stream.turn(3);
    assert!(stream.events.contains(&AgentEvent::Revoked(vec![key(BOX)])), "{:?}", stream.events);
    let mut expected = vec![key(6), key(7)];
    expected.sort();
    assert_eq!(admitted(&stream.agent), expected);
}

#[test]
fn a_controller_that_floods_its_member_fills_a_bounded_queue() {
    let published = published(0, &[]);
    let mut agent = member(BOX, Role::Box, &published);
    agent.on_stream_up(at(0));
    while agent.poll_event().is_some() {}
    for _ in 0..50_000 {
        agent.handle_frame(at(1), Down::Watch { lease_ms: 1 });
        agent.handle_frame(at(1), Down::Drain);
    }
    assert!(std::iter::from_fn(|| agent.poll_event()).count() <= 2_000);
    // Entries whose head never comes.
    let entry = published_entry();
    for _ in 0..2_000 {
        let entries = vec![entry.clone(); 100];
        agent.handle_frame(at(1), Down::Revoke { entries, head: None });
    }
    let warned = std::iter::from_fn(|| agent.poll_event());
    let warned = warned.filter(|event| matches!(event, AgentEvent::Warning(_))).count();
    assert_eq!(warned, 3, "each 65,536 are given up");
}

fn published_entry() -> Revocation {
    published(0, &[30]).revocations.entries(0)[0].clone()
}

#[test]
fn a_member_whose_stream_is_lost_midway_is_sent_the_whole_again() {
    let published = published(0, &[30, 31]);
    let mut stream = Stream::new(member(PROXY, Role::Proxy, &published), PROXY, true, &published);
    let members: Vec<u8> = (40..240).collect();
    stream.desk.desire_table(table(1, &members), None);
    // A part of it arrives, and the stream is gone.
    let first = stream.desk.poll_frame().expect("a part");
    stream.agent.handle_frame(at(1), first);
    stream.agent.on_stream_down(at(1));
    assert_eq!(admitted(&stream.agent).len(), 0, "a part is in force nowhere");
    stream.desk = Desk::new(at(2), key(PROXY), true, published.clone());
    stream.agent.on_stream_up(at(2));
    stream.turn(2);
    stream.desk.desire_table(table(1, &members), None);
    stream.turn(2);
    assert_eq!(admitted(&stream.agent).len(), 200, "{:?}", stream.warnings());
    assert!(stream.warnings().is_empty());
}

/// What a controller has signed for a proxy and for a box, who then hear that another one counts
/// from now on, and nothing more.
fn after_a_change_of_controllers() -> (Agent, Agent) {
    let before = published(0, &[30]);
    let mut of_box = Stream::new(member(BOX, Role::Box, &before), BOX, true, &before);
    let proxy = Candidate {
        chain: chain(PROXY, Role::Proxy, ROOT),
        site: name("fra"),
        addresses: vec!["192.0.2.1:4433".into()],
        to_anchor_us: 0,
        last_resort: false,
    };
    let (version, envelope) = document(BOX, 1, Candidates { proxies: vec![proxy] });
    of_box.desk.desire(Kind::Candidates, version, envelope);
    let (version, envelope) = configuration(1, "a = 1");
    of_box.desk.desire(Kind::Configuration, version, envelope);
    let mut of_proxy = Stream::new(member(PROXY, Role::Proxy, &before), PROXY, true, &before);
    of_proxy.desk.desire_table(table(1, &[BOX]), None);
    let mut list = Trust::pinned(key(ROOT), key(3)).list().clone();
    list.number = 2;
    let list = Signed::sign(&list, &identity(ROOT)).expect("signed");
    for stream in [&mut of_box, &mut of_proxy] {
        stream.turn(1);
        stream.agent.handle_frame(at(2), Down::Trust { list: list.clone() });
    }
    (of_box.agent, of_proxy.agent)
}

#[test]
fn a_restart_after_the_controllers_key_was_replaced_loses_nothing_that_the_old_one_signed() {
    let (of_box, of_proxy) = after_a_change_of_controllers();
    let mut of_box = restart(&of_box, BOX, Role::Box);
    let events: Vec<AgentEvent> = std::iter::from_fn(|| of_box.poll_event()).collect();
    assert_eq!(texts(&events), [Some("a = 1")]);
    let names_one =
        |event: &AgentEvent| matches!(event, AgentEvent::Candidates(it) if it.len() == 1);
    assert!(events.iter().any(names_one), "{events:?}");
    let mut of_proxy = restart(&of_proxy, PROXY, Role::Proxy);
    assert_eq!(of_proxy.admission().admitted.len(), 1);
    assert!(of_proxy.kept().trust().is_revoked(&key(30)));
    let events: Vec<AgentEvent> = std::iter::from_fn(|| of_proxy.poll_event()).collect();
    let warned = |event: &AgentEvent| matches!(event, AgentEvent::Warning(_));
    assert!(!events.iter().any(warned), "{events:?}");
    // Once more, since what is kept is written anew at a start.
    assert_eq!(restart(&of_proxy, PROXY, Role::Proxy).admission().admitted.len(), 1);
}

#[test]
fn a_controller_that_has_retired_signs_nothing_new_and_is_forgotten_once_all_is_signed_anew() {
    let (of_box, _) = after_a_change_of_controllers();
    let mut of_box = restart(&of_box, BOX, Role::Box);
    while of_box.poll_event().is_some() {}
    let newer = |number: u64, text: &str, by: u8| {
        let document = configuration_of((0, number), BOX, text, by).into_envelope();
        Down::Desired { kind: Kind::Configuration, document }
    };
    of_box.handle_frame(at(3), newer(2, "stolen", CONTROLLER));
    let refused = of_box.poll_event();
    assert!(matches!(refused, Some(AgentEvent::Warning(_))), "{refused:?}");
    assert_eq!(of_box.kept().configuration_in_force().1.as_deref(), Some("a = 1"));
    // The new one signs all of it: what only the old one has signed counts no more.
    of_box.handle_frame(at(4), newer(3, "b = 2", 3));
    of_box.on_session(at(4), true);
    of_box.on_stream_up(at(4));
    of_box.handle_timeout(at(200));
    let body = Candidates { proxies: vec![] };
    let version = Version { epoch: 0, number: 2 };
    let candidates = Document { subject: key(BOX), version, body };
    let document = Signed::sign(&candidates, &identity(3)).expect("signed").into_envelope();
    of_box.handle_frame(at(201), Down::Desired { kind: Kind::Candidates, document });
    let entries = of_box.kept().trust().revocations().entries(0).to_vec();
    let head = Signed::sign(&of_box.kept().trust().revocations().head(), &identity(3));
    of_box.handle_frame(at(201), Down::Revoke { entries, head: Some(head.expect("signed")) });
    let kept = serde_json::to_value(of_box.kept()).expect("JSON");
    assert_eq!(kept["trust"]["former"], serde_json::json!([]), "{:#}", kept["trust"]);
    assert_eq!(of_box.kept().configuration_in_force().1.as_deref(), Some("b = 2"));
}
