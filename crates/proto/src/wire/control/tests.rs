//! Control messages: each reads back, and what breaks the format is refused.

use proptest::prelude::*;

use super::fields::{FIELD_AGE, FIELD_EVEN, FIELD_FRAMES, FIELD_ORDER, FIELD_POLICY, FIELD_RATE};
use super::*;
use crate::wire::stream::StreamsEpoch;
use crate::{Order, Priority, Rate};

fn promise(lane: u8, promise: Promise) -> Control {
    Control::LanePromise { lane: LaneId(lane), promise }
}

fn offer(epoch: u64, takes_priorities: bool) -> Option<StreamsOffer> {
    Some(StreamsOffer { epoch: StreamsEpoch(epoch), takes_priorities, takes_early: false })
}

fn early(offer: Option<StreamsOffer>) -> Option<StreamsOffer> {
    offer.map(|offer| StreamsOffer { takes_early: true, ..offer })
}

fn networks(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().expect("a network")).collect()
}

fn message(kind: u8, fields: &[(u16, &[u8])]) -> Bytes {
    let mut bytes = BytesMut::from(&[kind][..]);
    fields.iter().for_each(|(field, value)| put_field(&mut bytes, *field, value));
    bytes.freeze()
}

fn samples() -> Vec<Control> {
    vec![
        Control::Hello(Hello { name: "bus 12 ü".into(), ..Hello::default() }),
        Control::Welcome(Welcome {
            addresses: networks(&["10.77.0.2/32", "fd77::2/128", "192.168.50.0/24"]),
            gateways: vec!["10.77.0.1".parse().expect("an address")],
            networks: networks(&["10.77.0.0/16", "fd77::/64"]),
            mtu: 1360,
            streams: offer(u64::MAX - 1, true),
            ..Welcome::default()
        }),
        Control::Welcome(Welcome { relays: true, ..Welcome::default() }),
        Control::Streams(offer(7, true)),
        Control::Streams(offer(7, false)),
        Control::Streams(early(offer(7, false))),
        Control::Streams(early(offer(7, true))),
        Control::Streams(None),
        Control::Refuse { reason: "unknown peer".into(), why: Reason::Other },
        Control::Refuse { reason: "it drains".into(), why: Reason::Drain },
        Control::Refuse { reason: "elsewhere".into(), why: Reason::Superseded },
        Control::Hello(Hello { name: "a".into(), role: Role::Standby, ..Hello::default() }),
        Control::Hello(Hello { role: Role::Proxy, ..Hello::default() }),
        Control::Hello(Hello { streams: offer(7, false), ..Hello::default() }),
        Control::Move { why: Reason::Drain, grace: Some(Duration::from_millis(1)) },
        Control::PathName { path: PathId(3), uplink: "wwan0".into() },
        Control::Player(PlayerReport {
            lane: "streams".into(),
            player: u64::MAX,
            cached_bytes: 1,
            cached_frames: 2,
            bps: 3,
            milli_fps: 29_970,
        }),
        Control::PathPolicy { path: PathId(1), policy: Policy::default() },
        Control::PathPolicy {
            path: PathId(u32::MAX),
            policy: Policy {
                priority: Priority::Backup,
                weight: 100,
                redundancy_percent: Some(0),
                takes_insurance: false,
                rate_max: Some(Rate::from_bps(u64::MAX)),
            },
        },
        promise(0, Promise::default()),
        promise(
            7,
            Promise {
                order: Order::Reorder { max_buffer: Order::MAX_BUFFER },
                age_max: Promise::AGE_MAX,
                coded: false,
                acknowledge_on_all: true,
                ..Promise::default()
            },
        ),
        promise(
            3,
            Promise {
                order: Order::Adaptive { max_buffer: Duration::from_millis(300) },
                age_max: Duration::from_millis(1),
                expires: true,
                ..Promise::default()
            },
        ),
        promise(1, Promise { order: frames(10_000, 0, 1), ..Promise::default() }),
        promise(2, Promise { order: even(10_000), ..Promise::default() }),
    ]
}

fn frames(deadline: u64, decode: u64, max_buffer: u64) -> Order {
    let [deadline, decode, max_buffer] = [deadline, decode, max_buffer].map(Duration::from_millis);
    Order::Frames { deadline, decode, max_buffer }
}

fn even(max_buffer: u64) -> Order {
    Order::Even { max_buffer: Duration::from_millis(max_buffer) }
}

#[test]
fn messages_read_back_as_written() {
    for message in samples() {
        assert_eq!(Control::parse(message.to_bytes()), Ok(message));
    }
}

#[test]
fn every_truncation_is_refused_or_lacks_a_field() {
    for message in samples() {
        if matches!(message, Control::LanePromise { .. }) {
            continue; // its age may be left out
        }
        let bytes = message.to_bytes();
        for length in 0..bytes.len() {
            let parsed = Control::parse(bytes.slice(..length));
            assert_ne!(parsed.as_ref(), Ok(&message), "cut to {length}");
        }
    }
}

#[test]
fn what_an_older_peer_does_not_say_has_its_old_meaning() {
    let hello = |role, streams| Control::Hello(Hello { name: "x".into(), role, streams });
    let refuse = |why| Control::Refuse { reason: "x".into(), why };
    let streams = b"\0\x15\0\x08\0\0\0\0\0\0\x01\x02";
    for (control, kind, rest) in [
        (hello(Role::Join, None), 1, &b""[..]),
        (hello(Role::Standby, None), 1, b"\0\x0a\0\x01\x01"),
        (hello(Role::Join, offer(258, false)), 1, streams),
        (hello(Role::Join, offer(258, true)), 1, &[&streams[..], b"\0\x18\0\x01\x01"].concat()),
        (refuse(Reason::Other), 3, b""),
        (refuse(Reason::Drain), 3, b"\0\x0c\0\x01\x01"),
    ] {
        let bytes = [&[kind][..], b"\0\x01\0\x01x", rest].concat();
        assert_eq!(&control.to_bytes()[..], bytes);
        assert_eq!(Control::parse(bytes.into()), Ok(control));
    }
}

#[test]
fn a_move_says_why_and_perhaps_for_how_long() {
    for (grace, bytes) in [
        (None, &b"\x07\0\x0c\0\x01\x01"[..]),
        (Some(Duration::from_secs(2)), b"\x07\0\x0c\0\x01\x01\0\x0d\0\x04\0\0\x07\xd0"),
    ] {
        let message = Control::Move { why: Reason::Drain, grace };
        assert_eq!(message.to_bytes(), bytes);
        assert_eq!(Control::parse(Bytes::from_static(bytes)), Ok(message));
    }
    let unknown = Control::parse(Bytes::from_static(b"\x07\0\x0c\0\x01\x63"));
    assert_eq!(unknown, Ok(Control::Move { why: Reason::Other, grace: None }));
}

#[test]
fn unknown_fields_are_skipped() {
    let mut bytes = BytesMut::from(&samples()[0].to_bytes()[..]);
    put_field(&mut bytes, 999, b"from a later version");
    assert_eq!(Control::parse(bytes.freeze()).as_ref(), Ok(&samples()[0]));
}

#[test]
fn a_promise_of_an_order_alone_says_nothing_of_ages() {
    let order = Order::Reorder { max_buffer: Duration::from_millis(258) };
    let bytes = message(KIND_LANE_PROMISE, &[(FIELD_LANE, &[4]), (FIELD_ORDER, &[1, 1, 2])]);
    let expected = promise(4, Promise { order, ..Promise::default() });
    assert_eq!(Control::parse(bytes), Ok(expected));
}

#[test]
fn older_peers_read_an_order_that_they_know() {
    let frames = Promise { order: frames(100, 10, 258), expires: true, ..Promise::default() };
    let even = Promise { order: even(258), ..Promise::default() };
    for (promised, written) in [
        (frames, &b"\0\x1a\0\x06\0\x64\0\x0a\x01\x02\0\x09\0\x03\x02\xbc\x03"[..]),
        (even, b"\0\x1b\0\x02\x01\x02\0\x09\0\x03\x02\xbc\x02"),
    ] {
        let mut bytes = promise(4, promised).to_bytes().to_vec();
        let before = b"\x05\0\x06\0\x01\x04\0\x07\0\x03\0\0\0";
        assert_eq!(bytes, [&before[..], written].concat());
        // An older reader skips the field.
        bytes[before.len()..][..2].copy_from_slice(&999_u16.to_be_bytes());
        let expected = promise(4, Promise { order: Order::Pass, ..promised });
        assert_eq!(Control::parse(bytes.into()), Ok(expected));
    }
}

#[test]
fn texts_that_would_steer_a_terminal_are_escaped() {
    let hostile = "\x1b[2J\n2026 INFO joined\u{202e}".as_bytes();
    let reason = "\\u{1b}[2J\\n2026 INFO joined\\u{202e}".to_owned();
    let parsed = Control::parse(message(KIND_REFUSE, &[(FIELD_NAME, hostile)]));
    assert_eq!(parsed, Ok(Control::Refuse { reason, why: Reason::Other }));
}

#[test]
fn hostile_values_are_refused() {
    let check = |kind, fields: &[(u16, &[u8])], expected| {
        assert_eq!(Control::parse(message(kind, fields)), Err(expected), "{kind}: {fields:?}");
    };
    let missing = ControlError::MissingField;
    check(KIND_HELLO, &[(FIELD_MTU, &[0; 2])], missing(FIELD_NAME));
    check(KIND_LANE_PROMISE, &[(FIELD_ORDER, &[1, 0, 1])], missing(FIELD_LANE));
    check(77, &[(FIELD_NAME, b"")], ControlError::UnknownKind(77));
    let name: &[(u16, &[u8])] = &[(FIELD_NAME, b"x")];
    let path: &[(u16, &[u8])] = &[(FIELD_PATH, &[0; 4])];
    let lane: &[(u16, &[u8])] = &[(FIELD_LANE, &[1])];
    let pass: &[(u16, &[u8])] = &[(FIELD_LANE, &[1]), (FIELD_ORDER, &[0; 3])];
    let [high, low] = (Order::MAX_BUFFER.as_millis() as u16 + 1).to_be_bytes();
    let [old, age] = (Promise::AGE_MAX.as_millis() as u16 + 1).to_be_bytes();
    for (kind, before, field, values) in [
        (KIND_REFUSE, &[][..], FIELD_NAME, &[&b"\xff\xfe"[..], &[b'a'; 257]][..]),
        (KIND_WELCOME, &[], FIELD_ADDRESS, &[&[10, 0, 0, 1, 33]]),
        (KIND_MOVE, &[], FIELD_GRACE, &[&[1, 2]]),
        (KIND_HELLO, name, FIELD_ROLE, &[&[3], &[]]),
        (
            KIND_LANE_PROMISE,
            lane,
            FIELD_ORDER,
            &[&[1, high, low], &[2, 255, 255], &[3, 0, 100], &[0, 0, 1], &[1, 0]],
        ),
        (
            KIND_LANE_PROMISE,
            pass,
            FIELD_FRAMES,
            &[
                &[high, low, 0, 10, 0, 100],
                &[0, 100, high, low, 0, 100],
                &[0, 100, 0, 10, 255, 255],
                &[0, 100, 0, 10, 0],
                &[],
            ],
        ),
        (KIND_LANE_PROMISE, pass, FIELD_EVEN, &[&[high, low], &[0, 100, 0], &[]]),
        (
            KIND_LANE_PROMISE,
            pass,
            FIELD_AGE,
            &[&[old, age, 1], &[255, 255, 0], &[0, 0, 1], &[1, 1]],
        ),
        (
            KIND_PATH_POLICY,
            path,
            FIELD_POLICY,
            &[&[3, 1, 255], &[0, 0, 255], &[0, 101, 255], &[0, 1, 101], &[0, 1]],
        ),
    ] {
        for value in values {
            let fields = [before, &[(field, *value)]].concat();
            check(kind, &fields, ControlError::BadField(field));
        }
    }
    let long = Control::parse(Bytes::from(vec![1; MAX_CONTROL_MESSAGE + 1]));
    assert_eq!(long, Err(ControlError::TooLong(MAX_CONTROL_MESSAGE + 1)));
}

#[test]
fn a_welcome_has_no_more_networks_than_may_be_written() {
    let parse = |field, count| {
        let fields: Vec<(u16, &[u8])> = vec![(field, &[10, 0, 0, 0, 8]); count];
        let mtu: (u16, &[u8]) = (FIELD_MTU, &[5, 80]);
        Control::parse(message(KIND_WELCOME, &[fields, vec![mtu]].concat()))
    };
    for field in [FIELD_NETWORK, FIELD_ADDRESS, FIELD_GATEWAY] {
        let full = parse(field, 64).expect("within the limit");
        assert_eq!(Control::parse(full.to_bytes()), Ok(full));
        assert_eq!(parse(field, 65), Err(ControlError::BadField(field)));
    }
    assert_eq!(parse(FIELD_NETWORK, 33), parse(FIELD_NETWORK, WELCOME_NETWORKS_MAX));
}

proptest! {
    #[test]
    fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = Control::parse(Bytes::from(bytes));
    }
}

#[test]
fn a_path_of_next_to_no_rate_is_refused() {
    let rate_max = Some(Rate::from_kbps(Policy::RATE_KBPS_MIN));
    let policy = Policy { rate_max, ..Policy::default() };
    let message = Control::PathPolicy { path: PathId(1), policy };
    let mut bytes = message.to_bytes().to_vec();
    assert_eq!(Control::parse(bytes.clone().into()), Ok(message));
    *bytes.last_mut().expect("the rate is its last field") -= 1;
    assert_eq!(Control::parse(bytes.into()), Err(ControlError::BadField(FIELD_RATE)));
}
