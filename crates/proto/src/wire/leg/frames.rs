//! Stream frames on a leg: what an anchor sends to a client, and how much of it the proxy takes.
//!
//! ```text
//! proxy ── 06 | handle:4 | frames ─────────────────────────► anchor   as an inner packet
//! proxy ◄─ 07 | handle:4 | urgency:8 | sent:8 | frames ───── anchor   without frames: how much?
//! proxy ── 08 | handle:4 | until:8 | size:2 | wait:2 ──────► anchor   so much
//! ```
//!
//! A leg has no windows. What goes up was held back by those of the uplinks; what goes down would
//! pile up at the proxy, so the proxy says how much it takes. Both count all bytes of frames since
//! the attachment began, lost ones among them, so that nothing is to be kept in step.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::Urgency;

/// Bytes before the frames that an anchor sends.
pub const LEG_FRAMES_HEADER: usize = 21;

const KIND_FRAMES: u8 = 7;
const KIND_ROOM: u8 = 8;
const ROOM_LENGTH: usize = 17;

/// Stream frames for a client, on their way from anchor to proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegFrames {
    /// The attachment that they are for.
    pub handle: u32,
    /// Which leave first of those that wait at the proxy.
    pub urgency: Urgency,
    /// Bytes of frames that the anchor has sent to the attachment before these.
    pub sent: u64,
    /// The body of a symbol, unchecked. Empty: the anchor asks what the proxy takes.
    pub frames: Bytes,
}

/// What a proxy takes of the frames for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegRoom {
    /// The attachment.
    pub handle: u32,
    /// Bytes of frames that the anchor may have sent in all.
    pub until: u64,
    /// Frames of so many bytes fit into one datagram of the client's session.
    pub size: u16,
    /// For how long what the proxy took may be under way until the client's answer is back; whole
    /// milliseconds.
    pub wait: Duration,
}

impl LegFrames {
    /// The datagram that carries them.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(LEG_FRAMES_HEADER + self.frames.len());
        out.put_u8(KIND_FRAMES);
        out.put_u32(self.handle);
        out.put_u64(self.urgency.0);
        out.put_u64(self.sent);
        out.put_slice(&self.frames);
        out.freeze()
    }

    /// Reads a datagram; `None` if it is another one.
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
    /// The datagram that says so.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(ROOM_LENGTH);
        out.put_u8(KIND_ROOM);
        out.put_u32(self.handle);
        out.put_u64(self.until);
        out.put_u16(self.size);
        out.put_u16(u16::try_from(self.wait.as_millis()).unwrap_or(u16::MAX));
        out.freeze()
    }

    /// Reads a datagram; `None` if it is another one. What follows it is of a later version.
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
