//! Whether a key frame is there whole while packets before it are missing.
//!
//! ```text
//! 7 8 . . 11 12 . | K K K      as they come: K is a key frame from its first packet to its marker
//! 7 8             | K K K      as they go on, at once
//! ```
//!
//! A jitter buffer waits for what is missing, and has no call that ends this. It goes on when it is
//! given something for each number that is missing; what comes out of it before the key frame is
//! thrown away. What is missing and comes later is not let in any more: it would count as a sign
//! that the wait is too short.

use std::collections::VecDeque;
use std::time::Duration;

use super::key_frame::Part;
use crate::strangers::Budget;

/// Follows the numbers of one sender's packets into the jitter buffer and out of it.
#[derive(Debug)]
pub struct Jump {
    /// The first number that has not come.
    due: Option<u16>,
    /// What came of those from it on: the first is missing, or there are none.
    ahead: VecDeque<Option<Packet>>,
    /// Where it went on last.
    resumed: Option<u16>,
    /// What comes out before that is thrown away, until that comes.
    awaited: Option<u16>,
    /// Whether the last one that came out was awaited: it follows nothing that is missed.
    is_fresh: bool,
    budget: Budget,
}

/// What matters of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its sequence number.
    pub number: u16,
    /// Its frame's time.
    pub timestamp: u32,
    /// The payload type.
    pub payload_type: u8,
    /// Whether it is its frame's last.
    pub marker: bool,
    /// What is in it.
    pub part: Part,
}

/// What becomes of a packet before the jitter buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It goes in.
    Pass,
    /// Something stands in for these numbers first: it goes on with the key frame.
    Fill(Vec<u16>),
    /// It is waited for no longer.
    Drop,
}

/// What becomes of a packet behind the jitter buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It goes on.
    Pass,
    /// It goes on, and has nothing to do with what was before it.
    Resume,
    /// It is before the key frame that it goes on with.
    Drop,
}

impl Jump {
    /// Of a sender that is not known yet.
    pub fn new() -> Self {
        Self {
            due: None,
            ahead: VecDeque::new(),
            resumed: None,
            awaited: None,
            is_fresh: false,
            budget: Budget::of_jumps(),
        }
    }

    /// A packet is about to enter the jitter buffer.
    pub fn on_packet(&mut self, now: Duration, packet: Packet) -> Entry {
        let due = *self.due.get_or_insert(packet.number);
        self.resumed = self.resumed.filter(|at| distance(due, *at) < WINDOW);
        let Ok(place) = usize::try_from(distance(packet.number, due)) else {
            let is_given_up = self.resumed.is_some_and(|at| distance(packet.number, at) < 0);
            return if is_given_up { Entry::Drop } else { Entry::Pass };
        };
        if place >= usize::from(WINDOW.unsigned_abs()) {
            self.begin_behind(packet.number);
            return Entry::Pass;
        }
        if self.ahead.len() <= place {
            self.ahead.resize(place + 1, None);
        }
        self.ahead[place] = Some(packet);
        let key_frame = self.key_frame(place).filter(|first| *first > 0);
        let missing = key_frame.map(|first| self.missing(first)).unwrap_or_default();
        let is_jump = (1..=MISSING_MOST).contains(&missing.len()) && self.budget.take(now);
        if let (Some(first), true) = (key_frame, is_jump) {
            self.go_on(first);
            self.resumed = self.due;
            self.awaited = self.due;
        }
        self.settle();
        if is_jump { Entry::Fill(missing) } else { Entry::Pass }
    }

    /// A packet comes out of the jitter buffer, or word that it is waited for no longer.
    pub fn on_out(&mut self, number: u16) -> Exit {
        if let Some(due) = self.due
            && let Ok(place) = usize::try_from(distance(number, due))
        {
            self.go_on(place + 1);
            self.settle();
        }
        self.is_fresh = false;
        match self.awaited {
            Some(first) if distance(number, first) < 0 => Exit::Drop,
            Some(_) => {
                (self.awaited, self.is_fresh) = (None, true);
                Exit::Resume
            }
            None => Exit::Pass,
        }
    }

    /// A key frame is asked for by who has seen that numbers are missing: whether it is there.
    pub fn on_key_frame_asked(&mut self) -> bool {
        std::mem::take(&mut self.is_fresh)
    }

    /// Where in `ahead` the key frame begins that has the packet at `place`, if it is whole.
    fn key_frame(&self, place: usize) -> Option<usize> {
        let Packet { timestamp, payload_type, .. } = self.ahead[place]?;
        let of_it = |it: &Option<Packet>| {
            it.filter(|it| (it.timestamp, it.payload_type) == (timestamp, payload_type))
        };
        let first = place - self.ahead.range(..place).rev().map_while(of_it).count();
        if !self.ahead[first]?.part.begins() {
            return None;
        }
        let mut all = Part::NONE;
        for packet in self.ahead.range(first..).map_while(of_it) {
            all = all | packet.part;
            if packet.marker {
                return all.is_key_frame().then_some(first);
            }
        }
        None
    }

    /// The numbers that are missing before this place.
    fn missing(&self, place: usize) -> Vec<u16> {
        let numbers = (self.due.unwrap_or(0)..=u16::MAX).chain(0..=u16::MAX);
        let before = self.ahead.range(..place).zip(numbers);
        before.filter(|(packet, _)| packet.is_none()).map(|(_, number)| number).collect()
    }

    /// Forgets the first `count` of those that are due.
    fn go_on(&mut self, count: usize) {
        self.ahead.drain(..count.min(self.ahead.len()));
        // Never more than half of all numbers.
        self.due = self.due.map(|due| due.wrapping_add(count as u16));
    }

    /// Goes on to the next that is missing.
    fn settle(&mut self) {
        let there = self.ahead.iter().take_while(|it| it.is_some()).count();
        self.go_on(there);
    }

    /// More is missing than is followed.
    fn begin_behind(&mut self, number: u16) {
        self.ahead.clear();
        self.due = Some(number.wrapping_add(1));
        (self.resumed, self.awaited) = (None, None);
    }
}

/// How far `number` is ahead of `other`.
fn distance(number: u16, other: u16) -> i16 {
    number.wrapping_sub(other).cast_signed()
}

/// Numbers that are followed at once: most of a second at 30 Mbit/s.
const WINDOW: i16 = 2_048;
/// Where more is missing, it is waited for as ever.
const MISSING_MOST: usize = 1_000;

#[cfg(test)]
mod tests;
