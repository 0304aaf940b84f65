//! Finds a complete key frame behind missing packets.
//!
//! ```text
//! 7 8 . . 11 12 . | K K K      as received: K is a key frame from its first packet to its marker
//! 7 8             | K K K      as passed on, at once
//! ```
//!
//! A jitter buffer waits for missing packets, and no call ends the wait. It continues once it gets
//! a stand-in for each missing number; its output before the key frame is dropped. Missing packets
//! that arrive later are dropped too: they would suggest that the wait is too short.

use std::collections::VecDeque;
use std::time::Duration;

use super::key_frame::FramePart;
use crate::budget::Budget;

/// Tracks the numbers of one sender into the jitter buffer and out of it.
#[derive(Debug)]
pub struct Jump {
    due: Option<u16>,
    /// The packets from `due` on: empty, or with the first one missing.
    ahead: VecDeque<Option<JumpPacket>>,
    resumed: Option<u16>,
    /// Output before this number is dropped.
    awaited: Option<u16>,
    /// Whether the last output was the awaited packet, which has no gap before it.
    is_fresh: bool,
    budget: Budget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JumpPacket {
    pub number: u16,
    pub timestamp: u32,
    pub payload_type: u8,
    pub marker: bool,
    pub part: FramePart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputAction {
    Pass,
    /// Insert stand-ins for these numbers first, to resume with the key frame.
    Fill(Vec<u16>),
    Drop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputAction {
    Pass,
    /// Pass it on as the beginning of a new sequence.
    Resume,
    Drop,
}

impl Jump {
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

    pub fn on_packet(&mut self, now: Duration, packet: JumpPacket) -> InputAction {
        let due = *self.due.get_or_insert(packet.number);
        self.resumed = self.resumed.filter(|at| distance(due, *at) < WINDOW);
        let Ok(place) = usize::try_from(distance(packet.number, due)) else {
            let is_given_up = self.resumed.is_some_and(|at| distance(packet.number, at) < 0);
            return if is_given_up { InputAction::Drop } else { InputAction::Pass };
        };
        if place >= usize::from(WINDOW.unsigned_abs()) {
            self.begin_behind(packet.number);
            return InputAction::Pass;
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
        if is_jump { InputAction::Fill(missing) } else { InputAction::Pass }
    }

    pub fn on_out(&mut self, number: u16) -> OutputAction {
        if let Some(due) = self.due
            && let Ok(place) = usize::try_from(distance(number, due))
        {
            self.go_on(place + 1);
            self.settle();
        }
        self.is_fresh = false;
        match self.awaited {
            Some(first) if distance(number, first) < 0 => OutputAction::Drop,
            Some(_) => {
                (self.awaited, self.is_fresh) = (None, true);
                OutputAction::Resume
            }
            None => OutputAction::Pass,
        }
    }

    /// Handles a key frame request for missing numbers; returns whether the key frame is there.
    pub fn on_key_frame_asked(&mut self) -> bool {
        std::mem::take(&mut self.is_fresh)
    }

    /// The position in `ahead` of the first packet of the complete key frame that contains `place`.
    fn key_frame(&self, place: usize) -> Option<usize> {
        let JumpPacket { timestamp, payload_type, .. } = self.ahead[place]?;
        let of_it = |it: &Option<JumpPacket>| {
            it.filter(|it| (it.timestamp, it.payload_type) == (timestamp, payload_type))
        };
        let first = place - self.ahead.range(..place).rev().map_while(of_it).count();
        if !self.ahead[first]?.part.begins() {
            return None;
        }
        let mut all = FramePart::NONE;
        for packet in self.ahead.range(first..).map_while(of_it) {
            all = all | packet.part;
            if packet.marker {
                return all.is_key_frame().then_some(first);
            }
        }
        None
    }

    fn missing(&self, place: usize) -> Vec<u16> {
        let numbers = (self.due.unwrap_or(0)..=u16::MAX).chain(0..=u16::MAX);
        let before = self.ahead.range(..place).zip(numbers);
        before.filter(|(packet, _)| packet.is_none()).map(|(_, number)| number).collect()
    }

    fn go_on(&mut self, count: usize) {
        self.ahead.drain(..count.min(self.ahead.len()));
        // `count` is at most half of all numbers.
        self.due = self.due.map(|due| due.wrapping_add(count as u16));
    }

    fn settle(&mut self) {
        let there = self.ahead.iter().take_while(|it| it.is_some()).count();
        self.go_on(there);
    }

    fn begin_behind(&mut self, number: u16) {
        self.ahead.clear();
        self.due = Some(number.wrapping_add(1));
        (self.resumed, self.awaited) = (None, None);
    }
}

fn distance(number: u16, other: u16) -> i16 {
    number.wrapping_sub(other).cast_signed()
}

/// Numbers tracked at once: most of a second at 30 Mbit/s.
const WINDOW: i16 = 2_048;
/// With more missing packets, the buffer waits as usual.
const MISSING_MOST: usize = 1_000;

#[cfg(test)]
mod tests;
