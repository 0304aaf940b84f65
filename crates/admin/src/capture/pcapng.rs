//! A file of packets as Wireshark reads it: pcapng, draft-ietf-opsawg-pcapng.
//!
//! ```text
//! section header │ interface 0 │ packet │ packet │ interface 1 │ packet ... │ statistics of each
//! ```
//!
//! An interface is described when its first packet comes. Blocks are written whole, one call for
//! each or for several, so that a full disk leaves a file that ends with a block.

/// What a section may be told of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InterfaceBlock<'a> {
    pub(super) name: &'a str,
    pub(super) description: &'a str,
    pub(super) link: LinkType,
    /// The most bytes of a packet.
    pub(super) snaplen: u32,
}

/// What the packets of an interface begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub(super) enum LinkType {
    /// An IPv4 or IPv6 header.
    Raw = 101,
    /// Something of the user's own: coded packets.
    User0 = 147,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PacketBlock<'a> {
    /// The number of its interface: they count from 0, in the order of their blocks.
    pub(super) interface: u32,
    pub(super) unix_nanos: u64,
    /// Its length, of which `bytes` may be the beginning.
    pub(super) length: usize,
    pub(super) bytes: &'a [u8],
    pub(super) is_out: bool,
    pub(super) comment: &'a str,
}

/// What an interface saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StatisticsBlock {
    pub(super) interface: u32,
    pub(super) begin_unix_nanos: u64,
    pub(super) end_unix_nanos: u64,
    pub(super) received: u64,
    /// Packets that were not seen for want of room, if their number is known.
    pub(super) dropped: Option<u64>,
}

/// The beginning of a file that `program` writes.
pub(super) fn section(program: &str, out: &mut Vec<u8>) {
    block(0x0a0d_0d0a, out, |body| {
        body.extend(0x1a2b_3c4d_u32.to_le_bytes());
        body.extend([1_u16.to_le_bytes(), 0_u16.to_le_bytes()].concat());
        // How long the section is, nobody knows yet.
        body.extend((-1_i64).to_le_bytes());
        option(4, program.as_bytes(), body);
        end_options(body);
    });
}

pub(super) fn interface(interface: &InterfaceBlock<'_>, out: &mut Vec<u8>) {
    block(1, out, |body| {
        body.extend((interface.link as u16).to_le_bytes());
        body.extend([0; 2]);
        body.extend(interface.snaplen.to_le_bytes());
        option(2, interface.name.as_bytes(), body);
        option(3, interface.description.as_bytes(), body);
        // Times are in nanoseconds.
        option(9, &[9], body);
        end_options(body);
    });
}

pub(super) fn packet(packet: &PacketBlock<'_>, out: &mut Vec<u8>) {
    block(6, out, |body| {
        body.extend(packet.interface.to_le_bytes());
        time(packet.unix_nanos, body);
        body.extend((packet.bytes.len() as u32).to_le_bytes());
        body.extend((packet.length as u32).to_le_bytes());
        padded(packet.bytes, body);
        option(1, packet.comment.as_bytes(), body);
        let direction: u32 = if packet.is_out { 0b10 } else { 0b01 };
        option(2, &direction.to_le_bytes(), body);
        end_options(body);
    });
}

pub(super) fn statistics(statistics: &StatisticsBlock, out: &mut Vec<u8>) {
    let StatisticsBlock { begin_unix_nanos, end_unix_nanos, received, dropped, .. } = *statistics;
    block(5, out, |body| {
        body.extend(statistics.interface.to_le_bytes());
        time(end_unix_nanos, body);
        for (code, at) in [(2, begin_unix_nanos), (3, end_unix_nanos)] {
            let mut halves = Vec::with_capacity(8);
            time(at, &mut halves);
            option(code, &halves, body);
        }
        option(4, &received.to_le_bytes(), body);
        if let Some(dropped) = dropped {
            option(5, &dropped.to_le_bytes(), body);
        }
        end_options(body);
    });
}

/// A block has its length at both ends.
fn block(kind: u32, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    fill(out);
    let length = ((out.len() - begin + 4) as u32).to_le_bytes();
    out[begin + 4..begin + 8].copy_from_slice(&length);
    out.extend(length);
}

/// An option whose value is cut where it is too long for one.
fn option(code: u16, value: &[u8], out: &mut Vec<u8>) {
    let value = &value[..value.len().min(OPTION_MAX)];
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    padded(value, out);
}

fn end_options(out: &mut Vec<u8>) {
    out.extend([0; 4]);
}

fn padded(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// The high half stands first, whatever the order of bytes.
fn time(unix_nanos: u64, out: &mut Vec<u8>) {
    out.extend(((unix_nanos >> 32) as u32).to_le_bytes());
    out.extend((unix_nanos as u32).to_le_bytes());
}

/// Longer values would have to be cut anyhow.
const OPTION_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_its_length_at_both_ends_and_fills_whole_words() {
        let mut out = Vec::new();
        section("roadweave", &mut out);
        let (link, snaplen) = (LinkType::Raw, 65_535);
        interface(&InterfaceBlock { name: "wwan0", description: "odd", link, snaplen }, &mut out);
        for length in 0..5 {
            let bytes = &[1, 2, 3, 4, 5][..length];
            let (interface, unix_nanos, is_out) = (0, 1 << 40, true);
            let comment = "c";
            packet(
                &PacketBlock { interface, unix_nanos, length, bytes, is_out, comment },
                &mut out,
            );
        }
        statistics(&StatisticsBlock::default(), &mut out);
        // Of a name that somebody else has chosen.
        let name = "x".repeat(100_000);
        interface(&InterfaceBlock { name: &name, description: "", link, snaplen }, &mut out);
        let (mut rest, mut kinds) = (&out[..], Vec::new());
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            let length = word(4) as usize;
            assert_eq!(length % 4, 0);
            assert_eq!(word(length - 4) as usize, length);
            kinds.push(word(0));
            rest = &rest[length..];
        }
        assert_eq!(kinds, [0x0a0d_0d0a, 1, 6, 6, 6, 6, 6, 5, 1]);
    }
}
