//! A log of the events of each packet of a session's lanes.
//!
//! ```text
//! sending side:    Sent ─► Lost ─► RepairAsked ─► (Lost again ...)
//! receiving side:  Delivered, in the order of the inner packets that a session yields
//! ```
//!
//! It is off by default. [`Session::observe_packets`](crate::Session::observe_packets) turns it on;
//! its user must fetch the events; only the newest are kept.

use std::collections::VecDeque;

use roadweave_proto::{Instant, LaneId, PacketId, PathId};

/// An event of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEvent {
    /// When it happened.
    pub at: Instant,
    /// The lane.
    pub lane: LaneId,
    /// The packet, or the fragment of one.
    pub id: PacketId,
    /// What happened.
    pub what: PacketStep,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketStep {
    /// The packet left for the first time.
    Sent {
        /// The path, or the first of several.
        path: PathId,
        /// When the inner packet came in.
        queued: Instant,
    },
    /// The packet was declared lost, by QUIC or by the recovery's timer.
    Lost,
    /// The recovery asked to send the packet again, or coded packets over it.
    RepairAsked,
    /// The inner packet that this one completes went to the device.
    Delivered {
        /// Whether the packet was decoded from coded packets.
        decoded: bool,
    },
}

#[derive(Debug, Default)]
pub(crate) struct PacketLog {
    is_on: bool,
    events: VecDeque<PacketEvent>,
}

/// Events kept: those of ten thousand packets in a burst.
const EVENTS_MAX: usize = 1 << 15;

impl PacketLog {
    pub(crate) fn switch(&mut self, is_on: bool) {
        self.is_on = is_on;
        self.events.clear();
    }

    pub(crate) fn note(&mut self, at: Instant, lane: LaneId, id: PacketId, what: PacketStep) {
        if !self.is_on {
            return;
        }
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(PacketEvent { at, lane, id, what });
    }

    pub(crate) fn poll(&mut self) -> Option<PacketEvent> {
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(log: &mut PacketLog, id: u32) {
        log.note(Instant::ZERO, LaneId(0), PacketId(id), PacketStep::Lost);
    }

    #[test]
    fn nothing_is_logged_unless_switched_on_and_memory_is_bounded() {
        let mut log = PacketLog::default();
        note(&mut log, 0);
        assert_eq!(log.poll(), None);
        log.switch(true);
        (0..EVENTS_MAX as u32 + 2).for_each(|id| note(&mut log, id));
        assert_eq!(log.events.len(), EVENTS_MAX);
        assert_eq!(log.poll().map(|event| event.id), Some(PacketId(2)), "the oldest went");
    }
}
