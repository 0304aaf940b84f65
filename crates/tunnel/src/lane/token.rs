//! What became of a datagram is told with a token: what it was, its lane and its packet.

use roadweave_types::{LaneId, PacketId};

/// What became of a datagram is told with a token: what it was, its lane and its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A packet as it is: its fate matters to the recovery.
    Source,
    /// A repair: coded, or a copy.
    Repair,
    /// A part of either; instead of the packet's ID it has the number of the datagram that was cut.
    Part,
}

impl TokenKind {
    pub(crate) fn token(self, lane: LaneId, id: PacketId) -> u64 {
        u64::from(self as u8) << 40 | u64::from(lane.0) << 32 | u64::from(id.0)
    }

    pub(crate) fn parse(token: u64) -> (Self, LaneId, PacketId) {
        let kind = match token >> 40 {
            0 => Self::Source,
            1 => Self::Repair,
            _ => Self::Part,
        };
        (kind, LaneId((token >> 32) as u8), PacketId(token as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_read_back() {
        for kind in [TokenKind::Source, TokenKind::Repair, TokenKind::Part] {
            let token = kind.token(LaneId(7), PacketId(u32::MAX));
            assert_eq!(TokenKind::parse(token), (kind, LaneId(7), PacketId(u32::MAX)));
        }
    }
}
