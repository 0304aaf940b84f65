//! Giving up video that its encoder has restarted behind with a key frame.
//!
//! ```text
//! superseded ─► waits in the queue ─────────────────► goes
//!            ├► left, and the peer may not have it ─► no repair, no further copy
//!            └► comes in within a moment ───────────► goes
//! ```

use std::collections::HashSet;

use bytes::Bytes;
use roadweave_proto::wire::{FragmentPosition, Symbol};
use roadweave_proto::{DropReason, Instant, PacketId};

use super::LaneSender;
use super::queue::Queued;
use crate::lane::superseded::Superseded;
use crate::lane::unfinished::inner_of;

impl LaneSender {
    /// Gives up older packets of a video; returns how many the peer may never get. Fragments stay.
    pub(crate) fn supersede(&mut self, now: Instant, superseded: Superseded) -> u64 {
        self.stale.superseded.note(now, superseded);
        let packets = self.supersede_waiting(superseded) + self.supersede_sent(superseded);
        self.stats.drops.add(DropReason::Superseded, packets);
        packets
    }

    fn supersede_waiting(&mut self, superseded: Superseded) -> u64 {
        let (mut packets, mut bytes) = (0, 0);
        self.queue.retain(|queued| {
            let goes = is_whole_and_older(queued, superseded);
            if goes {
                (packets, bytes) = (packets + 1, bytes + queued.datagram.len() as u64);
            }
            !goes
        });
        self.stats.queue_bytes -= bytes;
        packets
    }

    fn supersede_sent(&mut self, superseded: Superseded) -> u64 {
        let ids = self.sent_flows.ids().filter(|id| self.is_older(*id, superseded));
        let ids: HashSet<PacketId> = ids.collect();
        let (mut packets, mut copies) = (0, 0);
        for id in ids.iter().copied() {
            packets += u64::from(self.recovery.of(id).on_superseded(id));
            self.insurance.iter_mut().for_each(|insurance| insurance.on_superseded(id));
            copies += self.resends.copies.cancel(id);
            self.unacknowledged.iter_mut().for_each(|kept| kept.on_done(id));
            self.forget_unneeded(id);
        }
        self.resends.again.retain(|(_, id)| !ids.contains(id));
        copies += self.cancel_repairs(|id| ids.contains(&id));
        self.stats.drops.add(DropReason::CopyCancelled, copies);
        self.forget_done();
        packets
    }

    fn is_older(&self, id: PacketId, superseded: Superseded) -> bool {
        let Some(symbol) = self.coding.encoder.symbol(id) else { return false };
        let Ok(Symbol { position: FragmentPosition::Whole, body }) = Symbol::parse(symbol) else {
            return false;
        };
        superseded.covers_packet(&inner_of(symbol.slice_ref(body)))
    }
}

fn is_whole_and_older(queued: &Queued, superseded: Superseded) -> bool {
    let body = || Bytes::copy_from_slice(queued.datagram.body());
    let is_whole = queued.datagram.position() == FragmentPosition::Whole;
    is_whole && superseded.covers_packet(&inner_of(body()))
}
