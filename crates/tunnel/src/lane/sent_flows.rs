//! Of which flow packets are that may have to leave again.

use std::collections::VecDeque;

use roadweave_types::PacketId;

/// The flows of packets that have left, as long as their bytes are kept: so nothing is read twice.
#[derive(Debug, Default)]
pub(crate) struct SentFlows {
    /// The packet of the first flow.
    first: PacketId,
    /// For consecutive packets.
    flows: VecDeque<u64>,
}

impl SentFlows {
    /// The packet `id` of `flow` leaves for the first time, IDs ascending without gaps.
    pub(crate) fn on_sent(&mut self, id: PacketId, flow: u64) {
        if self.flows.len() >= FLOWS_MAX {
            self.pop();
        }
        if self.flows.is_empty() {
            self.first = id;
        }
        self.flows.push_back(flow);
    }

    /// Forgets the oldest packets up to the first one that `is_kept`.
    pub(crate) fn retain_from(&mut self, is_kept: impl Fn(PacketId) -> bool) {
        while !self.flows.is_empty() && !is_kept(self.first) {
            self.pop();
        }
    }

    /// The flow of a packet; 0, as that of fragments, if it is not known.
    pub(crate) fn of(&self, id: PacketId) -> u64 {
        let at = usize::try_from(id.distance(self.first)).ok();
        at.and_then(|at| self.flows.get(at)).copied().unwrap_or_default()
    }

    fn pop(&mut self) {
        self.flows.pop_front();
        self.first = self.first.next();
    }
}

/// 1 MiB. From the oldest packet that is kept to the newest there are seldom more; those before
/// them count as of no flow.
const FLOWS_MAX: usize = 1 << 17;

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> PacketId {
        PacketId(u32::MAX).plus(number)
    }

    #[test]
    fn flows_are_known_from_the_first_packet_that_is_kept() {
        let mut flows = SentFlows::default();
        (0..4).for_each(|number| flows.on_sent(id(number), 10 + u64::from(number)));
        flows.retain_from(|of| of == id(2));
        assert_eq!([0, 1, 2, 3, 4].map(|number| flows.of(id(number))), [0, 0, 12, 13, 0]);
        flows.retain_from(|_| false);
        flows.on_sent(id(9), 19);
        assert_eq!(([3, 9].map(|number| flows.of(id(number))), flows.flows.len()), ([0, 19], 1));
    }

    #[test]
    fn memory_is_bounded_while_everything_is_kept() {
        let mut flows = SentFlows::default();
        for number in 0..FLOWS_MAX as u32 + 3 {
            flows.on_sent(id(number), 1);
            flows.retain_from(|_| true);
        }
        assert_eq!(flows.flows.len(), FLOWS_MAX);
        assert_eq!([2, 3].map(|number| flows.of(id(number))), [0, 1]);
    }
}
