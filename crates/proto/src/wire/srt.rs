//! The header of SRT, which is never encrypted (draft-sharabayko-srt section 3).
//!
//! ```text
//! data      0 | sequence:31 | position:2 order:1 key:2 again:1 message:26 | timestamp:32 | socket:32
//! control   1 | type:15 subtype:16 | specific:32                          | timestamp:32 | socket:32
//! ```

use crate::wire::inner::InnerPacket;

const SRT_HEADER: usize = 16;
/// Header and fixed part of a handshake (section 3.2.1).
const HANDSHAKE: usize = SRT_HEADER + 48;
const SOLO: u8 = 0b1100_0000;

/// The header of an SRT packet, or bytes like one: only handshakes are a proof by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrtHeader {
    /// A handshake, unmistakable by its constants.
    Handshake,
    /// An acknowledgement, a loss report or another control packet.
    Control {
        /// The receiver's socket, never 0.
        socket: u32,
        /// Microseconds since the connection began; wraps.
        timestamp: u32,
    },
    /// Data in live mode: a message of one packet.
    Live {
        /// The receiver's socket, never 0.
        socket: u32,
        /// Microseconds since the connection began; wraps.
        timestamp: u32,
        /// Counts packets; 31 bits.
        sequence: u32,
    },
}

impl SrtHeader {
    /// The SRT header of a packet, if it can be SRT in UDP.
    pub fn of(packet: &InnerPacket<'_>) -> Option<Self> {
        let bytes = packet.udp_payload()?;
        let header = bytes.first_chunk::<SRT_HEADER>()?;
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (first, timestamp, socket) = (word(0), word(8), word(12));
        if first == 0x8000_0000 && is_handshake(bytes) {
            return Some(Self::Handshake);
        }
        if socket == 0 {
            return None;
        }
        match first >> 31 {
            // Keep-alive to peer error (section 3.2); their subtype is 0.
            1 if (0x8001..=0x8008).contains(&(first >> 16)) && first.trailing_zeros() >= 16 => {
                Some(Self::Control { socket, timestamp })
            }
            0 if header[4] & SOLO == SOLO => {
                Some(Self::Live { socket, timestamp, sequence: first })
            }
            _ => None,
        }
    }
}

/// Version 4 or 5, a known key length, and a known type or the reason of a refusal.
fn is_handshake(bytes: &[u8]) -> bool {
    let Some(fixed) = bytes.first_chunk::<HANDSHAKE>() else { return false };
    let word =
        |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
    let (version, encryption, kind) = (word(16), word(20) >> 16, word(36));
    let known = matches!(kind, 0 | 1 | 0xffff_fffd..=0xffff_ffff | 1000..3000);
    matches!(version, 4 | 5) && encryption <= 4 && known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::inner::tests::udp_v4;

    fn read(payload: &[u8]) -> Option<SrtHeader> {
        let packet = udp_v4(payload);
        SrtHeader::of(&InnerPacket::parse(&packet).expect("well-formed"))
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn handshakes_are_read() {
        // A caller's induction; a listener's conclusion with encryption and extensions.
        let induction = [0x8000_0000, 0, 77, 0, 4, 2, 12345, 1500, 8192, 1, 4711, 0, 1, 0, 0, 0];
        assert_eq!(read(&words(&induction)), Some(SrtHeader::Handshake));
        let mut conclusion = induction;
        (conclusion[4], conclusion[5], conclusion[9]) = (5, 0x0002_0003, 0xffff_ffff);
        assert_eq!(read(&words(&conclusion)), Some(SrtHeader::Handshake));
        for (at, wrong) in [(4, 6), (5, 0x0009_0000), (9, 7)] {
            let mut other = induction;
            other[at] = wrong;
            assert_eq!(read(&words(&other)), None, "word {at} is {wrong}");
        }
        assert_eq!(read(&words(&induction[..15])), None, "cut short");
    }

    #[test]
    fn data_and_control_are_read() {
        let live = [7, 0xe000_0003, 1_000_000, 42, 0x4740_0000];
        let expected = SrtHeader::Live { socket: 42, timestamp: 1_000_000, sequence: 7 };
        assert_eq!(read(&words(&live)), Some(expected));
        let acknowledgement = [0x8002_0000, 5, 1_000_000, 42, 8];
        let expected = SrtHeader::Control { socket: 42, timestamp: 1_000_000 };
        assert_eq!(read(&words(&acknowledgement)), Some(expected));
        for (what, other) in [
            ("a part of a message", [7, 0x8000_0003, 1, 42]),
            ("no socket", [7, 0xe000_0003, 1, 0]),
            ("a control type that is not", [0x8009_0000, 0, 1, 42]),
            ("a subtype", [0x8002_0001, 0, 1, 42]),
        ] {
            assert_eq!(read(&words(&other)), None, "{what}");
        }
    }
}
