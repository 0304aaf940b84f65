//! The time of day.

use std::time::{SystemTime, UNIX_EPOCH};

pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

pub const HOUR_MS: i64 = 3_600_000;
