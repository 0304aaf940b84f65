//! The receiving end: reassembly, acknowledgements and the receive window.
//!
//! Sources: RFC 9293 and RFC 5681 section 4.2 (delayed acknowledgements; Linux acknowledges the
//! first segments at once, and each that grows its window, and delays by at most 40 ms), RFC 2018
//! and RFC 2883 (SACK), RFC 7323 section 4.3 (which timestamp is echoed), W. Feng et al., "Dynamic
//! Right-Sizing", 2001 (the window).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use roadweave_proto::Instant;

use super::segment::{SACK_BLOCKS_MAX, Segment};

#[derive(Clone, Debug)]
pub(super) struct Receiver {
    mss: u32,
    pub(super) next: u64,
    /// Blocks beyond a gap, from and to.
    beyond: BTreeMap<u64, u64>,
    recent: VecDeque<u64>,
    /// A duplicate to report once (D-SACK).
    twice: Option<(u64, u64)>,
    acked: u64,
    echo: u32,
    pub(super) due: Option<Instant>,
    at_once: u32,
    last: Option<(Instant, u64, u32)>,
    window: AutoWindow,
}

/// Receive window; grows to twice the data of the last round trip.
#[derive(Clone, Debug)]
struct AutoWindow {
    bytes: u32,
    limit: u32,
    begin: u64,
    begin_at: Instant,
    round_trip: Option<Duration>,
    copied: u64,
    /// The right edge of the window; it never decreases.
    promised: u64,
}

impl Receiver {
    pub(super) fn new(mss: u32) -> Self {
        Self {
            mss,
            next: 0,
            beyond: BTreeMap::new(),
            recent: VecDeque::new(),
            twice: None,
            acked: 0,
            echo: 0,
            due: None,
            at_once: AT_ONCE,
            last: None,
            window: AutoWindow {
                bytes: WINDOW_FIRST,
                limit: LIMIT_FIRST,
                begin: 0,
                begin_at: Instant::ZERO,
                round_trip: None,
                copied: 0,
                promised: WINDOW_FIRST.into(),
            },
        }
    }

    /// Whether GRO merges this segment with the previous one: both are acknowledged once.
    pub(super) fn joins(&self, now: Instant, segment: &Segment) -> bool {
        self.last == Some((now, segment.seq, segment.timestamp))
    }

    pub(super) fn on_segment(
        &mut self,
        now: Instant,
        segment: &Segment,
        round_trip: Option<Duration>,
    ) {
        let (from, to) = (segment.seq, segment.seq + u64::from(segment.len));
        if from <= self.acked && (segment.timestamp.wrapping_sub(self.echo) as i32) >= 0 {
            self.echo = segment.timestamp;
        }
        self.last = Some((now, to, segment.timestamp));
        if segment.len == 0 || to > self.window.promised {
            return;
        }
        if to <= self.next || self.has(from, to) {
            self.twice = Some((from, to));
            self.due = Some(now);
            return;
        }
        let fills = from <= self.next && !self.beyond.is_empty();
        if from <= self.next {
            self.next = self.next.max(to);
            while let Some(first) = self.beyond.first_entry().filter(|it| *it.key() <= self.next) {
                self.next = self.next.max(first.remove());
            }
            self.recent.retain(|at| *at >= self.next);
            self.window.on_data(now, self.next, self.mss, round_trip);
            if self.window.grows(segment.len) {
                self.at_once = self.at_once.max(1);
            }
        } else {
            self.insert(from, to);
        }
        let waits_for_more = self.next - self.acked <= self.mss.into();
        let is_calm = self.beyond.is_empty() && !fills && waits_for_more && self.at_once == 0;
        let by_then = if is_calm { now + DELAY } else { now };
        self.due = Some(self.due.map_or(by_then, |due| due.min(by_then)));
    }

    pub(super) fn answer_by(&mut self, now: Instant) {
        self.due = Some(self.due.map_or(now, |due| due.min(now)));
    }

    fn has(&self, from: u64, to: u64) -> bool {
        self.beyond.range(..=from).next_back().is_some_and(|(_, end)| *end >= to)
    }

    fn insert(&mut self, mut from: u64, mut to: u64) {
        while let Some((begin, end)) =
            self.beyond.range(..=to).next_back().filter(|(_, end)| **end >= from)
        {
            let begin = *begin;
            (from, to) = (from.min(begin), to.max(*end));
            self.beyond.remove(&begin);
        }
        self.beyond.insert(from, to);
        self.recent.retain(|at| !(from..to).contains(at));
        self.recent.push_front(from);
        self.recent.truncate(SACK_BLOCKS_MAX);
    }

    pub(super) fn acknowledge(&mut self, segment: &mut Segment) {
        segment.ack = Some(self.next);
        segment.echo = self.echo;
        let promised = self.window.promised.max(self.next + u64::from(self.window.bytes));
        self.window.promised = promised;
        segment.window = (promised - self.next) as u32;
        segment.sacks.extend(self.twice.take());
        let block = |at: &u64| self.beyond.range(..=at).next_back().map(|(from, to)| (*from, *to));
        let blocks = self.recent.iter().filter_map(block);
        segment.sacks.extend(blocks);
        segment.sacks.truncate(SACK_BLOCKS_MAX);
        self.acked = self.next;
        self.at_once = self.at_once.saturating_sub(u32::from(self.due.is_some()));
        self.due = None;
    }
}

impl AutoWindow {
    fn grows(&mut self, len: u32) -> bool {
        let before = self.bytes;
        self.bytes = before.saturating_add(2 * len).min(self.limit).max(before);
        self.bytes > before
    }

    /// The application has read all data before `next`.
    fn on_data(&mut self, now: Instant, next: u64, mss: u32, round_trip: Option<Duration>) {
        // Without own data, the time for a window serves as the round trip.
        let guessed = self.round_trip.unwrap_or_else(|| now.since(self.begin_at));
        let round_trip = round_trip.unwrap_or(guessed);
        if now.since(self.begin_at) < round_trip {
            return;
        }
        let copied = next - self.begin;
        if copied > self.copied {
            // Twice the received data, extrapolated by its growth.
            let grown = copied + (copied - self.copied).min(copied);
            let wanted = 2 * grown + 16 * u64::from(mss);
            let wanted = u32::try_from(wanted).unwrap_or(WINDOW_MAX).min(WINDOW_MAX);
            self.limit = self.limit.max(wanted);
            self.copied = copied;
        }
        (self.begin, self.begin_at, self.round_trip) = (next, now, Some(round_trip));
    }
}

/// Half of Linux's initial `tcp_rmem`; the limit in the first round trip; half of its maximum.
pub(super) const WINDOW_FIRST: u32 = 65_535;
const LIMIT_FIRST: u32 = 80_000;
const WINDOW_MAX: u32 = 16 << 20;
const DELAY: Duration = Duration::from_millis(40);
const AT_ONCE: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 100;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn take(receiver: &mut Receiver, millis: u64, number: u64) {
        let (seq, timestamp) = (number * 100, number as u32);
        let segment = Segment { seq, len: MSS, timestamp, ..Segment::default() };
        receiver.on_segment(at(millis), &segment, Some(Duration::from_millis(50)));
    }

    fn answer(receiver: &mut Receiver) -> Segment {
        let mut segment = Segment::default();
        receiver.acknowledge(&mut segment);
        segment
    }

    #[test]
    fn the_first_are_answered_at_once_and_then_each_second_or_after_40_ms() {
        let mut receiver = Receiver::new(MSS);
        receiver.window.limit = WINDOW_FIRST;
        for number in 0..16 {
            take(&mut receiver, number, number);
            assert_eq!(receiver.due, Some(at(number)));
            answer(&mut receiver);
        }
        take(&mut receiver, 100, 16);
        assert_eq!(receiver.due, Some(at(140)));
        take(&mut receiver, 101, 17);
        assert_eq!(receiver.due, Some(at(101)));
        let segment = answer(&mut receiver);
        assert_eq!((segment.ack, segment.echo, receiver.due), (Some(1_800), 16, None));
        receiver.window.limit += 100;
        take(&mut receiver, 102, 18);
        assert_eq!(receiver.due, Some(at(102)), "the window grows");
    }

    #[test]
    fn sacks_list_the_newest_block_first_after_any_duplicate() {
        let mut receiver = Receiver { at_once: 0, ..Receiver::new(MSS) };
        receiver.window.limit = WINDOW_FIRST;
        for number in [0, 2, 4, 6, 8] {
            take(&mut receiver, number, number);
        }
        assert_eq!(receiver.due, Some(at(2)));
        let blocks = answer(&mut receiver).sacks;
        assert_eq!(blocks, [(800, 900), (600, 700), (400, 500)]);
        take(&mut receiver, 20, 3);
        assert_eq!(answer(&mut receiver).sacks, [(200, 500), (800, 900), (600, 700)]);
        take(&mut receiver, 21, 6);
        assert_eq!(answer(&mut receiver).sacks[..2], [(600, 700), (200, 500)]);
        take(&mut receiver, 22, 1);
        assert_eq!(receiver.due, Some(at(22)), "a gap is filled");
        let segment = answer(&mut receiver);
        assert_eq!((segment.ack, segment.sacks), (Some(500), vec![(800, 900), (600, 700)]));
    }

    #[test]
    fn the_window_is_twice_what_comes_in_a_round_trip_and_what_exceeds_it_is_not_taken() {
        let mut receiver = Receiver::new(MSS);
        assert_eq!(answer(&mut receiver).window, WINDOW_FIRST);
        take(&mut receiver, 0, 700);
        assert!(receiver.beyond.is_empty(), "it was not allowed");
        for number in 0..8_000 {
            take(&mut receiver, number / 40, number);
            answer(&mut receiver);
        }
        let window = answer(&mut receiver).window;
        assert!((400_000..1_000_000).contains(&window), "{window}");
    }
}
