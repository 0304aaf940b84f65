//! A model of a rate-adaptive encoder and of the quality of its frames.
//!
//! ```text
//! EncoderTarget ─► bytes for the picture (less headers): its limit ─┐
//!               limit of the frame before, if that was less ◄──────┘
//!                        └─► x share of a limit that x264 uses ─► size ─► SSIM, dB
//! ```
//!
//! Measured with x264 at zero latency (docs/lab.md): the used share of the limit of a frame, the
//! delay of one frame before a raised limit counts, and SSIM by frame size at 1080p30. A key frame
//! needs three times the bytes for the same SSIM.

use std::time::Duration;

use roadweave_emulate::Random;
use roadweave_proto::Rate;
use roadweave_tunnel::EncoderTarget;

/// An encoder whose frames are limited by the target for the next frame and by its share of the
/// rate: a frame that filled all free capacity would leave nothing for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveEncoder {
    /// Upper bound of its rate.
    pub rate_max: Rate,
}

impl AdaptiveEncoder {
    /// The limit of the next picture at `fps` frames a second, bytes.
    pub fn limit(&self, target: EncoderTarget, fps: u32) -> usize {
        let interval = Duration::from_secs(1) / fps.max(1);
        let allowed = target.frame_bytes.min(target.bitrate.bytes_in(interval));
        let most = self.rate_max.bytes_in(interval);
        // Excludes the headers of the tunnel and of packets.
        (allowed as f64 * PICTURE_SHARE).min(most as f64) as usize
    }
}

/// The buffer of one frame (VBV) that enforces an encoder's limits. A lower limit applies to the
/// next frame, a higher one to the frame after it: the buffer was filled at the previous rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffer {
    filled: Option<usize>,
}

impl Buffer {
    /// Size of the next picture under `limit`, bytes.
    pub fn size(&mut self, limit: usize, random: &mut Random) -> usize {
        let most = self.filled.map_or(limit, |filled| filled.min(limit));
        if limit > SIZE_MIN {
            self.filled = Some(limit);
        }
        ((most as f64 * share_used(random)) as usize).max(SIZE_MIN)
    }
}

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
        // Linear below the first point, where a logarithm would fall without bound.
        return low * bytes / least;
    }
    let last = SSIM_1080.len() - 1;
    let after = SSIM_1080.iter().position(|(size, _)| *size > bytes).unwrap_or(last).max(1);
    let ((from, low), (to, high)) = (SSIM_1080[after - 1], SSIM_1080[after]);
    let along = (bytes.log2() - from.log2()) / (to.log2() - from.log2());
    (low + (high - low) * along).clamp(0.0, SSIM_1080[last].1)
}

/// Share of the picture in a packet: headers of tunnel, IP, UDP and RTP take about 90 of 1,250
/// bytes.
const PICTURE_SHARE: f64 = 0.93;
const SIZE_MIN: usize = 200;
/// Percentiles of the used share of the limit: x264 at zero latency with a buffer of one frame.
const USED: [(f64, f64); 5] = [(0.0, 0.50), (0.05, 0.56), (0.5, 0.76), (0.95, 0.88), (1.0, 0.94)];
/// Bytes of a key frame relative to another frame of the same SSIM.
const KEY_FRAME_COST: f64 = 3.0;
/// Bytes of a 1080p frame, and SSIM in dB: means of two moving pictures by x264 `superfast`,
/// adjusted by at most 0.3 dB to be concave.
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
        // Dead links: no frame passes through the encoder.
        assert!((size(20_000), size(0)).1 == SIZE_MIN);
        assert!(size(20_000) >= 10_000, "no frame was held to nothing");
    }
}
