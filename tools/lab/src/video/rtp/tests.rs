//! Depacketizer against packetizer: packets are lost, duplicated, reordered and forged.

use proptest::prelude::*;

use super::*;

fn nal() -> impl Strategy<Value = Bytes> {
    let size = prop_oneof![2_usize..40, 1_150_usize..1_260, 2_390_usize..2_410, 5_000_usize..6_000];
    (size, 1_u8..=12, 0_u8..=3, any::<u8>()).prop_map(|(size, kind, importance, fill)| {
        let mut nal: Vec<u8> = (0..size).map(|i| fill.wrapping_add((i % 251) as u8)).collect();
        nal[0] = importance << 5 | kind;
        nal.into()
    })
}

fn unit() -> impl Strategy<Value = AccessUnit> {
    prop::collection::vec(nal(), 1..6).prop_map(|nals| AccessUnit { nals })
}

fn parse_all(packets: &[Bytes]) -> Vec<RtpPacket> {
    packets.iter().map(|packet| RtpPacket::parse(packet).unwrap()).collect()
}

fn large_unit(packets: usize) -> AccessUnit {
    let mut nal = vec![7; 1 + packets * (PAYLOAD_MAX - 2)];
    nal[0] = 0x41;
    AccessUnit { nals: vec![nal.into()] }
}

proptest! {
    #[test]
    fn pictures_survive_copies_and_reordering(
        units in prop::collection::vec(unit(), 1..5),
        first_sequence: u16,
        first_timestamp: u32,
        copies in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        seed in prop::collection::vec(any::<u32>(), 100),
    ) {
        let mut packetizer = Packetizer::new(1, first_sequence);
        let mut packets = Vec::new();
        for (index, unit) in units.iter().enumerate() {
            let timestamp = first_timestamp.wrapping_add(3_000 * index as u32);
            let of_unit = parse_all(&packetizer.packetize(unit, timestamp));
            prop_assert!(of_unit.iter().all(|p| p.payload.len() <= PAYLOAD_MAX));
            let markers: Vec<_> = of_unit.iter().map(|p| p.marker).collect();
            prop_assert_eq!(markers.iter().filter(|marker| **marker).count(), 1);
            prop_assert_eq!(markers.last(), Some(&true));
            packets.extend(of_unit);
        }
        for (index, packet) in packets.iter().enumerate() {
            prop_assert_eq!(packet.sequence, first_sequence.wrapping_add(index as u16));
        }
        let distinct = packets.len();
        let copied: Vec<_> = copies.iter().map(|i| i.get(&packets).clone()).collect();
        packets.extend(copied);
        let mut order: Vec<_> = (0..packets.len()).collect();
        order.sort_by_key(|&index| seed[index % seed.len()].rotate_left(index as u32));

        let mut depacketizer = Depacketizer::default();
        order.iter().for_each(|&index| depacketizer.push(packets[index].clone()));
        prop_assert_eq!(depacketizer.discarded().duplicate as usize, packets.len() - distinct);
        for (index, unit) in units.iter().enumerate() {
            let timestamp = first_timestamp.wrapping_add(3_000 * index as u32);
            let picture = depacketizer.take(timestamp).unwrap();
            prop_assert_eq!(&picture.nals, &unit.nals);
        }
        prop_assert_eq!(depacketizer.bytes, 0);
    }

    #[test]
    fn a_hole_never_forges_a_unit(
        unit in unit(),
        lost in prop::collection::btree_set(0_usize..24, 0..12),
    ) {
        let packets = parse_all(&Packetizer::new(1, 65_530).packetize(&unit, 0));
        let mut depacketizer = Depacketizer::default();
        for (index, packet) in packets.iter().enumerate() {
            if !lost.contains(&index) {
                depacketizer.push(packet.clone());
            }
        }
        let nothing_lost = lost.iter().all(|&index| index >= packets.len());
        let nals = depacketizer.take(0).map_or(Vec::new(), |picture| picture.nals);
        // Units arrive in order, each a prefix of the original.
        let mut sent = unit.nals.iter();
        for nal in &nals {
            prop_assert!(sent.any(|original| original.starts_with(nal)), "forged {} bytes", nal.len());
        }
        prop_assert!(!nothing_lost || nals == unit.nals);
    }

    #[test]
    fn garbage_never_panics_and_memory_stays_bounded(
        datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..300),
        repaired: bool,
    ) {
        let mut depacketizer = Depacketizer::default();
        for mut datagram in datagrams {
            if repaired && datagram.len() > 2 {
                datagram[0] = VERSION << 6 | datagram[0] & 0x3f;
                datagram[1] = datagram[1] & 0x80 | PAYLOAD_TYPE;
            }
            if let Ok(packet) = RtpPacket::parse(&datagram.into()) {
                depacketizer.push(packet);
            }
        }
        prop_assert!(depacketizer.pictures.len() <= PICTURES_MAX);
        let timestamps: Vec<_> = depacketizer.pictures.keys().map(|t| *t as u32).collect();
        timestamps.into_iter().for_each(|timestamp| drop(depacketizer.take(timestamp)));
    }
}

#[test]
fn the_beginning_of_a_cut_slice_is_used_and_its_tail_is_not() {
    let unit = large_unit(6);
    let packets = parse_all(&Packetizer::new(1, 0).packetize(&unit, 90));
    let mut depacketizer = Depacketizer::default();
    for index in [0, 1, 2, 4, 5] {
        depacketizer.push(packets[index].clone());
    }
    let nals = depacketizer.take(90).unwrap().nals;
    assert_eq!(nals, [unit.nals[0].slice(..1 + 3 * (PAYLOAD_MAX - 2))]);
}

#[test]
fn packets_of_a_taken_picture_are_late() {
    let packets = parse_all(&Packetizer::new(1, 0).packetize(&large_unit(3), 90));
    let mut depacketizer = Depacketizer::default();
    depacketizer.push(packets[0].clone());
    assert!(depacketizer.take(90).is_some());
    depacketizer.push(packets[1].clone());
    assert_eq!(depacketizer.discarded().late, 1);
    assert_eq!(depacketizer.take(90), None);
}

#[test]
fn headers_with_extension_sources_and_padding_are_understood() {
    // Padding, an extension of one word, one contributing source, two bytes of payload.
    let mut datagram = vec![0xb1, 0x80 | PAYLOAD_TYPE, 0, 9, 0, 0, 0, 90, 0, 0, 0, 1];
    datagram.extend([0; 4]);
    datagram.extend([0xbe, 0xde, 0, 1, 1, 2, 3, 4]);
    datagram.extend([0x41, 0x9a, 0, 0, 3]);
    let packet = RtpPacket::parse(&datagram.clone().into()).unwrap();
    assert_eq!((packet.sequence, packet.timestamp, packet.marker), (9, 90, true));
    assert_eq!(packet.payload.as_ref(), [0x41, 0x9a]);
    for len in 0..24 {
        let short = Bytes::copy_from_slice(&datagram[..len]);
        assert_eq!(RtpPacket::parse(&short), Err(RtpError::Truncated), "{len} bytes");
    }
}
