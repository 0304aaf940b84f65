//! The share of a core that the program uses, over the last seconds.

use std::time::{Duration, Instant};

use roadweave_linux::processor_time;

const PERIOD: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct ProcessLoad {
    since: Option<(Instant, Duration)>,
    share: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Used {
    pub(super) processor: Duration,
    /// 0..1, or more with several threads.
    pub(super) share: f64,
}

impl ProcessLoad {
    /// The share covers the time since an earlier call, [`PERIOD`] ago or more.
    pub(super) fn measure(&mut self) -> Used {
        self.update(Instant::now(), processor_time())
    }

    fn update(&mut self, now: Instant, processor: Duration) -> Used {
        let (at, before) = *self.since.get_or_insert((now, processor));
        let over = now.saturating_duration_since(at);
        if over >= PERIOD {
            self.share = processor.saturating_sub(before).as_secs_f64() / over.as_secs_f64();
            self.since = Some((now, processor));
        }
        Used { processor, share: self.share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_who_ask_often_hear_the_same_share() {
        let (mut load, start) = (ProcessLoad::default(), Instant::now());
        let mut share_at = |seconds: u64, used_ms: u64| {
            load.update(start + Duration::from_secs(seconds), Duration::from_millis(used_ms)).share
        };
        assert_eq!(share_at(0, 400), 0.0);
        assert_eq!(share_at(1, 900), 0.0, "too soon to say");
        assert_eq!(share_at(10, 2_900), 0.25);
        assert_eq!(share_at(11, 3_900), 0.25);
        assert_eq!(share_at(20, 2_900), 0.0);
    }
}
