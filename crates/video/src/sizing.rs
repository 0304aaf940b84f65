//! How large a frame may be, and what the encoder is told so that it is no larger.
//!
//! ```text
//! target, bytes of tunnel datagrams ─► less the headers of its packets ─► bytes of the frame
//!     ─► bit rate x one frame's time, in a buffer of one frame (VBV)
//! ```
//!
//! With a buffer (VBV, ISO/IEC 14496-10 annex C) that holds what the bit rate brings in one frame's
//! time, no frame may be larger than its share: x264 then watches each row of macroblocks.

use std::time::Duration;

/// What a frame's packets are like on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets {
    /// Bytes of an RTP packet at most, its header included.
    pub mtu: usize,
    /// Bytes around each RTP packet: UDP, IP and the tunnel's own.
    pub around: usize,
}

impl Packets {
    /// What is left of `target` bytes of datagrams for the frame itself.
    ///
    /// As many packets are taken off as `target` fills, and one for parameter sets or the end of a
    /// slice, which begin packets of their own.
    pub fn frame_bytes(self, target: usize) -> usize {
        let datagram = self.mtu + self.around;
        let packets = target.div_ceil(datagram) + 1;
        target.saturating_sub(packets * (self.around + RTP_BYTES))
    }
}

/// What an encoder with a buffer of one frame is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderRate {
    /// Bit rate in kbit/s.
    pub kbps: u32,
    /// What the buffer holds, as time at that rate, in ms.
    pub buffer_ms: u32,
}

impl EncoderRate {
    /// For frames of at most `bytes` each, when the encoder takes itself to encode `fps` a second.
    ///
    /// The buffer's time is rounded down: x264 then takes a whole frame's.
    pub fn new(bytes: usize, fps: u32) -> Self {
        let kbps = bytes.saturating_mul(8).saturating_mul(fps as usize) / 1000;
        let kbps = u32::try_from(kbps).unwrap_or(u32::MAX).clamp(1, KBPS_MAX);
        Self { kbps, buffer_ms: (1000 / fps.max(1)).max(1) }
    }
}

/// What the tunnel says of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Bytes of datagrams that one frame may have.
    pub frame_bytes: Option<u64>,
    /// What the lane carries, in bit/s.
    pub bitrate_bps: Option<u64>,
}

impl Target {
    /// Bytes of datagrams for one frame of `fps` a second, or `None` when nothing is said.
    ///
    /// An encoder that `keeps_frames` to their size goes by that, which follows the links at once,
    /// and by the rate where it is less: a frame that fills all that is free leaves nothing to the
    /// next one. One that knows a rate alone goes by the rate. Both stop when nothing would arrive.
    pub fn per_frame(self, fps: f64, keeps_frames: bool) -> Option<usize> {
        let by_rate = self.bitrate_bps.map(|bps| share(bps, fps));
        let by_frame = self.frame_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        match (by_frame, by_rate) {
            (Some(0), _) => Some(0),
            (Some(by_frame), Some(by_rate)) if keeps_frames && by_rate > 0 => {
                Some(by_frame.min(by_rate))
            }
            (by_frame, by_rate) if keeps_frames => by_frame.or(by_rate),
            (by_frame, by_rate) => by_rate.or(by_frame),
        }
    }
}

/// The bytes of one frame of `fps` a second at `bps` bit/s.
pub fn share(bps: u64, fps: f64) -> usize {
    (bps as f64 / 8.0 / fps.max(1.0)) as usize
}

/// Whether a frame is encoded at all, and how large it may be.
///
/// A target that leaves no room for a picture skips the frame before it is encoded, so that what
/// follows refers to nothing that was not sent. One frame a second goes all the same, of the least
/// size, so that the other end sees that somebody is there; that one is likely lost, so what comes
/// when there is room again is a key frame.
///
/// x264 makes a frame as small as the one before if that was small, since its buffer fills as
/// frames leave it, and a key frame of that size is grey. So behind a sign of life, the first frame
/// with room is encoded and not sent.
#[derive(Debug)]
pub struct Gate {
    packets: Packets,
    /// When the last frame went to the encoder.
    last: Option<Duration>,
    /// Whether there was no room of late.
    shut: bool,
    /// Whether the last frame was a sign of life.
    small: bool,
}

/// A frame that is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// What it may have.
    pub bytes: usize,
    /// Whether it has to stand alone.
    pub key: bool,
    /// Whether it is sent.
    pub sent: bool,
}

impl Gate {
    /// A gate for frames that go in such packets.
    pub fn new(packets: Packets) -> Self {
        Self { packets, last: None, shut: false, small: false }
    }

    /// What the frame at `now` may be when `target` is said, or `None` to skip it.
    pub fn admit(&mut self, now: Duration, target: usize) -> Option<Admitted> {
        let bytes = self.packets.frame_bytes(target);
        if bytes >= FRAME_BYTES_LEAST {
            self.last = Some(now);
            if std::mem::take(&mut self.small) {
                return Some(Admitted { bytes, key: true, sent: false });
            }
            return Some(Admitted { bytes, key: std::mem::take(&mut self.shut), sent: true });
        }
        self.shut = true;
        if self.last.is_some_and(|last| now.saturating_sub(last) < SIGN_OF_LIFE) {
            return None;
        }
        self.last = Some(now);
        self.small = true;
        Some(Admitted { bytes: FRAME_BYTES_LEAST, key: false, sent: true })
    }
}

/// RTP header, header extension ([`crate::stamp`]) and the indicator of a fragment (RFC 6184
/// section 5.8; RFC 7798 has one byte more).
const RTP_BYTES: usize = 12 + crate::stamp::EXTENSION_BYTES + 3;
/// A picture below this says nothing at usual sizes, and x264 does not get there either.
const FRAME_BYTES_LEAST: usize = 400;
/// How long nothing at all is sent, at most.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// What `x264enc` takes at most.
const KBPS_MAX: u32 = 2_048_000;

#[cfg(test)]
mod tests {
    use super::*;

    const PACKETS: Packets = Packets { mtu: 1200, around: 78 };

    #[test]
    fn headers_of_all_packets_are_taken_off() {
        let header = 78 + 12 + 16 + 3;
        let check =
            |target, expected| assert_eq!(PACKETS.frame_bytes(target), expected, "{target}");
        check(0, 0);
        check(100, 0);
        check(1278, 1278 - 2 * header);
        check(1279, 1279 - 3 * header);
        check(41_280, 41_280 - 34 * header);
        for target in (0..70_000).step_by(7) {
            let bytes = PACKETS.frame_bytes(target);
            let packets = bytes.div_ceil(1200 - 31);
            assert!(bytes + packets * header <= target, "{target}");
        }
    }

    #[test]
    fn bit_rate_and_buffer_are_those_of_one_frame() {
        let check = |bytes, fps, kbps, buffer_ms| {
            assert_eq!(EncoderRate::new(bytes, fps), EncoderRate { kbps, buffer_ms });
        };
        check(5_000, 30, 1_200, 33);
        check(60_000, 30, 14_400, 33);
        check(60_000, 60, 28_800, 16);
        check(0, 30, 1, 33);
        check(usize::MAX, 30, 2_048_000, 33);
        check(1_000, 0, 1, 1000);
    }

    #[test]
    fn encoders_go_by_what_they_can_keep_to() {
        let check = |frame_bytes, bitrate_bps, by_frame, by_rate| {
            let target = Target { frame_bytes, bitrate_bps };
            assert_eq!(target.per_frame(30.0, true), by_frame, "{target:?}");
            assert_eq!(target.per_frame(30.0, false), by_rate, "{target:?}");
        };
        check(None, None, None, None);
        check(Some(41_280), None, Some(41_280), Some(41_280));
        check(None, Some(2_400_000), Some(10_000), Some(10_000));
        check(Some(41_280), Some(2_400_000), Some(10_000), Some(10_000));
        check(Some(5_000), Some(2_400_000), Some(5_000), Some(10_000));
        check(Some(0), Some(2_400_000), Some(0), Some(0));
        check(Some(u64::MAX), Some(0), Some(usize::MAX), Some(0));
    }

    #[test]
    fn without_room_one_small_frame_a_second_goes_and_then_a_key_frame() {
        let mut gate = Gate::new(PACKETS);
        let mut check = |ms, target, expected: Option<(usize, bool, bool)>| {
            let admitted = gate.admit(Duration::from_millis(ms), target);
            assert_eq!(admitted.map(|it| (it.bytes, it.key, it.sent)), expected, "{ms}");
        };
        let whole = PACKETS.frame_bytes(10_000);
        check(0, 10_000, Some((whole, false, true)));
        check(33, 0, None);
        check(67, 10_000, Some((whole, true, true)));
        check(100, 0, None);
        check(1100, 0, Some((400, false, true)));
        check(1133, 0, None);
        check(1166, 10_000, Some((whole, true, false)));
        check(1200, 10_000, Some((whole, true, true)));
        check(1233, 10_000, Some((whole, false, true)));
        check(2300, 0, Some((400, false, true)));
    }
}
