//! The payload of a DATAGRAM frame (RFC 9221): source packets, coded packets, feedback, and load.
//!
//! ```text
//! source    01 | lane | id:4             | symbol
//! coded     02 | lane | count:2 | seed:4 | start:4 | coded symbol
//! part      05 | lane | number:4 | index:4 bits, last:4 bits | part of one of these
//! load      09 | test:4 | number:4 | filler
//! feedback  03 | lanes | lanes * { lane | highest:4 | delivered:8 | recovered:8 | lost:8 }
//! ```
//!
//! Integers are big-endian. The coded header has the three fields of CellFusion's XNC header
//! (section 4.3.2) at the payload's start; docs/deviations.md says why it has no frame of its own.

pub(crate) mod kind;

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub use self::kind::DatagramError;
use self::kind::{KIND_CODED, KIND_FEEDBACK, KIND_LOAD, KIND_PART, KIND_SOURCE};
use crate::wire::part::{PART_HEADER, Part};
use crate::wire::predecessor::{PREDECESSOR_HEADER, predecessor_prefix};
use crate::wire::speedtest::{LOAD_HEADER, Load};
use crate::wire::stamp::Stamp;
use crate::wire::symbol::{FragmentPosition, SYMBOL_HEADER, Symbol};
use crate::{LaneId, PacketId};

/// Bytes before the symbol of a source datagram.
pub const SOURCE_HEADER: usize = 6;
/// Bytes before the coded symbol of a coded datagram.
pub const CODED_HEADER: usize = 12;
/// The most lanes that one feedback message reports.
pub const MAX_FEEDBACK_LANES: usize = 16;
const LANE_REPORT: usize = 29;

/// A received datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// An inner packet, or a fragment of one, unchanged.
    Source {
        /// The lane whose IDs it uses.
        lane: LaneId,
        /// Its number in the lane.
        id: PacketId,
        /// The symbol, checked by [`Symbol::parse`].
        symbol: Bytes,
    },
    /// A linear combination of symbols.
    Coded(Coded),
    /// A part of a datagram that is too large for its path.
    Part(Part),
    /// What the other side received; QUIC's acknowledgements leave in the same packet.
    Feedback(Feedback),
    /// Load of a speed test.
    Load(Load),
}

/// A coded packet (CellFusion section 4.3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coded {
    /// The lane whose IDs it uses.
    pub lane: LaneId,
    /// Packets in the encode range.
    pub count: u16,
    /// The seed of the coefficients.
    pub seed: u32,
    /// The first packet of the encode range.
    pub start: PacketId,
    /// The combination of the symbols, zero-padded to the longest.
    pub payload: Bytes,
}

/// What one side received since the session began, per lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// At most [`MAX_FEEDBACK_LANES`]; may be empty.
    pub lanes: Vec<LaneReport>,
}

/// The receiver's view of one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneReport {
    /// The lane.
    pub lane: u8,
    /// The highest packet ID seen.
    pub highest: PacketId,
    /// Packets delivered, including recovered ones.
    pub delivered: u64,
    /// Packets recovered from coded packets.
    pub recovered: u64,
    /// Packets given up.
    pub lost: u64,
}

impl Datagram {
    /// Parses one datagram; payloads share the memory of `bytes`.
    pub fn parse(mut bytes: Bytes) -> Result<Self, DatagramError> {
        let length = bytes.len();
        let kind = *bytes.first().ok_or(DatagramError::Truncated(0))?;
        let header = match kind {
            KIND_SOURCE => SOURCE_HEADER,
            KIND_CODED => CODED_HEADER,
            KIND_FEEDBACK => 2,
            KIND_PART => PART_HEADER,
            KIND_LOAD => LOAD_HEADER,
            other => return Err(DatagramError::UnknownKind(other)),
        };
        if length < header {
            return Err(DatagramError::Truncated(length));
        }
        bytes.advance(1);
        match kind {
            KIND_SOURCE => {
                let lane = LaneId(bytes.get_u8());
                let id = PacketId(bytes.get_u32());
                Symbol::parse(&bytes)?;
                Ok(Self::Source { lane, id, symbol: bytes })
            }
            KIND_CODED => Coded::parse(bytes).map(Self::Coded),
            KIND_PART => Part::parse(bytes).map(Self::Part),
            KIND_LOAD => Ok(Self::Load(Load::parse(bytes))),
            _ => Feedback::parse(bytes).map(Self::Feedback),
        }
    }
}

/// A source datagram under construction: its ID is set when it is sent.
#[derive(Debug)]
pub struct SourceDatagram(BytesMut);

impl SourceDatagram {
    /// A datagram for `symbol` in `lane`, with ID 0.
    pub fn new(lane: LaneId, symbol: &Symbol<'_>) -> Self {
        let mut bytes = BytesMut::with_capacity(SOURCE_HEADER + SYMBOL_HEADER + symbol.body.len());
        bytes.put_u8(KIND_SOURCE);
        bytes.put_u8(lane.0);
        bytes.put_u32(0);
        symbol.write(&mut bytes);
        Self(bytes)
    }

    /// A datagram for a whole inner packet: with room for its predecessor in a lane that keeps the
    /// order of each flow (`in_flow_order`), and with its `stamp` in one whose packets expire.
    ///
    /// # Panics
    /// Beyond [`MAX_SYMBOL_BODY`](crate::wire::MAX_SYMBOL_BODY), with its prefixes.
    pub fn of_packet(
        lane: LaneId,
        in_flow_order: bool,
        stamp: Option<Stamp>,
        packet: &[u8],
    ) -> Self {
        let prefix = predecessor_prefix(0);
        let prefix = if in_flow_order { &prefix[..] } else { &[] };
        let stamp = stamp.map(Stamp::to_bytes);
        let stamp = stamp.as_ref().map_or(&[][..], |stamp| &stamp[..]);
        if prefix.is_empty() && stamp.is_empty() {
            return Self::new(lane, &Symbol { position: FragmentPosition::Whole, body: packet });
        }
        let body = [prefix, stamp, packet].concat();
        Self::new(lane, &Symbol { position: FragmentPosition::Whole, body: &body })
    }

    /// Sets how many IDs before this the last packet of its flow is: for datagrams with room for
    /// it, made by [`SourceDatagram::of_packet`], or first fragments of these.
    pub fn set_predecessor(&mut self, after: u32) {
        let at = SOURCE_HEADER + SYMBOL_HEADER;
        if let Some(prefix) = self.0.get_mut(at..at + PREDECESSOR_HEADER) {
            prefix.copy_from_slice(&predecessor_prefix(after));
        }
    }

    /// The length of the datagram.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The inner bytes within.
    pub fn body(&self) -> &[u8] {
        &self.0[SOURCE_HEADER + SYMBOL_HEADER..]
    }

    /// Its part of an inner packet.
    pub fn position(&self) -> FragmentPosition {
        Symbol::parse(&self.0[SOURCE_HEADER..])
            .map_or(FragmentPosition::Whole, |symbol| symbol.position)
    }

    /// Sets the ID and returns the datagram. Its symbol is at [`SOURCE_HEADER`].
    pub fn finish(mut self, id: PacketId) -> Bytes {
        self.0[2..SOURCE_HEADER].copy_from_slice(&id.0.to_be_bytes());
        self.0.freeze()
    }
}

impl Coded {
    fn parse(mut bytes: Bytes) -> Result<Self, DatagramError> {
        let lane = LaneId(bytes.get_u8());
        let count = bytes.get_u16();
        let seed = bytes.get_u32();
        let start = PacketId(bytes.get_u32());
        if count == 0 || bytes.len() < SYMBOL_HEADER {
            return Err(DatagramError::EmptyCombination { count, bytes: bytes.len() });
        }
        Ok(Self { lane, count, seed, start, payload: bytes })
    }

    /// Appends the header; the coded symbol follows it.
    pub fn write_header(
        lane: LaneId,
        start: PacketId,
        count: u16,
        seed: u32,
        out: &mut impl BufMut,
    ) {
        out.put_u8(KIND_CODED);
        out.put_u8(lane.0);
        out.put_u16(count);
        out.put_u32(seed);
        out.put_u32(start.0);
    }
}

impl Feedback {
    fn parse(mut bytes: Bytes) -> Result<Self, DatagramError> {
        let lanes = bytes.get_u8();
        if usize::from(lanes) > MAX_FEEDBACK_LANES
            || bytes.len() != usize::from(lanes) * LANE_REPORT
        {
            return Err(DatagramError::Feedback { lanes, bytes: bytes.len() });
        }
        let report = |_| LaneReport {
            lane: bytes.get_u8(),
            highest: PacketId(bytes.get_u32()),
            delivered: bytes.get_u64(),
            recovered: bytes.get_u64(),
            lost: bytes.get_u64(),
        };
        Ok(Self { lanes: (0..lanes).map(report).collect() })
    }

    /// The message as bytes; lanes beyond [`MAX_FEEDBACK_LANES`] are left out.
    pub fn to_bytes(&self) -> Bytes {
        let lanes = &self.lanes[..self.lanes.len().min(MAX_FEEDBACK_LANES)];
        let mut out = BytesMut::with_capacity(2 + lanes.len() * LANE_REPORT);
        out.put_u8(KIND_FEEDBACK);
        out.put_u8(lanes.len() as u8);
        for lane in lanes {
            out.put_u8(lane.lane);
            out.put_u32(lane.highest.0);
            out.put_u64(lane.delivered);
            out.put_u64(lane.recovered);
            out.put_u64(lane.lost);
        }
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::symbol::SymbolError;

    #[test]
    fn a_source_datagram_reads_back() {
        let symbol = Symbol { position: FragmentPosition::Whole, body: b"inner packet" };
        let sent = SourceDatagram::new(LaneId(3), &symbol);
        assert_eq!(sent.body(), b"inner packet");
        let bytes = sent.finish(PacketId(0xfeed_beef));
        assert_eq!(&bytes[..8], [1, 3, 0xfe, 0xed, 0xbe, 0xef, 0, 12]);
        let Ok(Datagram::Source { lane, id, symbol: read }) = Datagram::parse(bytes) else {
            panic!("a source datagram");
        };
        assert_eq!((lane, id), (LaneId(3), PacketId(0xfeed_beef)));
        assert_eq!(Symbol::parse(&read), Ok(symbol));
    }

    #[test]
    fn a_coded_datagram_reads_back() {
        let mut bytes = BytesMut::new();
        Coded::write_header(LaneId(1), PacketId(7), 10, 0x0102_0304, &mut bytes);
        bytes.put_slice(&[9, 8, 7]);
        assert_eq!(&bytes[..], [2, 1, 0, 10, 1, 2, 3, 4, 0, 0, 0, 7, 9, 8, 7]);
        let expected = Coded {
            lane: LaneId(1),
            count: 10,
            seed: 0x0102_0304,
            start: PacketId(7),
            payload: Bytes::from_static(&[9, 8, 7]),
        };
        assert_eq!(Datagram::parse(bytes.freeze()), Ok(Datagram::Coded(expected)));
    }

    #[test]
    fn a_packet_names_its_predecessor() {
        let mut datagram = SourceDatagram::of_packet(LaneId(2), true, None, b"Epacket");
        datagram.set_predecessor(300);
        let Ok(Datagram::Source { symbol, .. }) = Datagram::parse(datagram.finish(PacketId(9)))
        else {
            panic!("a source datagram");
        };
        let body = symbol.slice(SYMBOL_HEADER..);
        let expected = (Some(300), Bytes::from_static(b"Epacket"));
        assert_eq!(crate::wire::split_predecessor(body), expected);
    }

    #[test]
    fn feedback_reads_back() {
        let lane =
            LaneReport { lane: 2, highest: PacketId(5), delivered: 6, recovered: 7, lost: 8 };
        for lanes in [vec![], vec![lane], vec![lane; MAX_FEEDBACK_LANES]] {
            let feedback = Feedback { lanes };
            assert_eq!(Datagram::parse(feedback.to_bytes()), Ok(Datagram::Feedback(feedback)));
        }
    }

    #[test]
    fn broken_datagrams_are_refused_with_the_reason() {
        let check = |bytes: &'static [u8], expected| {
            assert_eq!(Datagram::parse(Bytes::from_static(bytes)), Err(expected), "{bytes:?}");
        };
        check(&[], DatagramError::Truncated(0));
        check(&[0x7f, 1, 2], DatagramError::UnknownKind(0x7f));
        check(&[4, 1, 2], DatagramError::UnknownKind(4));
        check(&[1, 0, 0, 0], DatagramError::Truncated(4));
        check(&[1, 0, 0, 0, 0, 1], SymbolError::Truncated(0).into());
        check(&[1, 0, 0, 0, 0, 1, 0, 9, 1], SymbolError::Length { claimed: 9, held: 1 }.into());
        check(&[2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], DatagramError::Truncated(11));
        let empty = |count, bytes| DatagramError::EmptyCombination { count, bytes };
        check(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1], empty(0, 2));
        check(&[2, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1], empty(3, 1));
        check(&[3, 1, 0], DatagramError::Feedback { lanes: 1, bytes: 1 });
        check(&[3, 255], DatagramError::Feedback { lanes: 255, bytes: 0 });
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Datagram::parse(Bytes::from(bytes));
        }
    }
}
