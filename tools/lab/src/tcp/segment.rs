//! A segment and its bytes in an IP packet.
//!
//! ```text
//! IPv4 20 │ TCP 20 │ NOP NOP timestamps 12 │ NOP NOP SACK 4 + 8 n │ data, all zero
//!                  │ MSS 4, SACK 2, timestamps 10, NOP 1, scale 3 │  (SYN)
//! ```
//!
//! Sequence numbers are 64-bit byte counts from 0, without the SYN; on the wire they are 32 bits
//! with the SYN, and the reader supplies an approximate position. Checksums are zero, since nothing
//! on the path verifies them.

use bytes::{BufMut, Bytes, BytesMut};
use roadweave_emulate::Direction;

use crate::inner;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Whether it opens the connection; a SYN carries no data.
    pub is_syn: bool,
    pub seq: u64,
    pub len: u32,
    /// All bytes before this one have arrived; `None` in the first SYN.
    pub ack: Option<u64>,
    /// Receive window in bytes, from `ack` on.
    pub window: u32,
    /// The sender's clock, ms.
    pub timestamp: u32,
    pub echo: u32,
    /// Received blocks beyond `ack`, a duplicate first; at most [`SACK_BLOCKS_MAX`].
    pub sacks: Vec<(u64, u64)>,
}

impl Segment {
    pub fn wire_bytes(&self) -> usize {
        IP_TCP + self.option_bytes() + self.len as usize
    }

    fn option_bytes(&self) -> usize {
        match (self.is_syn, self.sacks.len()) {
            (true, _) => SYN_OPTIONS,
            (false, 0) => TIMESTAMPS,
            (false, blocks) => TIMESTAMPS + 4 + 8 * blocks,
        }
    }

    /// The IP packet of this segment, from `port` to `port`; a SYN announces `mss`. Panics with
    /// more than [`SACK_BLOCKS_MAX`] blocks, or more data than fit in an IP packet.
    pub fn packet(&self, direction: Direction, port: u16, mss: u16) -> Bytes {
        assert!(self.sacks.len() <= SACK_BLOCKS_MAX, "no room for more");
        let options = self.option_bytes();
        let length = u16::try_from(self.wire_bytes()).expect("a segment fits into a packet");
        let mut packet = BytesMut::with_capacity(usize::from(length));
        inner::put_ipv4(&mut packet, direction, inner::PROTOCOL_TCP, length);
        packet.put_u16(port);
        packet.put_u16(port);
        packet.put_u32(if self.is_syn { 0 } else { on_wire(self.seq) });
        packet.put_u32(self.ack.map_or(0, on_wire));
        // The upper half of the byte is the header length in words of four bytes.
        packet.put_u8(((TCP + options) * 4) as u8);
        packet.put_u8(flag(self.is_syn, SYN) | flag(self.ack.is_some(), ACK));
        let scale = if self.is_syn { 0 } else { WINDOW_SCALE };
        packet.put_u16(u16::try_from(self.window >> scale).unwrap_or(u16::MAX));
        packet.put_u32(0);
        if self.is_syn {
            packet.put_slice(&[2, 4]);
            packet.put_u16(mss);
            packet.put_slice(&[4, 2, 8, 10]);
        } else {
            packet.put_slice(&[1, 1, 8, 10]);
        }
        packet.put_u32(self.timestamp);
        packet.put_u32(self.echo);
        if self.is_syn {
            packet.put_slice(&[1, 3, 3, WINDOW_SCALE]);
        } else if !self.sacks.is_empty() {
            packet.put_slice(&[1, 1, 5, (2 + 8 * self.sacks.len()) as u8]);
            for (from, to) in &self.sacks {
                packet.put_u32(on_wire(*from));
                packet.put_u32(on_wire(*to));
            }
        }
        packet.put_bytes(0, self.len as usize);
        packet.freeze()
    }

    /// Reads a packet of [`Segment::packet`]; `None` for any other. `sent` and `came` are
    /// approximate positions of the reader, for the upper half of the numbers.
    pub fn parse(packet: &[u8], sent: u64, came: u64) -> Option<Self> {
        let tcp = packet.get(IPV4..)?;
        if packet[0] != 0x45 || packet[9] != inner::PROTOCOL_TCP {
            return None;
        }
        let header = usize::from(*tcp.get(12)? >> 4) * 4;
        let flags = *tcp.get(13)?;
        let is_syn = flags & SYN != 0;
        let mut options = tcp.get(TCP..header)?;
        let scale = if is_syn { 0 } else { WINDOW_SCALE };
        let mut segment = Self {
            is_syn,
            seq: if is_syn { 0 } else { near(came, word(tcp, 4)?) },
            len: u32::try_from(tcp.len() - header).ok()?,
            ack: (flags & ACK != 0).then_some(near(sent, word(tcp, 8)?)),
            window: u32::from(u16::from_be_bytes([tcp[14], tcp[15]])) << scale,
            ..Self::default()
        };
        while let Some((kind, rest)) = options.split_first() {
            let length = match *kind {
                0 => break,
                1 => 1,
                _ => usize::from(*rest.first()?).max(2),
            };
            let option = options.get(..length)?;
            match *kind {
                8 => (segment.timestamp, segment.echo) = (word(option, 2)?, word(option, 6)?),
                5 => {
                    for block in 0..((length - 2) / 8).min(SACK_BLOCKS_MAX) {
                        let (from, to) =
                            (word(option, 2 + 8 * block)?, word(option, 6 + 8 * block)?);
                        segment.sacks.push((near(sent, from), near(sent, to)));
                    }
                }
                _ => {}
            }
            options = &options[length..];
        }
        Some(segment)
    }
}

/// The largest data of a segment at this MTU, with timestamps.
pub fn data_max(mtu: u16) -> u32 {
    u32::from(mtu).saturating_sub((IP_TCP + TIMESTAMPS) as u32).max(1)
}

fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|it| u32::from_be_bytes(*it))
}

fn on_wire(seq: u64) -> u32 {
    seq.wrapping_add(1) as u32
}

/// The number closest to `about` whose lower half is `word`, as on the wire.
fn near(about: u64, word: u32) -> u64 {
    let ahead = word.wrapping_sub(on_wire(about)) as i32;
    about.saturating_add_signed(ahead.into())
}

/// Blocks that fit beside timestamps (RFC 2018 section 3).
pub const SACK_BLOCKS_MAX: usize = 3;
const IP_TCP: usize = IPV4 + TCP;
const IPV4: usize = 20;
const TCP: usize = 20;
const TIMESTAMPS: usize = 12;
const SYN_OPTIONS: usize = 20;
/// Allows for the largest window, 32 MiB.
const WINDOW_SCALE: u8 = 10;
const SYN: u8 = 2;
const ACK: u8 = 16;

#[cfg(test)]
mod tests {
    use roadweave_proto::wire::InnerPacket;

    use super::*;

    #[test]
    fn segments_read_back_and_have_their_real_sizes() {
        let far = (1_u64 << 32) + 77;
        let check = |segment: Segment, bytes: usize| {
            let packet = segment.packet(Direction::Down, 5_000, 1_460);
            assert_eq!((packet.len(), segment.wire_bytes()), (bytes, bytes));
            assert_eq!(InnerPacket::parse(&packet).unwrap().ports(), Some((5_000, 5_000)));
            assert_eq!(inner::port(&packet), Some(5_000));
            assert_eq!(Segment::parse(&packet, far + 5_000, far - 9), Some(segment));
        };
        check(Segment { is_syn: true, window: 65_535, ..Segment::default() }, 60);
        let data = Segment { seq: far, len: 1_448, ack: Some(far), ..Segment::default() };
        check(data.clone(), 1_500);
        let sacks = vec![(far - 1, far), (far + 10, far + 20), (far + 30, far + 40)];
        let (window, timestamp, echo) = (3 << 10, 7, u32::MAX);
        check(Segment { len: 0, sacks, window, timestamp, echo, ..data }, 80);
    }

    #[test]
    fn any_bytes_parse_or_are_refused() {
        let whole = Segment { sacks: vec![(5, 9)], ack: Some(1), ..Segment::default() };
        let whole = whole.packet(Direction::Up, 1, 1);
        for cut in 0..whole.len() {
            Segment::parse(&whole[..cut], 0, 0);
            for value in [0, 1, 2, 5, 8, 0x45, 0xf0, 0xff] {
                let mut broken = whole.to_vec();
                broken[cut] = value;
                Segment::parse(&broken, 0, 0);
            }
        }
        assert_eq!(Segment::parse(&[0x45; 19], 0, 0), None);
    }
}
