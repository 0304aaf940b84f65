//! What a session holds stays within its share, whichever lanes the peer chooses.
//!
//! ```text
//! lanes: [ decoder, reorder, fragments ] x 8, [ queue, sent packets ] x 8 ─► sum ─► more than the share?
//! parts of datagrams                     who holds most lets go of its oldest ◄───────────────────┘
//! ```
//!
//! Each of these has a bound of its own, and all of them together would be some 200 MiB. Few
//! sessions need a tenth of it: what was received is kept for 0.7 s, so 30 Mbit/s take some 3 MiB.

use roadweave_proto::{Instant, LaneId};

use super::Session;
use crate::lane::{LaneReceiver, LaneSender, MemoryStats};

/// So much may come before the sum is made again, bytes: it takes a while, and each packet counts.
const UNCHECKED_MAX: usize = 64 << 10;
/// What a packet may cost beside its bytes.
const PACKET_OVERHEAD: usize = 640;
/// When the share is used up, this part of it is let go of, so that it need not be looked for at
/// once again.
const SLACK: u64 = 16;

/// Who holds most.
#[derive(Clone, Copy)]
enum Holder {
    Sender(usize),
    Receiver(LaneId),
    Parts,
}

impl Session {
    /// The memory that the session holds, by kind.
    pub fn memory(&self) -> MemoryStats {
        let mut sum = MemoryStats {
            flow_bytes: self.flows.as_ref().map_or(0, |flows| flows.memory() as u64),
            fragment_bytes: self.parts.bytes() as u64,
            ..MemoryStats::default()
        };
        sum.reorder_bytes += self.exit.symbols.as_ref().map_or(0, |queue| queue.memory() as u64);
        self.senders.iter().for_each(|sender| sum.add(&sender.memory()));
        self.receivers.values().for_each(|receiver| sum.add(&receiver.memory()));
        sum
    }

    /// Takes note that `bytes` came in; now and then looks whether they have a place.
    pub(super) fn note_incoming(&mut self, now: Instant, bytes: usize) {
        self.unchecked += bytes + PACKET_OVERHEAD;
        if self.unchecked > UNCHECKED_MAX {
            self.keep_to_share(now);
        }
    }

    /// Lets go of the oldest of what is held, if that is more than the share.
    pub(super) fn keep_to_share(&mut self, now: Instant) {
        self.unchecked = 0;
        let share = self.memory_max as u64;
        if self.memory().total() > share {
            self.shrink_to(now, share - share / SLACK);
        }
    }

    /// Lets go of the oldest of what is held, as far as it can, until that is `bytes` bytes.
    pub(crate) fn shrink_to(&mut self, now: Instant, bytes: u64) {
        // Each of them at most once: what it has not let go of then it cannot.
        let mut holders: Vec<(u64, Holder)> = Vec::new();
        let of_sender =
            |(at, sender): (usize, &LaneSender)| (sender.memory().total(), Holder::Sender(at));
        let of_receiver = |(lane, receiver): (&LaneId, &LaneReceiver)| {
            (receiver.memory().total(), Holder::Receiver(*lane))
        };
        holders.extend(self.senders.iter().enumerate().map(of_sender));
        holders.extend(self.receivers.iter().map(of_receiver));
        holders.push((self.parts.bytes() as u64, Holder::Parts));
        holders.sort_by_key(|(held, _)| std::cmp::Reverse(*held));
        for (_, holder) in holders {
            let excess = self.memory().total().saturating_sub(bytes);
            if excess == 0 {
                return;
            }
            match holder {
                Holder::Sender(at) => self.senders[at].shed(now, excess),
                Holder::Parts => self.parts.shed(excess as usize, &mut self.exit.drops),
                Holder::Receiver(lane) => {
                    let exit = &mut self.exit;
                    if let Some(receiver) = self.receivers.get_mut(&lane) {
                        receiver
                            .shed(now, excess, &mut |delivery| exit.deliver(now, lane, delivery));
                    }
                }
            }
        }
    }
}
