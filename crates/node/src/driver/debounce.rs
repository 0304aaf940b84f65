//! Bounds how often the loop repeats work that others trigger.

use std::time::Duration;

use roadweave_proto::Instant;

const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Default)]
pub(super) struct Debounce {
    due: Option<Instant>,
    last: Option<Instant>,
}

impl Debounce {
    pub(super) fn ask(&mut self, now: Instant) {
        let soonest = self.last.map_or(now, |last| now.max(last + INTERVAL));
        self.due.get_or_insert(soonest);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let is_due = self.due.take_if(|due| *due <= now).is_some();
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_has_its_turn_at_once_and_a_flood_ten_a_second() {
        let mut debounce = Debounce::default();
        assert!(!debounce.take_due(Instant::ZERO), "nobody asked");
        let mut turns = 0;
        for millisecond in 0..1000 {
            let now = Instant::ZERO + Duration::from_millis(millisecond);
            debounce.ask(now);
            turns += u32::from(debounce.take_due(now));
            assert!(turns > 0, "at once");
        }
        assert_eq!(turns, 10);
        let last = debounce.poll_timeout().expect("the last of the flood counts too");
        assert!(debounce.take_due(last) && !debounce.take_due(last));
        let later = last + Duration::from_secs(9);
        debounce.ask(later);
        assert!(debounce.take_due(later));
    }
}
