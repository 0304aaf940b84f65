//! A datagram of a lane on its way to the carrier, and the token by which its fate is reported.

use bytes::Bytes;
use roadweave_proto::wire::{
    FragmentPosition, SOURCE_HEADER, SYMBOL_HEADER, SourceDatagram, Symbol,
};
use roadweave_proto::{LaneId, PacketId};

/// A datagram of a lane, with its content described, so that carriers need not parse it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneDatagram {
    /// The lane.
    pub lane: LaneId,
    /// What the datagram holds.
    pub content: DatagramContent,
    /// Its bytes as QUIC carries them.
    pub bytes: Bytes,
}

/// What a datagram of a lane holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramContent {
    /// An inner packet, or a fragment of one.
    Source {
        /// The packet's number in the lane.
        id: PacketId,
        /// Whether it is the whole packet.
        is_whole: bool,
    },
    /// A combination of packets.
    Repair {
        /// The first packet that it may bring back.
        start: PacketId,
    },
    /// A repair that is the lost packet itself.
    Copy {
        /// The packet.
        id: PacketId,
    },
    /// A part of a source datagram or of a repair that was too large for its path.
    Part {
        /// The number of the datagram that was cut.
        number: u32,
    },
    /// Load of a speed test, in no lane.
    Load {
        /// Its number in the test.
        number: u32,
    },
}

impl LaneDatagram {
    pub(crate) fn source(lane: LaneId, id: PacketId, datagram: SourceDatagram) -> Self {
        let is_whole = datagram.position() == FragmentPosition::Whole;
        Self { lane, content: DatagramContent::Source { id, is_whole }, bytes: datagram.finish(id) }
    }

    pub(crate) fn of_symbol(lane: LaneId, id: PacketId, symbol: &Symbol<'_>) -> Self {
        Self::source(lane, id, SourceDatagram::new(lane, symbol))
    }

    /// Its length, bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The token by which its fate is reported.
    pub fn token(&self) -> u64 {
        DatagramToken { lane: self.lane, kind: self.content.kind(), id: self.content.id() }.to_u64()
    }

    /// The inner packet and its number, if it holds a whole one uncoded.
    pub fn whole_packet(&self) -> Option<(PacketId, &[u8])> {
        match self.content {
            DatagramContent::Source { id, is_whole: true } => {
                let packet = self.bytes.get(SOURCE_HEADER + SYMBOL_HEADER..)?;
                Some((id, packet))
            }
            _ => None,
        }
    }
}

impl DatagramContent {
    pub(crate) fn kind(self) -> TokenKind {
        match self {
            Self::Source { .. } => TokenKind::Source,
            Self::Repair { .. } => TokenKind::Repair,
            Self::Copy { .. } => TokenKind::Copy,
            Self::Part { .. } => TokenKind::Part,
            Self::Load { .. } => TokenKind::Load,
        }
    }

    pub(crate) fn id(self) -> PacketId {
        match self {
            Self::Source { id, .. } | Self::Copy { id } => id,
            Self::Repair { start } => start,
            Self::Part { number } | Self::Load { number } => PacketId(number),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatagramToken {
    pub(crate) kind: TokenKind,
    pub(crate) lane: LaneId,
    pub(crate) id: PacketId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Source,
    Repair,
    Part,
    Copy,
    Load,
}

impl DatagramToken {
    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.kind as u8) << 40 | u64::from(self.lane.0) << 32 | u64::from(self.id.0)
    }

    pub(crate) fn parse(token: u64) -> Self {
        let kind = match token >> 40 {
            0 => TokenKind::Source,
            1 => TokenKind::Repair,
            2 => TokenKind::Part,
            3 => TokenKind::Copy,
            _ => TokenKind::Load,
        };
        Self { kind, lane: LaneId((token >> 32) as u8), id: PacketId(token as u32) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_read_back() {
        let id = PacketId(u32::MAX);
        for (content, kind) in [
            (DatagramContent::Source { id, is_whole: false }, TokenKind::Source),
            (DatagramContent::Repair { start: id }, TokenKind::Repair),
            (DatagramContent::Copy { id }, TokenKind::Copy),
            (DatagramContent::Part { number: u32::MAX }, TokenKind::Part),
            (DatagramContent::Load { number: u32::MAX }, TokenKind::Load),
        ] {
            let datagram = LaneDatagram { lane: LaneId(7), content, bytes: Bytes::new() };
            assert_eq!(
                DatagramToken::parse(datagram.token()),
                DatagramToken { kind, lane: LaneId(7), id }
            );
        }
    }

    #[test]
    fn only_a_whole_packet_is_one() {
        let packet = |position| {
            let symbol = Symbol { position, body: b"inner" };
            let datagram = LaneDatagram::of_symbol(LaneId(0), PacketId(9), &symbol);
            datagram.whole_packet().map(|(id, packet)| (id, packet.to_vec()))
        };
        assert_eq!(packet(FragmentPosition::Whole), Some((PacketId(9), b"inner".to_vec())));
        assert_eq!(packet(FragmentPosition::First), None);
        let content = DatagramContent::Repair { start: PacketId(9) };
        let repair = LaneDatagram { lane: LaneId(0), content, bytes: Bytes::new() };
        assert_eq!(repair.whole_packet(), None);
    }
}
