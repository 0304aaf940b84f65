//! How long a gap in the packets is waited for.
//!
//! Packets in order are passed on at once, so that a link without reordering adds no delay. Where a
//! packet is missing, all later ones wait until it comes or is given up. That a packet came after
//! it had been given up says that the wait is too short. When packets come again after none came
//! for longer than any wait, those between are lost, and nothing waits for them longer than for
//! packets that overtake one another.

use std::time::Duration;

/// The wait of a jitter buffer, adapted once a second.
#[derive(Debug)]
pub struct GapWait {
    wait: Duration,
    /// Seconds without a packet that came too late.
    calm: u32,
    /// When the last packet came, and the first one after a silence, if that was just now.
    packet: Option<Duration>,
    back: Option<Duration>,
}

impl GapWait {
    /// As it begins.
    pub fn new() -> Self {
        Self { wait: FIRST, calm: 0, packet: None, back: None }
    }

    /// What it is.
    pub fn now(&self) -> Duration {
        if self.back.is_some() { LEAST } else { self.wait }
    }

    /// A packet came at `now`: whether the wait is another than before.
    pub fn on_packet(&mut self, now: Duration) -> bool {
        let before = self.now();
        let since = |at: Duration| now.saturating_sub(at);
        if self.packet.replace(now).is_some_and(|last| since(last) > SILENCE) {
            self.back = Some(now);
        } else if self.back.is_some_and(|back| since(back) > MOST) {
            self.back = None;
        }
        self.now() != before
    }

    /// A second is over in which `late` packets came after they had been given up.
    pub fn on_second(&mut self, late: u64) {
        if late > 0 {
            self.calm = 0;
            self.wait = (self.wait * 2).min(MOST);
            return;
        }
        self.calm += 1;
        if self.calm > CALM {
            self.wait = (self.wait * 9 / 10).max(LEAST);
        }
    }
}

const FIRST: Duration = Duration::from_millis(50);
const LEAST: Duration = Duration::from_millis(20);
/// A longer one would be a stall by itself.
const MOST: Duration = Duration::from_millis(200);
/// Longer than any wait, and than a frame takes at a frame a second.
const SILENCE: Duration = Duration::from_millis(1_100);
/// After so many seconds it is tried with less.
const CALM: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(wait: &GapWait) -> u128 {
        wait.now().as_millis()
    }

    #[test]
    fn late_packets_lengthen_it_up_to_a_bound() {
        let mut wait = GapWait::new();
        let after = [1, 7, 1, 1].map(|late| {
            wait.on_second(late);
            ms(&wait)
        });
        assert_eq!(after, [100, 200, 200, 200]);
    }

    #[test]
    fn calm_shortens_it_slowly_down_to_a_bound() {
        let mut wait = GapWait::new();
        (0..10).for_each(|_| wait.on_second(0));
        assert_eq!(ms(&wait), 50);
        wait.on_second(0);
        assert_eq!(ms(&wait), 45);
        (0..100).for_each(|_| wait.on_second(0));
        assert_eq!(ms(&wait), 20);
    }

    #[test]
    fn what_was_sent_into_a_silence_is_not_waited_for() {
        let mut wait = GapWait::new();
        let at = |ms| Duration::from_millis(ms);
        assert!(!wait.on_packet(at(0)) && !wait.on_packet(at(1_000)));
        assert!(wait.on_packet(at(5_000)));
        wait.on_second(0);
        assert!(!wait.on_packet(at(5_150)));
        assert_eq!(ms(&wait), 20);
        assert!(wait.on_packet(at(5_250)));
        assert_eq!(ms(&wait), 50);
    }
}
