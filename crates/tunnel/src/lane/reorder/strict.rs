//! One sequence for the whole lane, as in the redundant framework.
//!
//! ```text
//! next ─► 7   held: 9 10 12          8 comes: 8 9 10 go out, 12 waits for 11
//!             7 comes never: when 9 has waited max_buffer, 9 and 10 go out, 7 and 8 are late
//! ```
//!
//! The paper's `send()` waits at the lowest packet of a heap for min(MaxBufferTime, limit - now),
//! where limit is the arrival of the packet before, and starts again at each gap. Here the limit is
//! the earliest over all packets of the heap, so that no packet waits longer than MaxBufferTime.
//!
//! Source: redundant framework (Networking'24) section III-B, figure 5.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_proto::Instant;

use super::{ExtendedId, Outlet, Placed, Turn};

#[derive(Debug)]
pub(super) struct Strict {
    /// Earlier IDs were sent before the order was promised.
    pub(super) begin: ExtendedId,
    next: ExtendedId,
    pub(super) max_buffer: Duration,
    held: BTreeMap<ExtendedId, Placed>,
    arrivals: BTreeSet<(Instant, ExtendedId)>,
}

impl Strict {
    pub(super) fn new(begin: ExtendedId, max_buffer: Duration) -> Self {
        Self { begin, next: begin, max_buffer, held: BTreeMap::new(), arrivals: BTreeSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn handle(&mut self, placed: Placed, out: &mut Outlet<'_>) -> Turn {
        if placed.first < self.begin {
            out.release(placed);
            return Turn::Kept;
        }
        if placed.first < self.next || self.held.contains_key(&placed.first) {
            return Turn::Discarded;
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

    pub(super) fn release_oldest(&mut self, out: &mut Outlet<'_>) -> bool {
        let waits = !self.arrivals.is_empty();
        out.counts.forced += self.give_up(out);
        waits
    }

    /// Releases the packet that came first, and those before it; returns the gaps skipped.
    fn give_up(&mut self, out: &mut Outlet<'_>) -> u64 {
        let Some((_, oldest)) = self.arrivals.first().copied() else { return 0 };
        let mut gaps = 0;
        while self.next <= oldest
            && let Some(first) = self.held.keys().next().copied()
        {
            self.next = first;
            gaps += 1;
            self.release_in_order(out);
        }
        // Packets of a faulty peer may overlap, so its turn may have passed.
        if self.arrivals.first().is_some_and(|(_, first)| *first == oldest) {
            self.arrivals.pop_first();
            self.held.remove(&oldest).into_iter().for_each(|placed| out.release(placed));
        }
        gaps
    }

    fn release_in_order(&mut self, out: &mut Outlet<'_>) {
        while let Some(placed) = self.held.remove(&self.next) {
            self.arrivals.remove(&(placed.since, placed.first));
            self.next = placed.last + 1;
            out.release(placed);
        }
    }
}
