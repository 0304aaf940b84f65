//! What may be spent on packets that are late, but perhaps not lost.
//!
//! A path's queue that grows, or a longer route, looks like any slow answer: the loss threshold
//! grows with the round-trip time, as it must, or a queue would be sent twice over and grow by
//! that. But a viewer does not ask why a frame stands still. So packets that have missed their
//! deadline for good are repaired on another path as long as there is credit, which a stream earns
//! with what it sends. The oldest come first, for a frame waits for its last packet.

/// What one lane may spend on repairs of packets that may only be slow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RepairCredit {
    /// Bytes; below zero after the last repair.
    credit: f64,
}

impl RepairCredit {
    /// A source datagram of `bytes` bytes left.
    pub(super) fn earn(&mut self, bytes: u32) {
        self.credit = (self.credit + f64::from(bytes) * SHARE).min(CREDIT_MAX);
    }

    /// Whether there is credit.
    pub(super) fn is_solvent(self) -> bool {
        self.credit > 0.0
    }

    /// A packet of `bytes` bytes will be repaired on credit.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.credit -= bytes as f64 * REPAIR_COST;
    }
}

/// What a stream earns, as a share of its bytes: it adds no more than this to the redundancy.
const SHARE: f64 = 0.03;
/// The most credit, bytes: a queue of 80 ms at 30 Mbit/s.
const CREDIT_MAX: f64 = 300_000.0;
/// What a packet's repair costs on average, in its own bytes: n + 3 for n, rarely for few.
const REPAIR_COST: f64 = 1.3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_earned_spent_and_bounded() {
        let mut credit = RepairCredit::default();
        assert!(!credit.is_solvent());
        (0..1000).for_each(|_| credit.earn(1200));
        assert!(credit.is_solvent());
        let affordable = (0..).take_while(|_| {
            credit.spend(1200);
            credit.is_solvent()
        });
        assert_eq!(affordable.count(), 23, "3 % of a thousand packets at 1.3 each");
        (0..1_000_000).for_each(|_| credit.earn(1200));
        credit.spend(300_000);
        assert!(!credit.is_solvent(), "credit does not grow without bound");
    }
}
