use proptest::prelude::*;

use super::*;
use crate::testing::{at, chain, key, member, name, sign, statement, token};

fn event(length: usize) -> Up {
    Up::Event { text: "x".repeat(length) }
}

#[test]
fn messages_survive_any_cut_of_the_stream() {
    let messages =
        [event(0), event(5), Up::Revoked { head: Head { serial: 7, ..Head::EMPTY } }, event(1_000)];
    let stream: Vec<u8> =
        messages.iter().flat_map(|message| encode(message).expect("encoded")).collect();
    for step in [1, 3, 7, 100, stream.len()] {
        let mut decoder = FrameDecoder::default();
        let mut found = Vec::new();
        for bytes in stream.chunks(step) {
            decoder.push(bytes);
            while let Some(message) = decoder.poll::<Up>().expect("a message") {
                found.push(message);
            }
        }
        assert_eq!(found, messages, "{step} bytes at a time");
    }
}

#[test]
fn what_is_too_large_is_refused_before_it_has_come() {
    assert!(matches!(encode(&event(FRAME_MAX)), Err(FrameError::TooLarge(_))));
    let mut decoder = FrameDecoder::default();
    decoder.push(&(FRAME_MAX as u32 + 1).to_be_bytes());
    assert_eq!(decoder.poll::<Up>(), Err(FrameError::TooLarge(FRAME_MAX + 1)));
}

proptest! {
    #[test]
    fn any_bytes_are_messages_or_refused(chunks in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 0..64), 0..20,
    )) {
        let mut decoder = FrameDecoder::default();
        for chunk in chunks {
            decoder.push(&chunk);
            loop {
                match decoder.poll::<Down>() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return Ok(()),
                }
            }
        }
    }
}

fn messages() -> Vec<serde_json::Value> {
    let (key, name) = (key(3), name("north"));
    let statement = crate::Statement { tags: [name.clone()].into(), ..statement(3, Role::Box) };
    let chain = chain(&[(3, &statement)]);
    let head = sign(&Head::EMPTY, 3);
    let list = sign(crate::Trust::pinned(key, key).list(), 3);
    let entry = crate::Revocations::default().next(key);
    let version = Version { epoch: 1, number: 2 };
    let body = crate::Candidates::default();
    let document = crate::Document { subject: key, version, body };
    let document = sign(&document, 3).into_envelope();
    let addresses = vec!["10.7.0.2/32".parse().expect("a prefix")];
    let member = crate::Member { addresses, rate_kbps: Some(5), ..member(3, chain.clone()) };
    let set = vec![member.into()];
    let members = TableChange { anew: true, set, gone: vec![key], head: None };
    let sample = Sample {
        device: Some(key),
        uplink: Some("lte".into()),
        over_ms: 1,
        rtt_us: Some(2),
        loss_ppm: None,
        up_bytes: 3,
        down_bytes: 4,
        load: Some(5),
        sessions: Some(6),
    };
    let outcome = Outcome::TakenBack { why: "x".into() };
    let (kind, pinned) = (Kind::Configuration, vec!["a.b".to_owned()]);
    let documents = [(Kind::Table, version)].into();
    let (drained, proxy) = (Some(true), Some(key));
    let have = HeldVersions { documents, drained, proxy, ..HeldVersions::default() };
    let down = [
        Down::Trust { list },
        Down::Revoke { entries: vec![entry.clone()], head: Some(head.clone()) },
        Down::Desired { kind: Kind::Candidates, document },
        Down::Members(members),
        Down::Watch { lease_ms: 30_000 },
        Down::Welcome { chain: chain.clone(), tenant: name.clone() },
        Down::Refused { reason: "no".into(), retry: true },
        Down::Drain,
        Down::Undrain,
        Down::Alive,
    ];
    let (secret, role, tenant) = (Secret::from_bytes([1; 16]), Role::Box, name.clone());
    let (chain, addresses) = (Some(chain), Vec::new());
    let round_trips = [(name.clone(), 2_000)].into();
    let up = [
        Up::Join(Join { secret, tenant, role, name, chain, addresses }),
        Up::Have(have),
        Up::Report(Report { kind, version, outcome, pinned }),
        Up::Revoked { head: Head { serial: 7, ..Head::EMPTY } },
        Up::Surplus { entries: vec![entry], head: Some(head) },
        Up::Samples { samples: vec![sample] },
        Up::Anchors { round_trips },
        Up::Event { text: "x".into() },
        Up::Alive,
    ];
    let down = down.iter().map(serde_json::to_value);
    let up = up.iter().map(serde_json::to_value);
    down.chain(up).map(|value| value.expect("JSON")).collect()
}

fn within<'a>(
    value: &'a mut serde_json::Value,
    place: &mut usize,
) -> Option<&'a mut serde_json::Value> {
    use serde_json::Value;
    if *place == 0 {
        return Some(value);
    }
    *place -= 1;
    match value {
        Value::Array(values) => values.iter_mut().find_map(|value| within(value, place)),
        Value::Object(fields) => fields.values_mut().find_map(|value| within(value, place)),
        _ => None,
    }
}

fn other_value() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::{Value, json};
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,40}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!([[[[{"a": [1, {"b": null}]}]]]])),
        Just(json!(u64::MAX)),
        Just(json!("A".repeat(5_000))),
    ]
}

#[test]
fn every_message_is_read_by_the_end_that_it_is_for() {
    for message in messages() {
        let reads_down = serde_json::from_value::<Down>(message.clone()).is_ok();
        let reads_up = serde_json::from_value::<Up>(message.clone()).is_ok();
        assert!(reads_down || reads_up, "{message}");
    }
}

proptest! {
    #[test]
    fn messages_with_other_values_are_taken_or_refused(
        which in 0..18_usize,
        changes in prop::collection::vec((0..40_usize, other_value()), 0..4),
        cut in 0..10_000_usize,
    ) {
        let mut message = messages().swap_remove(which);
        for (place, other) in changes {
            if let Some(value) = within(&mut message, &mut { place }) {
                *value = other;
            }
        }
        let mut bytes = encode(&message).expect("it fits");
        let body = &mut bytes[4..];
        if cut < body.len() {
            body.rotate_left(cut);
        }
        let decode = |bytes: &[u8]| {
            let (mut down, mut up) = (FrameDecoder::default(), FrameDecoder::default());
            down.push(bytes);
            up.push(bytes);
            (down.poll::<Down>(), up.poll::<Up>())
        };
        let (down, up) = decode(&bytes);
        if let Ok(Some(frame)) = down {
            let again = encode(&frame).expect("what was read can be written");
            prop_assert_eq!(decode(&again).0, Ok(Some(frame.clone())));
            let token = crate::JoinToken { controller: key(3), root: key(3), ..token() };
            let persisted = crate::PersistedState::of_token(&token);
            let mut agent = crate::Agent::restore(at(0), key(3), Role::Proxy, "1", persisted);
            agent.on_stream_up(at(0));
            agent.handle_frame(at(0), frame);
            let persisted = serde_json::to_string(agent.persisted()).expect("JSON");
            prop_assert!(serde_json::from_str::<crate::PersistedState>(&persisted).is_ok());
        }
        if let Ok(Some(frame)) = up {
            let again = encode(&frame).expect("what was read can be written");
            prop_assert_eq!(decode(&again).1, Ok(Some(frame)));
        }
    }
}
