//! Lost packets that are repaired together.
//!
//! ```text
//! range         0 1 2 3 4 5 6 7 8 9      x lost   . arrived   ? in flight, or repaired before
//!               . . x x . x ? . x .
//! runs              └─┘   │     │        a combination, and two packets by themselves
//! with bridges      └─────┘     │        one over 2 to 5; the receiver knows 4
//! ```
//!
//! The receiver keeps delivered packets, so a combination may span them; doubtful ones end a group.

use roadweave_proto::{PacketId, PathId};

use crate::Repair;

pub(super) const GROUP_MAX: u32 = 64;

/// Consecutive packets; the first and the last are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) start: PacketId,
    pub(super) mask: u64,
}

impl Group {
    /// `lost`, bit i: the i-th packet from `start` on. `bridged` packets do not end a group.
    pub(super) fn first_of(start: PacketId, lost: u64, bridged: u64) -> Option<Self> {
        if lost == 0 {
            return None;
        }
        let begin = lost.trailing_zeros();
        let (lost, bridged) = (lost >> begin, bridged >> begin);
        let length = (lost | bridged).trailing_ones();
        let mask = lost & u64::MAX >> (64 - length);
        Some(Self { start: start.plus(begin), mask })
    }

    pub(super) fn lost(&self) -> u32 {
        self.mask.count_ones()
    }

    pub(super) fn count(&self) -> u32 {
        64 - self.mask.leading_zeros()
    }

    pub(super) fn lost_ids(self) -> impl Iterator<Item = PacketId> {
        self.start.of_mask(self.mask)
    }

    pub(super) fn spans(&self, id: PacketId) -> bool {
        let offset = id.distance(self.start);
        offset >= 0 && i64::from(offset) < i64::from(self.count())
    }

    pub(super) fn has_lost(&self, id: PacketId) -> bool {
        self.spans(id) && self.mask >> id.distance(self.start) & 1 == 1
    }

    pub(super) fn singles(&self) -> Vec<Self> {
        self.lost_ids().map(|start| Self { start, mask: 1 }).collect()
    }

    pub(super) fn copies(&self, paths: Vec<PathId>) -> Repair {
        Repair::Copies { id: self.start, paths }
    }

    pub(super) fn coded(&self, shares: Vec<(PathId, u16)>) -> Repair {
        let Self { start, mask: lost } = *self;
        Repair::Coded { start, count: self.count() as u16, lost, shares }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `range`: x lost, . arrived, ? neither. `expected`: the offset of the group, and its packets.
    fn check(range: &str, bridges: bool, expected: Option<(u32, &str)>) {
        let bits = |wanted| {
            let bits = range.chars().enumerate().filter(|(_, state)| *state == wanted);
            bits.fold(0, |mask, (at, _)| mask | 1 << at)
        };
        let bridged = if bridges { bits('.') } else { 0 };
        let group = Group::first_of(PacketId(7), bits('x'), bridged);
        let shown = group.map(|group| {
            let state = |at| if group.has_lost(group.start.plus(at)) { 'x' } else { '.' };
            let states: String = (0..group.count()).map(state).collect();
            assert_eq!(group.lost_ids().count() as u32, group.lost());
            assert!(!group.spans(group.start.plus(group.count())));
            (group.start.0 - 7, states)
        });
        assert_eq!(shown, expected.map(|(at, states)| (at, states.to_owned())), "{range}");
    }

    #[test]
    fn a_group_bridges_what_has_arrived_and_nothing_else() {
        check("..xx.x?.x.", true, Some((2, "xx.x")));
        check("..xx.x?.x.", false, Some((2, "xx")));
        check("x", true, Some((0, "x")));
        check("..?..", true, None);
        check("x....", true, Some((0, "x")));
        check(&"x".repeat(64), true, Some((0, &"x".repeat(64))));
        check(&format!("x{}x", ".".repeat(62)), true, Some((0, &format!("x{}x", ".".repeat(62)))));
        check(&format!("{}x", "?".repeat(63)), true, Some((63, "x")));
    }
}
