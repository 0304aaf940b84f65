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

/// One who takes bytes early.
fn early(offer: Option<StreamsOffer>) -> Option<StreamsOffer> {
    offer.map(|offer| StreamsOffer { takes_early: true, ..offer })
}

fn samples() -> Vec<Control> {
    vec![
        Control::Hello(Hello { name: "bus 12 ü".into(), ..Hello::default() }),
        Control::Welcome(Welcome {
            addresses: vec![
                "10.77.0.2/32".parse().expect("a network"),
                "fd77::2/128".parse().expect("a network"),
                "192.168.50.0/24".parse().expect("a network"),
            ],
            gateways: vec!["10.77.0.1".parse().expect("an address")],
            networks: vec![
                "10.77.0.0/16".parse().expect("a network"),
                "fd77::/64".parse().expect("a network"),
            ],
            mtu: 1360,
            anchor: None,
            streams: offer(u64::MAX - 1, true),
            relays: false,
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
                expires: false,
                coded: false,
                acknowledge_on_all: true,
            },
        ),
        promise(
            3,
            Promise {
                order: Order::Adaptive { max_buffer: Duration::from_millis(300) },
                age_max: Duration::from_millis(1),
                expires: true,
                coded: true,
                acknowledge_on_all: false,
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
    for (hello, message) in [
        (Hello { name: "x".into(), ..Hello::default() }, &b"\x01\0\x01\0\x01x"[..]),
        (
            Hello { name: "x".into(), role: Role::Standby, ..Hello::default() },
            b"\x01\0\x01\0\x01x\0\x0a\0\x01\x01",
        ),
        (
            Hello { name: "x".into(), streams: offer(258, false), ..Hello::default() },
            b"\x01\0\x01\0\x01x\0\x15\0\x08\0\0\0\0\0\0\x01\x02",
        ),
        (
            Hello { name: "x".into(), streams: offer(258, true), ..Hello::default() },
            b"\x01\0\x01\0\x01x\0\x15\0\x08\0\0\0\0\0\0\x01\x02\0\x18\0\x01\x01",
        ),
    ] {
        assert_eq!(Control::Hello(hello.clone()).to_bytes(), message);
        assert_eq!(Control::parse(Bytes::from_static(message)), Ok(Control::Hello(hello)));
    }
    let drain = Control::Refuse { reason: "x".into(), why: Reason::Drain };
    let plain = Control::Refuse { reason: "x".into(), why: Reason::Other };
    let [drain, plain] = [drain, plain].map(|message| message.to_bytes());
    assert_eq!(&plain[..], b"\x03\0\x01\0\x01x");
    assert_eq!(&drain[..], b"\x03\0\x01\0\x01x\0\x0c\0\x01\x01");
    for role in [Role::Join, Role::Standby, Role::Proxy] {
        let hello = Control::Hello(Hello { name: "x".into(), role, ..Hello::default() });
        assert_eq!(Control::parse(hello.to_bytes()), Ok(hello));
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
    // A reason that is not known yet is a reason.
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
    let mut bytes = BytesMut::from(&[KIND_LANE_PROMISE][..]);
    put_field(&mut bytes, FIELD_LANE, &[4]);
    put_order(&mut bytes, order);
    let expected = promise(4, Promise { order, ..Promise::default() });
    assert_eq!(Control::parse(bytes.freeze()), Ok(expected));
}

#[test]
fn who_does_not_know_frames_reads_an_order_that_it_knows() {
    let told = Promise { order: frames(100, 10, 258), expires: true, ..Promise::default() };
    let bytes = promise(4, told).to_bytes();
    assert_eq!(
        &bytes[..],
        b"\x05\0\x06\0\x01\x04\0\x07\0\x03\0\0\0\0\x1a\0\x06\0\x64\0\x0a\x01\x02\0\x09\0\x03\x02\xbc\x03"
    );
    // To an older reader field 26 is one that it skips.
    let mut older = bytes.to_vec();
    let field = older.windows(2).position(|kind| kind == [0, 0x1a]).expect("it is there");
    older[field..field + 2].copy_from_slice(&999_u16.to_be_bytes());
    let expected = promise(4, Promise { order: Order::Pass, ..told });
    assert_eq!(Control::parse(older.into()), Ok(expected));
}

#[test]
fn who_does_not_know_even_reads_an_order_that_it_knows() {
    let told = Promise { order: even(258), ..Promise::default() };
    let bytes = promise(4, told).to_bytes();
    let written = b"\x05\0\x06\0\x01\x04\0\x07\0\x03\0\0\0\0\x1b\0\x02\x01\x02";
    assert_eq!(&bytes[..written.len()], written);
    // To an older reader field 27 is one that it skips.
    let mut older = bytes.to_vec();
    older[13..15].copy_from_slice(&999_u16.to_be_bytes());
    let expected = promise(4, Promise { order: Order::Pass, ..told });
    assert_eq!(Control::parse(older.into()), Ok(expected));
}

#[test]
fn texts_that_would_steer_a_terminal_are_escaped() {
    let mut bytes = BytesMut::from(&[KIND_REFUSE][..]);
    put_field(&mut bytes, FIELD_NAME, "\x1b[2J\n2026 INFO joined\u{202e}".as_bytes());
    let reason = "\\u{1b}[2J\\n2026 INFO joined\\u{202e}".to_owned();
    assert_eq!(Control::parse(bytes.freeze()), Ok(Control::Refuse { reason, why: Reason::Other }));
}

#[test]
fn hostile_values_are_refused() {
    let check = |kind, field, value: &[u8], expected| {
        let mut bytes = BytesMut::from(&[kind][..]);
        put_field(&mut bytes, field, value);
        assert_eq!(Control::parse(bytes.freeze()), Err(expected));
    };
    check(KIND_REFUSE, FIELD_NAME, b"\xff\xfe", ControlError::BadField(FIELD_NAME));
    check(KIND_REFUSE, FIELD_NAME, &[b'a'; 257], ControlError::BadField(FIELD_NAME));
    check(KIND_WELCOME, FIELD_ADDRESS, &[10, 0, 0, 1, 33], ControlError::BadField(2));
    check(KIND_HELLO, FIELD_MTU, &[0; 2], ControlError::MissingField(FIELD_NAME));
    check(77, FIELD_NAME, b"", ControlError::UnknownKind(77));
    check(KIND_MOVE, FIELD_GRACE, &[1, 2], ControlError::BadField(FIELD_GRACE));
    let check_hello = |field, value: &[u8]| {
        let mut bytes = BytesMut::from(&[KIND_HELLO][..]);
        put_text(&mut bytes, FIELD_NAME, "x");
        put_field(&mut bytes, field, value);
        let parsed = Control::parse(bytes.freeze());
        assert_eq!(parsed, Err(ControlError::BadField(field)), "{value:?}");
    };
    check_hello(FIELD_ROLE, &[3]);
    check_hello(FIELD_ROLE, &[]);
    check(KIND_LANE_PROMISE, FIELD_ORDER, &[1, 0, 1], ControlError::MissingField(FIELD_LANE));
    let check_order = |value: &[u8]| {
        let mut bytes = BytesMut::from(&[KIND_LANE_PROMISE][..]);
        put_field(&mut bytes, FIELD_LANE, &[1]);
        put_field(&mut bytes, FIELD_ORDER, value);
        let parsed = Control::parse(bytes.freeze());
        assert_eq!(parsed, Err(ControlError::BadField(FIELD_ORDER)), "{value:?}");
    };
    let too_long = Order::MAX_BUFFER.as_millis() as u16 + 1;
    let [high, low] = too_long.to_be_bytes();
    check_order(&[1, high, low]);
    check_order(&[2, 255, 255]);
    check_order(&[3, 0, 100]);
    check_order(&[0, 0, 1]);
    check_order(&[1, 0]);
    let check_frames = |value: &[u8]| {
        let mut bytes = BytesMut::from(&[KIND_LANE_PROMISE][..]);
        put_field(&mut bytes, FIELD_LANE, &[1]);
        put_field(&mut bytes, FIELD_ORDER, &[0, 0, 0]);
        put_field(&mut bytes, FIELD_FRAMES, value);
        let parsed = Control::parse(bytes.freeze());
        assert_eq!(parsed, Err(ControlError::BadField(FIELD_FRAMES)), "{value:?}");
    };
    check_frames(&[high, low, 0, 10, 0, 100]);
    check_frames(&[0, 100, high, low, 0, 100]);
    check_frames(&[0, 100, 0, 10, 255, 255]);
    check_frames(&[0, 100, 0, 10, 0]);
    check_frames(&[]);
    let check_even = |value: &[u8]| {
        let mut bytes = BytesMut::from(&[KIND_LANE_PROMISE][..]);
        put_field(&mut bytes, FIELD_LANE, &[1]);
        put_field(&mut bytes, FIELD_ORDER, &[0, 0, 0]);
        put_field(&mut bytes, FIELD_EVEN, value);
        let parsed = Control::parse(bytes.freeze());
        assert_eq!(parsed, Err(ControlError::BadField(FIELD_EVEN)), "{value:?}");
    };
    check_even(&[high, low]);
    check_even(&[0, 100, 0]);
    check_even(&[]);
    let check_age = |value: &[u8]| {
        let mut bytes = BytesMut::from(&[KIND_LANE_PROMISE][..]);
        put_field(&mut bytes, FIELD_LANE, &[1]);
        put_field(&mut bytes, FIELD_ORDER, &[0, 0, 0]);
        put_field(&mut bytes, FIELD_AGE, value);
        let parsed = Control::parse(bytes.freeze());
        assert_eq!(parsed, Err(ControlError::BadField(FIELD_AGE)), "{value:?}");
    };
    let [high, low] = (Promise::AGE_MAX.as_millis() as u16 + 1).to_be_bytes();
    check_age(&[high, low, 1]);
    check_age(&[255, 255, 0]);
    check_age(&[0, 0, 1]);
    check_age(&[1, 1]);
    let check_policy = |value: &[u8]| {
        let mut bytes = BytesMut::from(&[KIND_PATH_POLICY][..]);
        put_field(&mut bytes, FIELD_PATH, &[0; 4]);
        put_field(&mut bytes, FIELD_POLICY, value);
        let parsed = Control::parse(bytes.freeze());
        assert_eq!(parsed, Err(ControlError::BadField(FIELD_POLICY)), "{value:?}");
    };
    check_policy(&[3, 1, 255]);
    check_policy(&[0, 0, 255]);
    check_policy(&[0, 101, 255]);
    check_policy(&[0, 1, 101]);
    check_policy(&[0, 1]);
    assert_eq!(
        Control::parse(Bytes::from(vec![1; MAX_CONTROL_MESSAGE + 1])),
        Err(ControlError::TooLong(MAX_CONTROL_MESSAGE + 1))
    );
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
