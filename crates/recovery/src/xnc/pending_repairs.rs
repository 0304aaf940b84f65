//! Repairs in flight, until enough of each has arrived.
//!
//! ```text
//!  sent ──► enough of its datagrams, or of its packets, acknowledged ──► done
//!    ▲ └──► their time over ──┬── in time for another ──► overdue ─┐
//!    │                        └── too late ──► forgotten           │
//!    └─────────────────────────────────────────────────────────────┘
//! ```
//!
//! CellFusion's repairs are one shot (section 4.5.2): a packet whose repair is lost stays lost.
//! Coded packets are interchangeable, so arrivals are counted: n restore n packets (theorem 4.1).

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::{Instant, PacketId, PathOffer, PathSnapshot};

use super::group::Group;
use super::snapshots;
use crate::Repair;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentRepair {
    pub(super) group: Group,
    /// Of the longest datagram.
    pub(super) bytes: u64,
    pub(super) until: Instant,
}

#[derive(Clone, Copy, Debug)]
struct OpenRepair {
    repair: SentRepair,
    /// Packets that arrived, as bits of the group's mask.
    arrived: u64,
    superseded: u64,
    combinations: u32,
    due: Instant,
}

impl OpenRepair {
    /// How many datagrams are missing until the peer has the whole group.
    fn missing(&self) -> u32 {
        let lost = self.repair.group.lost() - self.arrived.count_ones();
        lost.saturating_sub(self.combinations)
    }

    fn is_done(&self) -> bool {
        self.missing() == 0 || self.arrived | self.superseded == self.repair.group.mask
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct PendingRepairs {
    open: VecDeque<OpenRepair>,
    ended: VecDeque<Group>,
    arrived: VecDeque<Group>,
}

impl PendingRepairs {
    pub(super) fn on_sent(&mut self, now: Instant, repair: SentRepair, timeout: Duration) {
        if self.open.len() >= OPEN_MAX
            && let Some(oldest) = self.open.pop_front()
        {
            push(&mut self.ended, oldest.repair.group);
        }
        let due = now + timeout;
        self.open.push_back(OpenRepair { repair, arrived: 0, superseded: 0, combinations: 0, due });
    }

    pub(super) fn on_repair_acknowledged(&mut self, start: PacketId) {
        let combined = |open: &&mut OpenRepair| open.repair.group.start == start;
        self.open.iter_mut().filter(combined).for_each(|open| open.combinations += 1);
        self.settle();
    }

    pub(super) fn on_acknowledged(&mut self, id: PacketId) {
        let concerned = |open: &&mut OpenRepair| open.repair.group.has_lost(id);
        for open in self.open.iter_mut().filter(concerned) {
            open.arrived |= 1 << id.distance(open.repair.group.start);
        }
        self.settle();
    }

    /// The packet is not needed: ends its own repair only, since it stays unknown to the receiver.
    pub(super) fn on_superseded(&mut self, id: PacketId) {
        for open in self.open.iter_mut().filter(|open| open.repair.group.has_lost(id)) {
            open.superseded |= 1 << id.distance(open.repair.group.start);
        }
        self.end_unless(|open| !open.is_done());
    }

    pub(super) fn covers(&self, id: PacketId) -> bool {
        self.open.iter().any(|open| open.repair.group.spans(id))
    }

    fn settle(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let done = self.end_unless(|open| !open.is_done());
        done.into_iter().for_each(|group| push(&mut self.arrived, group));
    }

    fn end_unless(&mut self, goes_on: impl Fn(&OpenRepair) -> bool) -> Vec<Group> {
        let mut ended = Vec::new();
        self.open.retain(|open| {
            goes_on(open) || {
                ended.push(open.repair.group);
                false
            }
        });
        ended.iter().for_each(|group| push(&mut self.ended, *group));
        ended
    }

    pub(super) fn poll_arrived(&mut self) -> Option<Group> {
        self.arrived.pop_front()
    }

    pub(super) fn poll_ended(&mut self) -> Option<Group> {
        self.ended.pop_front()
    }

    /// An overdue repair and what it lacks, each `RETRY_PAUSE` until it is sent again.
    pub(super) fn poll_overdue_repair(&mut self, now: Instant) -> Option<(SentRepair, u32)> {
        self.end_unless(|open| now < open.repair.until);
        let overdue = self.open.iter_mut().find(|open| open.due <= now)?;
        overdue.due = now + RETRY_PAUSE;
        Some((overdue.repair, overdue.missing()))
    }

    pub(super) fn on_sent_again(&mut self, now: Instant, repair: SentRepair, timeout: Duration) {
        if let Some(open) = self.open.iter_mut().find(|open| open.repair == repair) {
            open.due = now + timeout;
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.due).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

/// The oldest is forgotten if it is not polled.
fn push(groups: &mut VecDeque<Group>, group: Group) {
    if groups.len() >= OPEN_MAX {
        groups.pop_front();
    }
    groups.push_back(group);
}

/// When a repair should have arrived: by the slowest of its paths.
pub(super) fn repair_timeout(repair: &Repair, paths: &[PathOffer<'_>]) -> Duration {
    let taken = |path: &&PathSnapshot| match repair {
        Repair::Copies { paths, .. } => paths.contains(&path.id),
        Repair::Coded { shares, .. } => shares.iter().any(|(id, _)| *id == path.id),
        _ => false,
    };
    let slowest = snapshots(paths).filter(taken).map(|path| path.expected_rtt).max();
    let slowest = slowest.unwrap_or_default();
    (slowest + (slowest / 8).max(REPAIR_SLACK)).max(REPAIR_TIMEOUT_MIN)
}

const REPAIR_SLACK: Duration = Duration::from_millis(5);
const REPAIR_TIMEOUT_MIN: Duration = Duration::from_millis(50);
const OPEN_MAX: usize = 256;
const RETRY_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    const TIMEOUT: Duration = Duration::from_millis(50);

    fn repair(start: u32, count: u32) -> SentRepair {
        let mask = u64::MAX >> (64 - count);
        let group = Group { start: PacketId(start), mask };
        SentRepair { group, bytes: 1200, until: at(300) }
    }

    #[test]
    fn a_repair_is_overdue_until_enough_of_it_has_arrived() {
        let mut pending = PendingRepairs::default();
        pending.on_sent(at(0), repair(u32::MAX, 3), TIMEOUT);
        pending.on_repair_acknowledged(PacketId(u32::MAX));
        pending.on_acknowledged(PacketId(1)); // the third packet, across the wrap
        pending.on_acknowledged(PacketId(2)); // none of them
        assert_eq!(pending.poll_overdue_repair(at(49)), None);
        assert_eq!(pending.poll_timeout(), Some(at(50)));
        assert_eq!(pending.poll_overdue_repair(at(50)), Some((repair(u32::MAX, 3), 1)));
        pending.on_sent_again(at(50), repair(u32::MAX, 3), TIMEOUT);
        assert_eq!(pending.poll_overdue_repair(at(99)), None);
        pending.on_repair_acknowledged(PacketId(u32::MAX));
        assert!(pending.is_empty());
    }

    #[test]
    fn a_packet_counts_once_however_often_it_arrives() {
        let mut pending = PendingRepairs::default();
        pending.on_sent(at(0), repair(7, 4), TIMEOUT);
        for id in [8, 9, 8, 9] {
            pending.on_acknowledged(PacketId(id)); // the packet itself, then its copy
        }
        assert_eq!(pending.poll_overdue_repair(at(50)), Some((repair(7, 4), 2)));
        pending.on_superseded(PacketId(7));
        pending.on_acknowledged(PacketId(10));
        assert!(pending.is_empty(), "7 is not needed");
    }

    #[test]
    fn what_finds_no_room_is_asked_about_again_and_forgotten_in_the_end() {
        let mut pending = PendingRepairs::default();
        pending.on_sent(at(0), repair(7, 1), TIMEOUT);
        assert!(pending.poll_overdue_repair(at(50)).is_some());
        assert_eq!(pending.poll_overdue_repair(at(50)), None);
        assert!(pending.poll_overdue_repair(at(60)).is_some());
        assert_eq!(pending.poll_overdue_repair(at(300)), None);
        assert!(pending.is_empty());
    }

    #[test]
    fn a_repair_is_done_when_none_of_its_packets_is_needed() {
        let mut pending = PendingRepairs::default();
        pending.on_sent(at(0), repair(7, 2), TIMEOUT);
        for _ in 0..3 {
            pending.on_superseded(PacketId(7));
            pending.on_superseded(PacketId(9)); // none of them
        }
        pending.on_repair_acknowledged(PacketId(7));
        assert_eq!(pending.poll_overdue_repair(at(50)), Some((repair(7, 2), 1)), "8 is needed");
        pending.on_superseded(PacketId(8));
        assert!(pending.is_empty());
        assert_eq!(pending.poll_ended(), Some(repair(7, 2).group));
        assert_eq!(pending.poll_arrived(), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut pending = PendingRepairs::default();
        (0..10_000).for_each(|id| pending.on_sent(at(0), repair(id, 1), TIMEOUT));
        assert_eq!((pending.open.len(), pending.ended.len()), (OPEN_MAX, OPEN_MAX));
        for id in 0..10_000 {
            pending.on_sent(at(0), repair(id, 1), TIMEOUT);
            pending.on_acknowledged(PacketId(id));
        }
        assert_eq!(pending.arrived.len(), OPEN_MAX);
    }
}
