//! The sending half of a lane.
//!
//! ```text
//! inner packet ─► queue (bounded in bytes and age) ─► scheduler ─► source datagram ─► carrier
//!                   ▲ again                             │ no room: queue of that path ─┘
//!                   │                                   └ copy ─► encoder's pool
//!                   │                                              │
//!                 recovery ◄── acknowledged, lost, time            │
//!                   └── copies, coded ◄────────────────────────────┘ ─► by path ─► pacer ─► carrier
//! ```
//!
//! A lane with insurance also sends coded packets when nothing waits. A packet gets its ID when it
//! leaves, so that what expires in the queue leaves no gap. Before that it is fragmented if it is
//! too large for a datagram; afterwards its datagram is cut into parts ([`Cuts`]).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::BytesMut;
use rand_pcg::Pcg64Mcg;
use roadweave_coding::{Encoder, EncoderConfig};
use roadweave_proto::wire::{
    CODED_HEADER, FragmentPosition, MAX_SYMBOL_BODY, RtpHeader, SYMBOL_HEADER, SourceDatagram,
    Stamp, Symbol,
};
use roadweave_proto::{
    DropReason, Instant, LaneId, Order, PacketId, PathId, PathOffer, PathSnapshot, Promise,
    Urgency, earliest,
};
use roadweave_recovery::{Insurance, Recovery};
use roadweave_schedule::{AcknowledgedDatagram, Scheduler};

use crate::carrier::Carrier;
use crate::lane::arrival_times::ArrivalTimes;
use crate::lane::copies::Copies;
use crate::lane::cuts::{Cut, Cuts};
use crate::lane::datagram::TokenKind;
use crate::lane::encoder::Targets;
use crate::lane::flow_predecessors::FlowPredecessors;
use crate::lane::recovery_history::RecoveryHistory;
use crate::lane::sent_flows::SentFlows;
use crate::lane::shed::{FrameKey, Shedder};
use crate::lane::superseded::RecentlySuperseded;
use crate::lane::unfinished::{Unacknowledged, Unfinished, inner_of};
use crate::lane::{EncoderTarget, LaneConfig, NamesUplink};
use crate::observe::PacketLog;

mod insurance;
mod queue;
mod repairs;
mod settings;
mod sources;
mod stats;
mod supersede;

use queue::Queued;
use repairs::QueuedRepair;
use settings::recovery_config;
pub use stats::SendStats;

/// The window of packets that combinations are made of.
#[derive(Debug)]
struct Coding {
    encoder: Encoder,
    next_id: PacketId,
    codes: bool,
    seeds: Pcg64Mcg,
}

/// What waits to leave again, or beside the first copy.
#[derive(Debug, Default)]
struct Resends {
    again: VecDeque<(Instant, PacketId)>,
    repairs: BTreeMap<PathId, VecDeque<QueuedRepair>>,
    copies: Copies,
}

/// What is dropped because something newer made it worthless.
#[derive(Debug)]
struct Stale {
    shedder: Option<Shedder>,
    superseded: RecentlySuperseded,
}

/// How long a packet is worth sending.
#[derive(Debug)]
struct Keeping {
    age_max: Duration,
    arrival_times: Option<ArrivalTimes>,
}

/// What the scheduler learns about networks, and the uplinks' names for it.
#[derive(Debug, Default)]
struct Learning {
    path_names: BTreeMap<PathId, String>,
    learned: Option<String>,
}

#[derive(Debug)]
pub(crate) struct LaneSender {
    lane: LaneId,
    pub(crate) config: LaneConfig,
    scheduler: Box<dyn Scheduler>,
    recovery: RecoveryHistory,
    insurance: Option<Insurance>,
    coding: Coding,
    sent_flows: SentFlows,
    queue: VecDeque<Queued>,
    /// Stream data that waits for room in the queue; set in a lane that carries streams.
    pub(crate) held_back: Option<HeldBack>,
    stale: Stale,
    resends: Resends,
    cuts: Cuts,
    keeping: Keeping,
    predecessors: Option<FlowPredecessors>,
    learning: Learning,
    announced: Promise,
    targets: Option<Targets>,
    stats: SendStats,
    pub(crate) log: PacketLog,
    /// What another session would have to send on, if there may be one.
    unacknowledged: Option<Unacknowledged>,
}

impl LaneSender {
    /// Fails if the strategy names an uplink where none is known.
    pub(crate) fn new(
        lane: LaneId,
        config: LaneConfig,
        seed: u64,
        names_uplinks: bool,
    ) -> Result<Self, NamesUplink> {
        config.strategy.check(names_uplinks)?;
        let age_max = config.keeps_for();
        // A range expires by its last packet, so its first is kept a little longer.
        let encoder = EncoderConfig { expiry: age_max + RANGE_SPAN, ..EncoderConfig::default() };
        Ok(Self {
            lane,
            scheduler: config.strategy.scheduler(config.for_scheduler()),
            recovery: RecoveryHistory::new(config.strategy.recovery(recovery_config(&config))),
            insurance: settings::insurance(&config),
            coding: Coding {
                encoder: Encoder::new(encoder),
                next_id: PacketId(0),
                codes: config.strategy.codes(),
                seeds: Pcg64Mcg::new(u128::from(seed) << 8 | u128::from(lane.0)),
            },
            sent_flows: SentFlows::default(),
            queue: VecDeque::new(),
            held_back: None,
            stale: Stale {
                shedder: config.strategy.shedder(config.for_scheduler()),
                superseded: RecentlySuperseded::default(),
            },
            resends: Resends::default(),
            cuts: Cuts::default(),
            keeping: Keeping {
                age_max,
                arrival_times: config.expire_after.map(|age| ArrivalTimes::new(Instant::ZERO, age)),
            },
            predecessors: matches!(config.order, Order::Adaptive { .. })
                .then(FlowPredecessors::default),
            learning: Learning::default(),
            announced: Promise::default(),
            targets: None,
            stats: SendStats::default(),
            log: PacketLog::default(),
            unacknowledged: None,
            config,
        })
    }

    /// When a packet that was sent may not leave again, in a lane whose packets expire.
    fn expiry(&self, id: PacketId) -> Option<Instant> {
        self.keeping.arrival_times.as_ref().map(|arrival_times| arrival_times.expiry(id))
    }

    fn carries_times(&self) -> bool {
        self.keeping.arrival_times.is_some() || self.config.order.carries_times()
    }

    fn has_expired(&self, now: Instant, id: PacketId) -> bool {
        self.expiry(id).is_some_and(|expiry| expiry <= now)
    }

    pub(crate) fn stats(&self) -> SendStats {
        let mut stats = self.stats.clone();
        stats.copy_queue_bytes = self.resends.copies.total_bytes();
        stats.recovery = self.recovery.stats();
        stats.drops.add(DropReason::RepairExpired, stats.recovery.abandoned);
        stats.drops.merge(self.coding.encoder.drops());
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
        let mut targets = self.targets.take().unwrap_or_else(|| Targets::new(self.config.deadline));
        let offers = self.offers(carrier.paths(now));
        let (waiting, under_way) = (self.stats.queue_bytes, self.coding.encoder.bytes() as u64);
        let target = targets.take(now, &*self.scheduler, &offers, waiting, under_way);
        self.targets = Some(targets);
        Some(target)
    }

    pub(crate) fn hear_acknowledged(&mut self, now: Instant, acknowledged: &AcknowledgedDatagram) {
        self.targets.take_if(|targets| !targets.is_wanted(now));
        if let Some(targets) = &mut self.targets {
            targets.windows.on_acknowledged(now, acknowledged);
        }
    }

    pub(crate) fn last_encoder_target(&self) -> Option<EncoderTarget> {
        self.targets.as_ref().map(|targets| targets.target)
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
        if self.stale.superseded.covers(now, packet) {
            self.stats.drops.count(DropReason::Superseded);
            return;
        }
        let stamp = self.carries_times().then(|| Stamp::of(now));
        let datagram =
            SourceDatagram::of_packet(self.lane, self.predecessors.is_some(), stamp, packet);
        self.queue_packet(now, datagram, flow, rtp, Urgency::FIRST);
    }

    fn queue_packet(
        &mut self,
        now: Instant,
        datagram: SourceDatagram,
        flow: u64,
        rtp: Option<RtpHeader>,
        urgency: Urgency,
    ) {
        let bytes = datagram.len();
        if self.stats.queue_bytes as usize + bytes > self.config.queue_bytes_max {
            self.stats.drops.count(DropReason::QueueFull);
            return;
        }
        self.stats.queue_bytes += bytes as u64;
        self.queue.push_back(Queued {
            since: now,
            datagram,
            flow,
            frame: rtp.map(|header| FrameKey::new(flow, &header)),
            ends_frame: rtp.is_some_and(|header| header.marker),
            urgency,
            ends_packet: true,
        });
    }

    pub(crate) fn handle_symbol(&mut self, now: Instant, body: &[u8], urgency: Urgency) {
        self.stats.inner_packets += 1;
        self.stats.inner_bytes += body.len() as u64;
        let symbol = Symbol { position: FragmentPosition::Whole, body };
        self.queue_packet(now, SourceDatagram::new(self.lane, &symbol), 0, None, urgency);
    }

    /// The most bytes of a symbol's body that fit a datagram, coded or not.
    pub(crate) fn symbol_room(&self, carrier: &impl Carrier) -> usize {
        let room = carrier.max_datagram_size().saturating_sub(CODED_HEADER + SYMBOL_HEADER);
        room.min(MAX_SYMBOL_BODY)
    }

    fn carries_streams(&self) -> bool {
        self.held_back.is_some()
    }

    fn flow_of(&self, kind: TokenKind, id: PacketId) -> u64 {
        if kind == TokenKind::Source { self.sent_flows.of(id) } else { 0 }
    }

    /// Bytes of `flow` among the first [`FLOW_LOOK`] packets of the queue.
    fn flow_bytes(&self, flow: u64) -> u64 {
        if self.carries_streams() {
            return self.backlog_bytes();
        }
        let of_flow = self.queue.iter().take(FLOW_LOOK).filter(|queued| queued.flow == flow);
        of_flow.map(|queued| queued.datagram.len() as u64).sum()
    }

    fn backlog_bytes(&self) -> u64 {
        self.stats.queue_bytes + self.held_back.map_or(0, |held_back| held_back.bytes)
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.stats.queue_bytes as usize
    }

    /// Called when a later packet shows that the newest one ended a video frame.
    pub(crate) fn end_frame(&mut self) {
        match self.queue.back_mut() {
            Some(last) => last.ends_frame = true,
            None => {
                self.recovery.on_frame_ended();
                self.insurance.iter_mut().for_each(Insurance::on_frame_ended);
            }
        }
    }

    pub(crate) fn on_acknowledged(
        &mut self,
        now: Instant,
        kind: TokenKind,
        id: PacketId,
        acknowledged: &AcknowledgedDatagram,
    ) {
        let flow = self.flow_of(kind, id);
        self.scheduler.on_acknowledged(now, acknowledged, flow);
        let whole = match kind {
            TokenKind::Part => self.cuts.on_acknowledged(id.0).map(|cut| (cut.kind, cut.id)),
            kind => Some((kind, id)),
        };
        let Some((kind, id)) = whole else { return };
        if kind == TokenKind::Repair {
            self.recovery.of(id).on_repair_acknowledged(id);
            self.forget_done();
        }
        if kind == TokenKind::Source {
            self.recovery.of(id).on_acknowledged(now, id);
            self.insurance.iter_mut().for_each(|insurance| insurance.on_acknowledged(id));
            self.unacknowledged.iter_mut().for_each(|kept| kept.on_done(id));
            self.forget_unneeded(id);
            self.forget_done();
            self.stats.drops.add(DropReason::CopyCancelled, self.resends.copies.cancel(id));
        }
    }

    fn forget_done(&mut self) {
        while let Some((start, arrived)) = self.recovery.each().find_map(Recovery::poll_arrived) {
            for id in start.of_mask(arrived) {
                self.unacknowledged.iter_mut().for_each(|kept| kept.on_done(id));
            }
        }
        let done = |it: &mut Self| {
            let repaired = it.recovery.each().find_map(Recovery::poll_done);
            repaired.or_else(|| it.insurance.as_mut()?.poll_done())
        };
        while let Some((start, count)) = done(self) {
            for id in (0..count).map(|at| start.plus(at)) {
                self.forget_unneeded(id);
            }
        }
    }

    pub(crate) fn keep_unfinished(&mut self) {
        self.unacknowledged.get_or_insert_default();
    }

    /// Takes the inner packets that the peer may lack and that have not expired, oldest first.
    pub(crate) fn take_unfinished(&mut self, now: Instant) -> Vec<Unfinished> {
        let mut packets = self.unacknowledged.as_mut().map(|kept| {
            kept.expire(now, self.keeping.age_max);
            kept.take()
        });
        let packets = packets.get_or_insert_default();
        let mut parts: Option<BytesMut> = None;
        while let Some(queued) = self.pop() {
            let position = queued.datagram.position();
            if matches!(position, FragmentPosition::Whole | FragmentPosition::First) {
                parts = Some(BytesMut::new());
            }
            parts.iter_mut().for_each(|whole| whole.extend_from_slice(queued.datagram.body()));
            if !queued.ends_packet {
                continue;
            }
            match parts.take().filter(|_| now.since(queued.since) < self.keeping.age_max) {
                Some(whole) => {
                    let packet = inner_of(whole.freeze());
                    packets.push(Unfinished { since: queued.since, packet });
                }
                // A packet whose first fragments have left cannot be put together here.
                None => self.stats.drops.count(DropReason::QueueExpired),
            }
        }
        self.resends.again.clear();
        self.resends.repairs.clear();
        self.resends.copies = Copies::default();
        std::mem::take(packets)
    }

    pub(crate) fn waiting_packets(&self) -> u64 {
        self.queue.iter().filter(|queued| queued.ends_packet).count() as u64
    }

    pub(crate) fn on_lost(&mut self, now: Instant, kind: TokenKind, id: PacketId, path: PathId) {
        let flow = self.flow_of(kind, id);
        self.scheduler.on_lost(now, path, flow);
        match kind {
            TokenKind::Source => self.recovery.of(id).on_lost(now, id, path),
            TokenKind::Part => self.on_part_lost(now, id.0),
            TokenKind::Repair | TokenKind::Load => {}
        }
    }

    fn on_part_lost(&mut self, now: Instant, number: u32) {
        if let Some(Cut { kind: TokenKind::Source, id, path }) = self.cuts.remove(number) {
            self.recovery.of(id).on_lost(now, id, path);
        }
    }

    pub(crate) fn has_backlog(&self) -> bool {
        !self.queue.is_empty() || !self.resends.again.is_empty() || !self.resends.repairs.is_empty()
    }

    /// Sends what may leave: waiting copies and repairs, which are older, then the queue. The
    /// recovery may use the room that is left then.
    pub(crate) fn transmit(&mut self, now: Instant, carrier: &mut impl Carrier) {
        if self.is_idle() {
            self.settle_age();
            self.announce(carrier);
            return;
        }
        carrier.set_pacing(self.config.strategy.pacing(self.config.pacing));
        let backlog = self.stats.queue_bytes;
        self.announce(carrier);
        self.send_copies(now, carrier);
        self.repair_all(now, carrier);
        self.expire(now);
        while self.send_again(now, carrier) {}
        while self.resends.again.is_empty() && self.send_next(now, carrier) {}
        if backlog > 0 && self.stats.queue_bytes == 0 {
            self.repair_all(now, carrier);
            while self.send_again(now, carrier) {}
        }
        if self.cuts.has_new_parts {
            self.send_repairs(now, carrier);
        }
        if !self.recovery.has_past() {
            self.settle_age();
        }
        self.coding.encoder.expire(now);
        self.forget_flows();
        if self.has_backlog() {
            carrier.on_backlog(now);
        }
    }

    fn is_idle(&self) -> bool {
        let sends_nothing =
            !self.has_backlog() && self.resends.copies.is_empty() && !self.cuts.has_new_parts;
        let awaits_nothing = self.coding.encoder.is_empty()
            && !self.recovery.has_past()
            && self.recovery.poll_timeout().is_none();
        sends_nothing && awaits_nothing
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let queued = self.queue.front().map(|queued| queued.since + self.keeping.age_max);
        let again = self.resends.again.front().map(|(since, id)| {
            let given_up = *since + self.keeping.age_max;
            self.expiry(*id).map_or(given_up, |expiry| expiry.min(given_up))
        });
        let repair = self.repairs_timeout();
        let copy = self.resends.copies.oldest().map(|since| since + self.keeping.age_max);
        let insurance = self.insurance.as_ref().and_then(Insurance::poll_timeout);
        earliest([insurance, self.recovery.poll_timeout(), queued, again, repair, copy])
    }

    fn offers<'a>(&self, paths: &'a [PathSnapshot]) -> Vec<PathOffer<'a>> {
        let nothing_waits = self.resends.repairs.is_empty() && self.resends.copies.is_empty();
        let offer = |snapshot: &'a PathSnapshot| {
            let queued_bytes = match nothing_waits {
                true => 0,
                false => self.resends.copies.bytes(snapshot.id) + self.repair_bytes(snapshot.id),
            };
            PathOffer { queued_bytes, ..PathOffer::free(snapshot) }
        };
        paths.iter().map(offer).collect()
    }
}

/// Stream data that waits for room in the queue, and the urgency of its most urgent part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBack {
    pub(crate) bytes: u64,
    pub(crate) urgency: Urgency,
}

const FLOW_LOOK: usize = 32;
/// How much longer than its packets a range may last: t of CellFusion section 4.4.2.
const RANGE_SPAN: Duration = Duration::from_millis(60);

#[cfg(test)]
pub(crate) mod tests;
