//! Reports of a receiving application on its buffer.

use std::time::Duration;

use roadweave_proto::Instant;
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
    /// The play-time left: the smaller of the times by bytes and by frames; a rate of 0 is ignored.
    /// Source: XLINK algorithm 1, step 1.
    pub fn play_time_left(&self) -> Duration {
        let by_bytes = self.cached_bytes as f64 * 8.0 / self.bps as f64;
        let by_frames = self.cached_frames as f64 / self.fps;
        let known = [by_bytes, by_frames].into_iter().filter(|seconds| seconds.is_finite());
        let seconds = known.fold(f64::MAX, f64::min);
        Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
    }
}

/// Play-time left, nanoseconds; negative: since when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Left(i64);

impl Left {
    pub(crate) fn of(time: Duration, elapsed: Duration) -> Self {
        Self(Self::from(time).0.saturating_sub(Self::from(elapsed).0))
    }
}

impl From<Duration> for Left {
    fn from(time: Duration) -> Self {
        Self(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct QoeReport {
    pub(crate) at: Instant,
    pub(crate) qoe: Qoe,
}

impl QoeReport {
    /// The play-time left at `now`, counted down since the report.
    pub(crate) fn play_time_left(&self, now: Instant) -> Left {
        Left::of(self.qoe.play_time_left(), now.since(self.at))
    }

    pub(crate) fn is_outdated(&self, now: Instant) -> bool {
        now.since(self.at) >= REPORT_LIFE
    }
}

/// Players report several times a second; the last report of a closed one must not hold for ever.
const REPORT_LIFE: Duration = Duration::from_secs(3);

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
        let report = QoeReport { at: Instant::from_millis(40), qoe };
        let ms = Duration::from_millis;
        let left = |at| report.play_time_left(Instant::from_millis(at));
        assert_eq!((left(100), left(140)), (Left::from(ms(40)), Left::from(ms(0))));
        assert_eq!(left(900), Left::of(ms(0), ms(760)), "the picture stands still");
        assert!(!report.is_outdated(Instant::from_millis(3039)));
        assert!(report.is_outdated(Instant::from_millis(3040)));
    }
}
