//! One sequence for the whole lane, as the redundant framework keeps it.
//!
//! ```text
//! next ─► 7   held: 9 10 12          8 comes: 8 9 10 go out, 12 waits for 11
//!             7 comes never: when 9 has waited max_buffer, 9 and 10 go out, 7 and 8 are late
//! ```
//!
//! The paper's `send()` waits at the lowest packet of a heap for min(MaxBufferTime, limit - now), and
//! keeps as its limit the arrival of the packet that it waited at before. What it is after is that no
//! packet waits longer than MaxBufferTime; but a packet further up in the heap may, since the wait at
//! each gap begins anew. Here the limit is the earliest over all packets of the heap, which holds for
//! each of them, and is the paper's where there is one gap.
//!
//! A number far ahead, with nothing near it, while lower ones still come, is no place to go on at: all
//! that the lane carries would be late until it is there. Such a stray is dropped when its time is over.
//!
//! Source: redundant framework (Networking'24) section III-B, figure 5.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_types::Instant;

use super::{Outlet, Placed, Position, Turn};

/// A gap of more IDs than this may be due to a stray.
const STRAY_GAP: u64 = 1024;

/// Packets that wait for all before them.
#[derive(Debug)]
pub(super) struct Strict {
    /// What precedes it was sent before the order was promised.
    begin: Position,
    /// Whose turn it is.
    next: Position,
    max_buffer: Duration,
    /// The heap, by first position.
    held: BTreeMap<Position, Placed>,
    /// How many packets were taken in, and after how many of them each in the heap behind a wide gap came.
    taken: u64,
    strays: BTreeMap<Position, u64>,
    /// The same by arrival.
    arrivals: BTreeSet<(Instant, Position)>,
}

impl Strict {
    pub(super) fn new(begin: Position, max_buffer: Duration) -> Self {
        Self {
            begin,
            next: begin,
            max_buffer,
            held: BTreeMap::new(),
            taken: 0,
            strays: BTreeMap::new(),
            arrivals: BTreeSet::new(),
        }
    }

    pub(super) fn set_max_buffer(&mut self, max_buffer: Duration) {
        self.max_buffer = max_buffer;
    }

    /// What precedes the first packet was not sent under another order.
    pub(super) fn forget_before(&mut self) {
        self.begin = 0;
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn handle(&mut self, placed: Placed, out: &mut Outlet<'_>) -> Turn {
        if placed.first < self.begin {
            out.release(placed);
            return Turn::Kept;
        }
        if placed.first < self.next {
            return Turn::Discarded;
        }
        if self.held.contains_key(&placed.first) {
            return Turn::Discarded;
        }
        self.taken += 1;
        if placed.first - self.next > STRAY_GAP {
            self.strays.insert(placed.first, self.taken);
        }
        self.arrivals.insert((placed.since, placed.first));
        self.held.insert(placed.first, placed);
        self.release_in_order(out);
        Turn::Kept
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Outlet<'_>) {
        while self.poll_timeout().is_some_and(|at| at <= now) {
            out.counts.timeouts += self.give_up(out);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.arrivals.first().map(|(since, _)| *since + self.max_buffer)
    }

    /// Gives up, before its time, what the packet that came first waits for; `false` if none waits.
    pub(super) fn release_oldest(&mut self, out: &mut Outlet<'_>) -> bool {
        let waits = !self.arrivals.is_empty();
        out.counts.forced += self.give_up(out);
        waits
    }

    /// Hands out the packet that came first, and those before it, or drops it if it is a stray; returns
    /// how many gaps that skips.
    fn give_up(&mut self, out: &mut Outlet<'_>) -> u64 {
        let Some((since, oldest)) = self.arrivals.first().copied() else { return 0 };
        if self.is_stray(oldest) {
            self.arrivals.remove(&(since, oldest));
            self.strays.remove(&oldest);
            self.held.remove(&oldest).into_iter().for_each(|placed| out.discard(placed));
            return 0;
        }
        let mut gaps = 0;
        while self.next <= oldest
            && let Some(first) = self.held.keys().next().copied()
        {
            self.next = first;
            gaps += 1;
            self.release_in_order(out);
        }
        // Packets of a broken peer may overlap, so that the turn of one has passed while it waited.
        if self.arrivals.first().is_some_and(|(_, first)| *first == oldest) {
            self.arrivals.pop_first();
            self.strays.remove(&oldest);
            self.held.remove(&oldest).into_iter().for_each(|placed| out.release(placed));
        }
        gaps
    }

    /// Whether the lane does not go on at `first`: a wide gap precedes it, and since it came nothing but
    /// lower packets did, or four times as many as wait from it on.
    fn is_stray(&self, first: Position) -> bool {
        let Some(taken) = self.strays.get(&first) else { return false };
        let before = self.held.range(..first).next_back().map_or(self.next, |(_, held)| held.last);
        if first - before.min(first) <= STRAY_GAP {
            return false;
        }
        let since = self.taken - taken;
        let beyond = self.held.range(first..).count() as u64;
        since >= 1 && beyond == 1 || since.saturating_sub(beyond) >= 4 * beyond
    }

    fn release_in_order(&mut self, out: &mut Outlet<'_>) {
        while let Some(placed) = self.held.remove(&self.next) {
            self.arrivals.remove(&(placed.since, placed.first));
            self.strays.remove(&placed.first);
            self.next = placed.last + 1;
            out.release(placed);
        }
    }
}
