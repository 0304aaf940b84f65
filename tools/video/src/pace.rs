//! Limits the frame rate of a source and measures the rate of accepted frames, whatever the source
//! declares.

use std::time::Duration;

#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    due: Duration,
    last: Option<Duration>,
    /// Smoothed interval of accepted frames, seconds.
    mean: f64,
    over: f64,
}

impl Pace {
    pub fn new(fps: u32) -> Self {
        let interval = Duration::from_secs(1) / fps.max(1);
        Self { interval, due: Duration::ZERO, last: None, mean: interval.as_secs_f64(), over: 0.0 }
    }

    /// Whether to accept the frame of time `at`. Sources with half a frame of jitter lose none.
    pub fn take(&mut self, at: Duration) -> bool {
        if at + self.interval / 2 < self.due {
            return false;
        }
        self.due = at.max(self.due) + self.interval;
        // A late source catches up by at most one frame.
        self.due = self.due.min(at + self.interval * 3 / 2);
        if let Some(last) = self.last.replace(at) {
            let between = at.saturating_sub(last).as_secs_f64().min(BETWEEN_MAX);
            self.over = (self.over + 1.0).min(SMOOTHED_OVER);
            self.mean += (between - self.mean) / self.over;
        }
        true
    }

    pub fn fps(&self) -> f64 {
        1.0 / self.mean.max(1e-3)
    }
}

/// A pause counts as at most this many seconds, so that the rate recovers soon.
const BETWEEN_MAX: f64 = 1.0;
/// Number of frames in the mean; the first frames count at once.
const SMOOTHED_OVER: f64 = 15.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(fps: f64, frames: u32, jitter_ms: u64) -> (u32, f64) {
        let mut pace = Pace::new(30);
        let mut taken = 0;
        for i in 0..frames {
            let jitter = Duration::from_millis(u64::from(i % 2) * jitter_ms);
            taken += u32::from(pace.take(Duration::from_secs_f64(f64::from(i) / fps) + jitter));
        }
        (taken, pace.fps())
    }

    #[test]
    fn a_source_that_is_too_fast_loses_what_is_too_much() {
        let check = |fps: f64, jitter, expected: u32, rate: f64| {
            let (taken, measured) = run(fps, fps as u32 * 10, jitter);
            assert!(taken.abs_diff(expected) <= 3, "{fps}: {taken}, not {expected}");
            assert!((measured - rate).abs() < 0.1 * rate, "{fps}: {measured}, not {rate}");
        };
        check(60.0, 0, 300, 30.0);
        check(50.0, 0, 300, 30.0);
        check(30.0, 0, 300, 30.0);
        check(30.0, 12, 300, 30.0);
        check(15.0, 0, 150, 15.0);
        check(7.0, 0, 70, 7.0);
    }

    #[test]
    fn the_rate_is_known_from_the_second_frame_on() {
        let (_, fps) = run(10.0, 2, 0);
        assert!((fps - 10.0).abs() < 0.1, "{fps}");
    }

    #[test]
    fn after_a_pause_frames_are_taken_at_once() {
        let mut pace = Pace::new(30);
        assert!(pace.take(Duration::ZERO));
        assert!(pace.take(Duration::from_secs(100)));
        assert!(!pace.take(Duration::from_millis(100_005)));
        assert!(pace.take(Duration::from_millis(100_033)));
    }
}
