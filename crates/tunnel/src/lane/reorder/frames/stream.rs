//! The packets of one RTP source, by sequence number.
//!
//! ```text
//! number     5  6  7 | 8  9  10 | 11 12        5 to 7 are a frame, its last packet has the marker
//! there      x  x  x | x     x  | x            it goes out; 8 to 10 wait for 9 until the frame that
//!                  m         m                 begins with 11 is due, and then 8 and 10 go out
//! ```
//!
//! - The order is that of numbers: with B-frames timestamps go up and down.
//! - A frame ends at a marker, or before another timestamp; without markers (audio) it is a packet.
//! - A missing number is waited for only while a lane's ID is missing at its place ([`Gaps`]).
//! - A late frame is due an interval later: without capacity, not waiting would break all frames.
//! - A frame without its beginning may follow a missing one: both are waited for until it is due.
//! - A packet behind a later frame is dropped, unless the source itself disorders its numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::RtpHeader;

use super::super::gaps::Gaps;
use super::super::{ExtendedId, HELD_OVERHEAD, Outlet, Placed, Turn};
use super::Times;

type Number = u64;

/// The extended number of number 0, high enough that nothing near it is negative.
const BASE: Number = 1 << 32;
/// A source that skips more numbers has restarted (RFC 3550 appendix A.1, MAX_DROPOUT).
const DROPOUT_MAX: i64 = 3000;
/// A source that goes back further has restarted (RFC 3550 appendix A.1, MAX_MISORDER).
const MISORDER_MAX: i64 = 100;
/// The longest interval between frames: ten a second.
const INTERVAL_MAX: Duration = Duration::from_millis(100);
/// Bounds of `marks`: a marked end adds 1, an unmarked one takes [`UNMARKED`]. Audio
/// marks the start of speech instead (RFC 3551 section 4.1).
const MARKS_MAX: u8 = 4;
const UNMARKED: u8 = 2;
const MARKED: u8 = 2;

#[derive(Debug, Default)]
pub(super) struct RtpStream {
    pub(super) heard: Instant,
    begin: ExtendedId,
    next: Number,
    next_behind: ExtendedId,
    newest: Number,
    newest_id: ExtendedId,
    /// The timestamp of a frame that went out incomplete, while nothing behind it has.
    passed: Option<u32>,
    last: Option<Last>,
    interval: Duration,
    marks: u8,
    held: BTreeMap<Number, HeldPacket>,
    held_bytes: usize,
    arrivals: BTreeSet<(Instant, Number)>,
    /// The end of the known whole part of the front frame, and the ID of the packet before.
    checked: (Number, ExtendedId),
    /// The last examined front of `held`, and the first number behind its frame.
    front: Option<(Number, Option<Number>)>,
}

#[derive(Debug)]
struct HeldPacket {
    placed: Placed,
    timestamp: u32,
    marker: bool,
    deadline: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    number: Number,
    timestamp: u32,
    marker: bool,
    deadline: Instant,
}

impl RtpStream {
    pub(super) fn new(now: Instant, header: &RtpHeader, id: ExtendedId) -> Self {
        let newest = BASE + u64::from(header.sequence);
        Self {
            heard: now,
            begin: id,
            next: newest + 1,
            next_behind: id,
            newest,
            newest_id: id,
            checked: (newest + 1, id),
            ..Self::default()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn memory(&self) -> usize {
        self.held_bytes + self.held.len() * HELD_OVERHEAD
    }

    pub(super) fn handle(
        &mut self,
        placed: Placed,
        header: &RtpHeader,
        deadline: Duration,
        missing: &Gaps,
        out: &mut Outlet<'_>,
    ) -> Turn {
        let now = placed.since;
        let deadline = now + deadline.saturating_sub(placed.unit.age).max(self.interval);
        self.heard = now;
        let id = placed.last;
        if id < self.begin {
            out.release(placed);
            return Turn::Kept;
        }
        let step = i64::from(header.sequence.wrapping_sub(self.newest as u16) as i16);
        let number = self.newest.saturating_add_signed(step);
        let is_newest = id > self.newest_id;
        self.newest_id = self.newest_id.max(id);
        if is_newest && !(-MISORDER_MAX..=DROPOUT_MAX).contains(&step) {
            while self.give_up(missing, out) {}
            *self = Self::new(now, header, id);
            out.release(placed);
            return Turn::Kept;
        }
        if number < self.next {
            if !is_newest {
                return Turn::Discarded;
            }
            out.release(placed);
            return Turn::Kept;
        }
        if self.held.contains_key(&number) {
            return Turn::Discarded;
        }
        self.newest = self.newest.max(number);
        self.arrivals.insert((now, number));
        self.held_bytes += placed.bytes();
        let (timestamp, marker) = (header.timestamp, header.marker);
        self.held.insert(number, HeldPacket { placed, timestamp, marker, deadline });
        self.advance(missing, out);
        self.look_behind(Some((number, timestamp)));
        Turn::Kept
    }

    pub(super) fn due(&self, times: &Times) -> Option<Instant> {
        let (first, waiting) = self.held.first_key_value()?;
        let behind = self.front.and_then(|(_, behind)| self.held.get(&behind?));
        let next = match behind {
            _ if *first > self.next => waiting.deadline,
            Some(behind) => behind.deadline,
            None => waiting.deadline + self.interval,
        };
        let (came, _) = self.arrivals.first()?;
        Some((next - times.decode).min(*came + times.max_buffer))
    }

    pub(super) fn give_up(&mut self, missing: &Gaps, out: &mut Outlet<'_>) -> bool {
        let Some((first, waiting)) = self.held.first_key_value() else { return false };
        if *first > self.next {
            self.skip_to(*first);
        } else {
            let timestamp = waiting.timestamp;
            let behind = self.front.and_then(|(_, behind)| behind);
            while let Some((number, _)) = self.held.first_key_value()
                && behind.is_none_or(|behind| *number < behind)
            {
                self.release_first(out);
            }
            behind.into_iter().for_each(|behind| self.skip_to(behind));
            self.passed = behind.is_none().then_some(timestamp);
        }
        self.advance(missing, out);
        self.look_behind(None);
        true
    }

    fn advance(&mut self, missing: &Gaps, out: &mut Outlet<'_>) {
        while let Some((first, waiting)) = self.held.first_key_value() {
            let first = *first;
            let is_passed = self.passed == Some(waiting.timestamp);
            let lacks =
                first > self.next && missing.is_any_between(self.next_behind, waiting.placed.first);
            if lacks && !is_passed {
                return;
            }
            self.skip_to(first);
            if is_passed || self.marks < MARKED {
                self.release_first(out);
                continue;
            }
            let Some(end) = self.end_of_front(missing) else { return };
            while self.held.first_key_value().is_some_and(|(number, _)| *number < end) {
                self.release_first(out);
            }
        }
    }

    fn end_of_front(&mut self, missing: &Gaps) -> Option<Number> {
        let timestamp = self.held.get(&self.next)?.timestamp;
        for (number, waiting) in self.held.range(self.checked.0..) {
            let (checked, id) = self.checked;
            if *number > checked && missing.is_any_between(id, waiting.placed.first) {
                return None;
            }
            if waiting.timestamp != timestamp {
                return Some(*number);
            }
            self.checked = (*number + 1, waiting.placed.last);
            if waiting.marker {
                return Some(*number + 1);
            }
        }
        None
    }

    fn skip_to(&mut self, number: Number) {
        self.next = number;
        self.checked = self.checked.max((number, self.next_behind));
    }

    fn release_first(&mut self, out: &mut Outlet<'_>) {
        let Some((number, waiting)) = self.held.pop_first() else { return };
        let HeldPacket { placed, timestamp, marker, deadline } = waiting;
        self.arrivals.remove(&(placed.since, number));
        self.held_bytes -= placed.bytes();
        let mut of_frame = deadline;
        match self.last {
            Some(last) if last.timestamp == timestamp => of_frame = last.deadline,
            Some(last) if last.number + 1 == number => {
                self.interval = deadline.since(last.deadline).min(INTERVAL_MAX);
                self.marks = match last.marker {
                    true => MARKS_MAX.min(self.marks + 1),
                    false => self.marks.saturating_sub(UNMARKED),
                };
            }
            _ => {}
        }
        self.last = Some(Last { number, timestamp, marker, deadline: of_frame });
        self.passed = self.passed.filter(|passed| *passed == timestamp);
        self.next = number + 1;
        self.next_behind = placed.last;
        self.checked = self.checked.max((self.next, placed.last));
        out.release(placed);
    }

    /// Finds the first that waits behind the front frame. `added`: a new number, and its timestamp.
    fn look_behind(&mut self, added: Option<(Number, u32)>) {
        let front = self.held.get(&self.next).map(|waiting| (self.next, waiting.timestamp));
        let Some((front, timestamp)) = front else {
            self.front = None;
            return;
        };
        match (&mut self.front, added) {
            (Some((known, behind)), Some((number, other))) if *known == front => {
                let is_nearer = behind.is_none_or(|behind| number < behind);
                if other != timestamp && is_nearer {
                    *behind = Some(number);
                }
            }
            _ => {
                let mut waiting = self.held.range(front..);
                let behind = waiting.find(|(_, waiting)| waiting.timestamp != timestamp);
                self.front = Some((front, behind.map(|(number, _)| *number)));
            }
        }
    }
}
