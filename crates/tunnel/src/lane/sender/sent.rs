//! The packets of a lane that have left and may be needed again, by a repair or another session.

use std::collections::HashSet;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;
use roadweave_coding::{EncodeError, Encoder, EncoderConfig};
use roadweave_proto::wire::{
    CODED_HEADER, Coded, FragmentPosition, PREDECESSOR_HEADER, SOURCE_HEADER, STAMP_HEADER, Symbol,
};
use roadweave_proto::{Instant, LaneId, Order, PacketId, PathId};
use roadweave_recovery::{Insurance, Recovery, RecoveryConfig};

use super::queue::Queued;
use crate::lane::LaneConfig;
use crate::lane::arrival_times::ArrivalTimes;
use crate::lane::datagram::{LaneDatagram, TokenKind};
use crate::lane::flow_predecessors::FlowPredecessors;
use crate::lane::recovery_history::RecoveryHistory;
use crate::lane::sent_flows::SentFlows;
use crate::lane::superseded::Superseded;
use crate::lane::unfinished::{Unacknowledged, Unfinished, inner_of};

/// The optional stages of a lane are absent unless its settings, or its session, ask for them.
#[derive(Debug)]
pub(super) struct SentPackets {
    lane: LaneId,
    pub(super) encoder: Encoder,
    next_id: PacketId,
    pub(super) codes: bool,
    pub(super) seeds: Pcg64Mcg,
    pub(super) flows: SentFlows,
    pub(super) recovery: RecoveryHistory,
    pub(super) insurance: Option<Insurance>,
    /// How long a packet is worth sending.
    pub(super) age_max: Duration,
    arrival_times: Option<ArrivalTimes>,
    pub(super) predecessors: Option<FlowPredecessors>,
    /// What another session would have to send on, if there may be one.
    pub(super) unacknowledged: Option<Unacknowledged>,
}

impl SentPackets {
    pub(super) fn new(lane: LaneId, config: &LaneConfig, seed: u64) -> Self {
        let age_max = config.keeps_for();
        // A range expires by its last packet, so its first is kept a little longer.
        let encoder = EncoderConfig { expiry: age_max + RANGE_SPAN, ..EncoderConfig::default() };
        let is_adaptive = matches!(config.order, Order::Adaptive { .. });
        Self {
            lane,
            encoder: Encoder::new(encoder),
            next_id: PacketId(0),
            codes: config.strategy.codes(),
            seeds: Pcg64Mcg::new(u128::from(seed) << 8 | u128::from(lane.0)),
            flows: SentFlows::default(),
            recovery: RecoveryHistory::new(config.strategy.recovery(recovery_config(config))),
            insurance: insurance(config),
            age_max,
            arrival_times: config.expire_after.map(|age| ArrivalTimes::new(Instant::ZERO, age)),
            predecessors: is_adaptive.then(FlowPredecessors::default),
            unacknowledged: None,
        }
    }

    /// Follows another strategy; packets sent before stay with their recovery.
    pub(super) fn set_strategy(&mut self, config: &LaneConfig) {
        let recovery = config.strategy.recovery(recovery_config(config));
        self.recovery.change(self.next_id, recovery);
        self.insurance = insurance(config);
        // The old recovery's packets must be kept as long as it expects.
        self.age_max = self.age_max.max(config.keeps_for());
        self.codes |= config.strategy.codes();
        self.encoder.set_expiry(self.age_max + RANGE_SPAN);
        if !self.recovery.has_past() {
            self.settle(config);
        }
    }

    pub(super) fn settle(&mut self, config: &LaneConfig) {
        self.codes = config.strategy.codes();
        let age_max = config.keeps_for();
        if age_max != self.age_max {
            self.age_max = age_max;
            self.encoder.set_expiry(age_max + RANGE_SPAN);
        }
    }

    pub(super) fn set_expiry(&mut self, now: Instant, expire_after: Option<Duration>) {
        match (&mut self.arrival_times, expire_after) {
            (Some(arrival_times), Some(age)) => arrival_times.expire_after = age,
            (arrival_times, age) => *arrival_times = age.map(|age| ArrivalTimes::new(now, age)),
        }
    }

    pub(super) fn expires(&self) -> bool {
        self.arrival_times.is_some()
    }

    /// When a packet that was sent may not leave again, in a lane whose packets expire.
    pub(super) fn expiry(&self, id: PacketId) -> Option<Instant> {
        self.arrival_times.as_ref().map(|arrival_times| arrival_times.expiry(id))
    }

    pub(super) fn has_expired(&self, now: Instant, id: PacketId) -> bool {
        self.expiry(id).is_some_and(|expiry| expiry <= now)
    }

    pub(super) fn flow_of(&self, kind: TokenKind, id: PacketId) -> u64 {
        if kind == TokenKind::Source { self.flows.of(id) } else { 0 }
    }

    /// Gives a packet that leaves its ID. Returns the bytes of its predecessor and stamp as well.
    pub(super) fn assign(
        &mut self,
        now: Instant,
        queued: &mut Queued,
        carries_times: bool,
    ) -> (PacketId, usize) {
        let id = self.next_id;
        self.next_id = id.next();
        self.arrival_times.iter_mut().for_each(|times| times.on_sent(now, id, queued.since));
        let begins =
            matches!(queued.datagram.position(), FragmentPosition::Whole | FragmentPosition::First);
        let stamp = if begins && carries_times { STAMP_HEADER } else { 0 };
        let Some(predecessors) = &mut self.predecessors else { return (id, stamp) };
        let after = predecessors.on_sent(queued.flow, id);
        if !begins {
            return (id, 0);
        }
        queued.datagram.set_predecessor(after);
        (id, PREDECESSOR_HEADER + stamp)
    }

    pub(super) fn take_unfinished(&mut self, now: Instant) -> Vec<Unfinished> {
        let Some(kept) = &mut self.unacknowledged else { return Vec::new() };
        kept.expire(now, self.age_max);
        kept.take()
    }

    /// Keeps a packet of `flow` that came at `since`.
    pub(super) fn keep(
        &mut self,
        now: Instant,
        id: PacketId,
        (since, flow): (Instant, u64),
        datagram: &Bytes,
        is_repairable: bool,
    ) {
        let symbol = || datagram.slice(SOURCE_HEADER..);
        if let Some(kept) = &mut self.unacknowledged {
            kept.expire(now, self.age_max);
            kept.on_sent(id, since, symbol());
        }
        if is_repairable {
            self.encoder.insert(now, id, symbol());
            self.flows.on_sent(id, flow);
        }
    }

    pub(super) fn on_frame_ended(&mut self) {
        self.recovery.on_frame_ended();
        self.insurance.iter_mut().for_each(Insurance::on_frame_ended);
    }

    pub(super) fn on_acknowledged(&mut self, now: Instant, id: PacketId) {
        self.recovery.of(id).on_acknowledged(now, id);
        self.insurance.iter_mut().for_each(|insurance| insurance.on_acknowledged(id));
        self.unacknowledged.iter_mut().for_each(|kept| kept.on_done(id));
        self.forget_unneeded(id);
        self.forget_done();
    }

    pub(super) fn on_repair_acknowledged(&mut self, start: PacketId) {
        self.recovery.of(start).on_repair_acknowledged(start);
        self.forget_done();
    }

    pub(super) fn on_lost(&mut self, now: Instant, id: PacketId, path: PathId) {
        self.recovery.of(id).on_lost(now, id, path);
    }

    pub(super) fn forget_done(&mut self) {
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

    fn forget_unneeded(&mut self, id: PacketId) {
        let is_insured = self.insurance.as_ref().is_some_and(|it| it.needs(id));
        if !is_insured && !self.recovery.of(id).needs(id) {
            self.encoder.forget(id);
        }
    }

    pub(super) fn forget_flows(&mut self) {
        self.flows.retain_from(|id| self.encoder.symbol(id).is_some());
    }

    /// Gives up older packets of a video; returns them, and how many the peer may never get.
    pub(super) fn supersede(&mut self, superseded: Superseded) -> (HashSet<PacketId>, u64) {
        let ids = self.flows.ids().filter(|id| self.is_older(*id, superseded));
        let ids: HashSet<PacketId> = ids.collect();
        let mut packets = 0;
        for id in ids.iter().copied() {
            packets += u64::from(self.recovery.of(id).on_superseded(id));
            self.insurance.iter_mut().for_each(|insurance| insurance.on_superseded(id));
            self.unacknowledged.iter_mut().for_each(|kept| kept.on_done(id));
            self.forget_unneeded(id);
        }
        self.forget_done();
        (ids, packets)
    }

    fn is_older(&self, id: PacketId, superseded: Superseded) -> bool {
        let Some(symbol) = self.encoder.symbol(id) else { return false };
        let Ok(Symbol { position: FragmentPosition::Whole, body }) = Symbol::parse(symbol) else {
            return false;
        };
        superseded.covers_packet(&inner_of(symbol.slice_ref(body)))
    }

    pub(super) fn rebuild(&self, id: PacketId) -> Option<LaneDatagram> {
        let symbol = self.encoder.symbol(id)?;
        let symbol = Symbol::parse(symbol).expect("the pool holds symbols that were built here");
        Some(LaneDatagram::of_symbol(self.lane, id, &symbol))
    }

    pub(super) fn encode(
        &mut self,
        start: PacketId,
        count: u16,
        shares: &[(PathId, u16)],
    ) -> Result<Vec<(PathId, Bytes)>, EncodeError> {
        let range = self.encoder.range(start, count)?;
        let datagram_len = CODED_HEADER + range.coded_len();
        let buffer = |share: u16| BytesMut::zeroed(usize::from(share) * datagram_len);
        let mut buffers: Vec<BytesMut> = shares.iter().map(|(_, share)| buffer(*share)).collect();
        let (mut seeds, mut outputs) = (Vec::new(), Vec::new());
        for datagram in buffers.iter_mut().flat_map(|buffer| buffer.chunks_exact_mut(datagram_len))
        {
            let (mut header, coded) = datagram.split_at_mut(CODED_HEADER);
            let seed = self.seeds.next_u32();
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
}

fn insurance(lane: &LaneConfig) -> Option<Insurance> {
    let percent = lane.insurance_percent;
    (percent > 0 && lane.strategy.codes()).then(|| Insurance::new(recovery_config(lane), percent))
}

fn recovery_config(lane: &LaneConfig) -> RecoveryConfig {
    RecoveryConfig { deadline: lane.deadline, expire_after: lane.keeps_for() }
}

/// How much longer than its packets a range may last: t of CellFusion section 4.4.2.
const RANGE_SPAN: Duration = Duration::from_millis(60);
