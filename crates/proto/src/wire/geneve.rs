//! GENEVE (RFC 8926) of the redundant router: an inner packet with its number, or a keep-alive.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---+-----------+-+-+-----------+-------------------------------+
//! |Ver|  Opt Len  |O|C|   Rsvd.   |  protocol: 0x0800 or 0x86dd   |
//! +---+-----------+-+-+-----------+---------------+---------------+
//! |          virtual network identifier           |   Reserved    |
//! +-------------------------------+-+-------------+-----+---------+
//! |     option class 0xff52       |1|  type 0x01  |R|R|R|  len 2  |   critical: a receiver without
//! +-------------------------------+-+-------------+-----+---------+   it would deliver every copy
//! |                 epoch: drawn when the sender starts           |
//! +---------------------------------------------------------------+
//! |          sequence number: from 0, wraps after 2^32            |
//! +---------------------------------------------------------------+
//! |  inner packet, as it is ...
//! ```
//!
//! Source: RFC 8926 section 3; redundant framework (Networking'24) section III.

use crate::wire::protocol;

/// The UDP port of GENEVE (RFC 8926 section 3.3).
pub const GENEVE_PORT: u16 = 6081;
/// Bytes before the inner packet.
pub const GENEVE_OVERHEAD: usize = HEADER + OPTION_HEADER + SEQUENCE_BYTES;
/// The class of our options, of the experimental range 0xFF00 to 0xFFFF (RFC 8926 section 7).
pub const GENEVE_OPTION_CLASS: u16 = 0xff52;
/// The highest virtual network identifier.
pub const GENEVE_VNI_MAX: u32 = (1 << 24) - 1;
/// Bytes of a hello.
pub const GENEVE_HELLO: usize = HEADER + OPTION_HEADER + HELLO_BYTES;

const HEADER: usize = 8;
const OPTION_HEADER: usize = 4;
/// The top bit of an option's type: a receiver that does not know it must drop the packet.
const CRITICAL: u8 = 0x80;
const SEQUENCE: u8 = CRITICAL | 0x01;
const SEQUENCE_BYTES: usize = 8;
const HELLO: u8 = 0x02;
const HELLO_BYTES: usize = 20;
/// Header bit: a control packet for the endpoint itself.
const CONTROL_BIT: u8 = 0x80;
const CRITICAL_BIT: u8 = 0x40;

/// A packet of GENEVE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geneve<'a> {
    /// The virtual network identifier, 24 bits.
    pub vni: u32,
    /// What the packet carries.
    pub content: GeneveContent<'a>,
}

/// The content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeneveContent<'a> {
    /// An inner packet.
    Inner {
        /// Its place among its sender's packets.
        sequence: GeneveSequence,
        /// The packet, of the header's family; otherwise unchecked.
        packet: &'a [u8],
    },
    /// The keep-alive of a link.
    Hello(GeneveHello),
}

/// The place of an inner packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GeneveSequence {
    /// Random, drawn when the sender starts: a change means that its numbers start again.
    pub epoch: u32,
    /// Counts inner packets from 0, and wraps.
    pub number: u32,
}

/// The keep-alive of a link: keeps NAT bindings open, shows where the link's other end is, and
/// measures its round trip. Times are microseconds from any start, and wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GeneveHello {
    /// The epoch of the sender.
    pub epoch: u32,
    /// The number of the link, the same at both ends.
    pub link: u8,
    /// When it left, by its sender's clock.
    pub sent_us: u32,
    /// `sent_us` of the last hello received on the link; meaningless before the first.
    pub echoed_us: u32,
    /// Time since that hello; [`u32::MAX`] before the first.
    pub held_us: u32,
}

/// Why bytes are not a packet for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeneveError {
    /// The packet ends within its header.
    #[error("packet of {0} bytes ends within the header of geneve")]
    Truncated(usize),
    /// Another version of GENEVE (RFC 8926 section 3.4).
    #[error("geneve of version {0}")]
    Version(u8),
    /// The options exceed the packet.
    #[error("geneve with {claimed} bytes of options in {held}")]
    OptionsBeyondPacket {
        /// Length of the options by the header.
        claimed: usize,
        /// Bytes after the header.
        held: usize,
    },
    /// An option exceeds the options, or one of ours has a wrong length.
    #[error("geneve option {kind:#04x} of class {class:#06x} has an impossible length")]
    OptionLength {
        /// The option's class.
        class: u16,
        /// The option's type.
        kind: u8,
    },
    /// An unknown critical option.
    #[error("geneve option {kind:#04x} of class {class:#06x} is critical and unknown")]
    UnknownCritical {
        /// The option's class.
        class: u16,
        /// The option's type.
        kind: u8,
    },
    /// An option of ours appears twice.
    #[error("geneve option {0:#04x} is repeated")]
    Repeated(u8),
    /// Data without a sequence number: another kind of tunnel.
    #[error("geneve without a sequence number")]
    NoSequence,
    /// A control packet that is not a hello.
    #[error("geneve control packet of an unknown kind")]
    UnknownControl,
    /// The payload is not an IP packet.
    #[error("geneve with protocol {0:#06x}")]
    Protocol(u16),
    /// The payload is not of the header's family.
    #[error("geneve with protocol {0:#06x} carries another protocol")]
    Family(u16),
}

impl GeneveError {
    /// Whether the bytes are malformed; otherwise they are valid, but not for us.
    pub const fn is_malformed(&self) -> bool {
        matches!(
            self,
            Self::Truncated(_)
                | Self::OptionsBeyondPacket { .. }
                | Self::OptionLength { .. }
                | Self::Repeated(_)
        )
    }
}

#[derive(Debug, Default)]
struct GeneveOptions {
    sequence: Option<GeneveSequence>,
    hello: Option<GeneveHello>,
}

impl<'a> Geneve<'a> {
    /// Reads one UDP payload. Unknown options are skipped unless they are critical. "Tunnel
    /// endpoints MUST drop packets with an unknown version number" (RFC 8926 section 3.4): test
    /// `what_must_be_dropped_is_refused`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GeneveError> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(GeneveError::Truncated(bytes.len()));
        };
        let version = header[0] >> 6;
        if version != 0 {
            return Err(GeneveError::Version(version));
        }
        let claimed = usize::from(header[0] & 0x3f) * 4;
        let Some((options, payload)) = rest.split_at_checked(claimed) else {
            return Err(GeneveError::OptionsBeyondPacket { claimed, held: rest.len() });
        };
        let options = GeneveOptions::parse(options)?;
        let vni = u32::from_be_bytes([0, header[4], header[5], header[6]]);
        if header[1] & CONTROL_BIT != 0 {
            let hello = options.hello.ok_or(GeneveError::UnknownControl)?;
            return Ok(Self { vni, content: GeneveContent::Hello(hello) });
        }
        let ethertype = u16::from_be_bytes([header[2], header[3]]);
        let version = match ethertype {
            protocol::ETHERTYPE_IPV4 => 4,
            protocol::ETHERTYPE_IPV6 => 6,
            other => return Err(GeneveError::Protocol(other)),
        };
        let sequence = options.sequence.ok_or(GeneveError::NoSequence)?;
        if payload.first().is_none_or(|byte| byte >> 4 != version) {
            return Err(GeneveError::Family(ethertype));
        }
        Ok(Self { vni, content: GeneveContent::Inner { sequence, packet: payload } })
    }

    /// The header of an inner packet whose first byte is `first`.
    pub fn inner_header(vni: u32, first: u8, sequence: GeneveSequence) -> [u8; GENEVE_OVERHEAD] {
        let ethertype =
            if first >> 4 == 6 { protocol::ETHERTYPE_IPV6 } else { protocol::ETHERTYPE_IPV4 };
        let mut bytes = [0; GENEVE_OVERHEAD];
        bytes[..HEADER].copy_from_slice(&header(vni, CRITICAL_BIT, ethertype, SEQUENCE_BYTES));
        bytes[HEADER..12].copy_from_slice(&option_header(SEQUENCE, SEQUENCE_BYTES));
        bytes[12..16].copy_from_slice(&sequence.epoch.to_be_bytes());
        bytes[16..].copy_from_slice(&sequence.number.to_be_bytes());
        bytes
    }

    /// A hello, without payload.
    pub fn hello(vni: u32, hello: &GeneveHello) -> [u8; GENEVE_HELLO] {
        let mut bytes = [0; GENEVE_HELLO];
        // A protocol without a dissector, as the header must name one.
        let ethertype = protocol::ETHERTYPE_EXPERIMENTAL;
        bytes[..HEADER].copy_from_slice(&header(vni, CONTROL_BIT, ethertype, HELLO_BYTES));
        bytes[HEADER..12].copy_from_slice(&option_header(HELLO, HELLO_BYTES));
        bytes[12..16].copy_from_slice(&hello.epoch.to_be_bytes());
        bytes[16] = hello.link;
        let times = [hello.sent_us, hello.echoed_us, hello.held_us];
        for (bytes, time) in bytes[20..].chunks_exact_mut(4).zip(times) {
            bytes.copy_from_slice(&time.to_be_bytes());
        }
        bytes
    }
}

impl GeneveOptions {
    fn parse(mut rest: &[u8]) -> Result<Self, GeneveError> {
        let mut options = Self::default();
        while let Some((header, behind)) = rest.split_first_chunk::<OPTION_HEADER>() {
            let class = u16::from_be_bytes([header[0], header[1]]);
            let kind = header[2];
            let length = usize::from(header[3] & 0x1f) * 4;
            let Some((data, behind)) = behind.split_at_checked(length) else {
                return Err(GeneveError::OptionLength { class, kind });
            };
            options.take(class, kind, data)?;
            rest = behind;
        }
        Ok(options)
    }

    fn take(&mut self, class: u16, kind: u8, data: &[u8]) -> Result<(), GeneveError> {
        let wrong_length = GeneveError::OptionLength { class, kind };
        let is_new = match (class, kind) {
            (GENEVE_OPTION_CLASS, SEQUENCE) => {
                let data: &[u8; SEQUENCE_BYTES] = data.try_into().map_err(|_| wrong_length)?;
                let sequence = GeneveSequence { epoch: word(data, 0), number: word(data, 4) };
                self.sequence.replace(sequence).is_none()
            }
            (GENEVE_OPTION_CLASS, HELLO) => {
                let data: &[u8; HELLO_BYTES] = data.try_into().map_err(|_| wrong_length)?;
                let hello = GeneveHello {
                    epoch: word(data, 0),
                    link: data[4],
                    sent_us: word(data, 8),
                    echoed_us: word(data, 12),
                    held_us: word(data, 16),
                };
                self.hello.replace(hello).is_none()
            }
            _ if kind & CRITICAL != 0 => return Err(GeneveError::UnknownCritical { class, kind }),
            _ => true,
        };
        if is_new { Ok(()) } else { Err(GeneveError::Repeated(kind)) }
    }
}

fn header(vni: u32, bits: u8, ethertype: u16, data: usize) -> [u8; HEADER] {
    let options = ((OPTION_HEADER + data) / 4) as u8;
    let [high, low] = ethertype.to_be_bytes();
    let [_, vni @ ..] = vni.to_be_bytes();
    [options, bits, high, low, vni[0], vni[1], vni[2], 0]
}

fn option_header(kind: u8, data: usize) -> [u8; OPTION_HEADER] {
    let [high, low] = GENEVE_OPTION_CLASS.to_be_bytes();
    [high, low, kind, (data / 4) as u8]
}

fn word<const N: usize>(data: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

#[cfg(test)]
mod tests;
