//! Even delivery: each packet of a lane goes out equally long after it was sent.
//!
//! ```text
//! sent          │││  │││  │││
//! comes           ││ │  ││ │ ││ │ │        each by its path, a repair later
//! goes out            │││  │││  │││        sent + delay, which 99 of 100 keep
//! ```
//!
//! A receiver that measures arrival times, as WebRTC's congestion control does, takes the
//! difference of two paths' delays for a queue. With one delay for all it sees a constant one.
//!
//! The delay follows recent delays ([`Delays`]). A late packet goes out at once, and counts.
//!
//! [`Delays`]: delays::Delays

mod delays;

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::Instant;

use super::{ExtendedId, Outlet, Placed, Turn};
use delays::{Delays, Timing};

#[derive(Debug)]
pub(super) struct Even {
    pub(super) delays: Delays,
    /// By sending time, µs of the peer's clock, then by ID.
    held: BTreeMap<(i64, ExtendedId), Placed>,
}

impl Even {
    pub(super) fn new(max_buffer: Duration) -> Self {
        Self { delays: Delays::new(max_buffer), held: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn handle(&mut self, placed: Placed, out: &mut Outlet<'_>) -> Turn {
        let now = placed.since;
        let Some(stamp) = placed.unit.sent.filter(|_| placed.unit.packet.is_some()) else {
            out.release(placed);
            return Turn::Kept;
        };
        let (sent, seen) = self.delays.on_packet(now, stamp);
        if seen == Timing::Restarted {
            // The clock is another, so no waiting packet has a time.
            while self.release_first(out) {}
        }
        if self.delays.due(sent) <= now {
            out.release(placed);
        } else {
            let twin = self.held.insert((sent, placed.first), placed);
            // Packets of a faulty peer may overlap.
            twin.into_iter().for_each(|twin| out.release(twin));
        }
        // The delay may have become shorter.
        self.handle_timeout(now, out);
        if seen == Timing::Late { Turn::Late } else { Turn::Kept }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Outlet<'_>) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            self.release_first(out);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let ((sent, _), placed) = self.held.first_key_value()?;
        Some(self.delays.due(*sent).min(placed.since + self.delays.wait_max))
    }

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
