//! RACK: a segment is lost if a later one was delivered and the reordering window has passed.
//!
//! The window is zero until reordering is seen; then it is a quarter of the least round trip, and
//! grows while the receiver reports duplicates. Source: RFC 8985 section 6.2.

use std::time::Duration;

use roadweave_proto::Instant;

use super::scoreboard::{Scoreboard, SentSegment};

#[derive(Clone, Debug, Default)]
pub(super) struct Rack {
    /// Send time and end of the delivered segment that was sent last, and its round trip.
    newest: Option<(Instant, u64)>,
    round_trip: Duration,
    pub(super) least: Duration,
    /// Step 3.
    pub(super) is_reordering: bool,
    /// Quarters of the least round trip beyond the first, and for how many recoveries they remain.
    further_steps: u32,
    stays: u32,
    /// Steps are added once per round, which ends at this byte.
    round_end: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    pub(super) is_recovering: bool,
    pub(super) smoothed: Duration,
}

impl Rack {
    /// Steps 1 and 2.
    pub(super) fn on_delivered(&mut self, now: Instant, sent: &SentSegment) {
        let round_trip = now.since(sent.at);
        if sent.times > 1 && round_trip < self.least {
            // The acknowledgement belongs to an earlier transmission.
            return;
        }
        self.round_trip = round_trip;
        if self.newest.is_none_or(|newest| (sent.at, sent.end()) > newest) {
            self.newest = Some((sent.at, sent.end()));
        }
    }

    /// Handles a reported duplicate (step 4). The next round ends at `nxt`.
    pub(super) fn on_duplicate(&mut self, una: u64, nxt: u64) {
        if self.round_end.is_none_or(|end| una >= end) {
            self.round_end = Some(nxt);
            self.further_steps += 1;
            self.stays = STAYS;
        }
    }

    pub(super) fn on_recovered(&mut self) {
        self.stays = self.stays.saturating_sub(1);
        if self.stays == 0 {
            self.further_steps = 0;
        }
    }

    pub(super) fn window(&self, at: Circumstances, sacked: u32) -> Duration {
        if !self.is_reordering && (at.is_recovering || sacked >= THRESHOLD) {
            return Duration::ZERO;
        }
        (self.least / 4 * (1 + self.further_steps)).min(at.smoothed)
    }

    /// Marks lost segments (step 5); returns their number, and when to check again.
    pub(super) fn detect(
        &self,
        now: Instant,
        board: &mut Scoreboard,
        at: Circumstances,
    ) -> (u32, Option<Instant>) {
        let Some(newest) = self.newest else { return (0, None) };
        let wait = self.round_trip + self.window(at, board.sacked);
        let mut look_again = None;
        let lost = board.mark_lost(|sent| {
            if (sent.at, sent.end()) >= newest {
                return false;
            }
            let due = sent.at + wait;
            if due > now {
                look_again = look_again.max(Some(due));
            }
            due <= now
        });
        (lost, look_again)
    }
}

const THRESHOLD: u32 = 3;
const STAYS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::super::rate::Mark;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn after(rack: &mut Rack, there: &[(u64, u64)]) -> Scoreboard {
        let mut board = Scoreboard::default();
        (0..10).for_each(|n| board.push(at(n), n * 100, 100, Mark::default()));
        rack.least = MS * 40;
        board.on_ack(at(44), (100, there), |sent| rack.on_delivered(at(44), sent));
        board
    }

    const CALM: Circumstances = Circumstances { is_recovering: false, smoothed: MS };

    #[test]
    fn three_segments_beyond_a_gap_make_it_a_loss_at_once() {
        let mut rack = Rack::default();
        let mut board = after(&mut rack, &[(200, 500)]);
        assert_eq!(rack.detect(at(44), &mut board, CALM), (1, None));
    }

    #[test]
    fn under_reordering_a_gap_has_a_quarter_of_the_round_trip_and_more_after_duplicates() {
        let wait = Circumstances { smoothed: MS * 100, ..CALM };
        let mut rack = Rack { is_reordering: true, ..Rack::default() };
        let mut board = after(&mut rack, &[(200, 500)]);
        // It left at 1 ms; the newest delivered segment left at 4 ms and took 40 ms.
        assert_eq!(rack.detect(at(44), &mut board, wait), (0, Some(at(51))));
        assert_eq!(rack.detect(at(51), &mut board, wait), (1, None));
        rack.on_duplicate(0, 1_000);
        rack.on_duplicate(500, 1_000);
        assert_eq!(rack.window(wait, 3), MS * 20, "one step per round");
        rack.on_duplicate(1_000, 2_000);
        assert_eq!(rack.window(wait, 3), MS * 30);
        assert_eq!(rack.window(CALM, 3), MS, "never beyond the smoothed round trip");
        (0..STAYS).for_each(|_| rack.on_recovered());
        assert_eq!(rack.window(wait, 3), MS * 10);
    }

    #[test]
    fn an_answer_to_the_first_copy_is_none_to_the_second() {
        let mut rack = Rack::default();
        let mut board = after(&mut rack, &[(200, 500)]);
        rack.detect(at(44), &mut board, CALM);
        board.send_again(at(44), false, Mark::default);
        // The first copy arrives 2 ms after the second was sent, with all but the last segment.
        board.on_ack(at(46), (500, &[]), |sent| rack.on_delivered(at(46), sent));
        assert_eq!(rack.newest, Some((at(4), 500)), "nothing is known of the second copy");
    }
}
