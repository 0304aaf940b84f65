//! A receiver that requests a key frame when a frame is missing (RFC 4585 section 6.3.1).
//!
//! ```text
//! frames   0 ✔  1 ✔  2 ✗  3 ✔ ─ frame wait ─► give 2 up, ask ─ ASK_AGAIN ─► ask ... key frame ✔
//! ```

use std::time::Duration;

use roadweave_proto::Instant;

/// Tracks arrived frames, and whether a key frame is needed.
#[derive(Debug)]
pub struct Refresh {
    frame_wait: Duration,
    frames: Vec<Frame>,
    next: usize,
    give_up: Option<Instant>,
    ask: Option<Instant>,
}

#[derive(Debug)]
struct Frame {
    is_key_frame: bool,
    missing: usize,
    completed: Option<Instant>,
}

impl Refresh {
    pub fn new(frame_wait: Duration) -> Self {
        Self { frame_wait, frames: Vec::new(), next: 0, give_up: None, ask: None }
    }

    pub fn on_sent(&mut self, packets: usize, is_key_frame: bool) {
        self.frames.push(Frame { is_key_frame, missing: packets, completed: None });
    }

    pub fn on_arrived(&mut self, now: Instant, number: usize) {
        let Some(frame) = self.frames.get_mut(number) else { return };
        frame.missing = frame.missing.saturating_sub(1);
        if frame.missing > 0 || number < self.next {
            return;
        }
        frame.completed = Some(now);
        if frame.is_key_frame {
            // Decoding resumes here, regardless of earlier losses.
            self.ask = None;
            self.next = number;
        }
        self.go_on();
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.give_up, self.ask].into_iter().flatten().min()
    }

    /// Whether to request a key frame now.
    pub fn asks(&mut self, now: Instant) -> bool {
        while self.give_up.is_some_and(|at| at <= now) {
            self.next += 1;
            self.go_on();
            self.ask.get_or_insert(now);
        }
        let is_due = self.ask.is_some_and(|at| at <= now);
        if is_due {
            self.ask = Some(now + ASK_AGAIN);
        }
        is_due
    }

    fn go_on(&mut self) {
        let open = self.frames[self.next..].iter().position(|frame| frame.completed.is_none());
        self.next = open.map_or(self.frames.len(), |open| self.next + open);
        let later = self.frames[self.next..].iter().filter_map(|frame| frame.completed).min();
        self.give_up = later.map(|at| at + self.frame_wait);
    }
}

/// Requests may be lost, and a key frame takes a round trip.
const ASK_AGAIN: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_frame_is_asked_for_when_a_frame_is_given_up_and_until_one_has_come() {
        let at = Instant::from_millis;
        let mut refresh = Refresh::new(Duration::from_millis(100));
        for frame in 0..7 {
            refresh.on_sent(1, frame == 6);
        }
        refresh.on_arrived(at(0), 0);
        refresh.on_arrived(at(30), 2);
        assert_eq!(refresh.poll_timeout(), Some(at(130)), "1 may still come");
        refresh.on_arrived(at(60), 1);
        assert_eq!(refresh.poll_timeout(), None, "and has");
        refresh.on_arrived(at(90), 5);
        refresh.on_arrived(at(120), 3);
        assert_eq!(refresh.poll_timeout(), Some(at(190)), "for 4, which 5 waits for");
        assert!(!refresh.asks(at(189)) && refresh.asks(at(190)));
        assert!(!refresh.asks(at(389)) && refresh.asks(at(390)), "nobody has heard it");
        refresh.on_arrived(at(400), 6);
        assert_eq!(refresh.poll_timeout(), None);
    }
}
