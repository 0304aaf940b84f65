//! The marks by which the kernel's rules distinguish packets and connections.
//!
//! ```text
//! highest bit of the mask                                     lowest
//!   instance │ of a side │ uplink or side              │ kind
//!          8 │         1 │          7: 126 uplinks     │  16         all 32 bits, the default
//!     1 to 8 │         1 │     3 to 7: 6 to 126 uplinks │   3         a narrower mask
//!   number of an anchor                                │ kind
//! ```
//!
//! The kind and the bits above it are separate. Other bits belong to other programs and stay.

use crate::UplinkId;

/// The bits of packet and connection marks that Roadweave may use, and one instance's marks in
/// them.
///
/// The default is all 32 bits. Another mask gets the same marks, compressed and spread over its
/// lowest 19 bits, or all if it has fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    mask: u32,
    number: u16,
}

/// The side of a box by which a connection left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The tunnel.
    Tun,
    /// An uplink.
    Uplink(UplinkId),
    /// Any other interface.
    Elsewhere,
}

/// The kind of a marked packet or connection, apart from uplink or side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection through a port of the server's machine to a device behind a client.
    Forwarded = 1,
    /// A packet for a socket of the server's machine that is bound to an address of a client.
    ClientSocket = 2,
    /// A packet or connection for a socket of a box that is bound to an address of a host.
    Taken = 3,
    /// A packet of such a socket whose host does not answer.
    Failed = 4,
}

/// The mask has too few bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the mask {mask:#x} has {} bits, and {} are needed, with which 6 uplinks can be marked",
    mask.count_ones(),
    Marks::BITS_MIN
)]
pub struct TooFewBits {
    mask: u32,
}

impl Marks {
    /// The fewest bits of a mask.
    pub const BITS_MIN: u32 = KIND_BITS + ABOVE_MIN;

    /// Marks within the bits of `mask`, at least [`Marks::BITS_MIN`].
    pub fn within(mask: u32) -> Result<Self, TooFewBits> {
        match mask.count_ones() >= Self::BITS_MIN {
            true => Ok(Self { mask, number: 0 }),
            false => Err(TooFewBits { mask }),
        }
    }

    /// The same bits for the instance with this number.
    #[must_use]
    pub fn of_instance(self, number: u16) -> Self {
        Self { number, ..self }
    }

    /// The mask of all marks.
    pub fn mask(self) -> u32 {
        self.mask
    }

    /// The bits of the mask that are set or read.
    pub fn used(self) -> u32 {
        self.kind_mask() | self.above_mask()
    }

    /// The bits of kinds.
    pub fn kind_mask(self) -> u32 {
        self.spread(ones(self.kind_bits()))
    }

    /// The bits above the kind: of uplinks and sides, or of an anchor.
    pub fn above_mask(self) -> u32 {
        self.spread(ones(self.above_bits()) << self.kind_bits())
    }

    /// The bits that show whether a mark is one of [`Marks::side`] of this instance.
    pub fn side_mask(self) -> u32 {
        self.above_mask() & !self.above(ones(self.uplink_bits()))
    }

    /// The mark of a kind, and its mask.
    pub fn kind(self, kind: Kind) -> (u32, u32) {
        let value = match self.is_whole() {
            true => WHOLE_KINDS[kind as usize - 1],
            false => kind as u32,
        };
        (self.spread(value), self.kind_mask())
    }

    /// The mark, with its mask, of packets that arrive by an uplink and of their answers; `None`
    /// beyond [`Marks::uplinks_max`].
    pub fn answer(self, uplink: UplinkId) -> Option<(u32, u32)> {
        let number = (uplink.0 < self.uplinks_max()).then_some(uplink.0 + 1)?;
        Some((self.of_box(number), self.above_mask()))
    }

    /// How many uplinks have marks.
    pub fn uplinks_max(self) -> u32 {
        ones(self.uplink_bits()) - 1
    }

    /// The mark of a connection that left by a side; distinct from all of [`Marks::answer`].
    pub fn side(self, side: Side) -> Option<u32> {
        let number = match side {
            Side::Tun => ones(self.uplink_bits()),
            Side::Uplink(uplink) => (uplink.0 < self.uplinks_max()).then_some(uplink.0 + 1)?,
            Side::Elsewhere => 0,
        };
        Some(self.of_box(number | 1 << self.uplink_bits()))
    }

    /// The mark of an anchor's packets, and its mask; zero for number 0.
    pub fn anchor(self) -> (u32, u32) {
        (self.above(u32::from(self.number) & ones(self.above_bits())), self.above_mask())
    }

    fn of_box(self, number: u32) -> u32 {
        let shift = self.uplink_bits() + 1;
        let instance = u32::from(self.number) & ones(self.above_bits() - shift);
        self.above(instance << shift | number)
    }

    fn above(self, value: u32) -> u32 {
        self.spread(value << self.kind_bits())
    }

    fn is_whole(self) -> bool {
        self.mask == u32::MAX
    }

    fn kind_bits(self) -> u32 {
        if self.is_whole() { 16 } else { KIND_BITS }
    }

    fn above_bits(self) -> u32 {
        (self.mask.count_ones() - self.kind_bits()).min(ABOVE_MAX)
    }

    fn uplink_bits(self) -> u32 {
        self.above_bits().div_ceil(2).min(UPLINK_BITS_MAX)
    }

    /// Puts the bits of `value`, from the lowest, into the ones of the mask.
    fn spread(self, mut value: u32) -> u32 {
        let (mut left, mut spread) = (self.mask, 0);
        while left != 0 && value != 0 {
            let lowest = left & left.wrapping_neg();
            if value & 1 == 1 {
                spread |= lowest;
            }
            (left, value) = (left ^ lowest, value >> 1);
        }
        spread
    }
}

impl Default for Marks {
    fn default() -> Self {
        Self { mask: u32::MAX, number: 0 }
    }
}

fn ones(bits: u32) -> u32 {
    (1 << bits) - 1
}

const WHOLE_KINDS: [u32; 4] = [0x5246, 0x5257, 0x5258, 0x5259];
const KIND_BITS: u32 = 3;
const ABOVE_MIN: u32 = 5;
const ABOVE_MAX: u32 = 16;
const UPLINK_BITS_MAX: u32 = 7;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::SplitMix64;

    const KINDS: [Kind; 4] = [Kind::Forwarded, Kind::ClientSocket, Kind::Taken, Kind::Failed];

    #[test]
    fn without_a_mask_the_marks_are_those_of_earlier_versions() {
        let marks = Marks::default().of_instance(0xabcd);
        let kinds = KINDS.map(|kind| marks.kind(kind));
        assert_eq!(kinds, [0x5246, 0x5257, 0x5258, 0x5259].map(|mark| (mark, 0xffff)));
        assert_eq!(marks.anchor(), (0xabcd_0000, 0xffff_0000));
        assert_eq!(marks.answer(UplinkId(2)), Some((0xcd03_0000, 0xffff_0000)));
        assert_eq!(marks.answer(UplinkId(0x7d)), Some((0xcd7e_0000, 0xffff_0000)));
        assert_eq!(marks.answer(UplinkId(0x7e)), None);
        assert_eq!(marks.side(Side::Tun), Some(0xcdff_0000));
        assert_eq!(marks.side(Side::Uplink(UplinkId(2))), Some(0xcd83_0000));
        assert_eq!(marks.side(Side::Uplink(UplinkId(0x7e))), None);
        assert_eq!(marks.side(Side::Elsewhere), Some(0xcd80_0000));
        assert_eq!((marks.side_mask(), marks.used()), (0xff80_0000, u32::MAX));
    }

    #[test]
    fn a_mask_is_filled_from_its_lowest_bit() {
        let marks = Marks::within(0xff00_ffff).unwrap().of_instance(0xabcd);
        assert_eq!((marks.kind_mask(), marks.above_mask()), (0x7, 0x0700_fff8));
        assert_eq!(marks.kind(Kind::Taken), (3, 7));
        assert_eq!(marks.side(Side::Uplink(UplinkId(2))), Some(0x0600_6c18));
        let byte = Marks::within(0x00ff_0000).unwrap().of_instance(0xabcd);
        assert_eq!(byte.answer(UplinkId(0)), Some((0x0088_0000, 0x00f8_0000)));
        assert_eq!(byte.answer(UplinkId(6)), None);
    }

    #[test]
    fn a_mask_with_too_few_bits_is_refused_with_how_many_are_needed() {
        let refused = Marks::within(0x7f00).unwrap_err().to_string();
        assert!(refused.contains("0x7f00 has 7 bits, and 8 are needed"), "{refused}");
        let uplinks = |bits| Marks::within(ones(bits)).unwrap().uplinks_max();
        assert_eq!([8, 9, 10, 12, 14, 16, 31].map(uplinks), [6, 6, 14, 30, 62, 126, 126]);
    }

    #[test]
    fn marks_are_distinct_and_inside_any_mask() {
        let mut random = SplitMix64::new(7);
        let mut tried = 0;
        while tried < 1000 {
            let mask = (random.next_u64() & random.next_u64()) as u32
                | if tried % 2 == 0 { random.next_u64() as u32 } else { 0 };
            let Ok(marks) = Marks::within(mask) else { continue };
            let marks = marks.of_instance(random.next_u64() as u16);
            tried += 1;
            assert_eq!(marks.kind_mask() & marks.above_mask(), 0, "{mask:#x}");
            assert_eq!(marks.used() & !mask, 0, "{mask:#x}");
            let kinds: BTreeSet<u32> = KINDS.map(|kind| marks.kind(kind).0).into();
            assert!(kinds.len() == 4 && kinds.iter().all(|it| *it != 0), "{mask:#x}");
            assert!(kinds.iter().all(|it| it & !marks.kind_mask() == 0), "{mask:#x}");
            let uplinks = (0..marks.uplinks_max()).map(UplinkId);
            let answers: Vec<u32> =
                uplinks.clone().map(|uplink| marks.answer(uplink).unwrap().0).collect();
            let all = uplinks.map(Side::Uplink).chain([Side::Tun, Side::Elsewhere]);
            let sides: Vec<u32> = all.map(|side| marks.side(side).unwrap()).collect();
            let elsewhere = marks.side(Side::Elsewhere).unwrap();
            let is_side = |mark: &u32| mark & marks.side_mask() == elsewhere;
            assert!(sides.iter().all(is_side) && !answers.iter().any(is_side), "{mask:#x}");
            let both: BTreeSet<u32> = answers.iter().chain(&sides).copied().collect();
            assert_eq!(both.len(), 2 * marks.uplinks_max() as usize + 2, "{mask:#x}");
            assert!(both.iter().all(|it| it & !marks.above_mask() == 0), "{mask:#x}");
            assert!(!both.contains(&0), "{mask:#x}");
        }
    }
}
