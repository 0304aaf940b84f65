//! What leaves: source datagrams and their copies, repairs as the recovery asks for them, and coded
//! packets without a loss, which leave at once or not at all.
//!
//! ```text
//! recovery ─► again ──────────────────────────► the lane's scheduler
//!             copies, coded ─► datagrams ─► by path ─► pacer ─► carrier
//!                                             ├ too long: another path
//!                                             └ too large: in parts
//!             reinject ─► at once        abandon ─► out of the pool
//! ```

use std::collections::VecDeque;

use roadweave_proto::wire::{CODED_HEADER, SOURCE_HEADER};
use roadweave_proto::{DropReason, Instant, PacketId, PathId, PathSnapshot};
use roadweave_recovery::{Premium, Recovery, Repair, SentCopy};
use roadweave_schedule::PacketInfo;

use super::LaneSender;
use super::queue::Queued;
use super::resends::{Lifetime, QueuedRepair, REPAIR_WAIT_MAX, path_for};
use crate::carrier::{Carrier, SendError};
use crate::lane::copies::SourceCopy;
use crate::lane::cuts::Cut;
use crate::lane::datagram::{DatagramContent, LaneDatagram, TokenKind};
use crate::lane::offers::{keep_to_budgets, limit_repairs};
use crate::observe::PacketStep;

impl LaneSender {
    /// Sends the copies that windows and pacers allow. Those of a path that is gone or silent are
    /// given up: another copy may be in flight, and otherwise the recovery sends one elsewhere.
    pub(super) fn send_copies(&mut self, now: Instant, carrier: &mut impl Carrier) {
        for path in self.resends.copies.paths() {
            while let Some((place, copy)) = self.resends.copies.pop(path) {
                let paths = carrier.paths(now);
                let answers = paths.iter().any(|known| known.id == path && known.is_usable())
                    || !paths.iter().any(PathSnapshot::is_usable);
                let is_old = now.since(copy.since) >= self.sent.age_max;
                if !answers || is_old || self.sent.has_expired(now, copy.id) {
                    self.stats.drops.count(DropReason::CopyUnsent);
                    self.sent.on_lost(now, copy.id, path);
                    continue;
                }
                if let Some(blocked) = self.send_copy(now, path, copy, carrier) {
                    self.resends.copies.put_back(path, place, blocked);
                    break;
                }
            }
        }
    }

    /// The paths for a packet that came at `since`, its own first; `again`: it has left before.
    fn select(
        &mut self,
        now: Instant,
        (bytes, flow): (usize, u64),
        since: Instant,
        again: bool,
        carrier: &mut impl Carrier,
    ) -> Vec<PathId> {
        let unqueued = if again { bytes as u64 } else { 0 };
        let packet = PacketInfo {
            bytes,
            backlog_bytes: self.queue.backlog_bytes() + unqueued,
            flow,
            flow_bytes: self.queue.flow_bytes(flow) + unqueued,
            waited: now.since(since),
            is_of_streams: self.queue.carries_streams(),
        };
        let mut paths = self.resends.offers(carrier.paths(now));
        if again {
            keep_to_budgets(&mut paths, bytes);
        }
        self.chooser.select(now, &packet, &paths)
    }

    pub(super) fn send_again(&mut self, now: Instant, carrier: &mut impl Carrier) -> bool {
        let Some((since, id)) = self.resends.again.front().copied() else { return false };
        if self.sent.has_expired(now, id) {
            self.give_up_again();
            return true;
        }
        let Some(datagram) = self.sent.rebuild(id) else {
            self.resends.again.pop_front();
            self.sent.recovery.of(id).on_abandoned(id);
            return true;
        };
        let packet = (datagram.len(), self.sent.flows.of(id));
        let chosen = self.select(now, packet, since, true, carrier);
        if chosen.is_empty() {
            return false;
        }
        self.resends.again.pop_front();
        let copy = SourceCopy::again(now, id, datagram, since);
        self.send_source(now, copy, &chosen, carrier);
        true
    }

    pub(super) fn send_next(&mut self, now: Instant, carrier: &mut impl Carrier) -> bool {
        self.expire(now);
        let Some(front) = self.queue.packets.front() else { return false };
        let bytes = front.datagram.len();
        // A coded packet over this one has a longer header and must fit too.
        let limit = carrier.max_datagram_size().saturating_sub(CODED_HEADER - SOURCE_HEADER);
        if bytes > limit {
            return self.queue.split_front(limit, &mut self.stats.drops);
        }
        let (packet, since) = ((bytes, front.flow), front.since);
        let chosen = self.select(now, packet, since, false, carrier);
        if chosen.is_empty() {
            return false;
        }
        let Some(mut queued) = self.queue.pop() else { return false };
        let (id, prefix) = self.sent.assign(now, &mut queued, self.carries_times());
        self.stats.source_datagrams += 1;
        self.stats.source_bytes += bytes as u64;
        self.stats.sent_packets += u64::from(queued.ends_packet);
        self.stats.sent_bytes += queued.datagram.body().len().saturating_sub(prefix) as u64;
        let Queued { since: queued, datagram, flow, ends_frame, urgency, .. } = queued;
        let datagram = LaneDatagram::source(self.lane, id, datagram);
        self.sent.keep(now, id, (queued, flow), &datagram.bytes, carrier.reports_fates());
        let (since, is_first, is_redundant) = (now, true, false);
        let copy =
            SourceCopy { id, datagram, ends_frame, urgency, queued, since, is_first, is_redundant };
        self.send_source(now, copy, &chosen, carrier);
        true
    }

    /// The first chosen path carries the packet itself. A copy that a path refuses waits for it.
    fn send_source(
        &mut self,
        now: Instant,
        mut copy: SourceCopy,
        chosen: &[PathId],
        carrier: &mut impl Carrier,
    ) {
        let mut waiting = Vec::new();
        for path in chosen {
            let blocked = match self.resends.copies.bytes(*path) {
                0 => self.send_copy(now, *path, copy.clone(), carrier),
                _ => Some(copy.clone()),
            };
            copy.is_first &= blocked.is_some();
            waiting.extend(blocked.map(|_| (*path, copy.is_redundant)));
            copy.is_redundant = true;
        }
        for (path, is_redundant) in waiting {
            let copy = SourceCopy { is_redundant, ..copy.clone() };
            let packet = sent_packet(&copy, path);
            self.sent.recovery.of_sent(packet.id).on_waiting(now, packet, carrier.paths(now));
            let queued = self.resends.copies.bytes(path) + copy.datagram.len() as u64;
            if queued > self.config.queue_bytes_max as u64 {
                self.stats.drops.count(DropReason::CopyUnsent);
                self.sent.on_lost(now, copy.id, path);
            } else {
                self.resends.copies.push(path, copy);
            }
        }
    }

    fn send_copy(
        &mut self,
        now: Instant,
        path: PathId,
        copy: SourceCopy,
        carrier: &mut impl Carrier,
    ) -> Option<SourceCopy> {
        let id = copy.id;
        let packet = sent_packet(&copy, path);
        let sent = carrier.send_on(now, path, copy.datagram);
        if let Err(SendError::Blocked(datagram)) = sent {
            return Some(SourceCopy { datagram, ..copy });
        }
        self.sent.recovery.of_sent(id).on_sent(now, packet, carrier.paths(now));
        if let Some(insurance) = self.sent.insurance.as_mut().filter(|_| carrier.reports_fates()) {
            insurance.on_sent(now, &packet);
        }
        if let Err(SendError::TooLarge(datagram)) = sent {
            // The path became narrower after the packet was cut for it.
            let cut = Cut { kind: TokenKind::Source, id, path };
            let lifetime = self.lifetime_of(now, id);
            let is_cut = lifetime.is_some_and(|lifetime| {
                self.resends.cut(lifetime, cut, (&datagram.bytes, copy.is_redundant), carrier)
            });
            if !is_cut {
                self.stats.drops.count(DropReason::OversizedInner);
                self.sent.on_lost(now, id, path);
                self.sent.recovery.of(id).on_abandoned(id);
                self.sent.encoder.forget(id);
                return None;
            }
        } else {
            self.chooser.scheduler.on_sent(now, path, packet.bytes, self.sent.flows.of(id));
            carrier.account(path, packet.bytes, copy.is_redundant);
        }
        self.resends.copies.on_left(id);
        if copy.is_first {
            self.log.note(now, self.lane, id, PacketStep::Sent { path, queued: copy.queued });
        } else {
            self.stats.duplicate_datagrams += 1;
            self.stats.duplicate_bytes += u64::from(packet.bytes);
        }
        None
    }

    pub(super) fn repair_all(&mut self, now: Instant, carrier: &mut impl Carrier) {
        while let Some(repair) = self.poll_repair(now, carrier) {
            self.repair(now, repair, carrier);
        }
        while let Some(id) = self.sent.recovery.each().find_map(Recovery::poll_lost) {
            self.log.note(now, self.lane, id, PacketStep::Lost);
        }
        self.sent.forget_done();
        self.send_repairs(now, carrier);
    }

    fn poll_repair(&mut self, now: Instant, carrier: &mut impl Carrier) -> Option<Repair> {
        let mut paths = self.resends.offers(carrier.paths(now));
        limit_repairs(&mut paths);
        if let Some(next) = self.queue.next_urgency() {
            self.sent.recovery.each().for_each(|recovery| recovery.set_next(next));
        }
        self.sent.recovery.poll_repair(now, &paths, self.queue.backlog_bytes())
    }

    pub(super) fn repair(&mut self, now: Instant, repair: Repair, carrier: &mut impl Carrier) {
        for id in repair.brings_back() {
            self.log.note(now, self.lane, id, PacketStep::RepairAsked);
        }
        match repair {
            Repair::Again { id } => self.resends.again.push_back((now, id)),
            Repair::Copies { id, paths } => {
                let Some(datagram) = self.sent.rebuild(id) else {
                    return self.stats.drops.count(DropReason::RepairExpired);
                };
                let Some(lifetime) = self.lifetime_of(now, id) else { return };
                for path in paths {
                    self.stats.duplicate_datagrams += 1;
                    self.stats.duplicate_bytes += datagram.len() as u64;
                    self.resends.queue_repair(lifetime, path, (id, 1), datagram.bytes.clone());
                }
            }
            Repair::Coded { start, count, lost, shares } => {
                let newest = start.plus(u32::from(count).saturating_sub(1));
                let Some(lifetime) = self.lifetime_of(now, newest) else { return };
                match self.sent.encode(start, count, &shares) {
                    Ok(datagrams) => {
                        for (path, datagram) in datagrams {
                            self.stats.coded_datagrams += 1;
                            self.stats.coded_bytes += datagram.len() as u64;
                            self.resends.queue_repair(lifetime, path, (start, lost), datagram);
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
                let may_leave = !self.sent.has_expired(now, id);
                if let Some(datagram) = self.sent.rebuild(id).filter(|_| may_leave) {
                    let copy = SourceCopy::again(now, id, datagram, now);
                    self.send_source(now, copy, &[path], carrier);
                }
            }
            Repair::Abandon { start, count } => {
                (0..count).for_each(|at| _ = self.sent.encoder.forget(start.plus(at)));
            }
        }
    }

    fn lifetime_of(&mut self, now: Instant, newest: PacketId) -> Option<Lifetime> {
        let until = now + self.config.keeps_for();
        let until = self.sent.expiry(newest).map_or(until, |expiry| expiry.min(until));
        if until <= now {
            self.stats.drops.count(DropReason::RepairExpired);
        }
        (until > now).then_some(Lifetime { since: now, until })
    }

    pub(super) fn send_repairs(&mut self, now: Instant, carrier: &mut impl Carrier) {
        self.resends.cuts.has_new_parts = false;
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
                let chosen = path_for(path, wait, datagram.len(), carrier.paths(now));
                match carrier.send_on(now, chosen, datagram) {
                    Ok(()) => {
                        self.chooser.scheduler.on_sent(now, chosen, bytes, 0);
                        carrier.account(chosen, bytes, is_redundant);
                    }
                    Err(SendError::TooLarge(datagram)) => {
                        let (kind, id) = (datagram.content.kind(), datagram.content.id());
                        let (cut, is_part) = (Cut { kind, id, path }, kind == TokenKind::Part);
                        let content = (&datagram.bytes[..], is_redundant);
                        // A part is not cut again; the recovery repairs its datagram.
                        if is_part || !self.resends.cut(lifetime, cut, content, carrier) {
                            self.stats.drops.count(DropReason::SendFailed);
                        }
                        if is_part {
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

    pub(super) fn give_up(&mut self, now: Instant, repair: &QueuedRepair) {
        self.stats.drops.count(DropReason::RepairExpired);
        if let DatagramContent::Part { number } = repair.datagram.content {
            self.on_part_lost(now, number);
        }
    }

    /// Insures what has left; called when no lane has anything waiting.
    pub(crate) fn insure(&mut self, now: Instant, carrier: &mut impl Carrier) {
        if self.sent.insurance.is_none() {
            return;
        }
        if self.has_backlog() {
            return self.put_off_insurance(now);
        }
        carrier.set_pacing(self.config.strategy.pacing(self.config.pacing));
        while let Some(premium) = self.poll_premium(now, carrier) {
            self.send_premium(now, &premium, carrier);
        }
        self.sent.forget_done();
    }

    fn poll_premium(&mut self, now: Instant, carrier: &mut impl Carrier) -> Option<Premium> {
        let mut paths = self.resends.offers(carrier.paths(now));
        limit_repairs(&mut paths);
        self.sent.insurance.as_mut()?.poll(now, &paths)
    }

    pub(super) fn send_premium(
        &mut self,
        now: Instant,
        premium: &Premium,
        carrier: &mut impl Carrier,
    ) {
        // A packet of the block may have left the pool for lack of memory.
        let Ok(datagrams) = self.sent.encode(premium.start, premium.count, &premium.shares) else {
            return;
        };
        for (path, bytes) in datagrams {
            let length = bytes.len() as u32;
            if carrier.send_on(now, path, self.resends.repair(premium.start, bytes)).is_err() {
                self.stats.drops.count(DropReason::CopyUnsent);
                continue;
            }
            self.stats.coded_datagrams += 1;
            self.stats.coded_bytes += u64::from(length);
            self.chooser.scheduler.on_sent(now, path, length, 0);
            carrier.account(path, length, true);
        }
    }
}

fn sent_packet(copy: &SourceCopy, path: PathId) -> SentCopy {
    let bytes = copy.datagram.len() as u32;
    let SourceCopy { id, ends_frame, urgency, .. } = *copy;
    SentCopy { id, path, bytes, ends_frame, urgency }
}
