//! Revocations, and what happens where they differ.

use super::*;

#[test]
fn revocations_reach_a_proxy_and_are_confirmed_once_sessions_have_ended() {
    let mut stream = TestStream::of(PROXY, &published(0, &[]));
    stream.session.publish(published(0, &[BOX]));
    stream.turn(1);
    assert!(stream.events.contains(&AgentEvent::Revoked(vec![key(BOX)])));
    let head = published(0, &[BOX]).revocations.head();
    assert!(!stream.is_confirmed(head), "its session has not ended yet");
    stream.agent.on_revoked();
    stream.turn(1);
    assert!(stream.is_confirmed(head));
    let mut again = restart(&stream.agent, PROXY);
    assert_eq!(again.poll_event(), Some(AgentEvent::Revoked(vec![key(BOX)])));
}

#[test]
fn a_restored_controller_learns_what_it_forgot() {
    let before = published(0, &[30, 31]);
    let mut stream = TestStream::of(PROXY, &before);
    assert!(stream.agent.persisted().trust().is_revoked(&key(31)));
    let restored = published(1, &[30]);
    stream.session = ControllerSession::new(at(1), key(PROXY), true, restored);
    stream.up(1);
    let (entries, head) = stream.surplus().expect("the proxy hands back what it holds");
    let mut former = Revocations::default();
    former.extend(entries, head, [key(CONTROLLER)]).expect("signed by this controller");
    assert!(former.is_revoked(&key(31)));
    assert!(
        stream.agent.persisted().trust().is_revoked(&key(31)),
        "nothing is forgotten meanwhile"
    );
    stream.session.publish(published(1, &[30, 31]));
    stream.turn(2);
    let head = stream.agent.persisted().trust().revocations().head();
    assert_eq!((head.epoch, head.serial), (1, 2));
}

#[test]
fn a_chain_that_forked_within_an_epoch_is_seen_and_heals() {
    let before = published(0, &[30, 31]);
    for fork in [&[30, 40][..], &[30]] {
        let mut stream = TestStream::of(PROXY, &before);
        let forked = published(0, fork);
        stream.session = ControllerSession::new(at(1), key(PROXY), true, forked.clone());
        stream.reported.clear();
        stream.up(1);
        let head = forked.revocations.head();
        assert!(!stream.is_confirmed(head), "it is not in force there");
        assert!(stream.surplus().is_some(), "{:?}", stream.reported);
        assert!(stream.agent.persisted().trust().is_revoked(&key(31)), "nothing is forgotten");
        stream.session.publish(published(0, &[fork, &[41, 31]].concat()));
        stream.turn(2);
        stream.agent.on_revoked();
        stream.agent.on_revoked();
        stream.turn(2);
        let trust = stream.agent.persisted().trust();
        assert!([30, 31, 41].iter().all(|seed| trust.is_revoked(&key(*seed))));
        let head = published(0, &[fork, &[41, 31]].concat()).revocations.head();
        assert_eq!(trust.revocations().head(), head);
        assert!(stream.is_confirmed(head), "{:?}", stream.reported);
    }
}

#[test]
fn a_proxy_whose_revocations_were_cut_off_admits_no_box() {
    let published = published(0, &[30, 31]);
    let mut stream = TestStream::of(PROXY, &published);
    stream.session.desire_table(table(1, &[BOX]), None);
    stream.turn(1);
    assert_eq!(stream.agent.admission().admitted.len(), 1);
    let mut persisted: serde_json::Value =
        serde_json::to_value(stream.agent.persisted()).expect("JSON");
    persisted["trust"]["revocations"]["entries"].as_array_mut().expect("entries").pop();
    let persisted = serde_json::from_value(persisted).expect("kept");
    let proxy = Agent::restore(at(2), key(PROXY), Role::Proxy, "1.0", persisted);
    assert_eq!(proxy.admission().admitted.len(), 0);
    let stream = TestStream::new(proxy, PROXY, true, &published);
    assert_eq!(stream.agent.admission().admitted.len(), 1, "the controller told them again");
    assert!(stream.agent.persisted().trust().is_revoked(&key(31)));
}

#[test]
fn a_stream_whose_own_peer_is_revoked_ends() {
    let mut session = ControllerSession::new(at(0), key(BOX), true, published(0, &[]));
    session.handle_frame(at(0), Up::Have(HeldVersions::default()));
    while session.poll_frame().is_some() || session.poll_event().is_some() {}
    session.publish(published(0, &[30]));
    assert_eq!(session.poll_event(), None);
    session.publish(published(0, &[30, BOX]));
    assert!(matches!(session.poll_event(), Some(ControllerSessionEvent::End(_))));
    let first = document((0, 1), BOX, configuration("a = 1"), CONTROLLER).into_envelope();
    session.desire(Kind::Configuration, Version { epoch: 0, number: 1 }, first);
    let frames = frames(&mut session);
    assert!(matches!(frames[..], [Down::Refused { retry: false, .. }]), "{frames:?}");
    session.handle_frame(at(1), Up::Alive);
    assert_eq!((session.poll_frame(), session.poll_event()), (None, None));
}

#[test]
fn a_proxy_hands_back_more_revocations_than_a_queue_holds() {
    const ENTRIES: u64 = 30_000;
    let mut entries: Vec<Revocation> = Vec::new();
    for serial in 1..=ENTRIES {
        let mut bytes = [9; 32];
        bytes[..8].copy_from_slice(&serial.to_be_bytes());
        let key = PublicKey::from_bytes(bytes);
        let previous = entries.last().map_or(crate::Digest::ZERO, Revocation::hash);
        entries.push(Revocation { serial, key, previous });
    }
    let hash = entries.last().map_or(crate::Digest::ZERO, Revocation::hash);
    let head = Head { epoch: 0, serial: ENTRIES, hash };
    let head = sign(&head, CONTROLLER);
    let mut revocations = Revocations::default();
    revocations.extend(&entries, &head, [key(CONTROLLER)]).expect("a chain");
    let full = Published { revocations, head, ..Published::clone(&published(0, &[])) };
    let agent = member(PROXY, &published(0, &[]));
    let mut stream = TestStream::new(agent, PROXY, true, &Arc::new(full));
    stream.session = ControllerSession::new(at(60), key(PROXY), true, published(1, &[30]));
    stream.up(60);
    let handed_back = stream.surplus().map(|(entries, _)| entries.len() as u64);
    assert_eq!(handed_back, Some(ENTRIES));
}

#[test]
fn a_stream_ends_whose_peer_is_there_by_a_revoked_delegate() {
    let mut session = ControllerSession::new(at(0), key(BOX), true, published(0, &[]));
    session.signed_by(vec![key(30), key(31)]);
    session.publish(published(0, &[32]));
    assert_eq!(session.poll_event(), None);
    session.publish(published(0, &[32, 31]));
    assert!(matches!(session.poll_event(), Some(ControllerSessionEvent::End(_))));
    let mut session = ControllerSession::new(at(0), key(BOX), true, published(0, &[32, 31]));
    session.signed_by(vec![key(31)]);
    assert!(matches!(session.poll_event(), Some(ControllerSessionEvent::End(_))));
}
