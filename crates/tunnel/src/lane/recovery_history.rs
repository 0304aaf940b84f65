//! The recoveries of a lane whose strategy changes while it runs.
//!
//! ```text
//! IDs     ... 17 18 19 | 20 21 22 | 23 24 ...
//! to            minrtt      xlink      xnc         each packet belongs to the first that saw it
//! ```
//!
//! A packet stays with its recovery until it is settled, so that none is forgotten when the
//! strategy changes. An old recovery that is settled is dropped.

use std::collections::VecDeque;

use roadweave_proto::{Instant, PacketId, PathId, PathOffer, PathSnapshot, Urgency};
use roadweave_recovery::{Qoe, Recovery, RecoveryStats, Repair, SentCopy};

/// Old recoveries kept at once; beyond that the oldest one's packets are given up.
const PAST_MAX: usize = 4;

/// No packet this far behind the newest is in flight.
const FIRST_BEHIND_MAX: i32 = 1 << 30;

#[derive(Debug)]
pub(crate) struct RecoveryHistory {
    present: Assignment,
    past: VecDeque<Assignment>,
    gone: RecoveryStats,
}

#[derive(Debug)]
struct Assignment {
    first: PacketId,
    recovery: Box<dyn Recovery>,
}

impl RecoveryHistory {
    pub(crate) fn new(recovery: Box<dyn Recovery>) -> Self {
        Self {
            present: Assignment { first: PacketId(0), recovery },
            past: VecDeque::new(),
            gone: RecoveryStats::default(),
        }
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

    pub(crate) fn on_sent(&mut self, now: Instant, packet: SentCopy, paths: &[PathSnapshot]) {
        self.follow(packet.id);
        if let Some(recovery) = self.of(packet.id) {
            recovery.on_sent(now, packet, paths);
        }
    }

    pub(crate) fn on_waiting(&mut self, now: Instant, packet: SentCopy, paths: &[PathSnapshot]) {
        self.follow(packet.id);
        if let Some(recovery) = self.of(packet.id) {
            recovery.on_waiting(now, packet, paths);
        }
    }

    pub(crate) fn on_frame_ended(&mut self) {
        self.present.recovery.on_frame_ended();
    }

    pub(crate) fn on_acknowledged(&mut self, now: Instant, id: PacketId) {
        if let Some(recovery) = self.of(id) {
            recovery.on_acknowledged(now, id);
        }
    }

    pub(crate) fn on_repair_acknowledged(&mut self, start: PacketId) {
        if let Some(recovery) = self.of(start) {
            recovery.on_repair_acknowledged(start);
        }
    }

    pub(crate) fn on_abandoned(&mut self, id: PacketId) {
        if let Some(recovery) = self.of(id) {
            recovery.on_abandoned(id);
        }
    }

    pub(crate) fn on_superseded(&mut self, id: PacketId) -> bool {
        self.of(id).is_some_and(|recovery| recovery.on_superseded(id))
    }

    pub(crate) fn on_lost(&mut self, now: Instant, id: PacketId, path: PathId) {
        if let Some(recovery) = self.of(id) {
            recovery.on_lost(now, id, path);
        }
    }

    pub(crate) fn set_qoe(&mut self, now: Instant, qoe: Qoe) {
        self.each().for_each(|recovery| recovery.set_qoe(now, qoe));
    }

    pub(crate) fn set_next(&mut self, urgency: Urgency) {
        self.each().for_each(|recovery| recovery.set_next(urgency));
    }

    /// The next repair, of older recoveries first.
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

    pub(crate) fn poll_lost(&mut self) -> Option<PacketId> {
        self.each().find_map(Recovery::poll_lost)
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

    fn each(&mut self) -> impl Iterator<Item = &mut (dyn Recovery + 'static)> {
        let past = self.past.iter_mut().map(|assigned| &mut *assigned.recovery);
        past.chain([&mut *self.present.recovery])
    }

    /// Moves the start of the present up behind `id`, since IDs wrap.
    fn follow(&mut self, id: PacketId) {
        if id.distance(self.present.first) > FIRST_BEHIND_MAX {
            self.present.first = PacketId(id.0.wrapping_sub(FIRST_BEHIND_MAX.unsigned_abs() / 2));
        }
    }

    pub(crate) fn needs(&mut self, id: PacketId) -> bool {
        self.of(id).is_some_and(|recovery| recovery.needs(id))
    }

    /// Lost packets that arrived by repairs: the first, and bit i for the i-th from it on.
    pub(crate) fn poll_arrived(&mut self) -> Option<(PacketId, u64)> {
        self.each().find_map(Recovery::poll_arrived)
    }

    /// Packets that a repair needed: the first, and how many.
    pub(crate) fn poll_done(&mut self) -> Option<(PacketId, u32)> {
        self.each().find_map(Recovery::poll_done)
    }

    /// The recovery that `id` belongs to, unless it was dropped.
    fn of(&mut self, id: PacketId) -> Option<&mut (dyn Recovery + 'static)> {
        if self.past.is_empty() && !id.precedes(self.present.first) {
            return Some(&mut *self.present.recovery);
        }
        let history = self.past.iter_mut().chain([&mut self.present]);
        history
            .rev()
            .find(|assigned| !id.precedes(assigned.first))
            .map(|assigned| &mut *assigned.recovery)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use roadweave_recovery::{NoRecovery, RecoveryConfig, Reliable};

    use super::*;

    #[test]
    fn a_lane_keeps_its_recovery_however_many_packets_it_sends() {
        let mut history = RecoveryHistory::new(reliable());
        for id in (0..=u32::MAX).step_by(1 << 28).chain([5, 1 << 20]) {
            history.on_sent(Instant::ZERO, sent(id), &[]);
            assert!(history.of(PacketId(id)).is_some(), "{id}");
        }
    }

    fn reliable() -> Box<dyn Recovery> {
        Box::new(Reliable::new(RecoveryConfig::default()))
    }

    fn sent(id: u32) -> SentCopy {
        SentCopy {
            id: PacketId(id),
            path: PathId(0),
            bytes: 1200,
            ends_frame: false,
            urgency: Urgency::FIRST,
        }
    }

    #[test]
    fn a_packet_stays_with_the_recovery_of_its_time_until_it_is_settled() {
        let mut history = RecoveryHistory::new(reliable());
        history.on_sent(Instant::ZERO, sent(0), &[]);
        history.on_sent(Instant::ZERO, sent(1), &[]);
        history.change(PacketId(2), Box::new(NoRecovery));
        history.on_sent(Instant::ZERO, sent(2), &[]);
        let lost_at = Instant::from_millis(5);
        (0..3).for_each(|id| history.on_lost(lost_at, PacketId(id), PathId(0)));
        let mut repairs = Vec::new();
        while let Some(repair) = history.poll_repair(lost_at, &[], 0) {
            repairs.push(repair);
        }
        let again = |id| Repair::Again { id: PacketId(id) };
        assert_eq!(repairs, [again(0), again(1)], "the new strategy repairs nothing");
        (0..2).for_each(|id| history.on_sent(lost_at, sent(id), &[]));
        (0..2).for_each(|id| history.on_acknowledged(lost_at, PacketId(id)));
        assert_eq!(history.poll_repair(lost_at, &[], 0), None);
        assert!(!history.has_past());
        assert_eq!(history.stats().lost, 2, "its figures are kept");
        assert_eq!(history.poll_timeout(), None);
    }

    #[test]
    fn recoveries_of_the_past_are_bounded() {
        let mut history = RecoveryHistory::new(reliable());
        for id in 0..20 {
            history.on_sent(Instant::ZERO, sent(id), &[]);
            history.change(PacketId(id + 1), reliable());
        }
        assert_eq!(history.past.len(), PAST_MAX);
        history.on_acknowledged(Instant::ZERO, PacketId(3)); // nobody watches it any more
        let later = Instant::ZERO + Duration::from_secs(2);
        assert!(history.poll_repair(later, &[], 0).is_some());
    }
}
