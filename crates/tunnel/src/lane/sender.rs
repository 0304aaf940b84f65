//! The sending half of a lane.
//!
//! ```text
//! inner packet ─► queue ─► chooser ─► send ─► source datagram ─► carrier
//!               [shedding]  [targets]  │ no room: resends, by path ──┘
//!                                      └ copy ─► sent: pool, recovery, [insurance], [unfinished]
//!                                                  └── again, copies, coded ─► resends ─► carrier
//! ```
//!
//! Stages in brackets are optional. A lane with insurance also sends coded packets when nothing
//! waits. A packet gets its ID when it leaves, so that what expires in the queue leaves no gap.
//! Before that it is fragmented if it is too large for a datagram; afterwards its datagram is cut
//! into parts (`cuts.rs`).

use roadweave_proto::wire::{
    CODED_HEADER, Control, FragmentPosition, MAX_SYMBOL_BODY, RtpHeader, SYMBOL_HEADER,
    SourceDatagram, Stamp, Symbol,
};
use roadweave_proto::{DropReason, Instant, LaneId, PacketId, PathId, Promise, Urgency, earliest};
use roadweave_recovery::{Insurance, Qoe};
use roadweave_schedule::AcknowledgedDatagram;

use crate::carrier::Carrier;
use crate::lane::cuts::Cut;
use crate::lane::datagram::TokenKind;
use crate::lane::memory::MemoryStats;
use crate::lane::shed::FrameKey;
use crate::lane::superseded::Superseded;
use crate::lane::unfinished::Unfinished;
use crate::lane::{EncoderTarget, LaneConfig, NamesUplink, Strategy};
use crate::observe::PacketLog;

mod chooser;
mod queue;
mod resends;
mod send;
mod sent;
mod stats;

use chooser::Chooser;
pub(crate) use queue::HeldBack;
use queue::{Queued, SendQueue};
use resends::Resends;
use sent::SentPackets;
pub use stats::SendStats;

#[derive(Debug)]
pub(crate) struct LaneSender {
    lane: LaneId,
    pub(crate) config: LaneConfig,
    queue: SendQueue,
    pub(crate) chooser: Chooser,
    sent: SentPackets,
    resends: Resends,
    announced: Promise,
    stats: SendStats,
    pub(crate) log: PacketLog,
}

impl LaneSender {
    pub(crate) fn new(
        lane: LaneId,
        config: LaneConfig,
        seed: u64,
        names_uplinks: bool,
    ) -> Result<Self, NamesUplink> {
        config.strategy.check(names_uplinks)?;
        Ok(Self {
            lane,
            queue: SendQueue::new(lane, config.strategy.shedder(config.for_scheduler())),
            chooser: Chooser::new(config.strategy.scheduler(config.for_scheduler())),
            sent: SentPackets::new(lane, &config, seed),
            resends: Resends::new(lane),
            announced: Promise::default(),
            stats: SendStats::default(),
            log: PacketLog::default(),
            config,
        })
    }

    /// Follows another strategy from the next packet on; packets sent before stay with their
    /// recovery. Fails, and changes nothing, if the strategy names an uplink where none is known.
    pub(crate) fn set_strategy(
        &mut self,
        strategy: Strategy,
        names_uplinks: bool,
    ) -> Result<(), NamesUplink> {
        strategy.check(names_uplinks)?;
        let scheduler = strategy.scheduler(self.config.for_scheduler());
        self.chooser.replace(scheduler, &self.config.name);
        self.queue.shedder = strategy.shedder(self.config.for_scheduler());
        self.config.strategy = strategy;
        self.sent.set_strategy(&self.config);
        Ok(())
    }

    /// Takes the settings of another lane of the same name and ordering, from the next packet on.
    pub(crate) fn set_config(
        &mut self,
        now: Instant,
        config: LaneConfig,
        names_uplinks: bool,
    ) -> Result<(), NamesUplink> {
        let old = std::mem::replace(&mut self.config, config);
        let new = &self.config;
        let what_strategies_see = |lane: &LaneConfig| {
            let for_xnc = (lane.patient, lane.insurance_percent);
            (lane.strategy.clone(), lane.deadline, lane.expire_after, lane.rtp_frames, for_xnc)
        };
        // A new strategy forgets what it knew, so it is only replaced if its input changed.
        if what_strategies_see(&old) != what_strategies_see(new)
            && let Err(error) = self.set_strategy(new.strategy.clone(), names_uplinks)
        {
            self.config = old;
            return Err(error);
        }
        self.sent.set_expiry(now, self.config.expire_after);
        Ok(())
    }

    pub(crate) fn set_qoe(&mut self, now: Instant, qoe: Qoe) {
        self.sent.recovery.each().for_each(|recovery| recovery.set_qoe(now, qoe));
    }

    fn announce(&mut self, carrier: &mut impl Carrier) {
        let promise = Promise {
            order: self.config.order.at_most(self.sent.age_max),
            age_max: self.sent.age_max,
            expires: self.sent.expires(),
            coded: self.sent.codes,
            acknowledge_on_all: self.config.strategy.entry.acknowledged_on_all,
        };
        if promise == self.announced || !carrier.reports_fates() {
            return;
        }
        let message = Control::LanePromise { lane: self.lane, promise };
        if carrier.send_message(message.to_bytes()) {
            self.announced = promise;
        }
    }

    fn carries_times(&self) -> bool {
        self.sent.expires() || self.config.order.carries_times()
    }

    pub(crate) fn stats(&self) -> SendStats {
        let mut stats = self.stats.clone();
        stats.queue_bytes = self.queue.bytes;
        stats.copy_queue_bytes = self.resends.copies.total_bytes();
        stats.recovery = self.sent.recovery.stats();
        stats.drops.add(DropReason::RepairExpired, stats.recovery.abandoned);
        stats.drops.merge(self.sent.encoder.drops());
        stats
    }

    pub(crate) fn encoder_target(
        &mut self,
        now: Instant,
        carrier: &mut impl Carrier,
    ) -> Option<EncoderTarget> {
        if !carrier.reports_fates() {
            return None;
        }
        carrier.set_pacing(self.config.strategy.pacing(self.config.pacing));
        let offers = self.resends.offers(carrier.paths(now));
        let load = (self.queue.bytes, self.sent.encoder.bytes() as u64);
        Some(self.chooser.encoder_target(now, self.config.deadline, &offers, load))
    }

    /// Takes an inner packet of `flow` (a hash); `rtp`: its RTP header, if it is to be read.
    pub(crate) fn handle_inner(
        &mut self,
        now: Instant,
        packet: &[u8],
        flow: u64,
        rtp: Option<RtpHeader>,
    ) {
        self.stats.inner_packets += 1;
        self.stats.inner_bytes += packet.len() as u64;
        if self.queue.superseded.covers(now, packet) {
            return self.stats.drops.count(DropReason::Superseded);
        }
        let stamp = self.carries_times().then(|| Stamp::of(now));
        let has_predecessor = self.sent.predecessors.is_some();
        let datagram = SourceDatagram::of_packet(self.lane, has_predecessor, stamp, packet);
        let frame = rtp.map(|header| FrameKey::new(flow, &header));
        let ends_frame = rtp.is_some_and(|header| header.marker);
        self.push(Queued { flow, frame, ends_frame, ..Queued::new(now, datagram, Urgency::FIRST) });
    }

    fn push(&mut self, queued: Queued) {
        if let Err(reason) = self.queue.push(queued, self.config.queue_bytes_max) {
            self.stats.drops.count(reason);
        }
    }

    pub(crate) fn handle_symbol(&mut self, now: Instant, body: &[u8], urgency: Urgency) {
        self.stats.inner_packets += 1;
        self.stats.inner_bytes += body.len() as u64;
        let symbol = Symbol { position: FragmentPosition::Whole, body };
        self.push(Queued::new(now, SourceDatagram::new(self.lane, &symbol), urgency));
    }

    pub(crate) fn hold_back(&mut self, held_back: HeldBack) {
        self.queue.held_back = Some(held_back);
    }

    /// The most bytes of a symbol's body that fit a datagram, coded or not.
    pub(crate) fn symbol_room(&self, carrier: &impl Carrier) -> usize {
        let room = carrier.max_datagram_size().saturating_sub(CODED_HEADER + SYMBOL_HEADER);
        room.min(MAX_SYMBOL_BODY)
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.queue.bytes as usize
    }

    /// Called when a later packet shows that the newest one ended a video frame.
    pub(crate) fn end_frame(&mut self) {
        match self.queue.packets.back_mut() {
            Some(last) => last.ends_frame = true,
            None => self.sent.on_frame_ended(),
        }
    }

    pub(crate) fn on_acknowledged(
        &mut self,
        now: Instant,
        kind: TokenKind,
        id: PacketId,
        acknowledged: &AcknowledgedDatagram,
    ) {
        let flow = self.sent.flow_of(kind, id);
        self.chooser.scheduler.on_acknowledged(now, acknowledged, flow);
        let whole = match kind {
            TokenKind::Part => self.resends.cuts.on_acknowledged(id.0).map(|it| (it.kind, it.id)),
            kind => Some((kind, id)),
        };
        match whole {
            Some((TokenKind::Repair, id)) => self.sent.on_repair_acknowledged(id),
            Some((TokenKind::Source | TokenKind::Copy, id)) => {
                self.sent.on_acknowledged(now, id);
                if self.config.strategy.entry.cancels {
                    let cancelled = self.resends.copies.cancel(id);
                    self.stats.drops.add(DropReason::CopyCancelled, cancelled);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn on_lost(&mut self, now: Instant, kind: TokenKind, id: PacketId, path: PathId) {
        let flow = self.sent.flow_of(kind, id);
        self.chooser.scheduler.on_lost(now, path, flow);
        match kind {
            TokenKind::Source => self.sent.on_lost(now, id, path),
            TokenKind::Part => self.on_part_lost(now, id.0),
            TokenKind::Repair | TokenKind::Copy | TokenKind::Load => {}
        }
    }

    fn on_part_lost(&mut self, now: Instant, number: u32) {
        if let Some(Cut { kind: TokenKind::Source, id, path }) = self.resends.cuts.remove(number) {
            self.sent.on_lost(now, id, path);
        }
    }

    /// Gives up older packets of a video that its encoder has restarted behind with a key frame;
    /// returns how many the peer may never get. Fragments stay.
    pub(crate) fn supersede(&mut self, now: Instant, superseded: Superseded) -> u64 {
        let waiting = self.queue.supersede(now, superseded);
        let (ids, sent) = self.sent.supersede(superseded);
        let cancelled = self.resends.cancel(&ids);
        self.stats.drops.add(DropReason::CopyCancelled, cancelled);
        self.stats.drops.add(DropReason::Superseded, waiting + sent);
        waiting + sent
    }

    pub(crate) fn keep_unfinished(&mut self) {
        self.sent.unacknowledged.get_or_insert_default();
    }

    /// Takes the inner packets that the peer may lack and that have not expired, oldest first.
    pub(crate) fn take_unfinished(&mut self, now: Instant) -> Vec<Unfinished> {
        let age_max = self.sent.age_max;
        let mut packets = self.sent.take_unfinished(now);
        packets.extend(self.queue.take_unfinished(now, age_max, &mut self.stats.drops));
        self.resends.clear();
        packets
    }

    pub(crate) fn waiting_packets(&self) -> u64 {
        self.queue.packets.iter().filter(|queued| queued.ends_packet).count() as u64
    }

    pub(crate) fn has_backlog(&self) -> bool {
        !self.queue.packets.is_empty()
            || !self.resends.again.is_empty()
            || !self.resends.repairs.is_empty()
    }

    /// Sends what may leave: waiting copies and repairs, which are older, then the queue. The
    /// recovery may use the room that is left then.
    pub(crate) fn transmit(&mut self, now: Instant, carrier: &mut impl Carrier) {
        if self.is_idle() {
            self.sent.settle(&self.config);
            return self.announce(carrier);
        }
        carrier.set_pacing(self.config.strategy.pacing(self.config.pacing));
        let backlog = self.queue.bytes;
        self.announce(carrier);
        self.send_copies(now, carrier);
        self.repair_all(now, carrier);
        self.expire(now);
        while self.send_again(now, carrier) {}
        while self.resends.again.is_empty() && self.send_next(now, carrier) {}
        let is_spare = backlog > 0 && self.queue.bytes == 0;
        if is_spare && self.sent.recovery.each().any(|it| it.asks_twice()) {
            self.repair_all(now, carrier);
            while self.send_again(now, carrier) {}
        }
        if self.resends.cuts.has_new_parts {
            self.send_repairs(now, carrier);
        }
        if !self.sent.recovery.has_past() {
            self.sent.settle(&self.config);
        }
        self.sent.encoder.expire(now);
        self.sent.forget_flows();
        if self.has_backlog() {
            carrier.on_backlog(now);
        }
    }

    fn is_idle(&self) -> bool {
        let sends_nothing = !self.has_backlog()
            && self.resends.copies.is_empty()
            && !self.resends.cuts.has_new_parts;
        let awaits_nothing = self.sent.encoder.is_empty()
            && !self.sent.recovery.has_past()
            && self.sent.recovery.poll_timeout().is_none();
        sends_nothing && awaits_nothing
    }

    fn expire(&mut self, now: Instant) {
        let age_max = self.sent.age_max;
        self.queue.expire(now, age_max, &mut self.stats.drops);
        while let Some((since, id)) = self.resends.again.front().copied()
            && (now.since(since) >= age_max || self.sent.has_expired(now, id))
        {
            self.give_up_again();
        }
    }

    fn give_up_again(&mut self) {
        let Some((_, id)) = self.resends.again.pop_front() else { return };
        self.sent.recovery.of(id).on_abandoned(id);
        self.sent.encoder.forget(id);
    }

    pub(crate) fn put_off_insurance(&mut self, now: Instant) {
        self.sent.insurance.iter_mut().for_each(|insurance| insurance.put_off(now));
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let age_max = self.sent.age_max;
        let queued = self.queue.packets.front().map(|queued| queued.since + age_max);
        let again = self.resends.again.front().map(|(since, id)| {
            let given_up = *since + age_max;
            self.sent.expiry(*id).map_or(given_up, |expiry| expiry.min(given_up))
        });
        let insurance = self.sent.insurance.as_ref().and_then(Insurance::poll_timeout);
        let resends = self.resends.poll_timeout(age_max);
        earliest([insurance, self.sent.recovery.poll_timeout(), queued, again, resends])
    }

    pub(crate) fn memory(&self) -> MemoryStats {
        let waiting = self.queue.packets.len() + self.resends.copies.len();
        let overhead = (waiting * QUEUED_OVERHEAD) as u64;
        MemoryStats {
            queue_bytes: self.queue.bytes + self.resends.bytes() + overhead,
            encoder_bytes: self.sent.encoder.bytes() as u64,
            flow_bytes: self.sent.flows.memory() as u64,
            ..MemoryStats::default()
        }
    }

    pub(crate) fn shed(&mut self, now: Instant, bytes: u64) {
        let held = self.memory();
        let target = held.total().saturating_sub(bytes);
        let waiting_first = held.queue_bytes >= held.encoder_bytes;
        for is_waiting in [waiting_first, !waiting_first] {
            let excess = self.memory().total().saturating_sub(target);
            match is_waiting {
                true => self.shed_waiting(now, excess),
                false => {
                    self.sent.encoder.shed(excess as usize);
                    self.sent.forget_flows();
                }
            }
        }
    }

    fn shed_waiting(&mut self, now: Instant, bytes: u64) {
        let mut freed = 0;
        while freed < bytes {
            freed += if let Some(oldest) = self.queue.pop() {
                if oldest.ends_packet {
                    self.stats.drops.count(DropReason::MemoryShare);
                }
                (oldest.datagram.len() + QUEUED_OVERHEAD) as u64
            } else if let Some((path, copy)) = self.resends.copies.pop_oldest() {
                self.stats.drops.count(DropReason::CopyUnsent);
                self.sent.on_lost(now, copy.id, path);
                (copy.datagram.len() + QUEUED_OVERHEAD) as u64
            } else if let Some(repair) = self.resends.pop_repair() {
                self.give_up(now, &repair);
                repair.datagram.len() as u64
            } else {
                return;
            };
        }
    }
}

const QUEUED_OVERHEAD: usize = 192;

#[cfg(test)]
pub(crate) mod tests;
