//! Source datagrams: first transmissions, repetitions, and copies that waited for a path.

use roadweave_proto::wire::{
    CODED_HEADER, FragmentPosition, PREDECESSOR_HEADER, SOURCE_HEADER, STAMP_HEADER, Symbol,
};
use roadweave_proto::{DropReason, Instant, PacketId, PathId, PathOffer, PathSnapshot};
use roadweave_recovery::SentCopy;
use roadweave_schedule::{Decision, PacketInfo, PathSet};

use super::LaneSender;
use super::queue::Queued;
use crate::carrier::{Carrier, SendError};
use crate::lane::copies::SourceCopy;
use crate::lane::cuts::Cut;
use crate::lane::datagram::{LaneDatagram, TokenKind};
use crate::lane::offers::keep_to_budgets;
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
                let is_old = now.since(copy.since) >= self.keeping.age_max;
                if !answers || is_old || self.has_expired(now, copy.id) {
                    self.stats.drops.count(DropReason::CopyUnsent);
                    self.recovery.of(copy.id).on_lost(now, copy.id, path);
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
            backlog_bytes: self.backlog_bytes() + unqueued,
            flow,
            flow_bytes: self.flow_bytes(flow) + unqueued,
            waited: now.since(since),
            is_of_streams: self.carries_streams(),
        };
        let mut paths = self.offers(carrier.paths(now));
        if again {
            keep_to_budgets(&mut paths, bytes);
        }
        match self.scheduler.select(now, &packet, &paths) {
            Decision::Send(chosen) => path_ids(chosen, bytes, &paths),
            Decision::Wait => Vec::new(),
        }
    }

    pub(super) fn send_again(&mut self, now: Instant, carrier: &mut impl Carrier) -> bool {
        let Some((since, id)) = self.resends.again.front().copied() else { return false };
        if self.has_expired(now, id) {
            self.give_up_again();
            return true;
        }
        let Some(datagram) = self.rebuild(id) else {
            self.resends.again.pop_front();
            self.recovery.of(id).on_abandoned(id);
            return true;
        };
        let packet = (datagram.len(), self.sent_flows.of(id));
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
        let Some(front) = self.queue.front() else { return false };
        let bytes = front.datagram.len();
        // A coded packet over this one has a longer header and must fit too.
        let limit = carrier.max_datagram_size().saturating_sub(CODED_HEADER - SOURCE_HEADER);
        if bytes > limit {
            return self.split_front(limit);
        }
        let (packet, since) = ((bytes, front.flow), front.since);
        let chosen = self.select(now, packet, since, false, carrier);
        if chosen.is_empty() {
            return false;
        }
        let Some(mut queued) = self.pop() else { return false };
        let id = self.coding.next_id;
        self.coding.next_id = id.next();
        self.keeping
            .arrival_times
            .iter_mut()
            .for_each(|times| times.on_sent(now, id, queued.since));
        let prefix = self.set_predecessor(&mut queued, id);
        self.stats.source_datagrams += 1;
        self.stats.source_bytes += bytes as u64;
        self.stats.sent_packets += u64::from(queued.ends_packet);
        self.stats.sent_bytes += queued.datagram.body().len().saturating_sub(prefix) as u64;
        let Queued { since: queued, datagram, flow, ends_frame, urgency, .. } = queued;
        let datagram = LaneDatagram::source(self.lane, id, datagram);
        if let Some(kept) = &mut self.unacknowledged {
            kept.expire(now, self.keeping.age_max);
            kept.on_sent(id, queued, datagram.bytes.slice(SOURCE_HEADER..));
        }
        if carrier.reports_fates() {
            self.coding.encoder.insert(now, id, datagram.bytes.slice(SOURCE_HEADER..));
            self.sent_flows.on_sent(id, flow);
        }
        let (since, is_first, is_redundant) = (now, true, false);
        let copy =
            SourceCopy { id, datagram, ends_frame, urgency, queued, since, is_first, is_redundant };
        self.send_source(now, copy, &chosen, carrier);
        true
    }

    /// Returns the bytes that the predecessor and the stamp take.
    pub(super) fn set_predecessor(&mut self, queued: &mut Queued, id: PacketId) -> usize {
        let begins =
            matches!(queued.datagram.position(), FragmentPosition::Whole | FragmentPosition::First);
        let stamp = if begins && self.carries_times() { STAMP_HEADER } else { 0 };
        let Some(predecessors) = &mut self.predecessors else { return stamp };
        let after = predecessors.on_sent(queued.flow, id);
        if !begins {
            return 0;
        }
        queued.datagram.set_predecessor(after);
        PREDECESSOR_HEADER + stamp
    }

    /// The first chosen path carries the packet itself. A copy that a path refuses waits for it.
    pub(super) fn send_source(
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
            self.recovery.of_sent(packet.id).on_waiting(now, packet, carrier.paths(now));
            let queued = self.resends.copies.bytes(path) + copy.datagram.len() as u64;
            if queued > self.config.queue_bytes_max as u64 {
                self.stats.drops.count(DropReason::CopyUnsent);
                self.recovery.of(copy.id).on_lost(now, copy.id, path);
            } else {
                self.resends.copies.push(path, copy);
            }
        }
    }

    pub(super) fn send_copy(
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
        self.recovery.of_sent(id).on_sent(now, packet, carrier.paths(now));
        if let Some(insurance) = self.insurance.as_mut().filter(|_| carrier.reports_fates()) {
            insurance.on_sent(now, &packet);
        }
        if let Err(SendError::TooLarge(datagram)) = sent {
            // The path became narrower after the packet was cut for it.
            let cut = Cut { kind: TokenKind::Source, id, path };
            let lifetime = self.lifetime_of(now, id);
            let is_cut = lifetime.is_some_and(|lifetime| {
                self.send_in_parts(lifetime, cut, &datagram.bytes, copy.is_redundant, carrier)
            });
            if !is_cut {
                self.stats.drops.count(DropReason::OversizedInner);
                self.recovery.of(id).on_lost(now, id, path);
                self.recovery.of(id).on_abandoned(id);
                self.coding.encoder.forget(id);
                return None;
            }
        } else {
            self.scheduler.on_sent(now, path, packet.bytes, self.sent_flows.of(id));
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

    pub(super) fn rebuild(&self, id: PacketId) -> Option<LaneDatagram> {
        let symbol = self.coding.encoder.symbol(id)?;
        let symbol = Symbol::parse(symbol).expect("the pool holds symbols that were built here");
        Some(LaneDatagram::of_symbol(self.lane, id, &symbol))
    }
}

fn sent_packet(copy: &SourceCopy, path: PathId) -> SentCopy {
    let bytes = copy.datagram.len() as u32;
    let SourceCopy { id, ends_frame, urgency, .. } = *copy;
    SentCopy { id, path, bytes, ends_frame, urgency }
}

/// The paths chosen for a packet, its own first, then those of copies, usable ones before others.
fn path_ids(chosen: PathSet, bytes: usize, paths: &[PathOffer<'_>]) -> Vec<PathId> {
    let first = chosen.first_choice(bytes as u64, paths);
    let mut order: Vec<usize> = chosen.iter().filter(|at| *at < paths.len()).collect();
    order.sort_by_key(|at| (Some(*at) != first, !paths[*at].is_usable()));
    order.into_iter().map(|at| paths[at].snapshot.id).collect()
}
