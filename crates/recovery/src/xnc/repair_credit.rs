//! A budget for repairs of packets that are late, but perhaps not lost.
//!
//! The loss threshold grows with the round trip, or a queue would be sent twice. But a video frame
//! waits meanwhile. So packets far beyond their deadline are repaired on another path while there
//! is credit, which a stream earns by the bytes that it sends; the oldest first.

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RepairCredit {
    /// Bytes; negative after the last repair.
    credit: f64,
}

impl RepairCredit {
    pub(super) fn earn(&mut self, bytes: u32) {
        self.credit = (self.credit + f64::from(bytes) * SHARE).min(CREDIT_MAX);
    }

    pub(super) fn is_solvent(self) -> bool {
        self.credit > 0.0
    }

    pub(super) fn spend(&mut self, bytes: u64) {
        self.credit -= bytes as f64 * REPAIR_COST;
    }
}

/// The share of a stream's bytes that it earns, and so the most redundancy that it adds.
const SHARE: f64 = 0.03;
/// A queue of 80 ms at 30 Mbit/s.
const CREDIT_MAX: f64 = 300_000.0;
/// The average cost of a packet's repair, in its own bytes: n + 2 for n, rarely for few.
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
