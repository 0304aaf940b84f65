//! The repair of lost packets: groups and paths.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathOffer, PathSnapshot};

use super::group::Group;
use super::pending_repairs::SentRepair;
use super::ranges::Range;
use super::shares::{Size, every_path, in_proportion, outlasting_any_path, saturating, uncoded};
use super::{Deferred, Spread, Xnc, snapshots};
use crate::Repair;
use crate::flight::PacketState;

impl Xnc {
    /// The next group of a range: a run of lost packets, or more with arrived ones between them.
    pub(super) fn first_group(&self, now: Instant, range: &Range) -> Option<Group> {
        let lost = (0..range.count).filter(|offset| {
            let state = self.flight.state(range.start.plus(*offset));
            matches!(state, Some(PacketState::Lost { .. }))
        });
        let lost = lost.fold(0, |mask, offset| mask | 1 << offset);
        // The receiver keeps delivered packets as long as a repair may take.
        let is_fresh = now.since(range.first_sent) <= self.config.lane.expire_after / 2;
        let bridges = self.config.bridges && self.config.codes && is_fresh;
        Group::first_of(range.start, lost, if bridges { range.arrived } else { 0 })
    }

    /// The path that lost most of the group, and when the last of these left.
    pub(super) fn silent_path(&self, group: &Group) -> Option<(PathId, Instant)> {
        let mut losses: BTreeMap<PathId, (u32, Instant)> = BTreeMap::new();
        for id in group.lost_ids() {
            if let Some(PacketState::Lost { path, sent }) = self.flight.state(id) {
                let (count, newest) = losses.entry(path).or_insert((0, sent));
                *count += 1;
                *newest = sent.max(*newest);
            }
        }
        let (path, (_, newest)) = losses.into_iter().max_by_key(|(_, (count, _))| *count)?;
        self.answered.get(&path).is_none_or(|answered| *answered < newest).then_some((path, newest))
    }

    /// The repair of one group, or why it must wait. A silent path is spared for a while.
    pub(super) fn one_shot(
        &self,
        now: Instant,
        group: &Group,
        bytes: u64,
        paths: &[PathOffer<'_>],
    ) -> Result<Repair, Deferred> {
        let usable = || paths.iter().filter(|path| path.snapshot.is_usable());
        if self.config.spread == Spread::ByLoss
            && let Some((silent, sent)) = self.silent_path(group)
        {
            let answering: Vec<_> = usable().filter(|path| path.snapshot.id != silent).collect();
            let spared = sent + self.config.lane.deadline.mul_f64(SPARED_DEADLINES);
            let may_wait = !answering.is_empty() && now < spared;
            let repair = self.spread(group, group.lost(), bytes, answering);
            if let Some(repair) = repair {
                return Ok(repair);
            } else if may_wait {
                return Err(Deferred::Sparing(spared));
            }
        }
        self.spread(group, group.lost(), bytes, usable().collect()).ok_or(Deferred::NoWindow)
    }

    pub(super) fn send(&mut self, repair: Repair) -> Option<Repair> {
        self.stats.repairs += 1;
        match repair {
            Repair::Coded { start, count, shares, .. } if !self.config.codes => {
                self.copies = uncoded(start, count, &shares);
                self.copies.pop_front()
            }
            repair => Some(repair),
        }
    }

    /// Watches whether a repair arrives: coded packets as a whole, others one by one.
    pub(super) fn watch(
        &mut self,
        now: Instant,
        group: &Group,
        repair: &Repair,
        bytes: u64,
        paths: &[PathOffer<'_>],
    ) {
        if !self.config.retries {
            return;
        }
        let timeout = repair_timeout(repair, paths);
        let together = if self.config.codes { vec![*group] } else { group.singles() };
        for group in together {
            let sent = group.lost_ids().filter_map(|id| match self.flight.state(id) {
                Some(PacketState::Lost { sent, .. }) => Some(sent),
                _ => None,
            });
            // Later it would be discarded, or not be worth its bytes.
            let until = sent.min().unwrap_or(now) + self.config.lane.expire_after / 2;
            self.pending_repairs.on_sent(now, SentRepair { group, bytes, until }, timeout);
        }
    }

    pub(super) fn poll_overdue_repair(
        &mut self,
        now: Instant,
        paths: &[PathOffer<'_>],
    ) -> Option<Repair> {
        while let Some((sent, missing)) = self.pending_repairs.poll_overdue_repair(now) {
            let usable = paths.iter().filter(|path| path.snapshot.is_usable()).collect();
            // If one of many is missing, it is not known which one.
            let lost = if sent.group.lost() == 1 { 1 } else { missing.max(2) };
            let Some(repair) = self.spread(&sent.group, lost, sent.bytes, usable) else {
                continue; // a smaller one may find room
            };
            self.pending_repairs.on_sent_again(now, sent, repair_timeout(&repair, paths));
            return self.send(repair);
        }
        None
    }

    /// The repair of a group with `lost` missing packets, if the windows of `usable` allow it.
    pub(super) fn spread(
        &self,
        group: &Group,
        lost: u32,
        bytes: u64,
        mut usable: Vec<&PathOffer<'_>>,
    ) -> Option<Repair> {
        let room = |path: &PathOffer<'_>| path.repair_room() / bytes.max(1);
        let extra = u64::from(self.config.extra);
        let needed = if lost == 1 { 1 } else { u64::from(lost) + extra };
        if self.config.spread == Spread::Fastest {
            let fitting = usable.iter().filter(|path| room(path) >= needed);
            let fastest = fitting.map(|path| path.snapshot);
            let fastest = fastest.min_by_key(|path| (path.smoothed_rtt, path.id))?.id;
            return Some(match lost {
                1 => group.copies(vec![fastest]),
                _ => group.coded(vec![(fastest, saturating(needed))]),
            });
        }
        usable.retain(|path| room(path) > 0);
        if lost == 1 {
            if self.config.spread == Spread::ByLoss {
                usable.sort_by_key(|path| path.snapshot.expected_rtt);
                usable.truncate(2);
                usable.sort_by_key(|path| path.snapshot.id);
            }
            let paths: Vec<PathId> = usable.iter().map(|path| path.snapshot.id).collect();
            return (!paths.is_empty()).then(|| group.copies(paths));
        }
        let rooms: Vec<(PathId, u64)> =
            usable.iter().map(|path| (path.snapshot.id, room(path))).collect();
        let path_max = (needed as f64 * self.config.path_share).floor() as u64;
        if self.config.spread == Spread::EveryPath {
            let free = rooms.iter().map(|(_, room)| room).sum::<u64>();
            return (free >= needed).then(|| group.coded(every_path(&rooms, path_max)));
        }
        let loss = usable.iter().map(|path| f64::from(path.snapshot.loss)).fold(0.0, f64::max);
        let size = outlasting_any_path(&rooms, lost.into(), extra, loss)?;
        let size = Size { cap: size.cap.min(path_max), ..size };
        Some(group.coded(in_proportion(&rooms, size)))
    }
}

/// Sparing a silent path for longer costs more than it brings where all are slow rather than dead.
const SPARED_DEADLINES: f64 = 1.5;

/// When a repair should have arrived: by the slowest of its paths.
fn repair_timeout(repair: &Repair, paths: &[PathOffer<'_>]) -> Duration {
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
