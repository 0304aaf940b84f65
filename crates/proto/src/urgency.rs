//! The order of packets within a lane.

/// The place of a waiting packet in its lane: the lowest leaves first, equal ones in turn. Packets
/// of applications have [`Urgency::FIRST`], those of streams the urgency of their data (RFC 9218).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Urgency(pub u64);

impl Urgency {
    /// Before all others.
    pub const FIRST: Self = Self(0);
    /// Behind all others.
    pub const LAST: Self = Self(u64::MAX);
}
