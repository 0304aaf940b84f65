//! The time at which a packet came to its lane, for lanes whose packets expire.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------------------------------------------------------+------------------
//! |0 0 0 1|                      milliseconds                     |  inner packet ...
//! +-------+-------------------------------------------------------+------------------
//! ```
//!
//! An inner packet begins with its IP version, 4 or 6, so the first four bits mark this prefix. It
//! is inside the symbol, after the predecessor if there is one
//! ([`predecessor_prefix`](crate::wire::predecessor_prefix)), so recovered packets have it as well.
//!
//! The milliseconds are of the sender's clock, unknown to others. They wrap after three days, so
//! that an attacker cannot delay a packet until it looks new.

use std::time::Duration;

use bytes::Bytes;

use crate::Instant;

/// Bytes of the prefix.
pub const STAMP_HEADER: usize = 4;

/// When a packet came to its lane, by a clock that wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u32);

impl Stamp {
    /// The stamp of a packet that comes at `now`.
    pub fn of(now: Instant) -> Self {
        Self((now.as_nanos() / 1_000_000) as u32 & MASK)
    }

    /// The prefix.
    pub fn to_bytes(self) -> [u8; STAMP_HEADER] {
        (self.0 | TAG << BITS).to_be_bytes()
    }

    /// Milliseconds from `other` to this one, negative if earlier; up to a day and a half.
    pub fn since(self, other: Self) -> i64 {
        let ahead = self.0.wrapping_sub(other.0) << (u32::BITS - BITS);
        i64::from(ahead.cast_signed() >> (u32::BITS - BITS))
    }

    /// The stamp `time` later.
    #[must_use]
    pub fn plus(self, time: Duration) -> Self {
        Self(self.0.wrapping_add(time.as_millis() as u32) & MASK)
    }
}

/// Splits the prefix, if any, from the bytes after the predecessor.
pub fn split_stamp(mut packet: Bytes) -> (Option<Stamp>, Bytes) {
    match packet.first_chunk::<STAMP_HEADER>().map(|prefix| u32::from_be_bytes(*prefix)) {
        Some(prefix) if prefix >> BITS == TAG => {
            (Some(Stamp(prefix & MASK)), packet.split_off(STAMP_HEADER))
        }
        _ => (None, packet),
    }
}

const BITS: u32 = 28;
const MASK: u32 = (1 << BITS) - 1;
const TAG: u32 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_has_no_prefix_is_left_alone() {
        for packet in [&[0x45, 0, 0, 28][..], &[0x60, 0, 0, 0], &[0, 7, 0, 0], &[0x10, 0, 1], &[]] {
            let packet = Bytes::copy_from_slice(packet);
            assert_eq!(split_stamp(packet.clone()), (None, packet));
        }
    }

    #[test]
    fn stamps_are_compared_across_their_wrap() {
        let near_wrap = Instant::from_millis(u64::from(MASK) - 1);
        let stamp = Stamp::of(near_wrap);
        let later = Stamp::of(near_wrap + Duration::from_millis(5));
        assert_eq!((later.since(stamp), stamp.since(later), stamp.since(stamp)), (5, -5, 0));
        assert_eq!(stamp.plus(Duration::from_millis(5)), later);
        assert_eq!(later.to_bytes(), [0x10, 0, 0, 3]);
    }

    proptest! {
        #[test]
        fn the_prefix_reads_back(
            ms in any::<u32>(),
            packet in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let stamp = Stamp::of(Instant::from_millis(ms.into()));
            let body = Bytes::from([&stamp.to_bytes()[..], &packet].concat());
            prop_assert_eq!(split_stamp(body), (Some(stamp), Bytes::from(packet)));
        }
    }
}
