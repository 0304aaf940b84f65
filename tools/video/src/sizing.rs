//! The size of a frame, and the encoder settings that enforce it.
//!
//! ```text
//! target, bytes of tunnel datagrams ─► minus the headers of its packets ─► bytes of the frame
//!     ─► bit rate x one frame's time, in a buffer of one frame (VBV)
//! ```
//!
//! A buffer (VBV, ISO/IEC 14496-10 annex C) with the bits of one frame's duration limits each frame
//! to its share: x264 then checks each row of macroblocks.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets {
    pub mtu: usize,
    /// Bytes around each RTP packet: UDP, IP and the tunnel's headers.
    pub around: usize,
}

impl Packets {
    /// How many of the bytes of `target`, in datagrams, are left for the frame itself.
    ///
    /// Subtracts the headers of as many packets as `target` fills, and of one more for parameter
    /// sets or the end of a slice, which start their own packets.
    pub fn frame_bytes(self, target: usize) -> usize {
        let datagram = self.mtu + self.around;
        let packets = target.div_ceil(datagram) + 1;
        target.saturating_sub(packets * (self.around + RTP_BYTES))
    }
}

/// Settings of an encoder with a buffer of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderRate {
    pub kbps: u32,
    /// The buffer's size, as ms at that rate.
    pub buffer_ms: u32,
}

impl EncoderRate {
    /// For frames of at most `bytes` at the encoder's nominal `fps`.
    ///
    /// The buffer's time is rounded down: x264 then uses a whole frame's.
    pub fn new(bytes: usize, fps: u32) -> Self {
        let kbps = bytes.saturating_mul(8).saturating_mul(fps as usize) / 1000;
        let kbps = u32::try_from(kbps).unwrap_or(u32::MAX).clamp(1, KBPS_MAX);
        Self { kbps, buffer_ms: (1000 / fps.max(1)).max(1) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Bytes of datagrams allowed for one frame.
    pub frame_bytes: Option<u64>,
    /// The lane's rate, bit/s.
    pub bitrate_bps: Option<u64>,
}

impl Target {
    /// Bytes of datagrams for one frame of `fps` a second; `None` without a target.
    ///
    /// An encoder that `keeps_frames` to their size uses the frame's size, which follows the links
    /// at once, or the rate if that is less: a frame that filled all free capacity would leave
    /// nothing for the next. Other encoders use the rate. Both stop when nothing would arrive.
    pub fn per_frame(self, fps: f64, keeps_frames: bool) -> Option<usize> {
        let by_rate = self.bitrate_bps.map(|bps| share(bps, fps));
        let by_frame = self.at_once();
        match (by_frame, by_rate) {
            (Some(0), _) => Some(0),
            (Some(by_frame), Some(by_rate)) if keeps_frames && by_rate > 0 => {
                Some(by_frame.min(by_rate))
            }
            (by_frame, by_rate) if keeps_frames => by_frame.or(by_rate),
            (by_frame, by_rate) => by_rate.or(by_frame),
        }
    }

    /// Bytes of datagrams that arrive in time, regardless of the rate: the limit of a single frame.
    pub fn at_once(self) -> Option<usize> {
        self.frame_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

pub fn share(bps: u64, fps: f64) -> usize {
    (bps as f64 / 8.0 / fps.max(1.0)) as usize
}

/// Decides whether a frame is encoded, its size, and whether it is a key frame.
///
/// A target too small for a picture skips the frame before it is encoded, so that later frames do
/// not refer to an unsent one. One frame of the least size is still sent each second as a sign of
/// life; it is likely lost, so the next frame with room is a key frame.
///
/// A key frame much smaller than the picture needs is grey, worse than the last picture. So it may
/// use all bytes that arrive in time, and frames are skipped until there is room for it.
///
/// x264 makes a frame as small as the previous one if that was small, since its buffer fills as
/// frames leave it. So after a small frame, one of a key frame's size is encoded and not sent.
#[derive(Debug)]
pub struct Gate {
    packets: Packets,
    /// Below this, a key frame is grey.
    key_bytes_least: usize,
    /// Time and size of the last encoded frame.
    last: Option<(Duration, usize)>,
    wanted: bool,
    /// Whether the key frame supersedes packets already sent.
    renews: bool,
    /// Since when a key frame waits for room, and the room saved.
    waits: Option<(Duration, usize)>,
    key: Option<Duration>,
    key_interval: Duration,
    /// When the next unrequested key frame is due.
    key_due: Duration,
    /// Whether the last encoded frame was not sent: only a key frame may follow.
    unsent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub bytes: usize,
    pub key: bool,
    pub sent: bool,
}

impl Gate {
    /// A gate with a key frame at least each `key_interval`: the encoder's own key frames would be
    /// limited to a frame's share of the rate.
    pub fn new(packets: Packets, pixels: usize, key_interval: Duration) -> Self {
        Self {
            packets,
            key_bytes_least: (pixels / PIXELS_OF_A_BYTE).max(FRAME_BYTES_LEAST),
            last: None,
            wanted: false,
            renews: false,
            waits: None,
            key: None,
            key_interval,
            key_due: Duration::MAX,
            unsent: false,
        }
    }

    /// Requests a key frame; requests have effect at most each [`KEY_FRAME_INTERVAL`].
    pub fn ask_for_key_frame(&mut self) {
        self.wanted = true;
    }

    /// Makes the next frame a key frame that supersedes sent packets, and does not wait for room.
    pub fn renew(&mut self) {
        (self.wanted, self.renews) = (true, true);
    }

    /// The limit of the frame at `now`: `target`, or `at_once` for key frames; `None` to skip it.
    pub fn admit(&mut self, now: Duration, target: usize, at_once: usize) -> Option<Admitted> {
        let bytes = self.packets.frame_bytes(target);
        let at_once = self.packets.frame_bytes(at_once).max(bytes);
        if at_once < FRAME_BYTES_LEAST {
            (self.wanted, self.waits) = (true, None);
            return self.sign_of_life(now);
        }
        self.wanted |= now >= self.key_due;
        let is_early = self.key.is_some_and(|key| now.saturating_sub(key) < KEY_FRAME_INTERVAL);
        // Only a key frame can follow superseded frames, however recent the last one is.
        if self.renews || self.wanted && !is_early {
            return self.key_frame(now, bytes, at_once);
        }
        // Links that have returned answer before their rate is known.
        if bytes < FRAME_BYTES_LEAST {
            return self.sign_of_life(now);
        }
        Some(self.encode(now, Admitted { bytes, key: false, sent: true }))
    }

    fn key_frame(&mut self, now: Duration, share: usize, at_once: usize) -> Option<Admitted> {
        let least = self.key_bytes_least;
        let (since, saved) = self.waits.unwrap_or((now, 0));
        let saved = saved.saturating_add(share);
        self.waits = Some((since, saved));
        let at_once = if self.renews { at_once.max(least) } else { at_once };
        let bytes = share.max(at_once.max(saved).min(least));
        let fits = bytes >= least || now.saturating_sub(since) >= KEY_FRAME_WAIT_MOST;
        let is_ready = self.last.is_none_or(|(_, before)| before >= least);
        match (fits, is_ready) {
            (true, true) => {
                (self.wanted, self.renews, self.waits, self.key) = (false, false, None, Some(now));
                Some(self.encode(now, Admitted { bytes, key: true, sent: true }))
            }
            (false, true) => None,
            (_, false) => {
                let bytes = bytes.max(least);
                Some(self.encode(now, Admitted { bytes, key: true, sent: false }))
            }
        }
    }

    fn sign_of_life(&mut self, now: Duration) -> Option<Admitted> {
        let is_early = self.last.is_some_and(|(at, _)| now.saturating_sub(at) < SIGN_OF_LIFE);
        let small = Admitted { bytes: FRAME_BYTES_LEAST, key: false, sent: true };
        (!is_early && !self.unsent).then(|| self.encode(now, small))
    }

    fn encode(&mut self, now: Duration, admitted: Admitted) -> Admitted {
        // An encoder's first frame is a key frame.
        if admitted.key || self.last.is_none() {
            self.key_due = now.saturating_add(self.key_interval);
        }
        self.last = Some((now, admitted.bytes));
        self.unsent = !admitted.sent;
        admitted
    }
}

/// RTP header, header extension ([`crate::stamp`]) and the indicator of a fragment (RFC 6184
/// section 5.8; RFC 7798 has one byte more).
const RTP_BYTES: usize = 12 + crate::stamp::EXTENSION_BYTES + 3;
/// Smaller pictures show nothing, and x264 does not reach that size.
const FRAME_BYTES_LEAST: usize = 400;
/// The longest time without a frame.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// Pixels per byte of a recognisable key frame: at 640x360, x264's test picture has 13 dB at this
/// size, and 6 dB at a fifth of it.
const PIXELS_OF_A_BYTE: usize = 64;
const KEY_FRAME_WAIT_MOST: Duration = Duration::from_millis(150);
/// Minimum interval of key frames: a receiver cannot miss one and report it earlier.
const KEY_FRAME_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum of `x264enc`.
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

    /// A frame: ms, target, bytes at once, and the expected bytes, key and sent.
    type Frame = (u64, usize, usize, Option<(usize, bool, bool)>);

    fn check_gate(gate: &mut Gate, frames: &[Frame]) {
        for (ms, target, at_once, expected) in frames {
            let admitted = gate.admit(Duration::from_millis(*ms), *target, *at_once);
            assert_eq!(admitted.map(|it| (it.bytes, it.key, it.sent)), *expected, "{ms}");
        }
    }

    fn gate() -> Gate {
        Gate::new(PACKETS, 640 * 360, Duration::from_secs(10))
    }

    fn interrupted() -> Gate {
        let mut gate = gate();
        let whole = PACKETS.frame_bytes(10_000);
        check_gate(&mut gate, &[(0, 10_000, 10_000, Some((whole, false, true))), (33, 0, 0, None)]);
        gate
    }

    #[test]
    fn without_room_one_small_frame_a_second_goes_and_then_a_key_frame() {
        let whole = PACKETS.frame_bytes(10_000);
        let frames = [
            (67, 10_000, 10_000, Some((whole, true, true))),
            (100, 0, 0, None),
            (1100, 0, 0, Some((400, false, true))),
            (1133, 0, 0, None),
            (1166, 10_000, 10_000, Some((whole, true, false))),
            (1200, 10_000, 10_000, Some((whole, true, true))),
            (1233, 10_000, 10_000, Some((whole, false, true))),
            (2300, 0, 0, Some((400, false, true))),
        ];
        check_gate(&mut interrupted(), &frames);
    }

    #[test]
    fn a_key_frame_goes_at_once_where_all_of_it_arrives_in_time() {
        let little = PACKETS.frame_bytes(1_200);
        let frames = [
            (67, 1_200, 9_000, Some((3_600, true, true))),
            (100, 1_200, 9_000, Some((little, false, true))),
        ];
        check_gate(&mut interrupted(), &frames);
        let frames = [
            (67, 100, 9_000, Some((3_600, true, true))),
            (100, 200, 9_000, None),
            (133, 300, 9_000, None),
            (167, 1_200, 9_000, Some((little, false, true))),
        ];
        check_gate(&mut interrupted(), &frames);
    }

    #[test]
    fn a_key_frame_waits_for_the_room_of_several_frames_since_the_links_came_back() {
        let little = PACKETS.frame_bytes(1_200);
        assert_eq!(little, 982);
        let frames = [
            (67, 1_200, 1_200, None),
            (100, 0, 0, None),
            (133, 1_200, 1_200, None),
            (167, 1_200, 1_200, None),
            (200, 1_200, 1_200, None),
            (233, 1_200, 1_200, Some((3_600, true, true))),
            (267, 1_200, 1_200, Some((little, false, true))),
        ];
        check_gate(&mut interrupted(), &frames);
    }

    #[test]
    fn a_key_frame_waits_so_long_at_most_and_is_then_as_large_as_it_can_be() {
        let mut gate = interrupted();
        check_gate(&mut gate, &[67, 100, 133, 167, 200].map(|ms| (ms, 660, 660, None)));
        let bytes = 6 * PACKETS.frame_bytes(660);
        check_gate(&mut gate, &[(217, 660, 660, Some((bytes, true, true)))]);
    }

    #[test]
    fn a_key_frame_for_which_what_was_sent_is_given_up_does_not_wait_for_room() {
        let (whole, little) = (PACKETS.frame_bytes(10_000), PACKETS.frame_bytes(1_200));
        let mut gate = gate();
        check_gate(&mut gate, &[(0, 10_000, 10_000, Some((whole, false, true)))]);
        gate.renew();
        let frames = [
            (33, 1_200, 1_200, Some((3_600, true, true))),
            (67, 1_200, 1_200, Some((little, false, true))),
        ];
        check_gate(&mut gate, &frames);
        gate.renew();
        let frames = [(100, 0, 0, None), (200, 1_200, 1_200, Some((3_600, true, false)))];
        check_gate(&mut gate, &frames);
        check_gate(&mut gate, &[(233, 1_200, 1_200, Some((3_600, true, true)))]);
    }

    #[test]
    fn behind_a_small_frame_the_wait_makes_the_encoder_ready_for_a_large_one() {
        let little = PACKETS.frame_bytes(1_200);
        let mut gate = gate();
        check_gate(&mut gate, &[(0, 1_200, 1_200, Some((little, false, true)))]);
        gate.ask_for_key_frame();
        let frames = [
            (33, 1_200, 1_200, Some((3_600, true, false))),
            (67, 1_200, 1_200, None),
            // No frame may refer to an unsent one, not even as a sign of life.
            (1_200, 0, 0, None),
            (1_233, 1_200, 5_000, Some((3_600, true, true))),
            (1_267, 1_200, 5_000, Some((little, false, true))),
        ];
        check_gate(&mut gate, &frames);
    }

    #[test]
    fn without_requests_a_key_frame_comes_each_interval_and_arrives_in_time() {
        let mut gate = gate();
        let mut keys = Vec::new();
        for frame in 0..900_u64 {
            let ms = frame * 1000 / 30;
            let admitted = gate.admit(Duration::from_millis(ms), 1_200, 9_000);
            keys.extend(admitted.filter(|it| it.key).map(|it| (ms, it.bytes, it.sent)));
        }
        let expected = [(10_000, false), (10_033, true), (20_033, false), (20_066, true)];
        assert_eq!(keys, expected.map(|(ms, sent)| (ms, 3_600, sent)));
    }

    #[test]
    fn ten_thousand_requests_a_second_bring_ten_key_frames() {
        let mut gate = gate();
        let mut keys = 0;
        for frame in 0..300_u64 {
            (0..333).for_each(|_| gate.ask_for_key_frame());
            let at = Duration::from_millis(frame * 1000 / 30);
            let admitted = gate.admit(at, 10_000, 10_000).unwrap();
            assert_eq!((admitted.sent, admitted.bytes), (true, PACKETS.frame_bytes(10_000)));
            keys += u32::from(admitted.key);
        }
        assert_eq!(keys, 100, "in 10 s, each third frame");
    }
}
