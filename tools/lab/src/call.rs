//! A WebRTC call in virtual time: both ends, with Google's congestion control.
//!
//! ```text
//! camera ─► Sender: encoder at the estimate's rate ─► packets ─► Peer: pacer, probes ─┐
//!             ▲ estimate ◄── transport-wide feedback ◄──────────────────── Peer ◄─────┤ network
//!             └────────────── NACK, PLI ◄── Receiver: frames, gaps ◄───────────┘ ◄────┘
//! ```
//!
//! [`Peer`] is `str0m`, whose bandwidth estimation is a port of libwebrtc's (trendline, loss,
//! probes), and whose pacer is slower. Requests for lost packets, and when a frame is shown, are
//! the [`CallReceiver`]'s, with libwebrtc's limits (`nack_requester.cc`,
//! `video_receive_stream2.cc`), because `str0m` only looks back 100 packets, 60 ms of a fast call.
//! The network sees packets with the sizes and times of a call, but nothing is encrypted.

mod null_crypto;
mod peer;
mod receiver;
mod sender;

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub use peer::Peer;
pub use receiver::CallReceiver;
pub use sender::CallSender;

/// A packet of a frame, as it stands in the payload of an RTP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FramePacket {
    /// Consecutive over all frames.
    number: u64,
    frame: u32,
    index: u16,
    /// Packets of the frame.
    count: u16,
    is_key: bool,
}

impl FramePacket {
    /// `bytes` in total, at least [`FramePacket::BYTES`].
    fn write(&self, bytes: usize) -> Bytes {
        let mut payload = BytesMut::with_capacity(bytes);
        payload.put_u64(self.number);
        payload.put_u32(self.frame);
        payload.put_u16(self.index);
        payload.put_u16(self.count);
        payload.put_u8(u8::from(self.is_key));
        payload.resize(bytes, 0);
        payload.freeze()
    }

    fn parse(mut payload: &[u8]) -> Option<Self> {
        (payload.len() >= Self::BYTES).then(|| Self {
            number: payload.get_u64(),
            frame: payload.get_u32(),
            index: payload.get_u16(),
            count: payload.get_u16(),
            is_key: payload.get_u8() != 0,
        })
    }

    const BYTES: usize = 17;
}

#[cfg(test)]
mod tests;
