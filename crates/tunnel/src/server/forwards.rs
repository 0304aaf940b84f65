//! Answers of devices behind clients through ports of the server: they may go to other clients,
//! even where clients cannot reach one another.
//!
//! ```text
//! client B ─► port of the server ─► device of client A       by the packet filter (DNAT)
//! client B ◄─ packet filter ◄─ this server ◄─ its answer     to B's own address
//! ```
//!
//! The packet filter knows connections and checks what passes here. Without its rules clients can
//! reach one another from the addresses and ports of these devices, and in no other way.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use roadweave_proto::wire::InnerPacket;
use roadweave_proto::wire::protocol::{ICMP, ICMPV6, TCP, UDP};

/// Ports of a device behind a client to which ports of the server lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// The device.
    pub to: IpAddr,
    /// Whether these are its TCP ports.
    pub tcp: bool,
    /// Whether these are its UDP ports.
    pub udp: bool,
    /// The ports.
    pub ports: RangeInclusive<u16>,
}

impl Forwarded {
    fn sends(&self, packet: &InnerPacket<'_>) -> bool {
        let has = |protocol| protocol == TCP && self.tcp || protocol == UDP && self.udp;
        packet.source == self.to
            && sender(packet).is_some_and(|(protocol, port)| {
                has(protocol) && port.is_none_or(|port| self.ports.contains(&port))
            })
    }
}

/// Also true for an ICMP error about what was sent to such a device.
pub(super) fn may_answer(forwards: &[Forwarded], packet: &[u8]) -> bool {
    let Ok(packet) = InnerPacket::parse(packet) else { return false };
    let undelivered = undelivered(&packet);
    forwards.iter().any(|it| it.sends(&packet) || undelivered == Some(it.to))
}

fn sender(packet: &InnerPacket<'_>) -> Option<(u8, Option<u16>)> {
    let (protocol, payload, is_later) = match packet.protocol {
        FRAGMENT if packet.source.is_ipv6() => {
            let (header, payload) = packet.payload.split_first_chunk::<8>()?;
            (header[0], payload, u16::from_be_bytes([header[2], header[3]]) & 0xfff8 != 0)
        }
        protocol => (protocol, packet.payload, packet.later_fragment),
    };
    let port = (!is_later).then(|| payload.first_chunk().map(|port| u16::from_be_bytes(*port)));
    Some((protocol, port.map_or(Some(None), |port| port.map(Some))?))
}

/// The destination of the packet that an ICMP error quotes (RFC 792, RFC 4443).
fn undelivered(packet: &InnerPacket<'_>) -> Option<IpAddr> {
    if packet.later_fragment {
        return None;
    }
    let (header, quoted) = packet.payload.split_first_chunk::<8>()?;
    match (packet.protocol, header[0]) {
        (ICMP, 3 | 11 | 12) => quoted.get(16..)?.first_chunk::<4>().map(|it| IpAddr::from(*it)),
        (ICMPV6, 1..=4) => quoted.get(24..)?.first_chunk::<16>().map(|it| IpAddr::from(*it)),
        _ => None,
    }
}

const FRAGMENT: u8 = 44;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const CAMERA: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::new(192, 168, 50, 2)),
        IpAddr::V6(Ipv6Addr::new(0xfd50, 0, 0, 0, 0, 0, 0, 2)),
    ];
    const BOX: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::new(10, 77, 0, 3)),
        IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 3)),
    ];

    /// `offset` is a fragment's, in units of 8 bytes.
    fn packet(from: IpAddr, to: IpAddr, protocol: u8, offset: Option<u16>, body: &[u8]) -> Vec<u8> {
        let mut bytes = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let length = (20 + body.len()) as u16;
                let [offset, length] = [offset.unwrap_or(0), length].map(u16::to_be_bytes);
                let start = [0x45, 0, length[0], length[1], 0, 0, offset[0], offset[1], 64];
                [&start[..], &[protocol, 0, 0], &from.octets(), &to.octets()].concat()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let header = offset.map(|offset| {
                    let [high, low] = (offset << 3 | 1).to_be_bytes();
                    [protocol, 0, high, low, 0, 0, 0, 1]
                });
                let next = if header.is_some() { FRAGMENT } else { protocol };
                let header = header.as_ref().map_or(&[][..], |it| it);
                let length = (header.len() + body.len()) as u8;
                let start = [0x60, 0, 0, 0, 0, length, next, 64];
                [&start[..], &from.octets(), &to.octets(), header].concat()
            }
            _ => panic!("of one family"),
        };
        bytes.extend(body);
        bytes
    }

    fn ports(from: u16) -> Vec<u8> {
        [&from.to_be_bytes()[..], &[0, 9, 0, 8, 0, 0]].concat()
    }

    #[test]
    fn what_devices_answer_from_these_ports_passes_and_nothing_else_does() {
        for (to, client) in CAMERA.into_iter().zip(BOX) {
            let forward = Forwarded { to, tcp: false, udp: true, ports: 443..=444 };
            let forwards = [Forwarded { to: client, ..forward.clone() }, forward];
            let other = if to.is_ipv4() { "192.168.50.3" } else { "fd50::3" };
            let other: IpAddr = other.parse().expect("an address");
            let passes = |from, protocol, fragment, payload: &[u8]| {
                may_answer(&forwards, &packet(from, client, protocol, fragment, payload))
            };
            for (port, expected) in [(442, false), (443, true), (444, true), (445, false)] {
                for fragment in [None, Some(0)] {
                    assert_eq!(passes(to, UDP, fragment, &ports(port)), expected, "{port}");
                }
            }
            assert!(passes(to, UDP, Some(185), b"it goes on"));
            assert!(!passes(other, UDP, None, &ports(443)));
            assert!(!passes(other, UDP, Some(185), b"it goes on"));
            assert!(!passes(to, TCP, None, &ports(443)) && !passes(to, TCP, Some(185), b"x"));
            assert!(!passes(to, UDP, None, &[1]) && !passes(to, UDP, None, b""));
            assert!(!passes(to, 47, None, &ports(443)));
            assert!(!may_answer(&forwards, b"") && !may_answer(&[], b"x"));
            assert!(!may_answer(&[], &packet(to, client, UDP, None, &ports(443))));
        }
    }

    #[test]
    fn errors_pass_that_are_about_what_was_sent_to_a_device() {
        for (to, client) in CAMERA.into_iter().zip(BOX) {
            let forwards = [Forwarded { to, tcp: true, udp: false, ports: 443..=443 }];
            let (icmp, kind, echo) = if to.is_ipv4() { (ICMP, 3, 8) } else { (ICMPV6, 1, 128) };
            let passes = |kind, quoted: &[u8]| {
                let payload = [&[kind, 0, 0, 0, 0, 0, 0, 0], quoted].concat();
                may_answer(&forwards, &packet(to, client, icmp, None, &payload))
            };
            let quoted = packet(client, to, TCP, None, &ports(9));
            assert!(passes(kind, &quoted) && !passes(echo, &quoted));
            assert!(!passes(kind, &quoted[..19]) && !passes(kind, b""));
            assert!(!passes(kind, &packet(to, client, TCP, None, &ports(9))));
        }
    }
}
