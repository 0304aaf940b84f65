//! `send()` of the paper's figure 5 as its text describes it, for comparison with the router.
//!
//! ```text
//! lowest of the heap ─► follows the last sent: send │ smaller: discard │ larger: wait
//! wait min(MaxBufferTime, limit - now) ─► over: limit = ∞, send it      (a timeout)
//!                                      └► another is the lowest: limit = arrival of the one that was
//!                                         waited at + MaxBufferTime, look again
//! ```
//!
//! The text does not say how long a limit holds if no wait ran to its end. It cannot be for good: a
//! gap behind one that was filled would not be waited for, and 3,542 lost packets of one link
//! (table III) would cause thousands of timeouts, not 3 (table IV). The two of [`Limit`] remain.
//!
//! Source: redundant framework (Networking'24) section III-B, figure 5.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_proto::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// While the packet waits whose arrival it comes from.
    ItsPacketWaits,
    /// Until the next packet is sent: the figure is for one packet.
    NextPacket,
}

/// The receiver's buffer and its thread `send()`. Times are calls of [`Figure5::handle`], in order.
#[derive(Debug)]
pub struct Figure5 {
    max_buffer: Duration,
    holds: Limit,
    next: u32,
    heap: BTreeMap<u32, Instant>,
    limit: Option<(u32, Instant)>,
    waiting: Option<(u32, Instant)>,
    pub sent: BTreeMap<u32, Instant>,
    pub discarded: BTreeSet<u32>,
    pub timeouts: u64,
}

impl Figure5 {
    pub fn new(max_buffer: Duration, holds: Limit) -> Self {
        Self {
            max_buffer,
            holds,
            next: 0,
            heap: BTreeMap::new(),
            limit: None,
            waiting: None,
            sent: BTreeMap::new(),
            discarded: BTreeSet::new(),
            timeouts: 0,
        }
    }

    pub fn handle(&mut self, now: Instant, number: u32) {
        self.run_until(now);
        self.heap.insert(number, now);
        self.send(now);
    }

    pub fn run_until(&mut self, now: Instant) {
        while let Some((_, until)) = self.waiting
            && until <= now
        {
            self.send(until);
        }
    }

    fn send(&mut self, now: Instant) {
        while let Some((number, arrived)) = self.heap.first_key_value().map(|(n, at)| (*n, *at)) {
            if let Some((at, _)) = self.waiting
                && at != number
            {
                self.limit = Some((at, self.heap[&at] + self.max_buffer));
                self.waiting = None;
            }
            if number > self.next {
                let limit = self.limit.map_or(now + self.max_buffer, |(_, limit)| limit);
                let latest = limit.min(now + self.max_buffer);
                let (_, until) = *self.waiting.get_or_insert((number, latest));
                if until > now {
                    return;
                }
                self.timeouts += 1;
                (self.limit, self.waiting) = (None, None);
            }
            self.heap.remove(&number);
            if number < self.next {
                self.discarded.insert(number);
                continue;
            }
            assert!(arrived <= now, "time passes");
            self.sent.insert(number, now);
            self.next = number + 1;
            let holds = |(packet, _): &(u32, Instant)| {
                self.holds == Limit::ItsPacketWaits && *packet >= self.next
            };
            self.limit = self.limit.filter(holds);
        }
        self.waiting = None;
    }
}
