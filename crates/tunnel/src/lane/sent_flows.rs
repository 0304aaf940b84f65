//! The flows of packets that may leave again.

use std::collections::VecDeque;

use roadweave_proto::PacketId;

#[derive(Debug, Default)]
pub(crate) struct SentFlows {
    first: PacketId,
    flows: VecDeque<u64>,
}

impl SentFlows {
    pub(crate) fn on_sent(&mut self, id: PacketId, flow: u64) {
        if self.flows.len() >= FLOWS_MAX {
            self.pop();
        }
        if self.flows.is_empty() {
            self.first = id;
        }
        self.flows.push_back(flow);
    }

    pub(crate) fn retain_from(&mut self, is_kept: impl Fn(PacketId) -> bool) {
        while !self.flows.is_empty() && !is_kept(self.first) {
            self.pop();
        }
    }

    pub(crate) fn of(&self, id: PacketId) -> u64 {
        let at = usize::try_from(id.distance(self.first)).ok();
        at.and_then(|at| self.flows.get(at)).copied().unwrap_or_default()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = PacketId> + use<> {
        let first = self.first;
        (0..self.flows.len() as u32).map(move |at| first.plus(at))
    }

    pub(crate) fn memory(&self) -> usize {
        self.flows.len() * size_of::<u64>()
    }

    fn pop(&mut self) {
        self.flows.pop_front();
        self.first = self.first.next();
        if self.flows.capacity() > ROOM_KEPT && self.flows.len() < self.flows.capacity() / 4 {
            self.flows.shrink_to(self.flows.capacity() / 2);
        }
    }
}

/// 1 MiB. More packets are seldom kept; earlier ones count as flow 0.
const FLOWS_MAX: usize = 1 << 17;
const ROOM_KEPT: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> PacketId {
        PacketId(u32::MAX).plus(number)
    }

    #[test]
    fn flows_are_known_from_the_first_retained_packet() {
        let mut flows = SentFlows::default();
        (0..4).for_each(|number| flows.on_sent(id(number), 10 + u64::from(number)));
        flows.retain_from(|of| of == id(2));
        assert_eq!([0, 1, 2, 3, 4].map(|number| flows.of(id(number))), [0, 0, 12, 13, 0]);
        flows.retain_from(|_| false);
        flows.on_sent(id(9), 19);
        assert_eq!(([3, 9].map(|number| flows.of(id(number))), flows.flows.len()), ([0, 19], 1));
    }

    #[test]
    fn memory_is_bounded_while_everything_is_retained() {
        let mut flows = SentFlows::default();
        for number in 0..FLOWS_MAX as u32 + 3 {
            flows.on_sent(id(number), 1);
            flows.retain_from(|_| true);
        }
        assert_eq!((flows.flows.len(), flows.memory()), (FLOWS_MAX, 1 << 20));
        assert_eq!([2, 3].map(|number| flows.of(id(number))), [0, 1]);
        flows.retain_from(|_| false);
        assert_eq!(flows.memory(), 0);
        assert!(flows.flows.capacity() <= ROOM_KEPT, "and the room for them is given back");
    }
}
