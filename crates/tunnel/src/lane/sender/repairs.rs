//! Repairs: made as the recovery asks, and queued by path until windows and pacers allow them.
//!
//! ```text
//! recovery ─► again ──────────────────────────► the lane's own queue for that
//!             copies, coded ─► datagrams ─► by path ─► pacer ─► carrier
//!                                             ├ too long: another path
//!                                             └ too large: in parts
//!             reinject ─► at once        abandon ─► out of the pool
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rand_core::RngCore;
use roadweave_coding::EncodeError;
use roadweave_proto::wire::{CODED_HEADER, Coded, Part};
use roadweave_proto::{DropReason, Instant, PacketId, PathId, PathOffer, PathSnapshot};
use roadweave_recovery::{Recovery, Repair};

use super::LaneSender;
use crate::carrier::{Carrier, SendError};
use crate::lane::copies::SourceCopy;
use crate::lane::cuts::Cut;
use crate::lane::datagram::{DatagramContent, LaneDatagram, TokenKind};
use crate::lane::offers::limit_repairs;
use crate::observe::PacketStep;

#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    since: Instant,
    until: Instant,
}

#[derive(Debug)]
pub(super) struct QueuedRepair {
    lifetime: Lifetime,
    datagram: LaneDatagram,
    /// Bit i: the repair is for the i-th packet from its first one on, which is lost; 0 for parts.
    lost: u64,
    is_redundant: bool,
    tried_others: bool,
}

impl LaneSender {
    pub(super) fn repair_all(&mut self, now: Instant, carrier: &mut impl Carrier) {
        while let Some(repair) = self.poll_repair(now, carrier) {
            self.repair(now, repair, carrier);
        }
        while let Some(id) = self.recovery.each().find_map(Recovery::poll_lost) {
            self.log.note(now, self.lane, id, PacketStep::Lost);
        }
        self.forget_done();
        self.send_repairs(now, carrier);
    }

    fn poll_repair(&mut self, now: Instant, carrier: &mut impl Carrier) -> Option<Repair> {
        let mut paths = self.offers(carrier.paths(now));
        limit_repairs(&mut paths);
        if let Some(held_back) = self.held_back {
            let queued = self.queue.iter().map(|queued| queued.urgency).min();
            let next = queued.map_or(held_back.urgency, |it| it.min(held_back.urgency));
            self.recovery.each().for_each(|recovery| recovery.set_next(next));
        }
        self.recovery.poll_repair(now, &paths, self.backlog_bytes())
    }

    pub(super) fn repair_bytes(&self, path: PathId) -> u64 {
        let repairs = self.resends.repairs.get(&path).into_iter().flatten();
        repairs.map(|repair| repair.datagram.len() as u64).sum()
    }

    pub(super) fn repairs_timeout(&self) -> Option<Instant> {
        let oldest = self.resends.repairs.values().filter_map(VecDeque::front);
        let due = oldest.map(|repair| match repair.tried_others {
            true => repair.lifetime.until,
            false => repair.lifetime.until.min(repair.lifetime.since + REPAIR_WAIT_MAX),
        });
        due.min()
    }

    pub(super) fn send_repairs(&mut self, now: Instant, carrier: &mut impl Carrier) {
        self.cuts.has_new_parts = false;
        for path in self.resends.repairs.keys().copied().collect::<Vec<_>>() {
            while let Some(repair) =
                self.resends.repairs.get_mut(&path).and_then(VecDeque::pop_front)
            {
                if repair.lifetime.until <= now {
                    self.give_up(now, &repair);
                    continue;
                }
                let QueuedRepair { lifetime, datagram, is_redundant, .. } = repair;
                let bytes = datagram.len() as u32;
                let wait = match self.config.strategy.entry.moves_repairs {
                    true => REPAIR_WAIT_MAX.saturating_sub(now.since(lifetime.since)),
                    false => REPAIR_WAIT_MAX,
                };
                let chosen = repair_path(path, wait, datagram.len(), carrier.paths(now));
                match carrier.send_on(now, chosen, datagram) {
                    Ok(()) => {
                        self.scheduler.on_sent(now, chosen, bytes, 0);
                        carrier.account(chosen, bytes, is_redundant);
                    }
                    Err(SendError::TooLarge(datagram)) => {
                        let (kind, id) = (datagram.content.kind(), datagram.content.id());
                        let cut = Cut { kind, id, path };
                        // A part is not cut again; the recovery repairs its datagram.
                        let is_cut = kind != TokenKind::Part
                            && self.send_in_parts(
                                lifetime,
                                cut,
                                &datagram.bytes,
                                is_redundant,
                                carrier,
                            );
                        if !is_cut {
                            self.stats.drops.count(DropReason::SendFailed);
                        }
                        if kind == TokenKind::Part {
                            self.on_part_lost(now, id.0);
                        }
                    }
                    Err(SendError::Blocked(datagram)) => {
                        let tried_others = now.since(lifetime.since) >= REPAIR_WAIT_MAX;
                        let blocked = QueuedRepair { tried_others, datagram, ..repair };
                        self.resends.repairs.entry(path).or_default().push_front(blocked);
                        break;
                    }
                }
            }
        }
        self.resends.repairs.retain(|_, queue| !queue.is_empty());
    }

    fn give_up(&mut self, now: Instant, repair: &QueuedRepair) {
        self.stats.drops.count(DropReason::RepairExpired);
        if let DatagramContent::Part { number } = repair.datagram.content {
            self.on_part_lost(now, number);
        }
    }

    pub(super) fn cancel_repairs(&mut self, is_such: impl Fn(PacketId) -> bool) -> u64 {
        let mut cancelled = 0;
        for repairs in self.resends.repairs.values_mut() {
            repairs.retain(|repair| {
                let mut lost = repair.datagram.content.id().of_mask(repair.lost);
                let goes = repair.lost != 0 && lost.all(&is_such);
                cancelled += u64::from(goes);
                !goes
            });
        }
        self.resends.repairs.retain(|_, repairs| !repairs.is_empty());
        cancelled
    }

    /// Gives up the first repair of the path with the most repairs; returns its bytes.
    pub(super) fn drop_repair(&mut self, now: Instant) -> Option<u64> {
        let queue = self.resends.repairs.values_mut().max_by_key(|queue| queue.len())?;
        let repair = queue.pop_front()?;
        self.resends.repairs.retain(|_, queue| !queue.is_empty());
        self.give_up(now, &repair);
        Some(repair.datagram.len() as u64)
    }

    /// Cuts a datagram that is too large, and queues its parts first for its path; returns whether
    /// it could. `is_redundant`: its content has left before.
    pub(super) fn send_in_parts(
        &mut self,
        lifetime: Lifetime,
        cut: Cut,
        datagram: &[u8],
        is_redundant: bool,
        carrier: &mut impl Carrier,
    ) -> bool {
        // A peer that reports no fates does not reassemble parts.
        if !carrier.reports_fates() {
            return false;
        }
        let (number, size_max) = (self.cuts.next, carrier.max_datagram_size());
        let Some(parts) = Part::cut(self.lane, number, datagram, size_max) else { return false };
        self.cuts.on_cut(cut, parts.len());
        self.cuts.has_new_parts = true;
        let (lane, content) = (self.lane, DatagramContent::Part { number });
        let queue = self.resends.repairs.entry(cut.path).or_default();
        for bytes in parts.into_iter().rev() {
            let datagram = LaneDatagram { lane, content, bytes };
            let tried_others = false;
            queue.push_front(QueuedRepair {
                lifetime,
                datagram,
                lost: 0,
                is_redundant,
                tried_others,
            });
        }
        true
    }

    fn repair(&mut self, now: Instant, repair: Repair, carrier: &mut impl Carrier) {
        for id in repair.brings_back() {
            self.log.note(now, self.lane, id, PacketStep::RepairAsked);
        }
        match repair {
            Repair::Again { id } => self.resends.again.push_back((now, id)),
            Repair::Copies { id, paths } => {
                let Some(datagram) = self.rebuild(id) else {
                    self.stats.drops.count(DropReason::RepairExpired);
                    return;
                };
                let Some(lifetime) = self.lifetime_of(now, id) else { return };
                for path in paths {
                    self.stats.duplicate_datagrams += 1;
                    self.stats.duplicate_bytes += datagram.len() as u64;
                    self.queue_repair(lifetime, path, (id, 1), datagram.bytes.clone());
                }
            }
            Repair::Coded { start, count, lost, shares } => {
                let newest = start.plus(u32::from(count).saturating_sub(1));
                let Some(lifetime) = self.lifetime_of(now, newest) else { return };
                match self.encode(start, count, &shares) {
                    Ok(datagrams) => {
                        for (path, datagram) in datagrams {
                            self.stats.coded_datagrams += 1;
                            self.stats.coded_bytes += datagram.len() as u64;
                            self.queue_repair(lifetime, path, (start, lost), datagram);
                        }
                    }
                    // A packet of the range has left the pool for lack of memory.
                    Err(_) => {
                        let lost = u64::from(lost.count_ones());
                        self.stats.drops.add(DropReason::RepairExpired, lost);
                    }
                }
            }
            Repair::Reinject { id, path } => {
                // It may have been acknowledged meanwhile.
                let may_leave = !self.has_expired(now, id);
                if let Some(datagram) = self.rebuild(id).filter(|_| may_leave) {
                    let copy = SourceCopy::again(now, id, datagram, now);
                    self.send_source(now, copy, &[path], carrier);
                }
            }
            Repair::Abandon { start, count } => {
                (0..count).for_each(|at| _ = self.coding.encoder.forget(start.plus(at)));
            }
        }
    }

    pub(super) fn encode(
        &mut self,
        start: PacketId,
        count: u16,
        shares: &[(PathId, u16)],
    ) -> Result<Vec<(PathId, Bytes)>, EncodeError> {
        let range = self.coding.encoder.range(start, count)?;
        let datagram_len = CODED_HEADER + range.coded_len();
        let buffer = |share: u16| BytesMut::zeroed(usize::from(share) * datagram_len);
        let mut buffers: Vec<BytesMut> = shares.iter().map(|(_, share)| buffer(*share)).collect();
        let (mut seeds, mut outputs) = (Vec::new(), Vec::new());
        for datagram in buffers.iter_mut().flat_map(|buffer| buffer.chunks_exact_mut(datagram_len))
        {
            let (mut header, coded) = datagram.split_at_mut(CODED_HEADER);
            let seed = self.coding.seeds.next_u32();
            Coded::write_header(self.lane, start, count, seed, &mut header);
            seeds.push(seed);
            outputs.push(coded);
        }
        range.encode_all(&seeds, &mut outputs);
        let mut datagrams = Vec::with_capacity(seeds.len());
        for ((path, _), buffer) in shares.iter().zip(buffers) {
            let mut rest = buffer.freeze();
            while !rest.is_empty() {
                datagrams.push((*path, rest.split_to(datagram_len)));
            }
        }
        Ok(datagrams)
    }

    pub(super) fn lifetime_of(&mut self, now: Instant, newest: PacketId) -> Option<Lifetime> {
        let until = now + self.config.keeps_for();
        let until = self.expiry(newest).map_or(until, |expiry| expiry.min(until));
        if until <= now {
            self.stats.drops.count(DropReason::RepairExpired);
        }
        (until > now).then_some(Lifetime { since: now, until })
    }

    fn queue_repair(
        &mut self,
        lifetime: Lifetime,
        path: PathId,
        (start, lost): (PacketId, u64),
        bytes: Bytes,
    ) {
        let content = DatagramContent::Repair { start };
        let datagram = LaneDatagram { lane: self.lane, content, bytes };
        let repair =
            QueuedRepair { lifetime, datagram, lost, is_redundant: true, tried_others: false };
        self.resends.repairs.entry(path).or_default().push_back(repair);
    }
}

fn repair_path(planned: PathId, wait: Duration, bytes: usize, paths: &[PathSnapshot]) -> PathId {
    let usable = paths.iter().any(|path| path.id == planned && path.is_usable());
    if usable && wait > Duration::ZERO {
        return planned;
    }
    let mut offers: Vec<_> = paths.iter().map(PathOffer::free).collect();
    limit_repairs(&mut offers);
    let room = |path: &PathOffer<'_>| path.repair_room().min(path.snapshot.pacing_budget);
    offers
        .iter()
        .filter(|path| path.is_usable() && room(path) >= bytes as u64)
        .min_by_key(|path| path.snapshot.expected_rtt)
        .map_or(planned, |path| path.snapshot.id)
}

const REPAIR_WAIT_MAX: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
