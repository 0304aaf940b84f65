//! Splits H.264 byte streams (Annex B) into access units, the coded pictures.
//!
//! ```text
//!   bytes --push--> [start code | NAL unit | start code | NAL unit ...] --next--> AccessUnit
//! ```
//!
//! At most one access unit of up to [`ACCESS_UNIT_MAX`] bytes is buffered. Source: ITU-T H.264
//! sections 7.4.1.2.3 (first NAL unit of an access unit) and 7.3.1 (NAL unit header), annex B.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Limit of an access unit, bytes: a second of video at 64 Mbit/s.
pub const ACCESS_UNIT_MAX: usize = 8 << 20;

/// NAL unit type of a slice of an IDR picture.
pub const NAL_IDR: u8 = 5;
/// NAL unit type of the access unit delimiter.
pub const NAL_DELIMITER: u8 = 9;

/// A coded picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessUnit {
    /// Non-empty NAL units without start codes, in decoding order.
    pub nals: Vec<Bytes>,
}

impl AccessUnit {
    /// Whether decoding can start here.
    pub fn is_idr(&self) -> bool {
        self.nals.iter().any(|nal| nal_type(nal) == NAL_IDR)
    }

    /// Size of the NAL units, bytes.
    pub fn len(&self) -> usize {
        self.nals.iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why splitting failed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// No access unit ended within [`ACCESS_UNIT_MAX`] bytes.
    #[error("not an H.264 byte stream: an access unit exceeds {ACCESS_UNIT_MAX} bytes")]
    Oversized,
}

/// Splits a byte stream, in pieces of any size, into access units.
#[derive(Debug, Default)]
pub struct Splitter {
    buffer: BytesMut,
    scanned: usize,
    synchronized: bool,
    building: AccessUnit,
    ready: VecDeque<AccessUnit>,
}

impl Splitter {
    /// Appends a piece of the stream; fails if the buffer would exceed [`ACCESS_UNIT_MAX`] bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), SplitError> {
        self.buffer.extend_from_slice(bytes);
        while let Some(start) = find_start_code(&self.buffer, self.scanned) {
            let nal = self.buffer.split_to(start).freeze();
            self.take_nal(nal);
            // A start code has three bytes; a fourth, zero byte ends the unit before.
            let _ = self.buffer.split_to(3);
            self.synchronized = true;
            self.scanned = 0;
        }
        self.scanned = self.buffer.len().saturating_sub(2);
        if self.buffer.len() + self.building.len() > ACCESS_UNIT_MAX {
            return Err(SplitError::Oversized);
        }
        Ok(())
    }

    /// Ends the stream, and with it the last access unit.
    pub fn finish(&mut self) {
        let nal = self.buffer.split().freeze();
        self.take_nal(nal);
        self.scanned = 0;
        self.end_access_unit();
    }

    /// The next complete access unit.
    pub fn next_access_unit(&mut self) -> Option<AccessUnit> {
        self.ready.pop_front()
    }

    fn take_nal(&mut self, mut nal: Bytes) {
        // Trailing zero bytes are allowed by annex B and never part of a unit.
        while nal.last() == Some(&0) {
            nal.truncate(nal.len() - 1);
        }
        if nal.is_empty() || !self.synchronized {
            return;
        }
        if begins_access_unit(&nal) && self.building.nals.iter().any(is_slice) {
            self.end_access_unit();
        }
        self.building.nals.push(nal);
    }

    fn end_access_unit(&mut self) {
        if !self.building.nals.is_empty() {
            self.ready.push_back(std::mem::take(&mut self.building));
        }
    }
}

/// Type of a NAL unit: the low five bits of its first byte; 0 if empty.
pub fn nal_type(nal: &[u8]) -> u8 {
    nal.first().map_or(0, |header| header & 0x1f)
}

/// Appends `nals` with start codes, after a delimiter, in case the first slice is missing.
pub fn write_annex_b(nals: &[Bytes], out: &mut Vec<u8>) {
    const START_CODE: [u8; 4] = [0, 0, 0, 1];
    // primary_pic_type 7 (any slice type), then the stop bit.
    const DELIMITER: [u8; 2] = [NAL_DELIMITER, 0xf0];
    if nals.first().is_some_and(|nal| nal_type(nal) != NAL_DELIMITER) {
        out.extend_from_slice(&START_CODE);
        out.extend_from_slice(&DELIMITER);
    }
    for nal in nals {
        out.extend_from_slice(&START_CODE);
        out.extend_from_slice(nal);
    }
}

fn find_start_code(bytes: &[u8], from: usize) -> Option<usize> {
    bytes.get(from..)?.windows(3).position(|window| window == [0, 0, 1]).map(|at| from + at)
}

fn is_slice(nal: &Bytes) -> bool {
    (1..=5).contains(&nal_type(nal))
}

/// A slice begins an access unit if its `first_mb_in_slice` is 0, a single 1 bit in Exp-Golomb.
fn begins_access_unit(nal: &Bytes) -> bool {
    match nal_type(nal) {
        1 | 2 | 5 => nal.get(1).is_some_and(|byte| byte & 0x80 != 0),
        6..=9 | 14..=18 => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPS: &[u8] = &[0x67, 1, 2];
    const IDR_FIRST: &[u8] = &[0x65, 0x88, 0x11];
    const IDR_SECOND: &[u8] = &[0x65, 0x11, 0x12];
    const FIRST: &[u8] = &[0x41, 0x9a, 0x21];

    fn annex_b(nals: &[&[u8]]) -> Vec<u8> {
        nals.iter().flat_map(|nal| [&[0, 0, 0, 1], *nal].concat()).collect()
    }

    fn split(pieces: &[&[u8]]) -> Vec<AccessUnit> {
        let mut splitter = Splitter::default();
        pieces.iter().for_each(|piece| splitter.push(piece).unwrap());
        splitter.finish();
        std::iter::from_fn(|| splitter.next_access_unit()).collect()
    }

    fn unit(nals: &[&'static [u8]]) -> AccessUnit {
        AccessUnit { nals: nals.iter().map(|nal| Bytes::from_static(nal)).collect() }
    }

    #[test]
    fn slices_of_one_picture_stay_together() {
        let stream = annex_b(&[SPS, IDR_FIRST, IDR_SECOND, FIRST, SPS, IDR_FIRST]);
        let expected =
            [unit(&[SPS, IDR_FIRST, IDR_SECOND]), unit(&[FIRST]), unit(&[SPS, IDR_FIRST])];
        let units = split(&[&stream]);
        assert_eq!(units, expected);
        assert_eq!(units.iter().map(AccessUnit::is_idr).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn endless_garbage_is_refused_and_memory_stays_bounded() {
        let mut splitter = Splitter::default();
        let piece = vec![0xab; 1 << 20];
        let result = (0..20).try_for_each(|_| splitter.push(&piece));
        assert_eq!(result, Err(SplitError::Oversized));
        assert!(splitter.buffer.len() <= ACCESS_UNIT_MAX + piece.len());
    }

    #[test]
    fn written_units_split_again_to_the_same() {
        let mut stream = Vec::new();
        for nals in [unit(&[SPS, IDR_FIRST, IDR_SECOND]), unit(&[IDR_SECOND]), unit(&[FIRST])] {
            write_annex_b(&nals.nals, &mut stream);
        }
        let units = split(&[&stream]);
        assert_eq!(units.len(), 3, "a unit without its first slice is still told apart");
        assert_eq!(units[1].nals[1], IDR_SECOND);
    }

    proptest! {
        #[test]
        fn the_cut_of_the_pieces_does_not_matter(cuts in prop::collection::vec(0_usize..64, 0..8)) {
            let stream = annex_b(&[SPS, IDR_FIRST, IDR_SECOND, FIRST, FIRST, SPS, IDR_FIRST]);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % stream.len()).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
            prop_assert_eq!(split(&pieces), split(&[&stream]));
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(0_u8..4, 0..400)) {
            for unit in split(&[&bytes]) {
                prop_assert!(unit.nals.iter().all(|nal| !nal.is_empty()));
            }
        }
    }
}
