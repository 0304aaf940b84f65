//! Whether a path is fully used, or its sender leaves room.

use std::time::Duration;

use roadweave_proto::Instant;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Utilization {
    limited_until: Option<Instant>,
    busy_since: Option<Instant>,
    pub(super) window_limited: bool,
}

impl Utilization {
    pub(super) fn on_limited(
        &mut self,
        now: Instant,
        by_window: bool,
        interval: Duration,
        smoothed_rtt: Duration,
    ) {
        let memory = match by_window {
            true => (smoothed_rtt / 4).max(LIMITED_MEMORY_WINDOW),
            false => interval * 2 + LIMITED_MEMORY_PACER,
        };
        if self.limited_until.is_none_or(|until| now > until + BUSY_PAUSE) {
            self.busy_since = Some(now);
        }
        self.limited_until = Some(now + memory);
        self.window_limited |= by_window;
    }

    pub(super) fn is_app_limited(&self, now: Instant) -> bool {
        self.limited_until.is_none_or(|until| now > until)
    }

    pub(super) fn is_busy_for(&self, now: Instant, time: Duration) -> bool {
        self.limited_until.is_some_and(|until| now <= until + BUSY_PAUSE)
            && self.busy_since.is_some_and(|since| now > since + time)
    }
}

const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// Least time for which a full window counts: acknowledgements come in batches.
const LIMITED_MEMORY_WINDOW: Duration = Duration::from_millis(10);
const LIMITED_MEMORY_PACER: Duration = Duration::from_millis(3);
