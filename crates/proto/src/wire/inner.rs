//! A view of an inner packet: only what the tunnel needs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocol numbers and Ethernet types (IANA).
pub mod protocol {
    /// The Ethernet type of IPv4.
    pub const ETHERTYPE_IPV4: u16 = 0x0800;
    /// The Ethernet type of IPv6.
    pub const ETHERTYPE_IPV6: u16 = 0x86dd;
    /// An Ethernet type for experiments (IEEE 802: Local Experimental Ethertype 1).
    pub const ETHERTYPE_EXPERIMENTAL: u16 = 0x88b5;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;

/// The header fields of an inner packet, checked against its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerPacket<'a> {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The differentiated services code point (RFC 2474), 0..64.
    pub dscp: u8,
    /// The protocol of the payload; for IPv6 the next header, without following extension headers.
    pub protocol: u8,
    /// The bytes after the IP header.
    pub payload: &'a [u8],
    /// A fragment other than the first: `payload` does not start with a header.
    pub later_fragment: bool,
}

/// Why bytes are not an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InnerError {
    #[error("inner packet of IP version {0}")]
    Version(u8),
    #[error("inner packet of {0} bytes is shorter than its header claims")]
    Truncated(usize),
    #[error("inner packet of {held} bytes claims {claimed}")]
    Trailing { claimed: usize, held: usize },
}

impl<'a> InnerPacket<'a> {
    /// Reads the headers of an IP packet of exactly this length.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, InnerError> {
        match bytes.first().map(|byte| byte >> 4) {
            Some(4) => Self::parse_v4(bytes),
            Some(6) => Self::parse_v6(bytes),
            Some(other) => Err(InnerError::Version(other)),
            None => Err(InnerError::Truncated(0)),
        }
    }

    fn parse_v4(bytes: &'a [u8]) -> Result<Self, InnerError> {
        let truncated = InnerError::Truncated(bytes.len());
        let header: &[u8; IPV4_HEADER] = bytes.first_chunk().ok_or(truncated)?;
        let header_length = usize::from(header[0] & 0x0f) * 4;
        let claimed = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if header_length < IPV4_HEADER || claimed < header_length || bytes.len() < claimed {
            return Err(truncated);
        }
        if bytes.len() > claimed {
            return Err(InnerError::Trailing { claimed, held: bytes.len() });
        }
        Ok(Self {
            source: IpAddr::V4(Ipv4Addr::new(header[12], header[13], header[14], header[15])),
            destination: IpAddr::V4(Ipv4Addr::new(header[16], header[17], header[18], header[19])),
            dscp: header[1] >> 2,
            protocol: header[9],
            payload: &bytes[header_length..],
            later_fragment: u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0,
        })
    }

    fn parse_v6(bytes: &'a [u8]) -> Result<Self, InnerError> {
        let truncated = InnerError::Truncated(bytes.len());
        let header: &[u8; IPV6_HEADER] = bytes.first_chunk().ok_or(truncated)?;
        let claimed = IPV6_HEADER + usize::from(u16::from_be_bytes([header[4], header[5]]));
        if bytes.len() < claimed {
            return Err(truncated);
        }
        if bytes.len() > claimed {
            return Err(InnerError::Trailing { claimed, held: bytes.len() });
        }
        let address = |at: usize| {
            let octets: [u8; 16] = header[at..at + 16].try_into().expect("16 bytes were sliced");
            IpAddr::V6(Ipv6Addr::from(octets))
        };
        Ok(Self {
            source: address(8),
            destination: address(24),
            dscp: (u16::from_be_bytes([header[0], header[1]]) >> 6 & 0x3f) as u8,
            protocol: header[6],
            payload: &bytes[IPV6_HEADER..],
            later_fragment: false,
        })
    }

    /// Whether it belongs to a link: neighbour discovery of IPv6 (RFC 4861: router and neighbour
    /// solicitations and advertisements, redirects), or a link-local source. A tunnel is not a
    /// link, so the other end must not get it. Headers that end too early count as such.
    pub fn is_of_link(&self) -> bool {
        match self.source {
            IpAddr::V4(source) => source.is_link_local(),
            IpAddr::V6(source) => {
                source.is_unicast_link_local() || is_discovery(self.protocol, self.payload)
            }
        }
    }

    /// Source and destination port of TCP and UDP.
    pub fn ports(&self) -> Option<(u16, u16)> {
        if self.later_fragment || !matches!(self.protocol, protocol::TCP | protocol::UDP) {
            return None;
        }
        let ports: &[u8; 4] = self.payload.first_chunk()?;
        Some((u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]])))
    }

    pub(super) fn udp_payload(&self) -> Option<&[u8]> {
        let is_udp = self.protocol == protocol::UDP && !self.later_fragment;
        self.payload.get(UDP_HEADER..).filter(|_| is_udp)
    }

    /// A hash of the 5-tuple, the same on every machine and in every run, for one direction of a
    /// flow. Without ports, as in later fragments, of the addresses and the protocol.
    pub fn flow_hash(&self) -> u64 {
        let mut hash = FNV_OFFSET;
        for address in [self.source, self.destination] {
            hash = match address {
                IpAddr::V4(address) => fnv(hash, &address.octets()),
                IpAddr::V6(address) => fnv(hash, &address.octets()),
            };
        }
        hash = fnv(hash, &[self.protocol]);
        if let Some((source, destination)) = self.ports() {
            hash = fnv(hash, &source.to_be_bytes());
            hash = fnv(hash, &destination.to_be_bytes());
        }
        // Mixes the low bits, since only a few of them choose a path.
        let folded = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        folded ^ folded >> 29
    }
}

/// Neighbour discovery, possibly after extension headers (RFC 8200 section 4).
fn is_discovery(mut protocol: u8, mut payload: &[u8]) -> bool {
    loop {
        let Some(first) = payload.first() else { return is_extension(protocol) };
        let second = payload.get(1).copied().map(usize::from);
        let length = match (protocol, second) {
            (protocol::ICMPV6, _) => return NEIGHBOUR_DISCOVERY.contains(first),
            (protocol, None) => return is_extension(protocol),
            // A later fragment has no headers, and is useless without the first.
            (FRAGMENT, _) if payload.get(2..4).is_some_and(|at| at[0] != 0 || at[1] >= 8) => {
                return false;
            }
            (FRAGMENT, _) => 8,
            (AUTHENTICATION, Some(words)) => (words + 2) * 4,
            (HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS, Some(words)) => (words + 1) * 8,
            _ => return false,
        };
        protocol = *first;
        payload = payload.get(length..).unwrap_or_default();
        if payload.is_empty() {
            return true;
        }
    }
}

fn is_extension(protocol: u8) -> bool {
    matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS)
}

/// FNV-1a with 64 bits.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
/// RFC 4861, of ICMPv6.
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{RtpHeader, SrtHeader, is_ice, is_quic_long, is_rtcp, mpeg_ts_packets};

    pub(crate) fn udp_v4(payload: &[u8]) -> Vec<u8> {
        let length = (IPV4_HEADER + UDP_HEADER + payload.len()) as u16;
        let mut packet = vec![0x45, 0xb8];
        packet.extend(length.to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, protocol::UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend([0x13, 0x88, 0x13, 0x89, 0, 0, 0, 0]);
        packet.extend(payload);
        packet
    }

    #[test]
    fn an_ipv4_packet_is_read() {
        let bytes = udp_v4(b"x");
        let packet = InnerPacket::parse(&bytes).expect("well-formed");
        assert_eq!(packet.source, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(packet.destination, IpAddr::from([10, 0, 0, 2]));
        assert_eq!((packet.dscp, packet.protocol), (46, protocol::UDP));
        assert_eq!(packet.ports(), Some((5000, 5001)));
    }

    #[test]
    fn an_ipv6_packet_is_read() {
        let mut bytes = vec![0x6b, 0x80, 0, 0, 0, 4, protocol::TCP, 64];
        bytes.extend(Ipv6Addr::LOCALHOST.octets());
        bytes.extend(Ipv6Addr::UNSPECIFIED.octets());
        bytes.extend([0, 80, 0, 81]);
        let packet = InnerPacket::parse(&bytes).expect("well-formed");
        assert_eq!(packet.source, IpAddr::V6(Ipv6Addr::LOCALHOST));
        assert_eq!((packet.dscp, packet.ports()), (46, Some((80, 81))));
    }

    #[test]
    fn lengths_that_disagree_are_refused() {
        let bytes = udp_v4(b"hello");
        for length in 0..bytes.len() {
            let refused = InnerPacket::parse(&bytes[..length]);
            assert_eq!(refused, Err(InnerError::Truncated(length)));
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(matches!(InnerPacket::parse(&longer), Err(InnerError::Trailing { .. })));
        assert_eq!(InnerPacket::parse(&[0x50; 40]), Err(InnerError::Version(5)));
        let mut short_header = bytes;
        short_header[0] = 0x41;
        assert!(InnerPacket::parse(&short_header).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            if let Ok(packet) = InnerPacket::parse(&bytes) {
                let _ = (packet.ports(), RtpHeader::of(&packet), SrtHeader::of(&packet));
                let _ = (mpeg_ts_packets(&packet), is_ice(&packet), is_rtcp(&packet));
                let _ = is_quic_long(&packet);
            }
        }
    }

    fn v6(source: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, protocol, 255];
        let addresses = [source, "ff02::1"].map(|text| text.parse::<Ipv6Addr>().unwrap());
        addresses.iter().for_each(|address| packet.extend_from_slice(&address.octets()));
        packet.extend_from_slice(payload);
        packet
    }

    #[test]
    fn what_speaks_for_a_link_is_found_behind_extension_headers_too() {
        let check = |source, protocol, payload: &[u8], expected| {
            let packet = v6(source, protocol, payload);
            let view = InnerPacket::parse(&packet).expect("well-formed");
            assert_eq!(view.is_of_link(), expected, "{source} {protocol} {payload:?}");
        };
        for kind in [1, 128, 132, 133, 134, 135, 136, 137, 138, 143] {
            let expected = (133..=137).contains(&kind);
            check("fd77::1", protocol::ICMPV6, &[kind, 0, 0, 0], expected);
            let options = [protocol::ICMPV6, 0, 1, 4, 0, 0, 0, 0, kind, 0, 0, 0];
            for extension in [HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS] {
                check("fd77::1", extension, &options, expected);
            }
            let twice = [&[DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0][..], &options].concat();
            check("fd77::1", HOP_BY_HOP, &twice, expected);
            let authenticated = [&[protocol::ICMPV6, 1][..], &[0; 10], &[kind, 0, 0, 0]].concat();
            check("fd77::1", AUTHENTICATION, &authenticated, expected);
            let first = [protocol::ICMPV6, 0, 0, 1, 0, 0, 0, 7, kind, 0, 0, 0];
            check("fd77::1", FRAGMENT, &first, expected);
            let later = [protocol::ICMPV6, 0, 0, 9, 0, 0, 0, 7, kind, 0, 0, 0];
            check("fd77::1", FRAGMENT, &later, false);
        }
        check("fe80::1", protocol::UDP, &[0; 8], true);
        check("fd77::1", protocol::UDP, &[0; 8], false);
        check("fd77::1", protocol::UDP, &[], false);
        for cut in [&[][..], &[protocol::ICMPV6], &[protocol::ICMPV6, 0, 1, 4, 0, 0, 0, 0]] {
            check("fd77::1", HOP_BY_HOP, cut, true);
        }
        let mut packet = udp_v4(b"x");
        assert!(!InnerPacket::parse(&packet).expect("well-formed").is_of_link());
        packet[12..16].copy_from_slice(&[169, 254, 1, 1]);
        assert!(InnerPacket::parse(&packet).expect("well-formed").is_of_link());
    }

    fn udp(source: [u8; 4], ports: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let mut packet = udp_v4(payload);
        packet[12..16].copy_from_slice(&source);
        packet[20..24].copy_from_slice(&ports);
        packet
    }

    fn hash(packet: &[u8]) -> u64 {
        InnerPacket::parse(packet).expect("well-formed").flow_hash()
    }

    #[test]
    fn the_packets_of_a_flow_have_one_hash_and_other_flows_another() {
        let flow = hash(&udp([10, 0, 0, 1], [0, 80, 0, 81], b"one"));
        assert_eq!(flow, hash(&udp([10, 0, 0, 1], [0, 80, 0, 81], b"another, longer")));
        assert_ne!(flow, hash(&udp([10, 0, 0, 2], [0, 80, 0, 81], b"one")));
        assert_ne!(flow, hash(&udp([10, 0, 0, 1], [0, 80, 0, 82], b"one")));
        assert_ne!(flow, hash(&udp([10, 0, 0, 1], [0, 81, 0, 80], b"one")), "the way back");
    }

    #[test]
    fn flows_spread_over_a_few_paths() {
        let mut counts = [0; 3];
        for port in 0..300_u16 {
            let [high, low] = port.to_be_bytes();
            let hash = hash(&udp([10, 0, 0, 1], [high, low, 0, 81], b"x"));
            counts[(hash % 3) as usize] += 1;
        }
        assert!(counts.iter().all(|count| *count > 70), "{counts:?}");
    }
}
