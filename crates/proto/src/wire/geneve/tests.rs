use proptest::prelude::*;

use super::*;

const SEQ: GeneveSequence = GeneveSequence { epoch: 0x0102_0304, number: 0xffff_fffe };

fn packet(bits: u8, ethertype: u16, options: &[&[u8]], payload: &[u8]) -> Vec<u8> {
    let options = options.concat();
    assert_eq!(options.len() % 4, 0, "options fill words");
    let mut bytes = vec![(options.len() / 4) as u8, bits];
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend([0, 0, 7, 0]);
    bytes.extend(options);
    bytes.extend(payload);
    bytes
}

fn sequence() -> Vec<u8> {
    [&[0xff, 0x52, 0x81, 2][..], &SEQ.epoch.to_be_bytes(), &SEQ.number.to_be_bytes()].concat()
}

fn check(bytes: &[u8], expected: GeneveError) {
    assert_eq!(Geneve::parse(bytes), Err(expected), "{bytes:02x?}");
}

#[test]
fn the_bytes_are_those_of_the_documentation() {
    let header = Geneve::inner_header(0x0a_0b0c, 0x45, SEQ);
    let expected = [
        0x03, 0x40, 0x08, 0x00, 0x0a, 0x0b, 0x0c, 0x00, // header
        0xff, 0x52, 0x81, 0x02, // option
        0x01, 0x02, 0x03, 0x04, 0xff, 0xff, 0xff, 0xfe,
    ];
    assert_eq!(header, expected);
    assert_eq!(Geneve::inner_header(0, 0x60, SEQ)[2..4], [0x86, 0xdd]);
    let hello = GeneveHello { epoch: 1, link: 2, sent_us: 3, echoed_us: 4, held_us: 5 };
    let expected = [
        0x06, 0x80, 0x88, 0xb5, 0x00, 0x00, 0x09, 0x00, // header
        0xff, 0x52, 0x02, 0x05, // option
        0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5,
    ];
    assert_eq!(Geneve::hello(9, &hello), expected);
}

#[test]
fn options_that_are_not_ours_are_skipped_wherever_they_stand() {
    let other = [0x01, 0x02, 0x07, 1, 9, 9, 9, 9];
    let empty = [0xff, 0x52, 0x7f, 0];
    for options in [
        vec![&other[..], &sequence()],
        vec![&empty[..], &sequence(), &other],
        vec![&sequence()[..], &other, &empty],
    ] {
        for bits in [0, CRITICAL_BIT, 0x3f] {
            let bytes = packet(bits, 0x0800, &options, &[0x45]);
            let parsed = Geneve::parse(&bytes).expect("well-formed");
            let content = GeneveContent::Inner { sequence: SEQ, packet: &[0x45] };
            assert_eq!(parsed, Geneve { vni: 7, content }, "reserved bits say nothing");
        }
    }
}

#[test]
fn what_must_be_dropped_is_refused() {
    let ours = sequence();
    let good = packet(CRITICAL_BIT, 0x0800, &[&ours], &[0x45]);
    for length in 0..HEADER {
        check(&good[..length], GeneveError::Truncated(length));
    }
    for length in HEADER..GENEVE_OVERHEAD {
        let held = length - HEADER;
        check(&good[..length], GeneveError::OptionsBeyondPacket { claimed: 12, held });
    }
    for version in 1..4_u8 {
        let mut bytes = good.clone();
        bytes[0] |= version << 6;
        check(&bytes, GeneveError::Version(version));
    }
    let critical = [0x01, 0x02, 0x87, 0];
    let unknown = GeneveError::UnknownCritical { class: 0x0102, kind: 0x87 };
    for bits in [0, CRITICAL_BIT, CONTROL_BIT] {
        for options in [[&ours[..], &critical], [&critical, &ours]] {
            check(&packet(bits, 0x0800, &options, &[0x45]), unknown);
        }
    }
    let newer = [0xff, 0x52, 0x83, 0];
    let unknown = GeneveError::UnknownCritical { class: 0xff52, kind: 0x83 };
    check(&packet(0, 0x0800, &[&ours, &newer], &[0x45]), unknown);
}

#[test]
fn lengths_that_lie_are_refused() {
    let ours = sequence();
    let long = [0x01, 0x02, 0x07, 2, 9, 9, 9, 9];
    let too_long = GeneveError::OptionLength { class: 0x0102, kind: 0x07 };
    check(&packet(0, 0x0800, &[&ours, &long], &[0x45]), too_long);
    for words in [0, 1, 3] {
        let mut option = vec![0xff, 0x52, 0x81, words];
        option.resize(4 + 4 * usize::from(words), 0);
        let wrong = GeneveError::OptionLength { class: 0xff52, kind: 0x81 };
        check(&packet(0, 0x0800, &[&option], &[0x45]), wrong);
    }
    check(&packet(0, 0x0800, &[&ours, &ours], &[0x45]), GeneveError::Repeated(SEQUENCE));
}

#[test]
fn other_payloads_and_other_tunnels_are_refused() {
    let ours = sequence();
    check(&packet(0, 0x6558, &[&ours], &[0x45]), GeneveError::Protocol(0x6558));
    check(&packet(0, 0x0800, &[], &[0x45]), GeneveError::NoSequence);
    for (ethertype, payload) in [(0x0800, &[0x60][..]), (0x86dd, &[0x45]), (0x86dd, &[])] {
        check(&packet(0, ethertype, &[&ours], payload), GeneveError::Family(ethertype));
    }
    check(&packet(CONTROL_BIT, 0x0800, &[&ours], &[0x45]), GeneveError::UnknownControl);
    let hello = &Geneve::hello(7, &GeneveHello::default())[HEADER..];
    check(&packet(0, 0x0800, &[hello], &[0x45]), GeneveError::NoSequence);
}

proptest! {
    #[test]
    fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = Geneve::parse(&bytes);
    }

    #[test]
    fn any_options_parse_or_are_refused(
        first in 0_u8..0x40,
        second in any::<u8>(),
        options in prop::collection::vec((0_u8..4, 0_u8..9, any::<bool>()), 0..8),
    ) {
        let mut bytes = vec![first, second, 8, 0, 0, 0, 0, 0];
        for (kind, words, is_ours) in options {
            let class = if is_ours { GENEVE_OPTION_CLASS } else { 0x0102 };
            bytes.extend(class.to_be_bytes());
            bytes.extend([kind | second & CRITICAL, words]);
            bytes.resize(bytes.len() + 4 * usize::from(words), 0x45);
        }
        if let Ok(Geneve { content: GeneveContent::Inner { packet, .. }, .. }) =
            Geneve::parse(&bytes)
        {
            prop_assert!(bytes.ends_with(packet) && packet[0] >> 4 == 4);
        }
    }

    #[test]
    fn what_is_written_reads_back(
        vni in 0..=GENEVE_VNI_MAX,
        epoch in any::<u32>(),
        number in any::<u32>(),
        mut packet in prop::collection::vec(any::<u8>(), 1..80),
        is_ipv6 in any::<bool>(),
    ) {
        packet[0] = packet[0] & 0x0f | if is_ipv6 { 0x60 } else { 0x40 };
        let sequence = GeneveSequence { epoch, number };
        let mut bytes = Geneve::inner_header(vni, packet[0], sequence).to_vec();
        bytes.extend(&packet);
        let content = GeneveContent::Inner { sequence, packet: &packet };
        prop_assert_eq!(Geneve::parse(&bytes), Ok(Geneve { vni, content }));
        let hello = GeneveHello { epoch, link: number as u8, sent_us: number, echoed_us: vni, held_us: epoch };
        let parsed = Geneve { vni, content: GeneveContent::Hello(hello) };
        let bytes = Geneve::hello(vni, &hello);
        prop_assert_eq!(Geneve::parse(&bytes), Ok(parsed));
    }
}
