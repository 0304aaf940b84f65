//! The parts of a key frame in an RTP packet, by its first bytes.

use std::ops::BitOr;

use crate::options::Codec;

/// The parts in a packet; those of a frame are joined by `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramePart(u8);

impl FramePart {
    pub const NONE: Self = Self(0);
    /// The first unit begins a frame that can stand alone.
    pub const BEGINS: Self = Self(1);
    pub const SEQUENCE: Self = Self(2);
    pub const PICTURE: Self = Self(4);
    pub const SLICE: Self = Self(8);
    /// Part of another picture, or unknown.
    pub const OTHER: Self = Self(16);

    pub fn of(codec: Codec, payload: &[u8]) -> Self {
        let part = match codec {
            Codec::H264 => h264(payload),
            Codec::H265 => h265(payload),
            Codec::Vp8 => vp8(payload),
        };
        part.unwrap_or(Self::OTHER)
    }

    pub fn begins(self) -> bool {
        self.0 & Self::BEGINS.0 != 0
    }

    pub fn is_key_frame(self) -> bool {
        self.0 & !Self::BEGINS.0 == (Self::SEQUENCE | Self::PICTURE | Self::SLICE).0
    }

    /// The part of a unit that is not the first in its packet.
    fn behind(self) -> Self {
        Self(self.0 & !Self::BEGINS.0)
    }
}

impl BitOr for FramePart {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// RFC 6184 sections 5.4 to 5.8. The types are those of ISO/IEC 14496-10 table 7-1.
fn h264(payload: &[u8]) -> Option<FramePart> {
    let unit = |kind: u8| match kind & 31 {
        5 => FramePart::SLICE,
        // SEI, end of sequence, filler.
        6 | 10 | 12 => FramePart::NONE,
        7 => FramePart::BEGINS | FramePart::SEQUENCE,
        8 => FramePart::PICTURE,
        9 => FramePart::BEGINS,
        _ => FramePart::OTHER,
    };
    match payload.first()? & 31 {
        24 => aggregated(payload.get(1..)?, unit),
        28 => fragment(*payload.get(1)?, unit),
        kind => Some(unit(kind)),
    }
}

/// RFC 7798 section 4.4. The types are those of ISO/IEC 23008-2 table 7-1.
fn h265(payload: &[u8]) -> Option<FramePart> {
    let unit = |kind: u8| match kind & 63 {
        // x265 makes the first key frame as IDR, and requested ones as CRA (21). Pictures that
        // refer to frames before a CRA would follow it, but x265 makes none here.
        16..=21 => FramePart::SLICE,
        32 | 35 => FramePart::BEGINS,
        33 => FramePart::SEQUENCE,
        34 => FramePart::PICTURE,
        38..=40 => FramePart::NONE,
        _ => FramePart::OTHER,
    };
    match payload.first()? >> 1 & 63 {
        48 => aggregated(payload.get(2..)?, |header| unit(header >> 1)),
        49 => fragment(*payload.get(2)?, unit),
        kind => Some(unit(kind)),
    }
}

fn aggregated(mut units: &[u8], unit: impl Fn(u8) -> FramePart) -> Option<FramePart> {
    let mut all = None;
    while let [high, low, rest @ ..] = units {
        let (this, behind) = rest.split_at_checked(u16::from_be_bytes([*high, *low]).into())?;
        let part = unit(*this.first()?);
        all = Some(all.map_or(part, |all: FramePart| all | part.behind()));
        units = behind;
    }
    all
}

/// A fragment: its first bit marks the first fragment, the others are the unit's type.
fn fragment(header: u8, unit: impl Fn(u8) -> FramePart) -> Option<FramePart> {
    let part = unit(header);
    Some(if header & 0x80 == 0 { part.behind() } else { part })
}

/// RFC 7741 sections 4.2 and 4.3: a descriptor of one to six bytes, and in the first packet the
/// frame's header after it.
fn vp8(payload: &[u8]) -> Option<FramePart> {
    let first = *payload.first()?;
    let is_begin = first & 0x17 == 0x10;
    if !is_begin {
        return Some(FramePart::NONE);
    }
    let mut header = 1;
    if first & 0x80 != 0 {
        let more = *payload.get(1)?;
        let wide = more & 0x80 != 0 && payload.get(2)? & 0x80 != 0;
        header += 1 + usize::from(more & 0x80 != 0) + usize::from(wide);
        header += usize::from(more & 0x40 != 0) + usize::from(more & 0x30 != 0);
    }
    let stands_alone = payload.get(header)? & 1 == 0;
    let whole = FramePart::BEGINS | FramePart::SEQUENCE | FramePart::PICTURE | FramePart::SLICE;
    Some(if stands_alone { whole } else { FramePart::OTHER })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: FramePart = FramePart(2 | 4 | 8);

    fn check(codec: Codec, parts: &[(&[u8], FramePart)], bad: &[&[u8]]) {
        for (payload, part) in
            parts.iter().copied().chain(bad.iter().map(|it| (*it, FramePart::OTHER)))
        {
            assert_eq!(FramePart::of(codec, payload), part, "{payload:x?}");
        }
    }

    #[test]
    fn packets_of_h264() {
        let all = [24, 0, 2, 9, 0xf0, 0, 1, 0x67, 0, 1, 0x68, 0, 2, 0x65, 1];
        let parts: [(&[u8], FramePart); 14] = [
            (&[0x67, 1, 2], FramePart::BEGINS | FramePart::SEQUENCE),
            (&[0x68], FramePart::PICTURE),
            (&[0x09, 0xf0], FramePart::BEGINS),
            (&[0x06], FramePart::NONE),
            (&[0x65, 0x88], FramePart::SLICE),
            (&[0x41, 0x9a], FramePart::OTHER),
            (&all, FramePart::BEGINS | KEY),
            (&[24, 0, 1, 0x68, 0, 1, 0x67], FramePart::SEQUENCE | FramePart::PICTURE),
            (
                &[24, 0, 1, 0x67, 0, 1, 0x41],
                FramePart::BEGINS | FramePart::SEQUENCE | FramePart::OTHER,
            ),
            (&[0x7c, 0x85, 1], FramePart::SLICE),
            (&[0x7c, 0x45, 1], FramePart::SLICE),
            (&[0x7c, 0x87, 1], FramePart::BEGINS | FramePart::SEQUENCE),
            (&[0x7c, 0x07, 1], FramePart::SEQUENCE),
            (&[0x5c, 0x81, 1], FramePart::OTHER),
        ];
        let short: [&[u8]; 6] = [&[], &[24], &[24, 0], &[24, 0, 0], &[28], &[29, 5]];
        check(Codec::H264, &parts, &short);
        check(Codec::H264, &[], &[&[24, 0, 9, 0x67], &[24, 0, 1, 0x67, 0, 7]]);
    }

    #[test]
    fn packets_of_h265() {
        let all = [0x60, 1, 0, 2, 0x40, 1, 0, 2, 0x42, 1, 0, 2, 0x44, 1, 0, 2, 0x28, 1];
        let parts: [(&[u8], FramePart); 10] = [
            (&[0x40, 1], FramePart::BEGINS),
            (&[0x42, 1], FramePart::SEQUENCE),
            (&[0x44, 1], FramePart::PICTURE),
            (&[0x26, 1, 0xaf], FramePart::SLICE),
            (&[0x2a, 1, 0xaf], FramePart::SLICE),
            (&[0x12, 1, 0xaf], FramePart::OTHER),
            (&[0x02, 1, 0xd0], FramePart::OTHER),
            (&all, FramePart::BEGINS | KEY),
            (&[0x62, 1, 0x93], FramePart::SLICE),
            (&[0x62, 1, 0x81], FramePart::OTHER),
        ];
        check(Codec::H265, &parts, &[&[], &[0x60], &[0x60, 1, 0, 3, 0x40, 1], &[0x62, 1]]);
    }

    #[test]
    fn packets_of_vp8() {
        let parts: [(&[u8], FramePart); 8] = [
            (&[0x10, 0x50], FramePart::BEGINS | KEY),
            (&[0x10, 0x51], FramePart::OTHER),
            (&[0x00, 0x51], FramePart::NONE),
            (&[0x11, 0x51], FramePart::NONE),
            (&[0x90, 0x80, 0x81, 0x02, 0x50], FramePart::BEGINS | KEY),
            (&[0x90, 0x80, 0x11, 0x51], FramePart::OTHER),
            (&[0x90, 0xf0, 0x81, 0x02, 3, 4, 0x50], FramePart::BEGINS | KEY),
            (&[0x90, 0x20, 4, 0x50], FramePart::BEGINS | KEY),
        ];
        let bad: [&[u8]; 4] = [&[], &[0x10], &[0x90, 0x80], &[0x90, 0xf0, 0x81, 0x02, 3, 4]];
        check(Codec::Vp8, &parts, &bad);
    }

    #[test]
    fn a_key_frame_has_all_its_parts_and_no_others() {
        let check = |parts: &[FramePart], expected| {
            let all = parts.iter().fold(FramePart::NONE, |all, part| all | *part);
            assert_eq!(all.is_key_frame(), expected, "{parts:?}");
        };
        check(
            &[
                FramePart::BEGINS | FramePart::SEQUENCE,
                FramePart::PICTURE,
                FramePart::SLICE,
                FramePart::SLICE,
            ],
            true,
        );
        check(&[KEY], true);
        check(&[FramePart::BEGINS | FramePart::SEQUENCE, FramePart::SLICE], false);
        check(&[FramePart::BEGINS, FramePart::PICTURE, FramePart::SLICE], false);
        check(&[FramePart::SEQUENCE, FramePart::PICTURE], false);
        check(&[KEY, FramePart::OTHER], false);
        check(&[], false);
    }
}
