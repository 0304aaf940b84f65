//! The window during loss recovery: proportional rate reduction, and undoing a spurious recovery.
//!
//! ```text
//! Open ─ a segment is lost ─► Recovery ─ all data sent before it acknowledged ─► Open
//!   └─────── timeout ───────► Loss ────────────────────────────────────────────────┘
//!           ◄─ undone: each repair was a duplicate, or an acknowledgement is older than the repair
//! ```
//!
//! Sources: RFC 6937 and RFC 9937 (PRR), RFC 2883 and RFC 3708 (duplicates), RFC 3522 (Eifel).

use roadweave_proto::Instant;

use super::congestion::{CongestionPhase, Window};

#[derive(Clone, Debug)]
pub(super) struct Recovery {
    pub(super) phase: CongestionPhase,
    pub(super) end: u64,
    pub(super) before: Window,
    delivered: u32,
    sent: u32,
    /// Repairs sent and not reported as duplicates; `None`: cannot be undone.
    repairs: Option<u32>,
    first_repair: Option<u32>,
    pub(super) timeout_at: Option<Instant>,
}

impl Recovery {
    pub(super) fn new() -> Self {
        Self {
            phase: CongestionPhase::Open,
            end: 0,
            before: Window { cwnd: 0, ssthresh: u32::MAX },
            delivered: 0,
            sent: 0,
            repairs: None,
            first_repair: None,
            timeout_at: None,
        }
    }

    /// `repair` is the timestamp of an earlier repair that is still under way; its acknowledgement
    /// does not prove a recovery spurious.
    pub(super) fn begin(
        &mut self,
        phase: CongestionPhase,
        nxt: u64,
        before: Window,
        repair: Option<u32>,
    ) {
        let repairs = Some(u32::from(repair.is_some()));
        *self = Self { phase, end: nxt, before, repairs, first_repair: repair, ..Self::new() };
    }

    pub(super) fn on_sent(&mut self, is_repair: bool, timestamp: u32) {
        self.sent += 1;
        if is_repair {
            self.repairs = self.repairs.map(|repairs| repairs + 1);
            self.first_repair = self.first_repair.or(Some(timestamp));
        }
    }

    pub(super) fn on_duplicate(&mut self) {
        self.repairs = self.repairs.map(|repairs| repairs.saturating_sub(1));
    }

    /// Whether every repair was a duplicate, or an acknowledgement of new data echoes a timestamp
    /// from before the first repair.
    pub(super) fn is_spurious(&self, echo: u32, advances: bool) -> bool {
        let all_twice = self.repairs == Some(0) && self.first_repair.is_some();
        let is_older = |repair: u32| (echo.wrapping_sub(repair) as i32) < 0;
        self.repairs.is_some() && (all_twice || advances && self.first_repair.is_some_and(is_older))
    }

    pub(super) fn finish(&mut self) {
        self.phase = CongestionPhase::Open;
        self.repairs = None;
        self.timeout_at = None;
    }

    /// PRR: how many segments may be sent (RFC 9937 section 6). `delivered` is that of this
    /// acknowledgement; `is_progress`: whether it acknowledges new data without indicating a loss.
    pub(super) fn may_send(
        &mut self,
        delivered: u32,
        in_flight: u32,
        ssthresh: u32,
        is_progress: bool,
    ) -> u32 {
        self.delivered += delivered;
        let wanted = if in_flight > ssthresh {
            let share = u64::from(ssthresh) * u64::from(self.delivered);
            let share = share.div_ceil(self.before.cwnd.max(1).into()) as u32;
            share.saturating_sub(self.sent)
        } else {
            let owed = self.delivered.saturating_sub(self.sent).max(delivered);
            (owed + u32::from(is_progress)).min(ssthresh - in_flight)
        };
        wanted.max(u32::from(self.sent == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(cwnd: u32) -> Recovery {
        let mut recovery = Recovery::new();
        recovery.begin(CongestionPhase::Recovery, 1_000, Window { cwnd, ssthresh: u32::MAX }, None);
        recovery
    }

    #[test]
    fn the_window_falls_in_proportion_to_what_is_delivered() {
        let mut recovery = begun(100);
        let (mut in_flight, mut left) = (99 - 3, 0);
        for acked in 1..=96 {
            in_flight -= 1;
            let sends = recovery.may_send(1, in_flight, 70, false);
            (0..sends).for_each(|_| recovery.on_sent(left == 0, 5));
            (in_flight, left) = (in_flight + sends, left + sends);
            if acked <= 80 {
                assert_eq!(left, (acked * 7_u32).div_ceil(10), "after {acked}");
            }
        }
        assert_eq!(in_flight, 70);
    }

    #[test]
    fn after_great_losses_it_grows_by_one_for_each_that_is_delivered() {
        let mut recovery = begun(100);
        assert_eq!(recovery.may_send(1, 20, 70, false), 1);
        recovery.on_sent(true, 5);
        assert_eq!(recovery.may_send(2, 20, 70, false), 2);
        assert_eq!(recovery.may_send(2, 69, 70, true), 1, "never beyond the threshold");
    }

    #[test]
    fn it_is_spurious_when_each_repair_came_twice_or_the_answer_is_older() {
        let mut recovery = begun(10);
        assert!(!recovery.is_spurious(1, true), "nothing was repaired");
        recovery.on_sent(true, 50);
        recovery.on_sent(true, 51);
        assert!(!recovery.is_spurious(50, true) && recovery.is_spurious(49, true));
        assert!(!recovery.is_spurious(49, false), "it acknowledges nothing");
        recovery.on_duplicate();
        assert!(!recovery.is_spurious(60, false));
        recovery.on_duplicate();
        assert!(recovery.is_spurious(60, false));
        recovery.finish();
        assert!(!recovery.is_spurious(49, true));
    }
}
