//! Even delivery: each packet of a lane goes out as long after it was sent as all others.
//!
//! ```text
//! sent          │││  │││  │││
//! comes           ││ │  ││ │ ││ │ │        each by its path, a repair later
//! goes out            │││  │││  │││        sent + delay, which 99 of 100 keep
//! ```
//!
//! Who measures the network by when each packet comes, as the congestion control of WebRTC does,
//! takes the difference of two paths' delays for a queue. With one delay for all it sees a link
//! whose delay does not change, until the delay itself has to.
//!
//! The delay follows what the packets took of late ([`Delays`]). A packet that comes after its time
//! goes out at once, and is counted: it was late for its receiver too. What tells no time waits for
//! nothing.
//!
//! [`Delays`]: delays::Delays

mod delays;

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::Instant;

use super::{ExtendedId, Outlet, Placed, Turn};
use delays::{Delays, Seen};

/// The packets of a lane that wait until the delay of all has passed.
#[derive(Debug)]
pub(super) struct Even {
    delays: Delays,
    /// By when they were sent, µs of the peer's clock, and those of one millisecond by ID.
    held: BTreeMap<(i64, ExtendedId), Placed>,
}

impl Even {
    pub(super) fn new(max_buffer: Duration) -> Self {
        Self { delays: Delays::new(max_buffer), held: BTreeMap::new() }
    }

    pub(super) fn set_max_buffer(&mut self, max_buffer: Duration) {
        self.delays.set_wait_max(max_buffer);
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// The bytes that it takes beside the packets that wait, roughly.
    pub(super) fn memory(&self) -> usize {
        self.delays.memory()
    }

    /// How long the quickest packet of late would wait.
    pub(super) fn wait(&self) -> Duration {
        self.delays.spread()
    }

    pub(super) fn handle(&mut self, placed: Placed, out: &mut Outlet<'_>) -> Turn {
        let now = placed.since;
        let Some(stamp) = placed.unit.sent.filter(|_| placed.unit.packet.is_some()) else {
            out.release(placed);
            return Turn::Kept;
        };
        let (sent, seen) = self.delays.on_packet(now, stamp);
        if seen == Seen::Anew {
            // By another clock nothing that waits has a time.
            while self.release_first(out) {}
        }
        if self.delays.due(sent) <= now {
            out.release(placed);
        } else {
            let twin = self.held.insert((sent, placed.first), placed);
            // Packets of a broken peer may overlap.
            twin.into_iter().for_each(|twin| out.release(twin));
        }
        // A shorter delay may be over for others.
        self.handle_timeout(now, out);
        if seen == Seen::Late { Turn::Late } else { Turn::Kept }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Outlet<'_>) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            self.release_first(out);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let ((sent, _), placed) = self.held.first_key_value()?;
        Some(self.delays.due(*sent).min(placed.since + self.delays.wait_max()))
    }

    /// Hands out, before its time, the one that was sent first; `false` if none waits.
    pub(super) fn release_oldest(&mut self, out: &mut Outlet<'_>) -> bool {
        let waits = self.release_first(out);
        out.counts.forced += u64::from(waits);
        waits
    }

    fn release_first(&mut self, out: &mut Outlet<'_>) -> bool {
        let first = self.held.pop_first();
        first.map(|(_, placed)| out.release(placed)).is_some()
    }
}

#[cfg(test)]
mod tests;
