//! Whose packets leave first within a lane.

/// The place of a packet among those of its lane that wait: the lowest leaves first, and those of
/// the same are equals. Packets of applications are all [`Urgency::FIRST`]; those of streams have
/// the urgency of what they carry (RFC 9218).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Urgency(pub u64);

impl Urgency {
    /// Before all others.
    pub const FIRST: Self = Self(0);
    /// Behind all others.
    pub const LAST: Self = Self(u64::MAX);
}
