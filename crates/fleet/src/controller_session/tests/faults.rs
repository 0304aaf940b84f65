//! Faults: wrong messages of either side, and disks older than the fleet.

use super::*;

fn taken(stream: &TestStream) -> Option<Version> {
    stream.agent.persisted().taken().get(&Kind::Configuration).copied()
}

fn configured(published: &Arc<Published>) -> TestStream {
    let mut stream = TestStream::of(BOX, published);
    stream.configure(1, 7, "a = 1");
    assert_eq!(texts(&stream.events).last(), Some(&Some("a = 1")));
    stream
}

fn desired(version: (u64, u64), subject: u8, text: &str, by: u8) -> Down {
    let document = document(version, subject, configuration(text), by).into_envelope();
    Down::Desired { kind: Kind::Configuration, document }
}

fn send(stream: &mut TestStream, seconds: u64, frame: Down) {
    stream.agent.handle_frame(at(seconds), frame);
    stream.turn(seconds);
}

#[test]
fn documents_of_another_fleet_of_another_box_or_altered_change_nothing() {
    let published = published(0, &[]);
    let mut stream = configured(&published);
    let persisted = serde_json::to_value(stream.agent.persisted()).expect("JSON");
    let good = desired((0, 8), BOX, "b = 2", CONTROLLER);
    let Down::Desired { document: envelope, .. } = &good else { panic!("{good:?}") };
    let mut altered = serde_json::to_value(envelope).expect("JSON");
    let mut unsigned = altered.clone();
    let payload = altered["payload"].as_str().expect("base64").to_owned();
    altered["payload"] = payload.replacen(&payload[20..24], "AAAA", 1).into();
    unsigned["signatures"] = serde_json::json!([]);
    let list = document((0, 8), BOX, Candidates { proxies: vec![] }, CONTROLLER).into_envelope();
    let [altered, unsigned] =
        [altered, unsigned].map(|it| serde_json::from_value(it).expect("an envelope"));
    let other = |document| Down::Desired { kind: Kind::Configuration, document };
    let bad = [
        desired((0, 8), BOX, "b = 2", 60),
        desired((0, 8), BOX, "b = 2", ROOT),
        desired((0, 8), BOX, "b = 2", BOX),
        desired((0, 8), 6, "b = 2", CONTROLLER),
        desired((1, 1), BOX, "b = 2", CONTROLLER),
        other(list),
        other(altered),
        other(unsigned),
    ];
    let count = bad.len();
    bad.into_iter().for_each(|frame| send(&mut stream, 2, frame));
    assert_eq!(stream.warnings().len(), count, "{:?}", stream.warnings());
    assert_eq!(serde_json::to_value(stream.agent.persisted()).expect("JSON"), persisted);
    send(&mut stream, 3, good);
    assert_eq!(texts(&stream.events).last(), Some(&Some("b = 2")), "the good one still counts");
}

#[test]
fn an_older_version_that_is_replayed_changes_nothing_also_after_a_restart() {
    let published = published(0, &[]);
    let stream = configured(&published);
    let mut stream = TestStream::new(restart(&stream.agent, BOX), BOX, true, &published);
    let count = texts(&stream.events).len();
    for number in [1, 6, 7] {
        send(&mut stream, 2, desired((0, number), BOX, "old = 1", CONTROLLER));
    }
    assert_eq!(texts(&stream.events).len(), count);
    assert_eq!(taken(&stream), Some(Version { epoch: 0, number: 7 }));
}

#[test]
fn a_box_that_was_off_over_epochs_takes_the_newest_and_nothing_of_those_before() {
    let mut stream = configured(&published(0, &[]));
    let now = published(2, &[30, 31]);
    stream = TestStream::new(restart(&stream.agent, BOX), BOX, true, &now);
    let newest = document((2, 1), BOX, configuration("c = 3"), CONTROLLER);
    let version = Version { epoch: 2, number: 1 };
    stream.session.desire(Kind::Configuration, version, newest.into_envelope());
    stream.turn(5);
    assert_eq!(texts(&stream.events).last(), Some(&Some("c = 3")), "{:?}", stream.warnings());
    assert!(stream.agent.persisted().trust().is_revoked(&key(31)));
    for epoch in [0, 1] {
        send(&mut stream, 6, desired((epoch, 99), BOX, "old = 1", CONTROLLER));
    }
    assert_eq!(taken(&stream), Some(version));
    assert_eq!(texts(&stream.events).last(), Some(&Some("c = 3")));
}

#[test]
fn a_proxy_from_an_old_image_ends_who_was_revoked_since_and_takes_the_newest_table() {
    let before = published(0, &[]);
    let mut stream = TestStream::of(PROXY, &before);
    stream.session.desire_table(table(1, &[BOX, 6]), None);
    stream.turn(1);
    let image = restart(&stream.agent, PROXY);
    let now = published(0, &[BOX]);
    stream.session.publish(now.clone());
    stream.session.desire_table(table(2, &[6, 7]), Some(&table(1, &[BOX, 6])));
    stream.turn(2);
    assert_eq!(admitted(&stream.agent).len(), 2);
    assert!(admitted(&image).contains(&key(BOX)));
    let mut stream = TestStream::new(image, PROXY, true, &now);
    stream.session.desire_table(table(2, &[6, 7]), Some(&table(1, &[BOX, 6])));
    stream.turn(3);
    assert!(stream.events.contains(&AgentEvent::Revoked(vec![key(BOX)])), "{:?}", stream.events);
    let mut expected = vec![key(6), key(7)];
    expected.sort();
    assert_eq!(admitted(&stream.agent), expected);
}

#[test]
fn a_controller_that_floods_its_member_fills_a_bounded_queue() {
    let mut agent = member(BOX, &published(0, &[]));
    agent.on_stream_up(at(0));
    while agent.poll_event().is_some() {}
    for _ in 0..50_000 {
        agent.handle_frame(at(1), Down::Watch { lease_ms: 1 });
        agent.handle_frame(at(1), Down::Drain);
    }
    assert!(events(&mut agent).len() <= 2_000);
    let entry = published(0, &[30]).revocations.entries(0)[0].clone();
    for _ in 0..2_000 {
        let entries = vec![entry.clone(); 100];
        agent.handle_frame(at(1), Down::Revoke { entries, head: None });
    }
    let warned = events(&mut agent);
    let warned = warned.iter().filter(|event| matches!(event, AgentEvent::Warning(_))).count();
    assert_eq!(warned, 3, "each 65,536 are given up");
}

#[test]
fn a_member_whose_stream_is_lost_midway_is_sent_the_whole_again() {
    let published = published(0, &[30, 31]);
    let mut stream = TestStream::of(PROXY, &published);
    let members: Vec<u8> = (40..240).collect();
    stream.session.desire_table(table(1, &members), None);
    let first = stream.session.poll_frame().expect("a part");
    stream.agent.handle_frame(at(1), first);
    stream.agent.on_stream_down(at(1));
    assert_eq!(admitted(&stream.agent).len(), 0, "a part is in force nowhere");
    stream.session = ControllerSession::new(at(2), key(PROXY), true, published.clone());
    stream.up(2);
    stream.session.desire_table(table(1, &members), None);
    stream.turn(2);
    assert_eq!(admitted(&stream.agent).len(), 200, "{:?}", stream.warnings());
    assert!(stream.warnings().is_empty());
}

fn after_a_change_of_controllers() -> (Agent, Agent) {
    let before = published(0, &[30]);
    let mut of_box = TestStream::of(BOX, &before);
    let proxies = vec![candidate(chain(PROXY, Role::Proxy, ROOT))];
    of_box.desire(BOX, 1, Candidates { proxies });
    of_box.desire(BOX, 1, configuration("a = 1"));
    let mut of_proxy = TestStream::of(PROXY, &before);
    of_proxy.session.desire_table(table(1, &[BOX]), None);
    let list = sign(&trust_list(2, ROOT, 3), ROOT);
    for stream in [&mut of_box, &mut of_proxy] {
        stream.turn(1);
        stream.agent.handle_frame(at(2), Down::Trust { list: list.clone() });
    }
    (of_box.agent, of_proxy.agent)
}

#[test]
fn a_restart_after_the_controllers_key_was_replaced_loses_nothing_that_the_old_one_signed() {
    let (of_box, of_proxy) = after_a_change_of_controllers();
    let mut of_box = restart(&of_box, BOX);
    let seen = events(&mut of_box);
    assert_eq!(texts(&seen), [Some("a = 1")]);
    let names_one =
        |event: &AgentEvent| matches!(event, AgentEvent::Candidates(it) if it.len() == 1);
    assert!(seen.iter().any(names_one), "{seen:?}");
    let mut of_proxy = restart(&of_proxy, PROXY);
    assert_eq!(of_proxy.admission().admitted.len(), 1);
    assert!(of_proxy.persisted().trust().is_revoked(&key(30)));
    let seen = events(&mut of_proxy);
    let warned = |event: &AgentEvent| matches!(event, AgentEvent::Warning(_));
    assert!(!seen.iter().any(warned), "{seen:?}");
    assert_eq!(restart(&of_proxy, PROXY).admission().admitted.len(), 1);
}

#[test]
fn a_retired_controller_signs_nothing_new_and_is_forgotten_once_all_is_signed_again() {
    let (of_box, _) = after_a_change_of_controllers();
    let mut of_box = restart(&of_box, BOX);
    while of_box.poll_event().is_some() {}
    of_box.handle_frame(at(3), desired((0, 2), BOX, "stolen", CONTROLLER));
    let refused = of_box.poll_event();
    assert!(matches!(refused, Some(AgentEvent::Warning(_))), "{refused:?}");
    assert_eq!(of_box.persisted().configuration_in_force().1.as_deref(), Some("a = 1"));
    of_box.handle_frame(at(4), desired((0, 3), BOX, "b = 2", 3));
    of_box.on_session(at(4), true);
    of_box.on_stream_up(at(4));
    of_box.handle_timeout(at(200));
    let document = document((0, 2), BOX, Candidates { proxies: vec![] }, 3).into_envelope();
    of_box.handle_frame(at(201), Down::Desired { kind: Kind::Candidates, document });
    let entries = of_box.persisted().trust().revocations().entries(0).to_vec();
    let head = sign(&of_box.persisted().trust().revocations().head(), 3);
    of_box.handle_frame(at(201), Down::Revoke { entries, head: Some(head) });
    let persisted = serde_json::to_value(of_box.persisted()).expect("JSON");
    assert_eq!(persisted["trust"]["former"], serde_json::json!([]), "{:#}", persisted["trust"]);
    assert_eq!(of_box.persisted().configuration_in_force().1.as_deref(), Some("b = 2"));
}
