//! What a receiving application tells of its buffer, and how long that lasts.

use std::time::Duration;

use roadweave_types::Instant;
use serde::{Deserialize, Serialize};

/// The state of a player's buffer (XLINK section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Qoe {
    /// Bytes in the buffer.
    pub cached_bytes: u64,
    /// Frames in the buffer.
    pub cached_frames: u64,
    /// The rate of the video, bits per second.
    pub bps: u64,
    /// The rate of the video, frames per second.
    pub fps: f64,
}

impl Qoe {
    /// The play-time left: the more conservative of what the bytes and the frames say.
    ///
    /// A rate of 0 says nothing. Source: XLINK algorithm 1, step 1.
    pub fn play_time_left(&self) -> Duration {
        let by_bytes = self.cached_bytes as f64 * 8.0 / self.bps as f64;
        let by_frames = self.cached_frames as f64 / self.fps;
        let known = [by_bytes, by_frames].into_iter().filter(|seconds| seconds.is_finite());
        let seconds = known.fold(f64::MAX, f64::min);
        Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
    }
}

/// A report and the moment it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) at: Instant,
    pub(crate) qoe: Qoe,
}

impl Report {
    /// The play-time left at `now`: the video has played on since the report.
    pub(crate) fn play_time_left(&self, now: Instant) -> Duration {
        self.qoe.play_time_left().saturating_sub(now.since(self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(qoe: Qoe, expected_ms: u64) {
        assert_eq!(qoe.play_time_left(), Duration::from_millis(expected_ms));
    }

    #[test]
    fn the_smaller_of_bytes_and_frames_counts() {
        let qoe = Qoe { cached_bytes: 100_000, cached_frames: 30, bps: 8_000_000, fps: 30.0 };
        check(qoe, 100);
        check(Qoe { cached_frames: 2, fps: 40.0, ..qoe }, 50);
        check(Qoe { bps: 0, ..qoe }, 1000);
        assert_eq!(Qoe { bps: 0, fps: 0.0, ..qoe }.play_time_left(), Duration::MAX);
    }

    #[test]
    fn time_goes_by_since_the_report() {
        let qoe = Qoe { cached_bytes: 0, cached_frames: 3, bps: 0, fps: 30.0 };
        let report = Report { at: Instant::from_millis(40), qoe };
        assert_eq!(report.play_time_left(Instant::from_millis(100)), Duration::from_millis(40));
        assert_eq!(report.play_time_left(Instant::from_millis(900)), Duration::ZERO);
    }
}
