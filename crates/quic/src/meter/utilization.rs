//! Whether a path is used to the full, or its sender leaves room.

use std::time::Duration;

use roadweave_proto::Instant;

/// How a path was used of late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Utilization {
    limited_until: Option<Instant>,
    /// Since when the path is used to the full, short pauses left aside.
    busy_since: Option<Instant>,
    window_limited: bool,
}

impl Utilization {
    /// Notes that the path could take no more at `now`, for the window's sake, or the pacer's,
    /// which lets a packet through each `interval`. A sender that has more will come back as soon
    /// as it may.
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

    /// Whether the sender has of late left room unused.
    pub(super) fn is_app_limited(&self, now: Instant) -> bool {
        self.limited_until.is_none_or(|until| now > until)
    }

    /// Whether the path has been used to the full for longer than `time`.
    pub(super) fn is_busy_for(&self, now: Instant, time: Duration) -> bool {
        self.limited_until.is_some_and(|until| now <= until + BUSY_PAUSE)
            && self.busy_since.is_some_and(|since| now > since + time)
    }

    /// Whether the window was found full since this was last asked.
    pub(super) fn take_window_limited(&mut self) -> bool {
        std::mem::take(&mut self.window_limited)
    }
}

/// How long a path may have room to spare and still count as used to the full.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// How long a path counts as fully used after its window was found full, at least: acknowledgements
/// that make room come in batches.
const LIMITED_MEMORY_WINDOW: Duration = Duration::from_millis(10);
/// How late a sender may come back to a pacer that would let it.
const LIMITED_MEMORY_PACER: Duration = Duration::from_millis(3);
