//! Drops whole video frames when there is more video than the paths carry.
//!
//! ```text
//! a packet at the front ─► its frame ─► decided before? ─► as all of its frame
//!                                       a new one ───────► the queue stands? every second frame goes, or
//!                                                          2 of 3, 3 of 4, the longer the queue is;
//!                                                          else it stays
//! ```
//!
//! A frame that lacks a packet is useless. So whole frames are given up, and not in a row.
//!
//! A queue that is long for a moment is left alone: a path was blocked. It *stands* when everything
//! has waited longer than the lane's deadline for a second: CoDel's criterion (RFC 8289 section
//! 3.2), with an interval that outlasts a blocked path.
//!
//! A frame whose first packet would have expired also goes, with all its waiting packets: LoLa's
//! deadline is a frame's (section 3.4). A lane in which nothing may be late has only this rule.
//!
//! Frames are identified by RTP timestamps, which SRTP leaves in the clear. Packets without one,
//! frames of a single packet, and frames of a timestamp that stands still are never given up.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::RtpHeader;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameKey {
    flow: u64,
    source: u32,
    timestamp: u32,
}

impl FrameKey {
    pub(crate) fn new(flow: u64, rtp: &RtpHeader) -> Self {
        Self { flow, source: rtp.ssrc, timestamp: rtp.timestamp }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Shedder {
    deadline: Option<Duration>,
    late_since: Option<Instant>,
    decided: VecDeque<Decided>,
}

#[derive(Debug)]
struct Decided {
    frame: FrameKey,
    first: Instant,
    last: Instant,
    stays: bool,
    /// Whether its timestamp continues after a frame would be over.
    stands_still: bool,
}

impl Shedder {
    pub(crate) fn new(deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..Self::default() }
    }

    pub(crate) fn on_front(&mut self, now: Instant, since: Instant) {
        let is_late = self.deadline.is_some_and(|deadline| now.since(since) > deadline);
        self.late_since = is_late.then(|| self.late_since.unwrap_or(now));
    }

    pub(crate) fn on_empty(&mut self) {
        self.late_since = None;
    }

    /// Decided once per frame. `is_alone`: no other packet of its frame waits.
    pub(crate) fn stays(
        &mut self,
        now: Instant,
        frame: FrameKey,
        since: Instant,
        is_alone: impl FnOnce() -> bool,
    ) -> bool {
        if let Some(known) = self.find(frame, since) {
            known.last = known.last.max(since);
            return known.stays;
        }
        if let Some(over) = self.decided.iter_mut().rev().find(|known| known.frame == frame) {
            over.stand_still(since);
            return true;
        }
        let video = |frame: &FrameKey| (frame.flow, frame.source);
        let of_video = |other: &&Decided| video(&other.frame) == video(&frame);
        let mut before = self.decided.iter().rev().filter(of_video);
        let given_up = before.by_ref().take_while(|other| !other.stays).count();
        let to_give_up = self.to_give_up(now, since);
        if to_give_up > 0 && is_alone() {
            return true;
        }
        let stays = given_up >= to_give_up;
        self.note(frame, since, stays);
        stays
    }

    pub(crate) fn on_expired(&mut self, frame: FrameKey, since: Instant) {
        match self.find(frame, since) {
            Some(known) => known.stays = known.stands_still,
            None => self.note(frame, since, false),
        }
    }

    /// Whether a packet of `frame` is dropped because the frame's first came `age_max` ago.
    pub(crate) fn is_late(
        &mut self,
        now: Instant,
        frame: FrameKey,
        since: Instant,
        age_max: Duration,
    ) -> bool {
        let Some(known) = self.find(frame, since) else { return false };
        if since.since(known.first) >= age_max {
            known.stand_still(since);
        }
        let is_late = !known.stands_still && now.since(known.first) >= age_max;
        known.stays &= !is_late;
        is_late
    }

    fn to_give_up(&self, now: Instant, since: Instant) -> usize {
        let Some(deadline) = self.deadline else { return 0 };
        if self.late_since.is_none_or(|late| now.since(late) < LATE_MIN) {
            return 0;
        }
        let step = deadline.saturating_mul(2).as_micros().max(1);
        IN_A_ROW_MAX.min((now.since(since).as_micros() / step) as usize)
    }

    /// The decision on `frame`. A source may reuse a timestamp forever, so a frame ends.
    fn find(&mut self, frame: FrameKey, since: Instant) -> Option<&mut Decided> {
        let is_it = |known: &&mut Decided| {
            let goes_on = since < (known.last + PAUSE_MAX).min(known.first + FRAME_MAX);
            known.frame == frame && (goes_on || known.stands_still)
        };
        self.decided.iter_mut().rev().find(is_it)
    }

    fn note(&mut self, frame: FrameKey, since: Instant, stays: bool) {
        let is_over = |old: &Decided| {
            let newest = if old.stands_still { old.last } else { old.first };
            newest + FRAME_MAX < since
        };
        while self.decided.len() >= DECIDED_MAX || self.decided.front().is_some_and(is_over) {
            self.decided.pop_front();
        }
        let (first, last, stands_still) = (since, since, false);
        self.decided.push_back(Decided { frame, first, last, stays, stands_still });
    }
}

impl Decided {
    fn stand_still(&mut self, since: Instant) {
        (self.last, self.stays, self.stands_still) = (since, true, true);
    }
}

/// How long all must be late before frames are given up: longer than paths are usually blocked.
const LATE_MIN: Duration = Duration::from_secs(1);
/// Frames given up in a row, at most: at 30 a second the picture moves every 167 ms.
const IN_A_ROW_MAX: usize = 4;
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// The longest time over which a sender spreads a (key) frame.
const FRAME_MAX: Duration = Duration::from_millis(1000);
/// Frames remembered, at most: a second of many videos.
const DECIDED_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn frame(source: u32, timestamp: u32) -> FrameKey {
        FrameKey { flow: 1, source, timestamp }
    }

    fn standing() -> Shedder {
        let mut shedder = Shedder::new(Duration::from_millis(100));
        shedder.on_front(at(1000), at(800));
        shedder
    }

    fn decisions(shedder: &mut Shedder, from_ms: u64, age_ms: u64) -> String {
        let stays = |number: u32| {
            let now = at(from_ms + u64::from(number));
            let since = at(from_ms + u64::from(number) - age_ms);
            shedder.on_front(now, since);
            if shedder.stays(now, frame(1, from_ms as u32 + number), since, || false) {
                'x'
            } else {
                '.'
            }
        };
        (0..12).map(stays).collect()
    }

    #[test]
    fn a_queue_that_is_long_for_a_moment_keeps_its_frames() {
        let mut shedder = standing();
        assert_eq!(decisions(&mut shedder, 1900, 600), "xxxxxxxxxxxx");
        shedder.on_front(at(1950), at(1850));
        assert_eq!(decisions(&mut shedder, 2100, 600), "xxxxxxxxxxxx", "a packet was in time");
        shedder.on_empty();
        assert_eq!(decisions(&mut shedder, 3200, 600), "xxxxxxxxxxxx", "the queue was empty");
    }

    #[test]
    fn the_longer_a_standing_queue_is_the_more_frames_go_but_not_all_in_a_row() {
        for (age_ms, expected) in [
            (199, "xxxxxxxxxxxx"),
            (300, ".x.x.x.x.x.x"),
            (500, "..x..x..x..x"),
            (700, "...x...x...x"),
            (2000, "....x....x.."),
        ] {
            assert_eq!(decisions(&mut standing(), 2000, age_ms), expected, "{age_ms} ms");
        }
    }

    #[test]
    fn a_frame_stays_or_goes_as_a_whole() {
        let mut shedder = standing();
        shedder.on_front(at(2000), at(1750));
        assert!(!shedder.stays(at(2000), frame(1, 10), at(1750), || false));
        assert!(shedder.stays(at(2001), frame(1, 11), at(1760), || false));
        assert!(!shedder.stays(at(2002), frame(1, 10), at(1755), || false));
        assert!(shedder.stays(at(2500), frame(1, 11), at(1761), || false), "however late it is");
        shedder.on_expired(frame(1, 11), at(1762));
        assert!(!shedder.stays(at(2500), frame(1, 11), at(1763), || false));
        assert!(shedder.stays(at(2050), frame(1, 11), at(1864), || false), "that is another frame");
    }

    #[test]
    fn what_comes_of_a_frame_is_as_old_as_its_first_packet() {
        let mut shedder = Shedder::default();
        let age_max = Duration::from_millis(100);
        assert!(!shedder.is_late(at(0), frame(1, 10), at(0), age_max));
        assert!(shedder.stays(at(0), frame(1, 10), at(0), || false));
        assert!(!shedder.is_late(at(99), frame(1, 10), at(30), age_max));
        assert!(!shedder.is_late(at(100), frame(1, 11), at(30), age_max), "that is another frame");
        assert!(shedder.is_late(at(100), frame(1, 10), at(30), age_max));
        assert!(!shedder.stays(at(100), frame(1, 10), at(40), || false), "nor what comes later");
        for sent in (200..2_000).step_by(30) {
            let is_late = shedder.is_late(at(sent), frame(1, 10), at(sent), age_max);
            assert!(!is_late, "a clock that stands still makes nothing late that has not waited");
        }
        shedder.on_front(at(100), at(0));
        shedder.on_front(at(5000), at(0));
        assert!(shedder.stays(at(5000), frame(1, 12), at(4950), || false), "only what is late");
    }

    #[test]
    fn nothing_is_given_up_of_a_clock_that_stands_still() {
        for (step, age_max) in [(10, 700), (250, 700), (10, 100)] {
            let mut shedder = standing();
            let age_max = Duration::from_millis(age_max);
            // Each waits for 600 ms, or as long as it may.
            let waits = Duration::from_millis(600).min(age_max - Duration::from_millis(1));
            let mut given_up = Vec::new();
            for since in (2_000..12_000).step_by(step) {
                let now = at(since) + waits;
                shedder.on_front(now, at(since));
                let is_late = shedder.is_late(now, frame(1, 10), at(since), age_max);
                if is_late || !shedder.stays(now, frame(1, 10), at(since), || false) {
                    given_up.push(since);
                }
            }
            // Until then it may be a frame.
            let last = given_up.last().copied().unwrap_or_default();
            assert!(last < 3_000, "{step} {age_max:?}: {given_up:?}");
        }
    }

    #[test]
    fn a_frame_of_one_packet_stays() {
        assert!(standing().stays(at(2000), frame(1, 10), at(1750), || true));
    }

    #[test]
    fn videos_take_turns_by_themselves() {
        let mut shedder = standing();
        let mut kept = [0, 0];
        for number in 0..20 {
            let now = at(2000 + 10 * number);
            let source = number % 2;
            let id = frame(source as u32, number as u32);
            kept[source as usize] +=
                u32::from(shedder.stays(now, id, at(1750 + 10 * number), || false));
        }
        assert_eq!(kept, [5, 5]);
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut shedder = standing();
        (0..10_000).for_each(|number| {
            shedder.stays(at(2000), frame(number, 0), at(1750), || false);
        });
        assert_eq!(shedder.decided.len(), DECIDED_MAX);
        shedder.stays(at(3000), frame(1, 1), at(2900), || false);
        assert_eq!(shedder.decided.len(), 1, "those of more than a second ago are over");
    }
}
