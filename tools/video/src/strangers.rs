//! Limits the work caused by strangers who reach a port. The session stores data for each SSRC (RFC
//! 3550 section 8) for half a minute, and each report costs work.

use std::collections::VecDeque;
use std::time::Duration;

use crate::budget::Budget;
use crate::numbers::Numbers;

/// Recent senders; new ones have a budget.
#[derive(Debug)]
pub struct Senders {
    /// The most recent sender is the last.
    known: VecDeque<(u32, Numbers)>,
    new: Budget,
}

impl Senders {
    pub fn new() -> Self {
        Self { known: VecDeque::new(), new: Budget::new(4.0, 8.0) }
    }

    /// The new number of a sender's packet, which replaces `number`; `None` to drop it.
    pub fn take(&mut self, now: Duration, sender: u32, number: u16) -> Option<u16> {
        let place = self.known.iter().rposition(|(known, _)| *known == sender);
        if place.is_none() && !self.new.take(now) {
            return None;
        }
        if place.is_none() && self.known.len() >= KNOWN_MOST {
            self.known.pop_front();
        }
        let known = place.and_then(|place| self.known.remove(place));
        let (_, mut numbers) = known.unwrap_or_else(|| (sender, Numbers::new(number)));
        let taken = numbers.take(now, number);
        self.known.push_back((sender, numbers));
        taken
    }
}

/// As many as are decoded concurrently.
const KNOWN_MOST: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_reports_is_cut_and_calm_is_not() {
        let taken = |per_second: u64| {
            let mut budget = Budget::of_reports();
            let times =
                (0..10 * per_second).map(|i| Duration::from_micros(i * 1_000_000 / per_second));
            times.filter(|at| budget.take(*at)).count()
        };
        assert_eq!(taken(30), 300);
        assert!((515..=520).contains(&taken(10_000)), "{}", taken(10_000));
    }

    #[test]
    fn after_calm_a_few_are_taken_at_once() {
        let mut budget = Budget::of_reports();
        let taken = |_: &u32| budget.take(Duration::from_secs(3600));
        assert_eq!((0..100).filter(taken).count(), 20);
    }

    #[test]
    fn a_sender_that_is_known_stays_among_any_number_of_new_ones() {
        let mut senders = Senders::new();
        let mut strangers = 0;
        for i in 0..100_000_u32 {
            let now = Duration::from_micros(u64::from(i) * 100);
            assert!(!i.is_multiple_of(300) || senders.take(now, 7, 1).is_some(), "{i}");
            strangers += u32::from(senders.take(now, 1_000 + i, 1).is_some());
            assert!(senders.known.len() <= KNOWN_MOST);
        }
        assert!((40..=48).contains(&strangers), "{strangers}");
    }
}
