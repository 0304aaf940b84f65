//! Segmentation offload for a TUN: large packets cross the kernel's border in place of many small.
//! [`split`] cuts those of the kernel, [`Coalescer`] joins ours. No I/O. With `IFF_VNET_HDR` a
//! `virtio_net_hdr` precedes each packet: how to segment it, and which checksum is incomplete
//! (virtio 1.2 section 5.1.6; Linux `include/linux/virtio_net.h`; RFC 1071 for checksums).

mod checksum;
mod coalesce;

pub(crate) use coalesce::Coalescer;

use checksum::{add, finish, pseudo_header};

pub(crate) const HEADER_LEN: usize = 10;
pub(crate) const PACKET_MAX: usize = 65_535;

/// The `virtio_net_hdr`, in the machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// The field at `checksum_start + checksum_offset` holds the pseudo header's sum only.
    pub needs_checksum: bool,
    pub gso: Gso,
    pub header_len: u16,
    pub segment_size: u16,
    /// The offset of the transport header, where the checksum's coverage starts.
    pub checksum_start: u16,
    /// The offset of the checksum from `checksum_start`.
    pub checksum_offset: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Gso {
    #[default]
    None,
    TcpV4,
    TcpV6,
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl Header {
    /// Decodes the header; `None` for a kind of offload that was not enabled.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Some(Self {
            needs_checksum: bytes[0] & FLAG_NEEDS_CHECKSUM != 0,
            gso: match bytes[1] & !GSO_ECN {
                0 => Gso::None,
                GSO_TCP_V4 => Gso::TcpV4,
                GSO_TCP_V6 => Gso::TcpV6,
                GSO_UDP => Gso::Udp,
                _ => return None,
            },
            header_len: word(2),
            segment_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        })
    }

    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = if self.needs_checksum { FLAG_NEEDS_CHECKSUM } else { 0 };
        bytes[1] = match self.gso {
            Gso::None => 0,
            Gso::TcpV4 => GSO_TCP_V4,
            Gso::TcpV6 => GSO_TCP_V6,
            Gso::Udp => GSO_UDP,
        };
        let words = [self.header_len, self.segment_size, self.checksum_start, self.checksum_offset];
        for (at, word) in words.into_iter().enumerate() {
            bytes[2 + 2 * at..4 + 2 * at].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// Splits a packet of the kernel into packets with complete checksums, passes each to `sink`, and
/// returns their number. A segment's headers overwrite the end of the previous one.
pub(crate) fn split(
    header: &Header,
    packet: &mut [u8],
    mut sink: impl FnMut(&[u8]),
) -> Result<usize, Malformed> {
    if header.gso == Gso::None {
        if header.needs_checksum {
            complete_checksum(header, packet)?;
        }
        sink(packet);
        return Ok(1);
    }
    let shape = Shape::of(header, packet)?;
    let mut headers = [0; HEADERS_MAX];
    let headers = &mut headers[..shape.headers];
    headers.copy_from_slice(&packet[..shape.headers]);

    let payload = packet.len() - shape.headers;
    let size = usize::from(header.segment_size);
    let count = payload.div_ceil(size);
    for index in 0..count {
        let start = index * size;
        let length = size.min(payload - start);
        let segment = &mut packet[start..start + shape.headers + length];
        segment[..shape.headers].copy_from_slice(headers);
        shape.finish_segment(segment, index, start, index + 1 == count);
        sink(segment);
    }
    Ok(count)
}

struct Shape {
    ipv6: bool,
    udp: bool,
    transport: usize,
    headers: usize,
}

impl Shape {
    fn of(header: &Header, packet: &[u8]) -> Result<Self, Malformed> {
        let transport = usize::from(header.checksum_start);
        let ipv6 = match packet.first().map(|byte| byte >> 4) {
            Some(4) => false,
            Some(6) => true,
            _ => return Err(Malformed),
        };
        let udp = header.gso == Gso::Udp;
        // header_len covers the whole first segment of forwarded packets: measure the packet.
        let transport_len = if udp {
            UDP_HEADER
        } else {
            usize::from(packet.get(transport + 12).ok_or(Malformed)? >> 4) * 4
        };
        let headers = transport + transport_len;
        let version_fits =
            matches!((header.gso, ipv6), (Gso::TcpV4, false) | (Gso::TcpV6, true) | (Gso::Udp, _));
        let fits = version_fits
            && transport >= if ipv6 { IPV6_HEADER } else { IPV4_HEADER }
            && (udp || transport_len >= TCP_HEADER)
            && headers <= HEADERS_MAX
            && headers < packet.len()
            && header.segment_size > 0;
        if fits { Ok(Self { ipv6, udp, transport, headers }) } else { Err(Malformed) }
    }

    fn finish_segment(&self, segment: &mut [u8], index: usize, offset: usize, last: bool) {
        if !self.ipv6 {
            let id = get_u16(segment, 4).wrapping_add(index as u16);
            put_u16(segment, 4, id);
        }
        let sum = set_lengths(segment, self.ipv6, self.udp, self.transport);
        if !self.udp {
            let at = self.transport + 4;
            let sequence = get_u32(segment, at).wrapping_add(offset as u32);
            segment[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
            let flags = &mut segment[self.transport + 13];
            // CWR belongs to the first segment, FIN and PSH to the last.
            *flags &= if index > 0 { !TCP_CWR } else { !0 };
            *flags &= if last { !0 } else { !(TCP_FIN | TCP_PSH) };
        }
        set_transport_checksum(segment, self.transport, self.udp, sum);
    }
}

fn set_lengths(packet: &mut [u8], ipv6: bool, udp: bool, transport: usize) -> u64 {
    let (total, length) = (packet.len(), (packet.len() - transport) as u16);
    if ipv6 {
        put_u16(packet, 4, (total - IPV6_HEADER) as u16);
    } else {
        put_u16(packet, 2, total as u16);
        set_ipv4_checksum(packet, transport);
    }
    if udp {
        put_u16(packet, transport + 4, length);
    }
    pseudo_header(packet, ipv6, if udp { UDP } else { TCP }, length)
}

fn complete_checksum(header: &Header, packet: &mut [u8]) -> Result<(), Malformed> {
    let start = usize::from(header.checksum_start);
    let at = start + usize::from(header.checksum_offset);
    if at + 2 > packet.len() {
        return Err(Malformed);
    }
    // The field holds the pseudo header's sum, so the sum over all bytes includes it.
    let sum = finish(add(0, &packet[start..]));
    let udp = usize::from(header.checksum_offset) == UDP_CHECKSUM;
    packet[at..at + 2].copy_from_slice(&checksum_field(sum, udp));
    Ok(())
}

fn set_transport_checksum(packet: &mut [u8], transport: usize, udp: bool, pseudo: u64) {
    let at = transport + if udp { UDP_CHECKSUM } else { TCP_CHECKSUM };
    packet[at..at + 2].fill(0);
    let sum = finish(add(pseudo, &packet[transport..]));
    packet[at..at + 2].copy_from_slice(&checksum_field(sum, udp));
}

/// The complement of `sum`; for UDP never zero: no checksum (RFC 768; RFC 8200 section 8.1).
fn checksum_field(sum: u16, udp: bool) -> [u8; 2] {
    match !sum {
        0 if udp => [0xff; 2],
        field => field.to_ne_bytes(),
    }
}

fn set_ipv4_checksum(packet: &mut [u8], header_len: usize) {
    packet[10..12].fill(0);
    let sum = finish(add(0, &packet[..header_len]));
    packet[10..12].copy_from_slice(&(!sum).to_ne_bytes());
}

fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

const FLAG_NEEDS_CHECKSUM: u8 = 1;
const GSO_TCP_V4: u8 = 1;
const GSO_TCP_V6: u8 = 4;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;

const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_ACK: u8 = 0x10;
const TCP_CWR: u8 = 0x80;
/// More than IPv4 with options and TCP with options (120 bytes), or IPv6 with a few extensions.
const HEADERS_MAX: usize = 256;

#[cfg(test)]
mod tests;
