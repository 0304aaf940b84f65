//! Joins runs of TCP or UDP packets of one flow into super packets. A packet joins only if
//! segmentation restores it exactly: equal headers but for lengths, IDs, sequence numbers and
//! checksums, the next sequence number, a valid checksum. Order within a flow is kept.

use super::checksum::{add, finish, pseudo_header};
use super::{
    Gso, HEADER_LEN, Header, IPV4_HEADER, IPV6_HEADER, PACKET_MAX, TCP, TCP_ACK, TCP_CHECKSUM,
    TCP_HEADER, TCP_PSH, UDP, UDP_CHECKSUM, UDP_HEADER, get_u16, get_u32, set_lengths,
};

#[derive(Debug, Default)]
pub(crate) struct Coalescer {
    open: Vec<Super>,
    spare: Vec<Vec<u8>>,
    udp: bool,
}

#[derive(Debug)]
struct Super {
    buffer: Vec<u8>,
    shape: CoalesceCandidate,
    packets: usize,
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
struct CoalesceCandidate {
    ipv6: bool,
    udp: bool,
    transport: usize,
    headers: usize,
    payload: usize,
    push: bool,
}

impl Coalescer {
    /// Joins TCP, and with `udp` also UDP, which not every kernel can segment.
    pub fn new(udp: bool) -> Self {
        Self { open: Vec::new(), spare: Vec::new(), udp }
    }

    /// Takes one packet. `write` gets header and packet, and the number of inner packets.
    pub fn push(&mut self, packet: &[u8], write: &mut impl FnMut(&[u8], usize)) {
        let candidate = CoalesceCandidate::parse(packet).filter(|found| !found.udp || self.udp);
        let Some(candidate) = candidate else {
            // A packet that cannot join, a FIN for instance, must not overtake those of its flow.
            self.flush_peers(packet, write);
            self.write_alone(packet, write);
            return;
        };
        if let Some(at) = self.open.iter().position(|item| item.same_flow(packet, &candidate)) {
            if self.open[at].join(packet, &candidate) {
                return;
            }
            self.write_open(at, write);
        }
        if self.open.len() == FLOWS_MAX {
            self.write_open(0, write);
        }
        let buffer = self.copy(packet);
        let closed = candidate.push;
        self.open.push(Super { buffer, shape: candidate, packets: 1, closed });
    }

    pub fn flush(&mut self, write: &mut impl FnMut(&[u8], usize)) {
        while !self.open.is_empty() {
            self.write_open(0, write);
        }
    }

    fn flush_peers(&mut self, packet: &[u8], write: &mut impl FnMut(&[u8], usize)) {
        while let Some(at) = self.open.iter().position(|item| item.same_addresses(packet)) {
            self.write_open(at, write);
        }
    }

    fn write_open(&mut self, at: usize, write: &mut impl FnMut(&[u8], usize)) {
        let mut item = self.open.remove(at);
        item.finish();
        write(&item.buffer, item.packets);
        self.spare.push(item.buffer);
    }

    fn copy(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.resize(HEADER_LEN, 0);
        buffer.extend_from_slice(packet);
        buffer
    }

    fn write_alone(&mut self, packet: &[u8], write: &mut impl FnMut(&[u8], usize)) {
        let buffer = self.copy(packet);
        write(&buffer, 1);
        self.spare.push(buffer);
    }
}

impl Super {
    fn packet(&self) -> &[u8] {
        &self.buffer[HEADER_LEN..]
    }

    fn same_addresses(&self, other: &[u8]) -> bool {
        let range = if self.shape.ipv6 { 8..40 } else { 12..20 };
        self.packet()[0] >> 4 == other.first().map_or(0, |byte| byte >> 4)
            && other.get(range.clone()) == self.packet().get(range)
    }

    fn same_flow(&self, other: &[u8], candidate: &CoalesceCandidate) -> bool {
        let (mine, ports) = (self.shape.transport, candidate.transport);
        self.shape.udp == candidate.udp
            && self.shape.ipv6 == candidate.ipv6
            && self.same_addresses(other)
            && self.packet()[mine..mine + 4] == other[ports..ports + 4]
    }

    fn join(&mut self, other: &[u8], candidate: &CoalesceCandidate) -> bool {
        if self.closed
            || candidate.payload > self.shape.payload
            || self.packets == SEGMENTS_MAX
            || self.packet().len() + candidate.payload > PACKET_MAX
            || !self.headers_match(other, candidate)
        {
            return false;
        }
        // The first packet's checksum is checked when a second one would join.
        if (self.packets == 1 && !self.shape.is_checksum_valid(self.packet()))
            || !candidate.is_checksum_valid(other)
        {
            return false;
        }
        self.buffer.extend_from_slice(&other[candidate.headers..]);
        self.packets += 1;
        if candidate.push {
            let flags = HEADER_LEN + self.shape.transport + 13;
            self.buffer[flags] |= TCP_PSH;
        }
        self.closed = candidate.push || candidate.payload < self.shape.payload;
        true
    }

    fn headers_match(&self, other: &[u8], candidate: &CoalesceCandidate) -> bool {
        let (mine, shape) = (self.packet(), &self.shape);
        if shape.headers != candidate.headers || shape.transport != candidate.transport {
            return false;
        }
        let ip_equal = if shape.ipv6 {
            mine[..4] == other[..4] && mine[6..shape.transport] == other[6..shape.transport]
        } else {
            // The kernel increments the IDs.
            let id = get_u16(mine, 4).wrapping_add(self.packets as u16);
            mine[..2] == other[..2]
                && mine[6..10] == other[6..10]
                && (get_u16(other, 4) == id || mine[6] & IPV4_DONT_FRAGMENT != 0)
                && mine[IPV4_HEADER..shape.transport] == other[IPV4_HEADER..shape.transport]
        };
        if shape.udp || !ip_equal {
            return ip_equal;
        }
        let (tcp, end) = (shape.transport, shape.headers);
        let sent = mine.len() - shape.headers;
        get_u32(other, tcp + 4) == get_u32(mine, tcp + 4).wrapping_add(sent as u32)
            && mine[tcp + 8..tcp + 13] == other[tcp + 8..tcp + 13]
            && mine[tcp + 14..tcp + 16] == other[tcp + 14..tcp + 16]
            && mine[tcp + 18..end] == other[tcp + 18..end]
    }

    fn finish(&mut self) {
        if self.packets == 1 {
            return;
        }
        let CoalesceCandidate { ipv6, udp, transport, headers, payload, .. } = self.shape;
        let packet = &mut self.buffer[HEADER_LEN..];
        let pseudo = set_lengths(packet, ipv6, udp, transport);
        let offset = if udp { UDP_CHECKSUM } else { TCP_CHECKSUM };
        let field = transport + offset;
        packet[field..field + 2].copy_from_slice(&finish(pseudo).to_ne_bytes());
        let header = Header {
            needs_checksum: true,
            gso: match (udp, ipv6) {
                (true, _) => Gso::Udp,
                (false, false) => Gso::TcpV4,
                (false, true) => Gso::TcpV6,
            },
            header_len: headers as u16,
            segment_size: payload as u16,
            checksum_start: transport as u16,
            checksum_offset: offset as u16,
        };
        self.buffer[..HEADER_LEN].copy_from_slice(&header.encode());
    }
}

impl CoalesceCandidate {
    /// `None` for packets that cannot be joined: other protocols, fragments, extension headers, TCP
    /// flags other than ACK and PSH, no payload, wrong lengths.
    fn parse(packet: &[u8]) -> Option<Self> {
        let (ipv6, protocol, transport, length) = match packet.first()? >> 4 {
            4 if packet.len() >= IPV4_HEADER => {
                let fragment = get_u16(packet, 6) & IPV4_FRAGMENT != 0;
                let header = usize::from(packet[0] & 0xf) * 4;
                if fragment || header < IPV4_HEADER {
                    return None;
                }
                (false, packet[9], header, usize::from(get_u16(packet, 2)))
            }
            6 if packet.len() >= IPV6_HEADER => {
                let length = usize::from(get_u16(packet, 4)) + IPV6_HEADER;
                (true, packet[6], IPV6_HEADER, length)
            }
            _ => return None,
        };
        if length != packet.len() || length > PACKET_MAX {
            return None;
        }
        let (headers, push) = match protocol {
            TCP => {
                let tcp = packet.get(transport..).filter(|tcp| tcp.len() > TCP_HEADER)?;
                let header = usize::from(tcp[12] >> 4) * 4;
                if header < TCP_HEADER || tcp[13] & !TCP_PSH != TCP_ACK {
                    return None;
                }
                (transport + header, tcp[13] & TCP_PSH != 0)
            }
            UDP => {
                let udp = packet.get(transport..).filter(|udp| udp.len() > UDP_HEADER)?;
                // The kernel would add the missing checksum.
                if usize::from(get_u16(udp, 4)) != udp.len() || get_u16(udp, UDP_CHECKSUM) == 0 {
                    return None;
                }
                (transport + UDP_HEADER, false)
            }
            _ => return None,
        };
        let payload = packet.len().checked_sub(headers).filter(|payload| *payload > 0)?;
        Some(Self { ipv6, udp: protocol == UDP, transport, headers, payload, push })
    }

    fn is_checksum_valid(&self, packet: &[u8]) -> bool {
        let protocol = if self.udp { UDP } else { TCP };
        let length = (packet.len() - self.transport) as u16;
        let pseudo = pseudo_header(packet, self.ipv6, protocol, length);
        finish(add(pseudo, &packet[self.transport..])) == 0xffff
    }
}

const FLOWS_MAX: usize = 16;
/// The kernel's limit for UDP (`UDP_MAX_SEGMENTS` before Linux 6.9).
const SEGMENTS_MAX: usize = 64;
const IPV4_DONT_FRAGMENT: u8 = 0x40;
const IPV4_FRAGMENT: u16 = 0x3fff;
