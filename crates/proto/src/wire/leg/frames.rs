//! Stream frames on a leg, and how much of them the proxy takes.
//!
//! ```text
//! proxy ── 06 | handle:4 | frames ─────────────────────────► anchor   as an inner packet
//! proxy ◄─ 07 | handle:4 | urgency:8 | sent:8 | frames ───── anchor   without frames: how much?
//! proxy ── 08 | handle:4 | until:8 | size:2 | wait:2 ──────► anchor   so much
//! ```
//!
//! A leg has no windows, so the proxy announces how much it takes, as a sum of bytes of frames.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::Urgency;

/// Bytes before an anchor's frames.
pub const LEG_FRAMES_HEADER: usize = 21;

const KIND_FRAMES: u8 = 7;
const KIND_ROOM: u8 = 8;
const ROOM_LENGTH: usize = 17;

/// Stream frames for a client, from anchor to proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegFrames {
    /// Their attachment.
    pub handle: u32,
    /// Their order among those that wait at the proxy.
    pub urgency: Urgency,
    /// Bytes of frames that the anchor sent to the attachment before these.
    pub sent: u64,
    /// The body of a symbol, unchecked. Empty: the anchor asks for room.
    pub frames: Bytes,
}

/// How much a proxy takes of the frames for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegRoom {
    /// The attachment.
    pub handle: u32,
    /// Total bytes of frames that the anchor may send.
    pub until: u64,
    /// Bytes of frames that fit one datagram of the client's session.
    pub size: u16,
    /// How long frames that the proxy took may be under way until the client's answer arrives;
    /// whole milliseconds.
    pub wait: Duration,
}

impl LegFrames {
    /// The datagram.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(LEG_FRAMES_HEADER + self.frames.len());
        out.put_u8(KIND_FRAMES);
        out.put_u32(self.handle);
        out.put_u64(self.urgency.0);
        out.put_u64(self.sent);
        out.put_slice(&self.frames);
        out.freeze()
    }

    /// Reads a datagram; `None` if it is of another kind.
    pub fn parse(mut datagram: Bytes) -> Option<Self> {
        if datagram.len() < LEG_FRAMES_HEADER || datagram.get_u8() != KIND_FRAMES {
            return None;
        }
        let handle = datagram.get_u32();
        let (urgency, sent) = (Urgency(datagram.get_u64()), datagram.get_u64());
        Some(Self { handle, urgency, sent, frames: datagram })
    }
}

impl LegRoom {
    /// The datagram.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(ROOM_LENGTH);
        out.put_u8(KIND_ROOM);
        out.put_u32(self.handle);
        out.put_u64(self.until);
        out.put_u16(self.size);
        out.put_u16(u16::try_from(self.wait.as_millis()).unwrap_or(u16::MAX));
        out.freeze()
    }

    /// Reads a datagram; `None` if it is of another kind. Bytes after it are from later versions.
    pub fn parse(mut datagram: Bytes) -> Option<Self> {
        if datagram.len() < ROOM_LENGTH || datagram.get_u8() != KIND_ROOM {
            return None;
        }
        let (handle, until) = (datagram.get_u32(), datagram.get_u64());
        let (size, wait) = (datagram.get_u16(), datagram.get_u16());
        Some(Self { handle, until, size, wait: Duration::from_millis(wait.into()) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_and_room_are_as_the_page_says() {
        let frames = Bytes::from_static(&[0x20, 0x0a, 4]);
        let frames = LegFrames { handle: 1, urgency: Urgency(2), sent: 3, frames };
        assert_eq!(
            &frames.to_bytes()[..],
            b"\x07\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\x20\x0a\x04"
        );
        let wait = Duration::from_millis(925);
        let room = LegRoom { handle: 1, until: 65_536, size: 1_200, wait };
        assert_eq!(&room.to_bytes()[..], b"\x08\0\0\0\x01\0\0\0\0\0\x01\0\0\x04\xb0\x03\x9d");
        let longer = [&room.to_bytes()[..], &[0; 3]].concat();
        assert_eq!(LegRoom::parse(longer.into()), Some(room));
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_room_or_neither(
            kind in 6_u8..10,
            bytes in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let bytes = Bytes::from([&[kind][..], &bytes].concat());
            let frames = LegFrames::parse(bytes.clone());
            prop_assert_eq!(frames.is_some(), kind == KIND_FRAMES && bytes.len() >= 21);
            if let Some(frames) = frames {
                prop_assert_eq!(frames.to_bytes(), bytes.clone());
            }
            let room = LegRoom::parse(bytes.clone());
            prop_assert_eq!(room.is_some(), kind == KIND_ROOM && bytes.len() >= 17);
            if let Some(room) = room {
                prop_assert_eq!(room.to_bytes(), bytes.slice(..17));
            }
        }
    }
}
