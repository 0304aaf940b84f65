//! How long to wait for missing packets.
//!
//! Packets in order are passed on at once, so that a link without reordering adds no delay. If a
//! packet is missing, all later ones wait until it arrives or is given up. A packet that arrives
//! after that shows that the wait is too short. After a pause longer than any wait, missing packets
//! are lost, and the wait for them is minimal.

use std::time::Duration;

#[derive(Debug)]
pub struct GapWait {
    wait: Duration,
    calm: u32,
    /// When the last packet arrived, and the first one after a recent pause.
    packet: Option<Duration>,
    back: Option<Duration>,
}

impl GapWait {
    pub fn new() -> Self {
        Self { wait: FIRST, calm: 0, packet: None, back: None }
    }

    pub fn now(&self) -> Duration {
        if self.back.is_some() { LEAST } else { self.wait }
    }

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

    /// Adapts the wait after a second with `late` packets that arrived after they were given up.
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
/// A longer wait would itself be a stall.
const MOST: Duration = Duration::from_millis(200);
/// Longer than any wait, and than the interval at one frame a second.
const SILENCE: Duration = Duration::from_millis(1_100);
/// Calm seconds before the wait is shortened.
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
