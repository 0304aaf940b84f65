//! The sending end: an encoder that follows the estimate.

use std::time::Duration;

use bytes::Bytes;
use roadweave_emulate::Random;
use roadweave_proto::{Instant, Rate};

use super::{FramePacket, Peer};

/// What was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentFrames {
    /// When each frame was captured, and its bytes without headers.
    pub frames: Vec<(Instant, usize)>,
    pub key_frames: u64,
}

/// The end with the camera.
#[derive(Debug)]
pub struct CallSender {
    peer: Peer,
    begin: Instant,
    rate_max: Rate,
    random: Random,
    sent: SentFrames,
    next_number: u64,
    last_key_frame: Option<Instant>,
    /// Bytes of key frames above the rate, which later frames save.
    debt: usize,
}

impl CallSender {
    /// The first frame is captured at `begin`; the rate follows the estimate of `peer` up to
    /// `rate_max`.
    pub fn new(peer: Peer, begin: Instant, rate_max: Rate, seed: u64) -> Self {
        Self {
            peer,
            begin,
            rate_max,
            random: Random::new(seed),
            sent: SentFrames::default(),
            next_number: 0,
            last_key_frame: None,
            debt: 0,
        }
    }

    pub fn sent(&self) -> &SentFrames {
        &self.sent
    }

    pub fn estimate(&self) -> Rate {
        self.peer.estimate()
    }

    pub fn poll_timeout(&self) -> Instant {
        self.next_capture().min(self.peer.poll_timeout())
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.peer.handle_timeout(now);
        while self.next_capture() <= now {
            self.capture(now);
        }
    }

    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        self.peer.poll_transmit()
    }

    pub fn handle_datagram(&mut self, now: Instant, datagram: &Bytes) {
        self.peer.handle_datagram(now, datagram);
    }

    fn next_capture(&self) -> Instant {
        let frame = self.sent.frames.len() as u64;
        self.begin + Duration::from_nanos(frame * 1_000_000_000 / FPS)
    }

    fn capture(&mut self, now: Instant) {
        let rests = self.last_key_frame.is_some_and(|last| now.since(last) < KEY_FRAME_INTERVAL);
        let is_key = self.peer.wants_key_frame() && !rests;
        self.last_key_frame = if is_key { Some(now) } else { self.last_key_frame };
        let size = self.frame_size(is_key);
        let frame = self.sent.frames.len() as u32;
        self.sent.frames.push((now, size));
        self.sent.key_frames += u64::from(is_key);
        let count = size.div_ceil(PAYLOAD_MAX).max(1);
        let bytes = (size / count).max(FramePacket::BYTES);
        let first = self.next_number;
        self.next_number += count as u64;
        let packets = (0..count).map(|index| FramePacket {
            number: first + index as u64,
            frame,
            index: index as u16,
            count: count as u16,
            is_key,
        });
        self.peer.send_frame(now, frame, is_key, packets.map(|packet| packet.write(bytes)));
    }

    /// Bytes of the next frame: the rate's, [`KEY_FRAME`] times that for a key frame, which later
    /// frames save in the course of a second.
    fn frame_size(&mut self, is_key: bool) -> usize {
        let rate = self.estimate().as_bps() as f64 * PAYLOAD_SHARE;
        let rate = rate.clamp(RATE_MIN.as_bps() as f64, self.rate_max.as_bps() as f64);
        let even = rate / 8.0 / FPS as f64;
        let varied = even * (1.0 + VARIATION * (2.0 * self.random.unit() - 1.0));
        if is_key {
            self.debt += (even * (KEY_FRAME - 1.0)) as usize;
            return (varied * KEY_FRAME) as usize;
        }
        let saved = self.debt.min((even / 4.0) as usize);
        self.debt -= saved;
        varied as usize - saved
    }
}

const FPS: u64 = 30;
/// So that an RTP packet has at most 1,200 bytes, as libwebrtc's.
const PAYLOAD_MAX: usize = 1_150;
/// Of the estimate, which includes headers.
const PAYLOAD_SHARE: f64 = 0.95;
const RATE_MIN: Rate = Rate::from_kbps(150);
const KEY_FRAME: f64 = 3.0;
/// `kMinKeyframeSendIntervalMs` of libwebrtc.
const KEY_FRAME_INTERVAL: Duration = Duration::from_millis(300);
const VARIATION: f64 = 0.1;
