//! Inner packets of applications: UDP and TCP between the vehicle and one host of the cloud.
//!
//! Every application has its own port at both ends, which identifies its packets.

use bytes::{BufMut, Bytes, BytesMut};
use roadweave_emulate::Direction;

pub const VEHICLE: [u8; 4] = [10, 77, 0, 2];
/// The address of the host in the cloud (RFC 5737).
pub const CLOUD: [u8; 4] = [198, 51, 100, 1];
pub const HEADERS: usize = IPV4_HEADER + UDP_HEADER;

const IPV4_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const PROTOCOL_UDP: u8 = 17;
pub(crate) const PROTOCOL_TCP: u8 = 6;

/// An IPv4 packet with a UDP datagram, from `port` to `port`, without checksums.
///
/// `payload`: at most 65,507 bytes; the rest is cut off.
pub fn udp(direction: Direction, port: u16, payload: &[u8]) -> Bytes {
    let payload = &payload[..payload.len().min(usize::from(u16::MAX) - HEADERS)];
    let length = (HEADERS + payload.len()) as u16;
    let mut packet = BytesMut::with_capacity(usize::from(length));
    put_ipv4(&mut packet, direction, PROTOCOL_UDP, length);
    packet.put_u16(port);
    packet.put_u16(port);
    packet.put_u16(length - IPV4_HEADER as u16);
    packet.put_u16(0);
    packet.put_slice(payload);
    packet.freeze()
}

pub(crate) fn put_ipv4(packet: &mut BytesMut, direction: Direction, protocol: u8, length: u16) {
    let (from, to) = match direction {
        Direction::Up => (VEHICLE, CLOUD),
        Direction::Down => (CLOUD, VEHICLE),
    };
    packet.put_slice(&[0x45, 0]);
    packet.put_u16(length);
    packet.put_slice(&[0, 0, 0, 0, 64, protocol, 0, 0]);
    packet.put_slice(&from);
    packet.put_slice(&to);
}

/// The destination port of a UDP or TCP packet; `None` for any other packet.
pub fn port(packet: &[u8]) -> Option<u16> {
    let header: &[u8; HEADERS] = packet.first_chunk()?;
    let is_ours = header[0] == 0x45 && [PROTOCOL_UDP, PROTOCOL_TCP].contains(&header[9]);
    is_ours.then(|| u16::from_be_bytes([header[22], header[23]]))
}

/// The payload of a packet of [`udp`].
pub fn payload(packet: &Bytes) -> Bytes {
    packet.slice(HEADERS.min(packet.len())..)
}

#[cfg(test)]
mod tests {
    use roadweave_proto::wire::InnerPacket;

    use super::*;

    #[test]
    fn packets_read_back_and_are_what_the_tunnel_takes() {
        for (direction, source) in [(Direction::Up, VEHICLE), (Direction::Down, CLOUD)] {
            let packet = udp(direction, 5_004, b"hello");
            let view = InnerPacket::parse(&packet).unwrap();
            assert_eq!(view.source, std::net::IpAddr::from(source));
            assert_eq!(view.ports(), Some((5_004, 5_004)));
            assert_eq!((port(&packet), &payload(&packet)[..]), (Some(5_004), &b"hello"[..]));
        }
        assert_eq!(port(b"short"), None);
    }
}
