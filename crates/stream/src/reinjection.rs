//! Second copies of what may be late (XLINK section 5.1).
//!
//! ```text
//! class 1: unsent ─► in flight, again ─► class 2: unsent ─► in flight, again ─► ...
//!                    └── poll_reinjection                   └── poll_reinjection
//! ```
//!
//! "When the sender sends out the last packet in Stream 1, it immediately checks the unacked_q to
//! look for packets of the same stream priority. If any, it inserts those packets before the unsent
//! packets of lower priority streams." Whether copies are worth their bytes is the owner's to say
//! (XLINK section 5.2): it grants a budget, and each byte is copied at most once each time it is
//! sent.

use std::time::Duration;

use bytes::Bytes;
use roadweave_types::Instant;

use crate::priority::Rank;
use crate::streams::Streams;
use crate::transmit::{Symbol, data_room};

/// Streams that are looked at in one call.
const LOOKED_AT_MAX: usize = 64;

impl Streams {
    /// Copies may be made of so many bytes more, from now on.
    pub fn set_reinjection_budget(&mut self, bytes: u64) {
        self.reinjection_budget = bytes;
    }

    /// Bytes of which copies may still be made.
    pub fn reinjection_budget(&self) -> u64 {
        self.reinjection_budget
    }

    /// Copies of what is in flight for `older_than` or longer, as the body of one symbol of at most
    /// `room` bytes. Nothing while something of the same or a higher priority has not left, so that
    /// it can be asked before each [`Streams::poll_transmit`].
    pub fn poll_reinjection(
        &mut self,
        now: Instant,
        room: usize,
        older_than: Duration,
    ) -> Option<Bytes> {
        if self.reinjection_budget == 0 || older_than > now.since(Instant::ZERO) {
            return None;
        }
        let before = now - older_than;
        let unsent = self.first_unsent();
        let comes_first = |rank: &&Rank| unsent.is_none_or(|unsent| rank.class < unsent.class);
        let ranks = self.index.in_flight.iter().take_while(comes_first).take(LOOKED_AT_MAX);
        let ranks: Vec<Rank> = ranks.copied().collect();
        let mut symbol = Symbol::new(room);
        for Rank { id, .. } in ranks {
            let Some(stream) = self.table.get_mut(&id) else { continue };
            while let Some(all) = stream.send.stale(before, self.reinjection_budget) {
                let Some(room) = data_room(id, &all, &symbol) else { break };
                let room = room.min(self.reinjection_budget);
                let Some(segment) = stream.send.stale(before, room) else { break };
                symbol.put_data(id, stream, &segment);
                stream.send.on_reinjected(&segment);
                self.reinjection_budget -= segment.length;
                self.stats.reinjected += segment.length;
            }
            self.settle(now, id);
        }
        let symbol = symbol.finish()?;
        self.stats.symbols += symbol.len() as u64;
        Some(symbol)
    }

    /// Who sends next, of what has not left or is known to be lost.
    fn first_unsent(&self) -> Option<Rank> {
        let may_send = self.send_credit.room() > 0 && self.index.records < self.records_max();
        let fresh = self.index.fresh.first().filter(|_| may_send);
        self.index.again.first().into_iter().chain(fresh).min().copied()
    }
}
