//! Splitting and joining are inverse for all packets.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
struct Spec {
    ipv6: bool,
    udp: bool,
    port: u16,
    sequence: u32,
    flags: u8,
    payload: Vec<u8>,
}

impl Spec {
    fn tcp(sequence: u32, payload: &[u8]) -> Self {
        let payload = payload.to_vec();
        Self { ipv6: false, udp: false, port: 80, sequence, flags: TCP_ACK, payload }
    }

    fn udp(payload: &[u8]) -> Self {
        Self { udp: true, ..Self::tcp(0, payload) }
    }

    fn build(&self) -> Vec<u8> {
        let mut transport = if self.udp {
            let length = (UDP_HEADER + self.payload.len()) as u16;
            let mut header = [self.port.to_be_bytes(), 9u16.to_be_bytes()].concat();
            header.extend(length.to_be_bytes());
            header.extend([0, 0]);
            header
        } else {
            let mut header = [self.port.to_be_bytes(), 9u16.to_be_bytes()].concat();
            header.extend(self.sequence.to_be_bytes());
            header.extend(77u32.to_be_bytes());
            header.extend([8 << 4, self.flags, 0x10, 0x20, 0, 0, 0, 0]);
            header.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
            header
        };
        transport.extend(&self.payload);
        let mut packet = if self.ipv6 {
            let mut ip = vec![0x60, 0, 0, 0];
            ip.extend((transport.len() as u16).to_be_bytes());
            ip.extend([if self.udp { UDP } else { TCP }, 64]);
            ip.extend([0xfd; 32]);
            ip
        } else {
            let mut ip = vec![0x45, 0];
            ip.extend((transport.len() as u16 + 20).to_be_bytes());
            ip.extend([0, 7, 0x40, 0, 64, if self.udp { UDP } else { TCP }, 0, 0]);
            ip.extend([10, 8, 0, 1, 10, 8, 0, 2]);
            set_ipv4_checksum(&mut ip, 20);
            ip
        };
        let start = packet.len();
        let length = transport.len() as u16;
        packet.extend(transport);
        let protocol = if self.udp { UDP } else { TCP };
        let pseudo = pseudo_header(&packet, self.ipv6, protocol, length);
        set_transport_checksum(&mut packet, start, self.udp, pseudo);
        packet
    }
}

fn coalesce(packets: &[Vec<u8>]) -> Vec<(Vec<u8>, usize)> {
    let mut coalescer = Coalescer::new(true);
    let mut written = Vec::new();
    let mut write = |bytes: &[u8], count: usize| written.push((bytes.to_vec(), count));
    for packet in packets {
        coalescer.push(packet, &mut write);
    }
    coalescer.flush(&mut write);
    written
}

fn cut(written: &[(Vec<u8>, usize)]) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for (bytes, count) in written {
        let mut bytes = bytes.clone();
        let (header, packet) = bytes.split_first_chunk_mut::<HEADER_LEN>().unwrap();
        let header = Header::decode(header).unwrap();
        let cut = split(&header, packet, |packet| packets.push(packet.to_vec())).unwrap();
        assert_eq!(cut, *count);
    }
    packets
}

/// Checks the number of writes, and that they split into the same packets but for IPv4's ID.
fn check(packets: &[Vec<u8>], writes: usize) {
    let written = coalesce(packets);
    assert_eq!(written.len(), writes);
    assert_eq!(normalize(cut(&written)), normalize(packets.to_vec()));
}

/// Sorts by flow, since order is kept within flows only, and clears ID and checksum of IPv4.
fn normalize(mut packets: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    for packet in &mut packets {
        if packet[0] >> 4 == 4 {
            assert_eq!(finish(add(0, &packet[..20])), 0xffff, "IPv4 header checksum");
            packet[4..6].fill(0);
            packet[10..12].fill(0);
        }
    }
    let flow = |packet: &Vec<u8>| {
        let ipv6 = packet[0] >> 4 == 6;
        let (protocol, at) = if ipv6 { (packet[6], 40) } else { (packet[9], 20) };
        (ipv6, protocol, packet[at..at + 2].to_vec())
    };
    packets.sort_by_key(flow);
    packets
}

#[test]
fn a_run_crosses_as_one_until_a_packet_does_not_continue_it() {
    let tcp: Vec<_> = (0..20)
        .map(|i| Spec::tcp((u32::MAX - 3000).wrapping_add(i * 1000), &[i as u8; 1000]).build())
        .collect();
    check(&tcp, 1);
    let mut udp: Vec<_> = (0..5).map(|i| Spec::udp(&[i; 900]).build()).collect();
    udp.push(Spec::udp(&[9; 100]).build());
    check(&udp, 1);
    udp.push(Spec::udp(&[9; 100]).build());
    check(&udp, 2);
    check(&[Spec::tcp(0, &[1; 500]).build(), Spec::tcp(501, &[2; 500]).build()], 2);
    // A damaged packet stays damaged.
    let mut damaged: Vec<_> = (0..3).map(|i| Spec::tcp(i * 500, &[i as u8; 500]).build()).collect();
    damaged[1][200] ^= 1;
    check(&damaged, 3);
}

#[test]
fn a_udp_checksum_that_sums_to_zero_is_sent_as_all_ones() {
    // RFC 8200 section 8.1: a receiver discards UDP over IPv6 with a zero checksum.
    let mut packet = Spec { ipv6: true, ..Spec::udp(&[0; 4]) }.build();
    let field = [packet[46], packet[47]];
    packet[48..50].copy_from_slice(&field);
    let pseudo = finish(pseudo_header(&packet, true, UDP, 12));
    packet[46..48].copy_from_slice(&pseudo.to_ne_bytes());
    let (needs_checksum, none) = (true, Header::default());
    let header = Header { needs_checksum, checksum_start: 40, checksum_offset: 6, ..none };
    split(&header, &mut packet, |packet| assert_eq!(packet[46..48], [0xff, 0xff])).unwrap();
}

#[test]
fn a_header_that_lies_is_refused() {
    let mut packet = Spec::tcp(0, &[1; 500]).build();
    let good = Header {
        needs_checksum: true,
        gso: Gso::TcpV4,
        header_len: 52,
        segment_size: 100,
        checksum_start: 20,
        checksum_offset: 16,
    };
    for bad in [
        Header { segment_size: 0, ..good },
        Header { gso: Gso::TcpV6, ..good },
        Header { checksum_start: 4, ..good },
        Header { checksum_start: 5000, ..good },
        Header { checksum_start: 550, ..good },
        Header { gso: Gso::None, checksum_start: 551, checksum_offset: 0, ..good },
    ] {
        assert_eq!(split(&bad, &mut packet, |_| panic!("{bad:?}")), Err(Malformed), "{bad:?}");
    }
    assert_eq!(split(&good, &mut packet, |_| {}), Ok(5));
}

fn arbitrary_packet() -> impl Strategy<Value = Spec> {
    let flags = prop_oneof![
        6 => Just(TCP_ACK),
        1 => Just(TCP_ACK | TCP_PSH),
        1 => Just(TCP_ACK | TCP_FIN),
    ];
    (any::<bool>(), any::<bool>(), 1u16..3, flags, prop_oneof![Just(700usize), 1..1400usize])
        .prop_map(|(ipv6, udp, port, flags, length)| Spec {
            ipv6,
            udp,
            port,
            sequence: 0,
            flags,
            payload: (0..length).map(|byte| byte as u8).collect(),
        })
}

proptest! {
    #[test]
    fn whatever_is_joined_is_cut_into_the_same_packets(
        mut specs in prop::collection::vec(arbitrary_packet(), 1..80),
        gaps in prop::collection::vec(0u32..20, 80),
    ) {
        let mut next = std::collections::BTreeMap::new();
        for (spec, gap) in specs.iter_mut().zip(&gaps) {
            let at = next.entry((spec.ipv6, spec.udp, spec.port)).or_insert(u32::MAX - 20_000);
            spec.sequence = at.wrapping_add(u32::from(*gap == 0));
            *at = spec.sequence.wrapping_add(spec.payload.len() as u32);
        }
        let packets: Vec<_> = specs.iter().map(Spec::build).collect();
        let written = coalesce(&packets);
        prop_assert_eq!(normalize(cut(&written)), normalize(packets));
    }

    #[test]
    fn no_bytes_make_the_coalescer_or_the_cutter_panic(
        packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20),
        header in any::<[u8; HEADER_LEN]>(),
        version in prop_oneof![Just(0x45u8), Just(0x60)],
    ) {
        let mut packets = packets;
        for packet in &mut packets {
            if let Some(first) = packet.first_mut() { *first = version }
            if let Some(protocol) = packet.get_mut(if version == 0x45 { 9 } else { 6 }) {
                *protocol = if *protocol > 127 { TCP } else { UDP };
            }
        }
        let written = coalesce(&packets);
        prop_assert_eq!(written.iter().map(|(_, count)| count).sum::<usize>(), packets.len());
        if let Some(header) = Header::decode(&header) {
            for packet in &mut packets {
                let _ = split(&header, packet, |_| {});
            }
        }
    }
}
