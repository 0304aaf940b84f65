//! IP and UDP headers for the payloads that an instance tells of: it hands them to the kernel,
//! which makes the true ones. What it does not know, such as the hop limit, is what Linux begins
//! with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The bytes of both headers at most.
pub(super) const HEADERS_MAX: usize = IPV6_HEADER + UDP_HEADER;

/// A UDP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UdpPacket<'a> {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// The bits for congestion (RFC 3168).
    pub(super) ecn: u8,
    /// The length of its payload, of which `payload` may be the beginning.
    pub(super) length: usize,
    pub(super) payload: &'a [u8],
}

impl UdpPacket<'_> {
    /// Its bytes with its headers, and its length.
    pub(super) fn build(&self) -> (Vec<u8>, usize) {
        let [source, destination] = same_family(self.source.ip(), self.destination.ip());
        let udp_length = (UDP_HEADER + self.length) as u16;
        let mut packet = Vec::with_capacity(HEADERS_MAX + self.payload.len());
        let (addresses, header) = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                packet.extend([0x45, self.ecn]);
                packet.extend((IPV4_HEADER as u16 + udp_length).to_be_bytes());
                // Not to be cut; no identification.
                packet.extend([0, 0, 0x40, 0, HOPS, UDP, 0, 0]);
                packet.extend(source.octets());
                packet.extend(destination.octets());
                let checksum = !sum(0, &packet);
                packet[10..12].copy_from_slice(&checksum.to_be_bytes());
                (packet[12..].to_vec(), IPV4_HEADER)
            }
            (source, destination) => {
                packet.extend([0x60, self.ecn << 4, 0, 0]);
                packet.extend(udp_length.to_be_bytes());
                packet.extend([UDP, HOPS]);
                packet.extend([source, destination].map(octets).concat());
                (packet[8..].to_vec(), IPV6_HEADER)
            }
        };
        let begin = packet.len();
        packet.extend(self.source.port().to_be_bytes());
        packet.extend(self.destination.port().to_be_bytes());
        packet.extend(udp_length.to_be_bytes());
        packet.extend([0; 2]);
        packet.extend(self.payload);
        // Zero says that there is none, which is all that can be said of a part.
        if self.payload.len() == self.length {
            let pseudo = sum(udp_length.wrapping_add(UDP.into()), &addresses);
            let checksum = match !sum(pseudo, &packet[begin..]) {
                0 => u16::MAX,
                checksum => checksum,
            };
            packet[begin + 6..begin + 8].copy_from_slice(&checksum.to_be_bytes());
        }
        (packet, header + UDP_HEADER + self.length)
    }
}

/// Both addresses; one that is not known has the family of the other.
fn same_family(source: IpAddr, destination: IpAddr) -> [IpAddr; 2] {
    let like = |address: IpAddr, other: IpAddr| match other {
        IpAddr::V4(_) if address.is_unspecified() => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) if address.is_unspecified() => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => address,
    };
    let (source, destination) = (source.to_canonical(), destination.to_canonical());
    [like(source, destination), like(destination, source)]
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
    }
}

/// Adds bytes to a sum in one's complement (RFC 1071).
fn sum(begin: u16, bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
    let mut sum = bytes.chunks(2).map(word).fold(u32::from(begin), u32::wrapping_add);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;
const UDP: u8 = 17;
const HOPS: u8 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn build(source: &str, destination: &str, length: usize, payload: &[u8]) -> (Vec<u8>, usize) {
        let end = |text: &str| text.parse().expect("an address");
        let (source, destination) = (end(source), end(destination));
        UdpPacket { source, destination, ecn: 2, length, payload }.build()
    }

    /// What a receiver adds up is all ones where a packet is whole.
    #[test]
    fn checksums_hold_for_both_families() {
        let (packet, length) = build("192.0.2.1:40000", "198.51.100.1:4433", 5, b"hello");
        assert_eq!((packet.len(), length), (33, 33));
        assert_eq!(sum(0, &packet[..20]), 0xffff);
        assert_eq!(sum(17 + 13, &packet[12..]), 0xffff);
        let (packet, length) = build("[2001:db8::1]:40000", "[2001:db8::2]:4433", 5, b"hello");
        assert_eq!((packet.len(), length), (53, 53));
        assert_eq!(sum(17 + 13, &packet[8..]), 0xffff);
    }

    #[test]
    fn a_part_has_its_true_length_and_no_checksum() {
        let (packet, length) = build("192.0.2.1:40000", "198.51.100.1:4433", 1200, b"hello");
        assert_eq!((packet.len(), length), (33, 1228));
        assert_eq!(packet[2..4], 1228_u16.to_be_bytes());
        assert_eq!(packet[26..28], [0, 0]);
    }

    #[test]
    fn an_end_that_is_not_known_has_the_family_of_the_other() {
        let (packet, _) = build("0.0.0.0:40000", "[2001:db8::2]:4433", 0, b"");
        assert_eq!((packet[0] >> 4, &packet[8..24]), (6, &[0; 16][..]));
        let (packet, _) = build("[::]:40000", "192.0.2.2:4433", 0, b"");
        assert_eq!((packet[0] >> 4, &packet[12..16]), (4, &[0; 4][..]));
        let (packet, _) = build("[::ffff:192.0.2.1]:1", "198.51.100.1:4433", 0, b"");
        assert_eq!(packet[0] >> 4, 4);
    }
}
