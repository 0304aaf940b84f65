//! The stamp of each RTP packet: its frame's time of capture and number.
//!
//! A header extension in the one-byte form (RFC 8285 section 4.2) with two elements: the time as an
//! NTP timestamp of 64 bits (RFC 6051 section 3.3; WebRTC's abs-capture-time has the same bytes),
//! and the frame's number, 16 bits in network order, which no standard defines. Other receivers
//! skip them.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Time of capture, since the Unix epoch.
    pub captured: Duration,
    /// Counts sent frames, modulo 2^16.
    pub number: u16,
}

impl Stamp {
    /// The bytes of both elements: [`TIME_ID`], [`NUMBER_ID`].
    pub fn to_bytes(self) -> ([u8; 8], [u8; 2]) {
        (ntp(self.captured).to_be_bytes(), self.number.to_be_bytes())
    }

    /// Reads both elements; bytes after the timestamp, as abs-capture-time may have, are ignored.
    pub fn from_bytes(time: &[u8], number: &[u8]) -> Option<Self> {
        let captured = unix(u64::from_be_bytes(*time.first_chunk()?))?;
        Some(Self { captured, number: u16::from_be_bytes(*number.first_chunk()?) })
    }
}

/// Seconds since 1900 and their fraction, 32 bits each (RFC 5905 section 6).
fn ntp(unix: Duration) -> u64 {
    let seconds = (unix.as_secs() + EPOCHS) & 0xffff_ffff;
    let fraction = (u64::from(unix.subsec_nanos()) << 32) / NANOS;
    seconds << 32 | fraction
}

/// The reverse; `None` before 1970. After 2036 the seconds restart from 0.
fn unix(ntp: u64) -> Option<Duration> {
    let seconds = ntp >> 32;
    let era = if seconds < EPOCHS { 1 << 32 } else { 0 };
    let seconds = (seconds + era).checked_sub(EPOCHS)?;
    let nanos = ((ntp & 0xffff_ffff) * NANOS).div_ceil(1 << 32).min(NANOS - 1);
    Some(Duration::new(seconds, u32::try_from(nanos).ok()?))
}

pub const TIME_ID: u8 = 1;
pub const NUMBER_ID: u8 = 2;
/// The whole extension: its header, and two elements, each after one byte, in whole words.
pub const EXTENSION_BYTES: usize = 4 + (1 + 8) + (1 + 2);
/// Seconds from 1900 to 1970.
const EPOCHS: u64 = 2_208_988_800;
const NANOS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_as_it_was_written() {
        for captured in [
            Duration::ZERO,
            Duration::new(1_795_729_920, 999_999_999),
            Duration::new(1_795_729_920, 1),
            Duration::new((1 << 32) - EPOCHS, 5),
        ] {
            let stamp = Stamp { captured, number: 0xfffe };
            let (time, number) = stamp.to_bytes();
            let read = Stamp::from_bytes(&time, &number).unwrap();
            assert_eq!(read, stamp, "{captured:?}");
        }
    }

    #[test]
    fn the_bytes_are_those_of_ntp() {
        let stamp = Stamp { captured: Duration::new(1, 500_000_000), number: 258 };
        assert_eq!(stamp.to_bytes(), ([0x83, 0xaa, 0x7e, 0x81, 0x80, 0, 0, 0], [1, 2]));
    }

    #[test]
    fn elements_of_other_lengths_are_no_stamp() {
        assert_eq!(Stamp::from_bytes(&[0; 7], &[0; 2]), None);
        assert_eq!(Stamp::from_bytes(&[0; 8], &[0; 1]), None);
        assert!(Stamp::from_bytes(&[0xff; 16], &[0; 2]).is_some());
    }
}
