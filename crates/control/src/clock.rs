//! The time of day, and the time since a start.

use std::time::{SystemTime, UNIX_EPOCH};

use roadweave_proto::Instant;

pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

pub fn since(started: std::time::Instant) -> Instant {
    Instant::ZERO + started.elapsed()
}

pub const HOUR_MS: i64 = 3_600_000;
