//! The predecessor of each packet in its flow, in a lane that keeps the order of each flow.

use std::collections::{HashMap, VecDeque};

use roadweave_proto::PacketId;
use roadweave_proto::wire::PREDECESSOR_DISTANCE_MAX;

#[derive(Debug, Default)]
pub(crate) struct FlowPredecessors {
    last: HashMap<u64, PacketId>,
    sent: VecDeque<(PacketId, u64)>,
}

impl FlowPredecessors {
    /// Packet or fragment `id` leaves. Returns the distance to its predecessor; 0 if none is near.
    pub(crate) fn on_sent(&mut self, flow: u64, id: PacketId) -> u32 {
        while let Some((oldest, of)) = self.sent.front().copied()
            && id.0.wrapping_sub(oldest.0) > u32::from(PREDECESSOR_DISTANCE_MAX)
        {
            self.sent.pop_front();
            if self.last.get(&of) == Some(&oldest) {
                self.last.remove(&of);
            }
        }
        self.sent.push_back((id, flow));
        self.last.insert(flow, id).map_or(0, |before| id.0.wrapping_sub(before.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_packet_follows_the_last_of_its_flow() {
        let mut predecessors = FlowPredecessors::default();
        let ids = (0..).map(|at| PacketId(u32::MAX - 1).plus(at));
        let after = [7, 8, 7, 7, 8].into_iter().zip(ids);
        let after = after.map(|(flow, id)| predecessors.on_sent(flow, id));
        assert_eq!(after.collect::<Vec<u32>>(), [0, 0, 2, 1, 3]);
    }

    #[test]
    fn memory_is_bounded_by_what_can_be_named() {
        let mut predecessors = FlowPredecessors::default();
        predecessors.on_sent(1, PacketId(0));
        for id in 1..20_000 {
            predecessors.on_sent(1_000 + u64::from(id), PacketId(id));
            assert!(predecessors.last.len() <= usize::from(PREDECESSOR_DISTANCE_MAX) + 1);
            assert_eq!(predecessors.last.len(), predecessors.sent.len());
        }
        assert_eq!(predecessors.on_sent(1, PacketId(20_000)), 0, "too far back");
    }
}
