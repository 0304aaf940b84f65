//! Segments sent and not acknowledged.
//!
//! ```text
//!  una                                                       nxt
//!   │ lost │ again under way │ sacked │ under way │ sacked │ ... │
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::Instant;

use super::rate::Mark;

#[derive(Clone, Debug)]
pub(super) struct SentSegment {
    pub(super) seq: u64,
    pub(super) len: u32,
    pub(super) at: Instant,
    pub(super) times: u32,
    pub(super) fate: Fate,
    pub(super) mark: Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    UnderWay,
    Lost,
    Sacked,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    pub(super) sent: VecDeque<SentSegment>,
    pub(super) sacked: u32,
    pub(super) lost: u32,
    highest: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckSummary {
    pub(super) delivered: u32,
    /// Round trips of the first and the last newly delivered segment that was sent once.
    pub(super) round_trip: Option<Duration>,
    pub(super) round_trip_last: Option<Duration>,
    pub(super) is_reordered: bool,
    /// The latest send time of newly delivered segments that were sent once; a time before a
    /// timeout shows that the timeout was spurious.
    pub(super) original: Option<Instant>,
}

impl SentSegment {
    pub(super) fn end(&self) -> u64 {
        self.seq + u64::from(self.len)
    }
}

impl Scoreboard {
    pub(super) fn push(&mut self, now: Instant, seq: u64, len: u32, mark: Mark) {
        self.sent.push_back(SentSegment {
            seq,
            len,
            at: now,
            times: 1,
            fate: Fate::UnderWay,
            mark,
        });
    }

    /// Retransmits the first lost segment or, with `probes`, the last undelivered one. Returns its
    /// first byte and length.
    pub(super) fn send_again(
        &mut self,
        now: Instant,
        probes: bool,
        mark: impl FnOnce() -> Mark,
    ) -> Option<(u64, u32)> {
        let sent = match probes {
            true => self.sent.iter_mut().rev().find(|it| it.fate != Fate::Sacked)?,
            false => self.sent.iter_mut().find(|it| it.fate == Fate::Lost)?,
        };
        if sent.fate == Fate::Lost {
            self.lost -= 1;
        }
        sent.fate = Fate::UnderWay;
        (sent.at, sent.times, sent.mark) = (now, sent.times + 1, mark());
        Some((sent.seq, sent.len))
    }

    /// Handles an acknowledgement of all bytes before `ack` and of `sacks`; passes each newly
    /// delivered segment to `on_delivered`.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        (ack, sacks): (u64, &[(u64, u64)]),
        mut on_delivered: impl FnMut(&SentSegment),
    ) -> AckSummary {
        let mut summary = AckSummary::default();
        let highest = self.highest;
        let mut on_newly_acked = |sent: &SentSegment, summary: &mut AckSummary| {
            summary.delivered += 1;
            on_delivered(sent);
            if sent.times == 1 {
                let round_trip = now.since(sent.at);
                summary.round_trip = summary.round_trip.or(Some(round_trip));
                summary.round_trip_last = Some(round_trip);
                summary.is_reordered |= sent.end() < highest;
                summary.original = summary.original.max(Some(sent.at));
            }
        };
        while let Some(first) = self.sent.front().filter(|sent| sent.end() <= ack) {
            match first.fate {
                Fate::Sacked => self.sacked -= 1,
                Fate::Lost => self.lost -= 1,
                Fate::UnderWay => {}
            }
            if first.fate != Fate::Sacked {
                on_newly_acked(first, &mut summary);
            }
            self.highest = self.highest.max(first.end());
            self.sent.pop_front();
        }
        for (from, to) in sacks.iter().filter(|(_, to)| *to > ack) {
            let begin = self.sent.partition_point(|sent| sent.seq < *from);
            for sent in self.sent.range_mut(begin..).take_while(|sent| sent.end() <= *to) {
                if sent.fate == Fate::Sacked {
                    continue;
                }
                on_newly_acked(sent, &mut summary);
                self.lost -= u32::from(sent.fate == Fate::Lost);
                self.sacked += 1;
                sent.fate = Fate::Sacked;
                self.highest = self.highest.max(sent.end());
            }
        }
        summary
    }

    pub(super) fn mark_lost(&mut self, mut is_lost: impl FnMut(&SentSegment) -> bool) -> u32 {
        let mut marked = 0;
        for sent in self.sent.iter_mut().filter(|sent| sent.fate == Fate::UnderWay) {
            if is_lost(sent) {
                sent.fate = Fate::Lost;
                marked += 1;
            }
        }
        self.lost += marked;
        marked
    }

    pub(super) fn forget_losses(&mut self) {
        for sent in self.sent.iter_mut().filter(|sent| sent.fate == Fate::Lost) {
            sent.fate = Fate::UnderWay;
        }
        self.lost = 0;
    }

    pub(super) fn first_repair(&self) -> Option<Instant> {
        self.sent.iter().filter(|sent| sent.times > 1).map(|sent| sent.at).min()
    }

    pub(super) fn out(&self) -> u32 {
        self.sent.len() as u32
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.out() - self.sacked - self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn each_segment_is_reported_once_and_losses_are_resent_in_order() {
        let mut board = Scoreboard::default();
        let at = Instant::from_millis;
        (0..10).for_each(|n| board.push(at(n), n * 100, 100, Mark::default()));
        let ack =
            |board: &mut Scoreboard, ack, sacks: &[_]| board.on_ack(at(100), (ack, sacks), |_| {});
        let summary = ack(&mut board, 100, &[(300, 500), (700, 750)]);
        assert_eq!((summary.delivered, summary.is_reordered), (3, false), "half a segment is none");
        assert_eq!((summary.round_trip, summary.round_trip_last), (Some(MS * 100), Some(MS * 96)));
        assert_eq!((board.out(), board.sacked, board.in_flight()), (9, 2, 7));
        assert_eq!(board.mark_lost(|sent| sent.end() <= 300), 2);
        assert_eq!(board.send_again(at(101), false, Mark::default), Some((100, 100)));
        assert_eq!((board.lost, board.in_flight()), (1, 6));
        // 200 was late but not lost.
        let summary = ack(&mut board, 100, &[(200, 500)]);
        assert_eq!((summary.delivered, summary.is_reordered), (1, true));
        let summary = ack(&mut board, 1_000, &[]);
        assert_eq!((summary.delivered, summary.original), (6, Some(at(9))));
        assert_eq!((board.out(), board.in_flight(), board.lost), (0, 0, 0));
    }
}
