//! Ids, each a type of its own.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A QUIC path (RFC 10069), or a link of another carrier. Never used twice in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PathId(pub u32);

/// A class of inner traffic with its own packet IDs, strategy and deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaneId(pub u8);

/// One network interface of the vehicle, numbered by the device layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UplinkId(pub u32);

/// The number of a packet within its lane (CellFusion section 4.3.2); wraps after 2^32.
///
/// Serial number arithmetic (RFC 1982) is no total order, so there is no `Ord`: compare with
/// [`PacketId::precedes`] and [`PacketId::distance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PacketId(pub u32);

impl PacketId {
    /// The ID `count` after this one.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// The ID after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// The IDs of a mask: bit i is the i-th after this one.
    pub fn of_mask(self, mask: u64) -> impl Iterator<Item = Self> + use<> {
        let offsets = (0..u64::BITS).filter(move |offset| mask >> offset & 1 == 1);
        offsets.map(move |offset| self.plus(offset))
    }

    /// How far `self` is ahead of `earlier`; negative when it is behind.
    pub const fn distance(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// Whether `self` comes before `other` in the lane.
    pub const fn precedes(self, other: Self) -> bool {
        self.distance(other) < 0
    }
}

macro_rules! displayed {
    ($($id:ident: $text:literal),*) => {
        $(impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $text, self.0)
            }
        })*
    };
}
displayed!(PathId: "path {}", LaneId: "lane {}", PacketId: "#{}");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_ids_compare_across_the_wrap() {
        let last = PacketId(u32::MAX);
        assert!(last.precedes(last.next()));
        assert_eq!(last.next(), PacketId(0));
        assert_eq!(last.plus(3).distance(last), 3);
        assert_eq!(last.distance(last.plus(3)), -3);
    }
}
