//! `xnc`: opportunistic one-shot recovery with random linear combinations (CellFusion section 4).
//!
//! ```text
//! sent ─► encode ranges, borders after r packets, t seconds or a frame      (section 4.4.2)
//!             │ loss: min(threshold, PTO), or QUIC's own                    (section 4.4.1)
//!             ▼
//!         lost packets, gathered for a moment ─► groups of a range (group.rs)
//!             │ n lost ─► n' = n + 3 packets, b = free windows              (section 4.5.1)
//!             ▼
//!         b < n': wait, until the range expires                            (section 4.4.3)
//!         b ≥ n': up to b coded packets over all paths, at most ρ·n' each   (section 4.5.2)
//!         n = 1: the packet itself on every usable path
//! ```
//!
//! By default a repair has n + 2 packets and begins with the lost ones themselves: each of these
//! helps at once, while combinations help once n of the repair have arrived. When it is sent again
//! it has combinations alone, which restore whichever packets are missing.
//!
//! [`Spread::ByLoss`] adds the expected loss, and no path carries more of it than the others can
//! do without: one path that fails costs a few coded packets, and not the repair. It avoids the
//! path that lost the most of the run, unless something newer was acknowledged there: before its
//! probe timeout a dead path is not suspected, and would swallow the repair as well.
//!
//! Then the packets are forgotten: there is one shot. The losses of a burst are detected within a
//! few milliseconds; they are gathered for [`XncConfig::gather`] or until the whole range is
//! accounted for, so that a burst becomes one combination.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use roadweave_proto::{Instant, PacketId, PathId, PathOffer, PathSnapshot, earliest};

use crate::flight::{Flight, PacketState};
use crate::threshold::late_after;
use crate::{Recovery, RecoveryStats, Repair, SentCopy};

mod config;
mod group;
mod pending_repairs;
mod ranges;
mod repair_credit;
mod shares;

pub use self::config::{Detection, Spread, XncConfig};
use self::group::Group;
use self::pending_repairs::{PendingRepairs, SentRepair, repair_timeout};
use self::ranges::{Range, Ranges};
use self::repair_credit::RepairCredit;
use self::shares::{repair_of, systematic, uncoded};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deferred {
    /// More may be found until then.
    Gathering(Instant),
    /// The free windows are too small without those of a silent path, which is spared until then.
    Sparing(Instant),
    /// The free windows are too small; only an acknowledgement changes that.
    NoWindow,
}

/// The recovery of CellFusion.
#[derive(Debug)]
pub struct Xnc {
    config: XncConfig,
    /// Tagged with the sequence number of the range.
    flight: Flight<u64>,
    ranges: Ranges,
    /// By path: when the newest acknowledged packet left.
    answered: BTreeMap<PathId, Instant>,
    /// What is left of a repair that has several parts.
    parts: VecDeque<Repair>,
    pending_repairs: PendingRepairs,
    credit: RepairCredit,
    stats: RecoveryStats,
}

impl Xnc {
    /// A recovery for one lane.
    pub fn new(config: XncConfig) -> Self {
        Self {
            config,
            flight: Flight::new(),
            ranges: Ranges::default(),
            answered: BTreeMap::new(),
            parts: VecDeque::new(),
            pending_repairs: PendingRepairs::default(),
            credit: RepairCredit::default(),
            stats: RecoveryStats::default(),
        }
    }

    fn detect(&mut self, now: Instant, paths: &[PathOffer<'_>]) {
        let config = self.config;
        loop {
            let credit = self.credit;
            let loss_delay = |path: &PathSnapshot, _| {
                let loss_delay = config.loss_delay(path, snapshots(paths));
                let late = credit.is_solvent().then(|| config.late_after(path, paths)).flatten();
                late.map_or(loss_delay, |late| late.min(loss_delay))
            };
            let Some(overdue) = self.flight.poll_overdue(now, paths, loss_delay) else { return };
            self.pay_for(now, overdue.id, overdue.tag, paths);
            self.stats.lost_by_timer += 1;
            self.on_range_loss(now, overdue.tag);
        }
    }

    /// Pays for the repair of a packet that may only be slow.
    fn pay_for(&mut self, now: Instant, id: PacketId, sequence: u64, paths: &[PathOffer<'_>]) {
        let Some(PacketState::Lost { path, sent }) = self.flight.state(id) else { return };
        let known = snapshots(paths).find(|known| known.id == path);
        let is_early = |path| now.since(sent) < self.config.loss_delay(path, snapshots(paths));
        if known.is_some_and(is_early) {
            let bytes = self.ranges.get(sequence).map_or(0, |range| range.bytes_max);
            self.credit.spend(u64::from(bytes));
        }
    }

    fn note_packet(&mut self, now: Instant, packet: &SentCopy) -> u64 {
        match self.flight.is_new(packet.id) {
            true => self.ranges.on_new(now, packet, &self.config),
            false => self.ranges.first, // its range is known to the flight
        }
    }

    fn on_range_loss(&mut self, now: Instant, sequence: u64) {
        self.stats.lost += 1;
        self.ranges.on_lost(now, sequence, self.config.gather);
    }

    /// Ends the need to repair a packet; returns its state before.
    fn settle(&mut self, id: PacketId) -> Option<PacketState> {
        let (before, sequence) = self.flight.set(id, PacketState::Settled)?;
        match before {
            PacketState::InFlight { .. } | PacketState::Waiting => self.ranges.on_settled(sequence),
            PacketState::Lost { .. } => self.ranges.on_repaired(sequence, 1),
            PacketState::Settled => {}
        }
        Some(before)
    }

    fn retire(&mut self, now: Instant) -> Option<Repair> {
        let Range { start, count, .. } = self.ranges.retire(now, self.config.lane.expire_after)?;
        let lost = |(state, _)| matches!(state, PacketState::Lost { .. });
        let before = (0..count).map(|at| self.flight.set(start.plus(at), PacketState::Settled));
        self.stats.abandoned += before.filter(|before| before.is_some_and(lost)).count() as u64;
        Some(Repair::Abandon { start, count })
    }

    /// The next group of a range: a run of lost packets, or more with arrived ones between them.
    fn first_group(&self, now: Instant, range: &Range) -> Option<Group> {
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
    fn silent_path(&self, group: &Group) -> Option<(PathId, Instant)> {
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
    fn one_shot(
        &self,
        now: Instant,
        group: &Group,
        bytes: u64,
        paths: &[PathOffer<'_>],
    ) -> Result<Repair, Deferred> {
        let usable = || paths.iter().filter(|path| path.snapshot.is_usable());
        let repair_by = |usable| repair_of(&self.config, group, group.lost(), bytes, usable);
        if self.config.spread == Spread::ByLoss
            && let Some((silent, sent)) = self.silent_path(group)
        {
            let answering: Vec<_> = usable().filter(|path| path.snapshot.id != silent).collect();
            let spared = sent + self.config.lane.deadline.mul_f64(SPARED_DEADLINES);
            let may_wait = !answering.is_empty() && now < spared;
            if let Some(repair) = repair_by(answering) {
                return Ok(repair);
            } else if may_wait {
                return Err(Deferred::Sparing(spared));
            }
        }
        repair_by(usable().collect()).ok_or(Deferred::NoWindow)
    }

    fn send(&mut self, repair: Repair) -> Option<Repair> {
        self.stats.repairs += 1;
        match repair {
            Repair::Coded { start, count, shares, .. } if !self.config.codes => {
                self.send_parts(uncoded(start, count, &shares))
            }
            repair => Some(repair),
        }
    }

    fn send_parts(&mut self, parts: VecDeque<Repair>) -> Option<Repair> {
        self.parts = parts;
        self.parts.pop_front()
    }

    /// Watches whether a repair arrives: coded packets as a whole, others one by one.
    fn watch(
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

    fn poll_overdue_repair(&mut self, now: Instant, paths: &[PathOffer<'_>]) -> Option<Repair> {
        while let Some((sent, missing)) = self.pending_repairs.poll_overdue_repair(now) {
            let usable = paths.iter().filter(|path| path.snapshot.is_usable()).collect();
            // If one of many is missing, it is not known which one.
            let lost = if sent.group.lost() == 1 { 1 } else { missing.max(2) };
            let repair = repair_of(&self.config, &sent.group, lost, sent.bytes, usable);
            let Some(repair) = repair else { continue }; // a smaller one may find room
            self.pending_repairs.on_sent_again(now, sent, repair_timeout(&repair, paths));
            return self.send(repair);
        }
        None
    }
}

/// Sparing a silent path for longer costs more than it brings where all are slow rather than dead.
const SPARED_DEADLINES: f64 = 1.5;

fn snapshots<'a>(paths: &[PathOffer<'a>]) -> impl Iterator<Item = &'a PathSnapshot> {
    paths.iter().map(|path| path.snapshot)
}

impl Recovery for Xnc {
    fn on_sent(&mut self, now: Instant, packet: SentCopy, paths: &[PathSnapshot]) {
        let loss_delay = paths.iter().find(|path| path.id == packet.path).map_or(
            self.config.lane.deadline,
            |path| {
                let loss_delay = self.config.loss_delay(path, paths);
                if self.config.repairs_early() {
                    loss_delay.min(late_after(path, self.config.lane.deadline))
                } else {
                    loss_delay
                }
            },
        );
        self.credit.earn(packet.bytes);
        let sequence = self.note_packet(now, &packet);
        if self.flight.on_sent(now, packet.id, packet.path, loss_delay, sequence).is_some() {
            self.stats.abandoned += 1;
        }
    }

    fn on_waiting(&mut self, now: Instant, packet: SentCopy, _paths: &[PathSnapshot]) {
        let sequence = self.note_packet(now, &packet);
        if self.flight.on_waiting(packet.id, packet.path, sequence).is_some() {
            self.stats.abandoned += 1;
        }
    }

    fn on_frame_ended(&mut self) {
        self.ranges.on_frame_ended();
    }

    fn on_repair_acknowledged(&mut self, start: PacketId) {
        self.pending_repairs.on_repair_acknowledged(start);
    }

    fn needs(&self, id: PacketId) -> bool {
        self.pending_repairs.covers(id) || self.config.bridges && self.ranges.keeps(id)
    }

    fn poll_done(&mut self) -> Option<(PacketId, u32)> {
        let ended = || self.pending_repairs.poll_ended().map(|group| (group.start, group.count()));
        self.ranges.done.pop_front().or_else(ended)
    }

    fn poll_arrived(&mut self) -> Option<(PacketId, u64)> {
        self.pending_repairs.poll_arrived().map(|group| (group.start, group.mask))
    }

    fn on_acknowledged(&mut self, _now: Instant, id: PacketId) {
        self.pending_repairs.on_acknowledged(id);
        self.ranges.on_arrived(id);
        let Some(before) = self.settle(id) else { return };
        if let PacketState::InFlight { path, sent } | PacketState::Lost { path, sent } = before {
            let answered = self.answered.entry(path).or_insert(sent);
            *answered = sent.max(*answered);
        }
        self.stats.spurious += u64::from(matches!(before, PacketState::Lost { .. }));
    }

    fn on_abandoned(&mut self, _id: PacketId) {} // it never asks for `Repair::Again`

    fn on_superseded(&mut self, id: PacketId) -> bool {
        self.pending_repairs.on_superseded(id);
        self.settle(id).is_some_and(|before| before != PacketState::Settled)
    }

    fn on_lost(&mut self, now: Instant, id: PacketId, path: PathId) {
        if let Some(sequence) = self.flight.on_lost(now, id, path) {
            self.on_range_loss(now, sequence);
        }
    }

    fn poll_repair(
        &mut self,
        now: Instant,
        paths: &[PathOffer<'_>],
        _backlog: u64,
    ) -> Option<Repair> {
        if let Some(part) = self.parts.pop_front() {
            return Some(part);
        }
        self.detect(now, paths);
        if self.answered.len() > paths.len() {
            self.answered.retain(|id, _| snapshots(paths).any(|path| path.id == *id));
        }
        if let Some(abandon) = self.retire(now) {
            return Some(abandon);
        }
        if let Some(again) = self.poll_overdue_repair(now, paths) {
            return Some(again);
        }
        let pending: Vec<_> = self.ranges.pending.iter().map(|(s, p)| (*s, *p)).collect();
        for (sequence, state) in pending {
            let Some(range) = self.ranges.get(sequence).copied() else { continue };
            let accounted_for = !range.open && range.in_flight == 0;
            if !accounted_for && matches!(state, Deferred::Gathering(until) if until > now) {
                continue;
            }
            let Some(group) = self.first_group(now, &range) else { continue };
            let bytes = u64::from(range.bytes_max);
            let repair = match self.one_shot(now, &group, bytes, paths) {
                Ok(repair) => repair,
                Err(reason) => {
                    self.ranges.pending.insert(sequence, reason);
                    continue;
                }
            };
            self.watch(now, &group, &repair, bytes, paths);
            group.lost_ids().for_each(|id| _ = self.flight.set(id, PacketState::Settled));
            self.ranges.on_repaired(sequence, group.lost());
            self.stats.repaired += u64::from(group.lost());
            return match repair {
                Repair::Coded { shares, .. } if self.config.codes && self.config.systematic => {
                    self.stats.repairs += 1;
                    self.send_parts(systematic(&group, shares, paths))
                }
                repair => self.send(repair),
            };
        }
        None
    }

    fn asks_twice(&self) -> bool {
        false // losses are gathered for a moment
    }

    fn is_settled(&self) -> bool {
        self.flight.is_empty() && self.pending_repairs.is_empty()
    }

    fn poll_lost(&mut self) -> Option<PacketId> {
        self.flight.poll_lost()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let expire_after = self.config.lane.expire_after + Duration::from_nanos(1);
        let expiry = self.ranges.all.front().map(|range| range.last_sent + expire_after);
        let waited = self.ranges.pending.values().filter_map(|pending| match pending {
            Deferred::Gathering(until) | Deferred::Sparing(until) => Some(*until),
            Deferred::NoWindow => None,
        });
        let repairs = self.pending_repairs.poll_timeout();
        earliest([self.flight.poll_timeout(), repairs, expiry, waited.min()])
    }

    fn stats(&self) -> RecoveryStats {
        self.stats
    }
}

#[cfg(test)]
mod tests;
