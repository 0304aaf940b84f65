//! A model of an encoder that makes each frame as large as it is told, and of how good it looks.
//!
//! ```text
//! EncoderTarget ─► bytes for the picture (less headers): its limit ─┐
//!               limit of the frame before, if that was less ◄──────┘
//!                        └─► x share of a limit that x264 uses ─► size ─► SSIM, dB
//! ```
//!
//! The model has three measured parts, all of x264 at zero latency (docs/lab.md says how): what
//! share of its limit a frame uses, that a raised limit counts a frame later, and the SSIM of
//! frames of so many bytes at 1080p30. A picture that needs no other takes three times the bytes of
//! one that does for the same SSIM.

use std::time::Duration;

use roadweave_emulate::Random;
use roadweave_proto::Rate;
use roadweave_tunnel::EncoderTarget;

/// An encoder that takes the size of the next frame for its limit, and the frame's share of the
/// rate where that is less: a frame that fills all that is free leaves nothing to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveEncoder {
    /// The most that it makes, however much is offered.
    pub rate_max: Rate,
}

impl AdaptiveEncoder {
    /// The most bytes of the next picture at `fps` frames a second, as it is told.
    pub fn limit(&self, target: EncoderTarget, fps: u32) -> usize {
        let interval = Duration::from_secs(1) / fps.max(1);
        let told = target.frame_bytes.min(target.bitrate.bytes_in(interval));
        let most = self.rate_max.bytes_in(interval);
        // Headers are the tunnel's and the packets'.
        (told as f64 * PICTURE_SHARE).min(most as f64) as usize
    }
}

/// The buffer of one frame (VBV) that holds an encoder to its limits.
///
/// A limit that falls counts for the next frame, one that rises for the frame after it: the buffer
/// has been filled at the rate of the frame before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffer {
    filled: Option<usize>,
}

impl Buffer {
    /// The bytes of the next picture, whose limit is `limit`.
    pub fn size(&mut self, limit: usize, random: &mut Random) -> usize {
        let most = self.filled.map_or(limit, |filled| filled.min(limit));
        if limit > SIZE_MIN {
            // Where there is no room nothing is encoded, and the buffer stays as it is.
            self.filled = Some(limit);
        }
        ((most as f64 * share_used(random)) as usize).max(SIZE_MIN)
    }
}

/// The share of its limit that a frame uses: a line through the measured percentiles.
fn share_used(random: &mut Random) -> f64 {
    let at = random.unit();
    let after = USED.iter().position(|(share, _)| *share > at).unwrap_or(USED.len() - 1);
    let ((from, low), (to, high)) = (USED[after - 1], USED[after]);
    low + (high - low) * (at - from) / (to - from)
}

/// SSIM of a picture of `bytes` bytes, dB: -10 log10(1 - SSIM).
pub fn ssim_db(bytes: usize, is_key_frame: bool) -> f64 {
    let cost = if is_key_frame { KEY_FRAME_COST } else { 1.0 };
    let bytes = bytes as f64 / cost;
    let (least, low) = SSIM_1080[0];
    if bytes < least {
        // Below, a straight line: a logarithm falls without end.
        return low * bytes / least;
    }
    let last = SSIM_1080.len() - 1;
    let after = SSIM_1080.iter().position(|(size, _)| *size > bytes).unwrap_or(last).max(1);
    let ((from, low), (to, high)) = (SSIM_1080[after - 1], SSIM_1080[after]);
    let along = (bytes.log2() - from.log2()) / (to.log2() - from.log2());
    (low + (high - low) * along).clamp(0.0, SSIM_1080[last].1)
}

/// Of a packet's bytes those that are the picture's: the headers of tunnel, IP, UDP and RTP are
/// about 90 of 1,250.
const PICTURE_SHARE: f64 = 0.93;
/// A picture in which nothing moves; an encoder makes none that is smaller.
const SIZE_MIN: usize = 200;
/// Shares of all frames, and the share of the limit that they stay below: x264 at zero latency, its
/// buffer as long as a frame.
const USED: [(f64, f64); 5] = [(0.0, 0.50), (0.05, 0.56), (0.5, 0.76), (0.95, 0.88), (1.0, 0.94)];
/// How many times the bytes a key frame takes for the same SSIM.
const KEY_FRAME_COST: f64 = 3.0;
/// Bytes of a 1080p frame, and SSIM in dB: means of two moving pictures, by x264 `superfast`,
/// moved by at most 0.3 dB so that the function is concave.
const SSIM_1080: &[(f64, f64)] = &[
    (760.0, 4.05),
    (1_740.0, 7.4),
    (3_470.0, 10.2),
    (7_000.0, 12.9),
    (14_000.0, 15.4),
    (28_000.0, 17.4),
    (56_000.0, 19.4),
    (105_000.0, 21.2),
    (209_000.0, 23.1),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_stay_below_their_limit_and_use_most_of_it() {
        let encoder = AdaptiveEncoder { rate_max: Rate::from_kbps(30_000) };
        let bitrate = Rate::from_kbps(90_000);
        let target = EncoderTarget { frame_bytes: 40_000, bitrate, renewals: 0 };
        let mut random = Random::new(1);
        let mut size = |encoder: &AdaptiveEncoder, target| {
            Buffer::default().size(encoder.limit(target, 30), &mut random)
        };
        let mut sizes: Vec<usize> = (0..1000).map(|_| size(&encoder, target)).collect();
        sizes.sort_unstable();
        assert!((27_000..30_000).contains(&sizes[500]), "{}", sizes[500]);
        assert!(sizes[999] <= 40_000, "{}", sizes[999]);
        let slow = EncoderTarget { bitrate: Rate::from_kbps(900), ..target };
        assert!(size(&encoder, slow) < 3_750, "its share is less");
        let nothing = EncoderTarget::default();
        assert_eq!(size(&encoder, nothing), SIZE_MIN);
        let all = EncoderTarget { frame_bytes: u64::MAX, ..target };
        assert!(size(&encoder, all) <= 125_000);
    }

    #[test]
    fn a_rise_counts_a_frame_later_than_a_fall() {
        let (mut buffer, mut random) = (Buffer::default(), Random::new(1));
        let mut size = |limit| buffer.size(limit, &mut random);
        assert!(size(5_000) <= 4_700, "it begins full");
        assert!(size(60_000) <= 4_700, "as small as the one before");
        assert!(size(60_000) >= 30_000);
        assert!(size(5_000) <= 4_700, "at once");
        // Dead links: no frame goes through the encoder.
        assert!((size(20_000), size(0)).1 == SIZE_MIN);
        assert!(size(20_000) >= 10_000, "no frame was held to nothing");
    }

    #[test]
    fn as_many_more_bytes_never_bring_more_than_those_before() {
        let gain = |at: usize| ssim_db(at + 50, false) - ssim_db(at, false);
        let mut before = f64::INFINITY;
        for bytes in (0..210_000).step_by(50) {
            assert!(gain(bytes) <= before + 1e-9, "{bytes}");
            before = gain(bytes);
        }
    }

    #[test]
    fn more_bytes_look_better_and_key_frames_worse() {
        assert!(ssim_db(20_000, false) > ssim_db(10_000, false));
        assert!(ssim_db(20_000, true) < ssim_db(20_000, false));
        assert_eq!(ssim_db(usize::MAX, false), 23.1);
        assert_eq!(ssim_db(0, false), 0.0);
    }
}
