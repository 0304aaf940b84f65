//! The recoveries of a lane whose strategy changes while it runs.
//!
//! ```text
//! IDs     ... 17 18 19 | 20 21 22 | 23 24 ...
//! to            minrtt      xlink      xnc         each packet belongs to the first that saw it
//! ```
//!
//! A packet stays with its recovery until it is settled. An old, settled recovery is dropped.

use std::collections::VecDeque;

use roadweave_proto::{Instant, PacketId, PathOffer};
use roadweave_recovery::{NoRecovery, Recovery, RecoveryStats, Repair};

/// Old recoveries kept at once; beyond that the oldest one's packets are given up.
const PAST_MAX: usize = 4;

/// No packet this far behind the newest is in flight.
const FIRST_BEHIND_MAX: i32 = 1 << 30;

#[derive(Debug)]
pub(crate) struct RecoveryHistory {
    present: Assignment,
    past: VecDeque<Assignment>,
    gone: RecoveryStats,
    dropped: NoRecovery,
}

#[derive(Debug)]
struct Assignment {
    first: PacketId,
    recovery: Box<dyn Recovery>,
}

impl RecoveryHistory {
    pub(crate) fn new(recovery: Box<dyn Recovery>) -> Self {
        let present = Assignment { first: PacketId(0), recovery };
        let (past, gone) = (VecDeque::new(), RecoveryStats::default());
        Self { present, past, gone, dropped: NoRecovery }
    }

    pub(crate) fn change(&mut self, first: PacketId, recovery: Box<dyn Recovery>) {
        let before = std::mem::replace(&mut self.present, Assignment { first, recovery });
        self.past.push_back(before);
        self.tidy();
        if self.past.len() > PAST_MAX
            && let Some(oldest) = self.past.pop_front()
        {
            self.gone.merge(&oldest.recovery.stats());
        }
    }

    pub(crate) fn has_past(&self) -> bool {
        !self.past.is_empty()
    }

    pub(crate) fn on_frame_ended(&mut self) {
        self.present.recovery.on_frame_ended();
    }

    pub(crate) fn poll_repair(
        &mut self,
        now: Instant,
        paths: &[PathOffer<'_>],
        backlog: u64,
    ) -> Option<Repair> {
        let repair = self.each().find_map(|recovery| recovery.poll_repair(now, paths, backlog));
        if repair.is_none() && self.has_past() {
            self.tidy();
        }
        repair
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let past = self.past.iter().filter_map(|assigned| assigned.recovery.poll_timeout());
        past.chain(self.present.recovery.poll_timeout()).min()
    }

    pub(crate) fn stats(&self) -> RecoveryStats {
        let mut stats = self.gone;
        for assigned in self.past.iter().chain([&self.present]) {
            stats.merge(&assigned.recovery.stats());
        }
        stats
    }

    fn tidy(&mut self) {
        let gone = &mut self.gone;
        self.past.retain(|assigned| {
            let is_needed = !assigned.recovery.is_settled();
            if !is_needed {
                gone.merge(&assigned.recovery.stats());
            }
            is_needed
        });
    }

    pub(crate) fn each(&mut self) -> impl Iterator<Item = &mut (dyn Recovery + 'static)> {
        let past = self.past.iter_mut().map(|assigned| &mut *assigned.recovery);
        past.chain([&mut *self.present.recovery])
    }

    pub(crate) fn of_sent(&mut self, id: PacketId) -> &mut (dyn Recovery + 'static) {
        // IDs wrap, so the start of the present moves up behind the newest.
        if id.distance(self.present.first) > FIRST_BEHIND_MAX {
            self.present.first = PacketId(id.0.wrapping_sub(FIRST_BEHIND_MAX.unsigned_abs() / 2));
        }
        self.of(id)
    }

    /// The recovery that `id` belongs to; one without effect if it was dropped.
    pub(crate) fn of(&mut self, id: PacketId) -> &mut (dyn Recovery + 'static) {
        if self.past.is_empty() && !id.precedes(self.present.first) {
            return &mut *self.present.recovery;
        }
        let history = self.past.iter_mut().chain([&mut self.present]);
        match history.rev().find(|assigned| !id.precedes(assigned.first)) {
            Some(assigned) => &mut *assigned.recovery,
            None => &mut self.dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use roadweave_proto::{PathId, Urgency};
    use roadweave_recovery::{RecoveryConfig, Reliable, SentCopy};

    use super::*;

    #[test]
    fn a_lane_keeps_its_recovery_however_many_packets_it_sends() {
        let mut history = RecoveryHistory::new(reliable());
        for id in (0..=u32::MAX).step_by(1 << 28).chain([5, 1 << 20]) {
            send(&mut history, Instant::ZERO, id);
            assert!(!PacketId(id).precedes(history.present.first), "{id}");
        }
    }

    fn reliable() -> Box<dyn Recovery> {
        Box::new(Reliable::new(RecoveryConfig::default()))
    }

    fn send(history: &mut RecoveryHistory, now: Instant, id: u32) {
        let (id, path, urgency) = (PacketId(id), PathId(0), Urgency::FIRST);
        let sent = SentCopy { id, path, bytes: 1200, ends_frame: false, urgency };
        history.of_sent(id).on_sent(now, sent, &[]);
    }

    #[test]
    fn a_packet_stays_with_the_recovery_of_its_time_until_it_is_settled() {
        let mut history = RecoveryHistory::new(reliable());
        (0..2).for_each(|id| send(&mut history, Instant::ZERO, id));
        history.change(PacketId(2), Box::new(NoRecovery));
        send(&mut history, Instant::ZERO, 2);
        let lost_at = Instant::from_millis(5);
        (0..3).map(PacketId).for_each(|id| history.of(id).on_lost(lost_at, id, PathId(0)));
        let mut repairs = Vec::new();
        while let Some(repair) = history.poll_repair(lost_at, &[], 0) {
            repairs.push(repair);
        }
        let again = |id| Repair::Again { id: PacketId(id) };
        assert_eq!(repairs, [again(0), again(1)], "the new strategy repairs nothing");
        (0..2).for_each(|id| send(&mut history, lost_at, id));
        (0..2).map(PacketId).for_each(|id| history.of(id).on_acknowledged(lost_at, id));
        assert_eq!(history.poll_repair(lost_at, &[], 0), None);
        assert!(!history.has_past());
        assert_eq!(history.stats().lost, 2, "its figures are kept");
        assert_eq!(history.poll_timeout(), None);
    }

    #[test]
    fn recoveries_of_the_past_are_bounded() {
        let mut history = RecoveryHistory::new(reliable());
        for id in 0..20 {
            send(&mut history, Instant::ZERO, id);
            history.change(PacketId(id + 1), reliable());
        }
        assert_eq!(history.past.len(), PAST_MAX);
        history.of(PacketId(3)).on_acknowledged(Instant::ZERO, PacketId(3));
        let later = Instant::ZERO + Duration::from_secs(2);
        assert!(history.poll_repair(later, &[], 0).is_some());
    }
}
