//! How fast a path delivers.

use std::time::Duration;

use roadweave_proto::{Instant, Rate};

/// The last round trips' best delivery rate: bounds what acknowledgements at once may suggest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeliveryRate {
    began: Option<Instant>,
    delivered: u64,
    windows: [Rate; 10],
    best: Rate,
}

impl DeliveryRate {
    pub(super) fn on_delivered(&mut self, bytes: u64) {
        self.delivered += bytes;
    }

    pub(super) fn update(&mut self, now: Instant, smoothed_rtt: Duration) {
        let began = *self.began.get_or_insert(now);
        let elapsed = now.since(began);
        if elapsed < smoothed_rtt.max(WINDOW_MIN) {
            return;
        }
        self.windows.rotate_right(1);
        self.windows[0] = Rate::of(self.delivered, elapsed);
        self.best = self.windows.into_iter().max().unwrap_or_default();
        self.began = Some(now);
        self.delivered = 0;
    }

    pub(super) fn newest(&self) -> Rate {
        self.windows[0]
    }

    pub(crate) fn best(&self) -> Rate {
        self.best
    }
}

const WINDOW_MIN: Duration = Duration::from_millis(50);
