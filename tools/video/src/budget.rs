//! A bound for work that strangers cause.

use std::time::Duration;

/// A token bucket.
#[derive(Debug)]
pub struct Budget {
    per_second: f64,
    burst: f64,
    left: f64,
    at: Duration,
}

impl Budget {
    /// For reports: a receiver has five a second, and a request for each loss.
    pub fn of_reports() -> Self {
        Self::new(50.0, 20.0)
    }

    /// For gaps in the numbers of packets, as on links that pause.
    pub fn of_gaps() -> Self {
        Self::new(2.0, 2.0)
    }

    /// For resumptions with a key frame: a sender makes at most ten key frames a second.
    pub fn of_jumps() -> Self {
        Self::new(10.0, 4.0)
    }

    pub fn new(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst, left: burst, at: Duration::ZERO }
    }

    pub fn take(&mut self, now: Duration) -> bool {
        let since = now.saturating_sub(std::mem::replace(&mut self.at, now)).as_secs_f64();
        self.left = (self.left + since * self.per_second).min(self.burst);
        let is_left = self.left >= 1.0;
        self.left -= f64::from(u8::from(is_left));
        is_left
    }
}
