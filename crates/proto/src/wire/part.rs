//! A part of a datagram that is too large for the path it must take.
//!
//! ```text
//! 05 | lane | number:4 | index:4 bits, last:4 bits | part
//! ```
//!
//! A packet's ID stands for its bytes: once it has left, neither the packet nor a combination that
//! covers it can be cut into fragments. If paths have become narrower since, the datagram is cut.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::LaneId;
use crate::wire::datagram::kind::{DatagramError, KIND_PART};

/// Bytes before a part.
pub const PART_HEADER: usize = 7;

/// A part of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The lane of the datagram.
    pub lane: LaneId,
    /// Counts the lane's cut datagrams.
    pub number: u32,
    /// Its place among the parts, from 0.
    pub index: u8,
    /// The place of the last part.
    pub last: u8,
    /// The bytes.
    pub bytes: Bytes,
}

impl Part {
    /// The most parts of a datagram.
    pub const COUNT_MAX: usize = 16;

    /// Cuts `datagram` into parts, each in a datagram of at most `size_max` bytes; `None` if it
    /// needs no cut or more than [`Part::COUNT_MAX`] parts.
    pub fn cut(lane: LaneId, number: u32, datagram: &[u8], size_max: usize) -> Option<Vec<Bytes>> {
        let room = size_max.checked_sub(PART_HEADER).filter(|room| *room > 0)?;
        let count = datagram.len().div_ceil(room);
        if !(2..=Self::COUNT_MAX).contains(&count) {
            return None;
        }
        // Of about equal length, so that headers never outweigh a part.
        let parts = datagram.chunks(datagram.len().div_ceil(count)).enumerate();
        let last = parts.len() - 1;
        let part = |(index, bytes): (usize, &[u8])| {
            let mut out = BytesMut::with_capacity(PART_HEADER + bytes.len());
            out.put_u8(KIND_PART);
            out.put_u8(lane.0);
            out.put_u32(number);
            out.put_u8((index << 4 | last) as u8);
            out.put_slice(bytes);
            out.freeze()
        };
        Some(parts.map(part).collect())
    }

    pub(crate) fn parse(mut bytes: Bytes) -> Result<Self, DatagramError> {
        let lane = LaneId(bytes.get_u8());
        let number = bytes.get_u32();
        let place = bytes.get_u8();
        let (index, last) = (place >> 4, place & 0xf);
        if index > last || last == 0 || bytes.is_empty() {
            return Err(DatagramError::Part { index, last, bytes: bytes.len() });
        }
        Ok(Self { lane, number, index, last, bytes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::Datagram;

    fn parsed(bytes: &Bytes) -> Part {
        match Datagram::parse(bytes.clone()) {
            Ok(Datagram::Part(part)) => part,
            other => panic!("{other:?} is no part"),
        }
    }

    proptest! {
        #[test]
        fn parts_fit_and_make_the_datagram(length in 1..4000_usize, size_max in 0..2000_usize) {
            let datagram: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let Some(parts) = Part::cut(LaneId(3), 77, &datagram, size_max) else {
                let room = size_max.saturating_sub(PART_HEADER);
                prop_assert!(length <= room || length > room * Part::COUNT_MAX);
                return Ok(());
            };
            let mut together = Vec::new();
            for (at, bytes) in parts.iter().enumerate() {
                prop_assert!(bytes.len() <= size_max);
                let part = parsed(bytes);
                prop_assert_eq!((part.lane, part.number), (LaneId(3), 77));
                prop_assert_eq!((usize::from(part.index), usize::from(part.last) + 1), (at, parts.len()));
                together.extend_from_slice(&part.bytes);
            }
            prop_assert_eq!(together, datagram);
        }
    }

    #[test]
    fn parts_that_no_sender_makes_are_refused() {
        for (place, bytes) in [(0x00, &b"x"[..]), (0x21, b"x"), (0x01, b"")] {
            let mut datagram = BytesMut::from(&[KIND_PART, 1, 0, 0, 0, 9, place][..]);
            datagram.put_slice(bytes);
            let (index, last) = (place >> 4, place & 0xf);
            let expected = DatagramError::Part { index, last, bytes: bytes.len() };
            assert_eq!(Datagram::parse(datagram.freeze()), Err(expected));
        }
        let cut_off = Bytes::from_static(&[KIND_PART, 1, 0, 0, 0, 9]);
        assert_eq!(Datagram::parse(cut_off), Err(DatagramError::Truncated(6)));
    }
}
