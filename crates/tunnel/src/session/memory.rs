//! Keeps the memory of a session within its share, whatever the peer sends.
//!
//! ```text
//! lanes: [ decoder, reorder, fragments ] x 8, [ queue, sent packets ] x 8 ─► sum ─► more than the share?
//! parts of datagrams                     the largest holder drops its oldest ◄────────────────┘
//! ```
//!
//! Each part has its own bound, together some 200 MiB. Few sessions need a tenth.

use roadweave_proto::{Instant, LaneId};

use super::Session;
use crate::lane::MemoryStats;

/// Bytes that may come in before memory is summed up again, which is costly.
const UNCHECKED_MAX: usize = 64 << 10;
const PACKET_OVERHEAD: usize = 640;
/// Beyond the share, one part in this many is freed, so that the next check is not due at once.
const SLACK: u64 = 16;

#[derive(Clone, Copy)]
enum Holder {
    Sender(usize),
    Receiver(LaneId),
    Parts,
}

impl Session {
    /// The memory that the session holds, by use.
    pub fn memory(&self) -> MemoryStats {
        let mut sum = MemoryStats {
            flow_bytes: self.flows.as_ref().map_or(0, |flows| flows.memory() as u64),
            fragment_bytes: self.parts.bytes as u64,
            ..MemoryStats::default()
        };
        sum.reorder_bytes += self.output.symbols.as_ref().map_or(0, |queue| queue.memory() as u64);
        self.senders.iter().for_each(|sender| sum.add(&sender.memory()));
        self.receivers.values().for_each(|receiver| sum.add(&receiver.memory()));
        sum
    }

    pub(super) fn note_incoming(&mut self, now: Instant, bytes: usize) {
        self.unchecked += bytes + PACKET_OVERHEAD;
        if self.unchecked > UNCHECKED_MAX {
            self.keep_to_share(now);
        }
    }

    pub(super) fn keep_to_share(&mut self, now: Instant) {
        self.unchecked = 0;
        let share = self.memory_max as u64;
        if self.memory().total() > share {
            self.shrink_to(now, share - share / SLACK);
        }
    }

    pub(crate) fn shrink_to(&mut self, now: Instant, bytes: u64) {
        // Each holder once: what is left after that cannot be freed.
        let senders = self.senders.iter().map(|sender| sender.memory().total());
        let senders = senders.enumerate().map(|(at, held)| (held, Holder::Sender(at)));
        let receivers = self.receivers.iter();
        let receivers = receivers.map(|(lane, it)| (it.memory().total(), Holder::Receiver(*lane)));
        let parts = (self.parts.bytes as u64, Holder::Parts);
        let mut holders: Vec<_> = senders.chain(receivers).chain([parts]).collect();
        holders.sort_by_key(|(held, _)| std::cmp::Reverse(*held));
        for (_, holder) in holders {
            let excess = self.memory().total().saturating_sub(bytes);
            if excess == 0 {
                return;
            }
            match holder {
                Holder::Sender(at) => self.senders[at].shed(now, excess),
                Holder::Parts => self.parts.shed(excess as usize, &mut self.output.drops),
                Holder::Receiver(lane) => {
                    let output = &mut self.output;
                    if let Some(receiver) = self.receivers.get_mut(&lane) {
                        receiver
                            .shed(now, excess, &mut |delivery| output.deliver(now, lane, delivery));
                    }
                }
            }
        }
    }
}
