//! Other signs that UDP carries live media, or does not.

use crate::wire::inner::InnerPacket;

/// A packet of an MPEG transport stream, and its first byte (ISO/IEC 13818-1 section 2.4.3.2).
const TS_PACKET: usize = 188;
const TS_SYNC: u8 = 0x47;
const STUN_HEADER: usize = 20;
const STUN_COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
/// PRIORITY, USE-CANDIDATE, ICE-CONTROLLED and ICE-CONTROLLING (RFC 8445 section 16.1) of
/// connectivity checks; MESSAGE-INTEGRITY (RFC 8489 section 14.5), also of answers.
const ICE_ATTRIBUTES: [u16; 5] = [0x0024, 0x0025, 0x8029, 0x802a, 0x0008];
/// Versions 1 and 2 of QUIC (RFC 9000 section 15, RFC 9369 section 3.1).
const QUIC_VERSIONS: [[u8; 4]; 2] = [[0, 0, 0, 1], [0x6b, 0x33, 0x43, 0xcf]];

/// The number of packets of an MPEG transport stream, if it carries nothing else.
pub fn mpeg_ts_packets(packet: &InnerPacket<'_>) -> Option<usize> {
    let (packets, rest) = packet.udp_payload()?.as_chunks::<TS_PACKET>();
    let is_ts =
        rest.is_empty() && !packets.is_empty() && packets.iter().all(|packet| packet[0] == TS_SYNC);
    is_ts.then_some(packets.len())
}

/// Whether it is STUN of a peer-to-peer session: a connectivity check of ICE (RFC 8445), its
/// answer, or a request to a relay with credentials (RFC 8656).
pub fn is_ice(packet: &InnerPacket<'_>) -> bool {
    let Some(bytes) = packet.udp_payload() else { return false };
    let Some((header, mut attributes)) = bytes.split_first_chunk::<STUN_HEADER>() else {
        return false;
    };
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] >> 6 != 0 || header[4..8] != STUN_COOKIE || length != attributes.len() {
        return false;
    }
    while let Some((head, rest)) = attributes.split_first_chunk::<4>() {
        if ICE_ATTRIBUTES.contains(&u16::from_be_bytes([head[0], head[1]])) {
            return true;
        }
        let length = usize::from(u16::from_be_bytes([head[2], head[3]])).next_multiple_of(4);
        attributes = rest.get(length..).unwrap_or_default();
    }
    false
}

/// Whether it is a compound packet of RTCP (RFC 3550 section 6.1): a report first, and lengths
/// of parts that add up. SRTCP has a trailer and does not match.
pub fn is_rtcp(packet: &InnerPacket<'_>) -> bool {
    let Some(mut rest) = packet.udp_payload() else { return false };
    let begins_with_report = matches!(rest, [_, 200 | 201, ..]);
    while let Some((head, _)) = rest.split_first_chunk::<4>() {
        let length = (usize::from(u16::from_be_bytes([head[2], head[3]])) + 1) * 4;
        if head[0] >> 6 != 2 || !(200..=207).contains(&head[1]) || rest.len() < length {
            return false;
        }
        rest = &rest[length..];
    }
    begins_with_report && rest.is_empty()
}

/// Whether it is QUIC with a long header, as connections begin (RFC 8999 section 5.1).
pub fn is_quic_long(packet: &InnerPacket<'_>) -> bool {
    let header = packet.udp_payload().and_then(<[u8]>::first_chunk::<5>);
    header.is_some_and(|[first, version @ ..]| first >> 7 == 1 && QUIC_VERSIONS.contains(version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::inner::tests::udp_v4;

    fn ask<T>(payload: &[u8], question: impl Fn(&InnerPacket<'_>) -> T) -> T {
        let packet = udp_v4(payload);
        question(&InnerPacket::parse(&packet).expect("well-formed"))
    }

    fn stun(attributes: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 1];
        bytes.extend((attributes.len() as u16).to_be_bytes());
        bytes.extend(STUN_COOKIE);
        bytes.extend([9; 12]);
        bytes.extend(attributes);
        bytes
    }

    #[test]
    fn transport_streams_are_counted() {
        let mut bytes = vec![0; 7 * TS_PACKET];
        bytes.iter_mut().step_by(TS_PACKET).for_each(|byte| *byte = TS_SYNC);
        assert_eq!(ask(&bytes, mpeg_ts_packets), Some(7));
        assert_eq!(ask(&bytes[..1200], mpeg_ts_packets), None, "cut");
        bytes[TS_PACKET] = 0;
        assert_eq!(ask(&bytes, mpeg_ts_packets), None, "out of step");
        assert_eq!(ask(&[], mpeg_ts_packets), None);
    }

    #[test]
    fn ice_checks_differ_from_stun_address_requests() {
        let software = [0x80, 0x22, 0, 3, b'r', b'w', b'!', 0];
        let priority = [0, 0x24, 0, 4, 1, 2, 3, 4];
        assert!(ask(&stun(&[software, priority].concat()), is_ice));
        assert!(!ask(&stun(&software), is_ice));
        assert!(!ask(&stun(&[]), is_ice));
        let mut cut = stun(&priority);
        cut.pop();
        assert!(!ask(&cut, is_ice));
        assert!(!ask(&stun(&[0, 1, 0xff, 0xff]), is_ice), "an impossible length");
    }

    #[test]
    fn compounds_of_rtcp_add_up() {
        let report = [0x80, 201, 0, 1, 0, 0, 0, 7];
        let description = [0x81, 202, 0, 2, 0, 0, 0, 7, 1, 1, b'x', 0];
        assert!(ask(&report, is_rtcp));
        assert!(ask(&[&report[..], &description].concat(), is_rtcp));
        assert!(!ask(&description, is_rtcp), "a report comes first");
        assert!(!ask(&[&report[..], &[1, 2, 3]].concat(), is_rtcp));
        assert!(!ask(&report[..4], is_rtcp));
        assert!(!ask(&[], is_rtcp));
    }

    #[test]
    fn quic_begins_with_its_version() {
        assert!(ask(&[0xc3, 0, 0, 0, 1, 8], is_quic_long));
        assert!(ask(&[0x83, 0x6b, 0x33, 0x43, 0xcf, 8], is_quic_long), "greased");
        assert!(!ask(&[0x43, 0, 0, 0, 1, 8], is_quic_long), "a short header");
        assert!(!ask(&[0xc3, 0, 0, 0, 2, 8], is_quic_long));
        assert!(!ask(&[0xc3, 0, 0, 0], is_quic_long));
    }
}
