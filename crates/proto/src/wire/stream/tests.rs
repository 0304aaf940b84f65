//! Frames byte for byte, and hostile bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

fn to_bytes(frames: &[StreamFrame]) -> Vec<u8> {
    let mut out = vec![STREAM_TAG];
    for frame in frames {
        let before = out.len();
        frame.write(&mut out);
        assert_eq!(out.len() - before, frame.encoded_len(), "{frame:?}");
    }
    out
}

fn parse(body: &[u8]) -> Result<Vec<StreamFrame>, StreamFrameError> {
    StreamFrames::new(Bytes::copy_from_slice(body))?.collect()
}

fn open(id: u64, destination: Destination, fin: bool, data: &'static [u8]) -> StreamFrame {
    let data = Bytes::from_static(data);
    let priority = StreamPriority::new(1, true);
    StreamFrame::Open(Open { id: StreamId(id), priority, destination, fin, data })
}

#[test]
fn frames_are_those_of_the_page() {
    let check = |frame: StreamFrame, bytes: &[u8]| {
        assert_eq!(to_bytes(std::slice::from_ref(&frame)), [&[0x20], bytes].concat());
        assert_eq!(parse(&[&[0x20], bytes].concat()), Ok(vec![frame]));
    };
    let v4 = Destination::of_address(Ipv4Addr::new(192, 0, 2, 1).into(), 443).expect("a port");
    let bytes = [1, 4, 0x09, 4, 192, 0, 2, 1, 0x01, 0xbb, 3, b'G', b'E', b'T'];
    check(open(4, v4, false, b"GET"), &bytes);
    let name = Destination::of_name("a.example", 80).expect("a name");
    check(open(6, name, true, b""), b"\x02\x06\x09\x01\x09a.example\x00\x50\x00");
    let data = Data { id: StreamId(4), offset: 1000, fin: true, data: Bytes::from_static(b"end") };
    check(StreamFrame::Data(data), &[4, 4, 0x43, 0xe8, 3, b'e', b'n', b'd']);
    let acknowledged = Acknowledged {
        id: StreamId(4),
        begun: true,
        fin: false,
        contiguous: 3,
        credit: 16_384,
        ranges: vec![10..20, 21..121],
    };
    let bytes = [5, 4, 1, 3, 0x7f, 0xfd, 2, 7, 10, 1, 0x40, 0x64];
    check(StreamFrame::Acknowledged(acknowledged), &bytes);
    check(StreamFrame::SessionCredit(1 << 20), &[6, 0x80, 0x10, 0, 0]);
    let id = StreamId(4);
    let reset =
        |code, final_size, is_answer| StreamFrame::Reset { id, code, final_size, is_answer };
    check(reset(ResetCode::TimedOut, 1000, false), &[7, 4, 5, 0x43, 0xe8]);
    check(reset(ResetCode::Unknown, 0, true), &[8, 4, 8, 0]);
    check(StreamFrame::Stop { id, code: ResetCode::Aborted }, &[9, 4, 1]);
    check(StreamFrame::Opened(id), &[10, 4]);
    let priority = StreamPriority::new(1, true);
    check(StreamFrame::Priority { id, change: 300, priority }, &[11, 4, 0x41, 0x2c, 0x09]);
}

#[test]
fn broken_frames_are_refused_with_the_reason() {
    let check = |bytes: &[u8], expected| assert_eq!(parse(bytes), Err(expected), "{bytes:02x?}");
    for no_frames in [&[][..], &[0x45], &[0x00], &[0x10], &[0x21]] {
        check(no_frames, StreamFrameError::Tag);
    }
    check(&[0x20, 0], StreamFrameError::UnknownKind(0));
    check(&[0x20, 12], StreamFrameError::UnknownKind(12));
    check(&[0x20, 11, 4, 1], StreamFrameError::Truncated);
    check(&[0x20, 11, 4, 1, 0x10], StreamFrameError::Bits(0x10));
    check(&[0x20, 10], StreamFrameError::Truncated);
    check(&[0x20, 3, 4, 0, 2, 1], StreamFrameError::Truncated);
    check(&[0x20, 1, 4, 0x10, 4, 192, 0, 2, 1, 0, 80, 0], StreamFrameError::Bits(0x10));
    check(&[0x20, 1, 4, 3, 5, 192, 0, 2, 1, 0, 80, 0], StreamFrameError::Destination);
    check(&[0x20, 1, 4, 3, 4, 192, 0, 2, 1, 0, 0, 0], StreamFrameError::Destination);
    check(&[0x20, 1, 4, 3, 1, 0, 0, 80, 0], StreamFrameError::Destination);
    check(b"\x20\x01\x04\x03\x01\x03a\x1b[\x00\x50\x00", StreamFrameError::Destination);
    check(b"\x20\x01\x04\x03\x01\x071.2.3.4\x00\x50\x00", StreamFrameError::Destination);
    check(b"\x20\x01\x04\x03\x01\x09a", StreamFrameError::Truncated);
    for (head, rest) in [(&[0x20_u8, 3, 4][..], [1_u8, 7]), (&[0x20, 5, 4, 0], [1, 0])] {
        check(&[head, &[0xff; 8], &rest].concat(), StreamFrameError::Offset);
    }
    check(&[0x20, 5, 4, 4, 0, 9, 0], StreamFrameError::Bits(4));
    for ranges in [&[33_u8][..], &[1, 0, 1], &[1, 1, 0], &[1, 5, 5]] {
        check(&[&[0x20, 5, 4, 0, 0, 9], ranges].concat(), StreamFrameError::Ranges);
    }
}

#[test]
fn frames_before_a_broken_one_are_decoded() {
    let body = Bytes::from_static(&[0x20, 10, 4, 0xff, 10, 6]);
    let mut frames = StreamFrames::new(body).expect("a tag");
    assert_eq!(frames.next(), Some(Ok(StreamFrame::Opened(StreamId(4)))));
    assert_eq!(frames.next(), Some(Err(StreamFrameError::UnknownKind(0xff))));
    assert_eq!(frames.next(), None);
}

#[test]
fn a_name_is_as_long_as_a_host_may_have() {
    let name = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    assert_eq!(name.len(), 253);
    let destination = Destination::of_name(&format!("{name}."), 65535).expect("as long as may be");
    let frame = open(0, destination, false, b"x");
    assert_eq!(parse(&to_bytes(std::slice::from_ref(&frame))), Ok(vec![frame]));
    assert_eq!(Destination::of_name(&format!("{name}d"), 1), None);
}

fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![0..70_u64, 0..100_000_u64, 0..=VARINT_MAX]
}

fn any_destination() -> impl Strategy<Value = Destination> {
    let address = prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from(bits))),
        any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from(bits))),
    ];
    prop_oneof![
        (address, 1..=u16::MAX)
            .prop_map(|(address, port)| Destination::of_address(address, port).expect("a port")),
        ("[a-z][a-z0-9_-]{0,20}(\\.[a-z][a-z0-9]{0,20}){0,3}", 1..=u16::MAX)
            .prop_map(|(name, port)| Destination::of_name(&name, port).expect("a name")),
    ]
}

fn any_acknowledged() -> impl Strategy<Value = Acknowledged> {
    let ranges = prop::collection::vec((1..5000_u64, 1..5000_u64), 0..=ACKNOWLEDGED_RANGES_MAX);
    let contiguous = prop_oneof![0..70_u64, 0..1_000_000_000_000_u64];
    (any_number(), any::<(bool, bool)>(), contiguous, ranges, 0..100_000_u64).prop_map(
        |(id, (begun, fin), contiguous, gaps, spare)| {
            let mut below = contiguous;
            let ranges = gaps.into_iter().map(|(gap, length)| {
                let range = below + gap..below + gap + length;
                below = range.end;
                range
            });
            let ranges: Vec<Range<u64>> = ranges.collect();
            let id = StreamId(id);
            Acknowledged { id, begun, fin, contiguous, credit: below + spare, ranges }
        },
    )
}

fn any_frame() -> impl Strategy<Value = StreamFrame> {
    let id = || any_number().prop_map(StreamId);
    let data = || prop::collection::vec(any::<u8>(), 0..100).prop_map(Bytes::from);
    let code = || any::<u8>().prop_map(ResetCode::from_byte);
    let priority = || {
        let priority = (0..8_u8, any::<bool>());
        priority.prop_map(|(urgency, turns)| StreamPriority::new(urgency, turns))
    };
    prop_oneof![
        (id(), priority(), any_destination(), any::<bool>(), data()).prop_map(
            |(id, priority, destination, fin, data)| {
                StreamFrame::Open(Open { id, priority, destination, fin, data })
            }
        ),
        (id(), 0..VARINT_MAX - 100, any::<bool>(), data())
            .prop_map(|(id, offset, fin, data)| StreamFrame::Data(Data { id, offset, fin, data })),
        any_acknowledged().prop_map(StreamFrame::Acknowledged),
        any_number().prop_map(StreamFrame::SessionCredit),
        (id(), code(), any_number(), any::<bool>()).prop_map(
            |(id, code, final_size, is_answer)| {
                StreamFrame::Reset { id, code, final_size, is_answer }
            }
        ),
        (id(), code()).prop_map(|(id, code)| StreamFrame::Stop { id, code }),
        id().prop_map(StreamFrame::Opened),
        (id(), any_number(), priority()).prop_map(|(id, change, priority)| StreamFrame::Priority {
            id,
            change,
            priority
        }),
    ]
}

proptest! {
    #[test]
    fn frames_read_back(frames in prop::collection::vec(any_frame(), 0..10)) {
        prop_assert_eq!(parse(&to_bytes(&frames)), Ok(frames));
    }

    #[test]
    fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let body = [&[STREAM_TAG], &bytes[..]].concat();
        if let Ok(frames) = parse(&body) {
            prop_assert_eq!(parse(&to_bytes(&frames)), Ok(frames));
        }
    }

    /// Nearly correct bytes reach further into the parser than arbitrary ones.
    #[test]
    fn frames_with_a_wrong_byte_parse_or_are_refused(
        frames in prop::collection::vec(any_frame(), 1..5),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut body = to_bytes(&frames);
        let at = at.index(body.len());
        body[at] = byte;
        if let Ok(frames) = parse(&body) {
            prop_assert_eq!(parse(&to_bytes(&frames)), Ok(frames));
        }
    }
}
