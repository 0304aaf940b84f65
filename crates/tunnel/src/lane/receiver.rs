//! The receiving half of a lane: source and coded datagrams in, inner packets out.
//!
//! ```text
//! source, coded ─► Decoder ─► symbols ─► Fragments ─► Reorder ─► inner packets
//!                                                       └ too old where the lane expires: dropped
//! ```

use std::time::Duration;

use bytes::Bytes;
use roadweave_coding::{CodedRange, Decoder, DecoderConfig, SourceOutcome, WINDOW_IDS};
use roadweave_proto::wire::{
    Coded, FragmentPosition, LaneReport, SYMBOL_HEADER, Symbol, split_predecessor, split_stamp,
};
use roadweave_proto::{DropReason, Instant, LaneId, Order, PacketId, Promise};

use crate::lane::ages::Ages;
use crate::lane::fragments::{Fragments, Joined};
use crate::lane::memory::MemoryStats;
use crate::lane::reorder::{Release, Reorder, Turn, Unit};

mod stats;

pub use stats::ReceiveStats;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) order: Order,
    /// Whether the peer may send coded packets, for which packets are kept.
    pub(crate) coded: bool,
    /// Silence after which smaller IDs are accepted ([`DecoderConfig::rewind_after`]).
    pub(crate) rewind_after: Duration,
}

impl Default for Opening {
    fn default() -> Self {
        let rewind_after = DecoderConfig::default().rewind_after;
        Self { order: Order::Pass, coded: true, rewind_after }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    First,
    Duplicate,
    Late,
    Old,
    Refused,
}

#[derive(Debug)]
pub(crate) struct Delivery {
    /// The packet's ID, or that of the last fragment to come.
    pub(crate) id: PacketId,
    pub(crate) decoded: bool,
    pub(crate) packet: Bytes,
}

type Deliver<'a> = &'a mut dyn FnMut(Delivery);

#[derive(Debug)]
pub(crate) struct LaneReceiver {
    lane: LaneId,
    decoder: Decoder,
    fragments: Fragments,
    reorder: Reorder,
    pub(crate) promise: Promise,
    ages: Ages,
    opening: Option<Order>,
    run: Option<IdRun>,
    lost_before: u64,
    stats: ReceiveStats,
    determined: Vec<(PacketId, Bytes)>,
}

/// Packets with consecutive IDs, to count missing ones. IDs that the window skips are not missing.
#[derive(Debug)]
struct IdRun {
    first: PacketId,
    highest: PacketId,
    known: u64,
}

impl LaneReceiver {
    pub(crate) fn new(lane: LaneId, opening: Opening) -> Self {
        let mut config =
            DecoderConfig { rewind_after: opening.rewind_after, ..DecoderConfig::default() };
        if !opening.coded {
            config.known_bytes_max = 0;
        }
        Self {
            lane,
            decoder: Decoder::new(config),
            fragments: Fragments::new(config.expiry),
            reorder: Reorder::new(Order::Pass, PacketId(0)),
            promise: Promise::default(),
            ages: Ages::default(),
            opening: (opening.order != Order::Pass).then_some(opening.order),
            run: None,
            lost_before: 0,
            stats: ReceiveStats::default(),
            determined: Vec::new(),
        }
    }

    pub(crate) fn set_promise(&mut self, now: Instant, promise: Promise, deliver: Deliver<'_>) {
        self.opening = None;
        self.promise = promise;
        let kept = self.keeps_for();
        self.fragments.age_max = kept;
        self.decoder.set_expiry(if promise.coded { kept } else { Promise::DEFAULT_AGE });
        if promise.order != self.reorder.order {
            self.with_reorder(now, deliver, |it, release| {
                it.set_order(now, promise.order, release)
            });
        }
    }

    pub(crate) fn keeps_for(&self) -> Duration {
        self.promise.age_max.clamp(Promise::DEFAULT_AGE, Promise::AGE_MAX)
    }

    pub(crate) fn handle_source(
        &mut self,
        now: Instant,
        id: PacketId,
        symbol: Bytes,
        deliver: Deliver<'_>,
    ) -> Arrival {
        let mut determined = std::mem::take(&mut self.determined);
        let outcome = self.decoder.on_source(now, id, symbol, &mut determined);
        let turn = self.deliver(now, determined, Some(id), deliver);
        match outcome {
            SourceOutcome::New if turn == Turn::Discarded => Arrival::Late,
            SourceOutcome::New => Arrival::First,
            SourceOutcome::Duplicate => Arrival::Duplicate,
            SourceOutcome::Late => Arrival::Old,
            _ => Arrival::Refused,
        }
    }

    pub(crate) fn handle_coded(&mut self, now: Instant, coded: Coded, deliver: Deliver<'_>) {
        let range = CodedRange { start: coded.start, count: coded.count, seed: coded.seed };
        let mut determined = std::mem::take(&mut self.determined);
        self.decoder.on_coded(now, range, coded.payload, &mut determined);
        self.deliver(now, determined, None, deliver);
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant, deliver: Deliver<'_>) {
        self.decoder.expire(now);
        self.with_reorder(now, deliver, |reorder, release| reorder.handle_timeout(now, release));
    }

    pub(crate) fn flush(&mut self, now: Instant, deliver: Deliver<'_>) {
        self.with_reorder(now, deliver, Reorder::flush);
    }

    pub(crate) fn memory(&self) -> MemoryStats {
        MemoryStats {
            decoder_bytes: self.decoder.memory() as u64,
            reorder_bytes: self.reorder.memory() as u64,
            fragment_bytes: self.fragments.bytes as u64,
            ..MemoryStats::default()
        }
    }

    pub(crate) fn shed(&mut self, now: Instant, bytes: u64, deliver: Deliver<'_>) {
        let target = self.memory().total().saturating_sub(bytes);
        let excess = |this: &Self| this.memory().total().saturating_sub(target) as usize;
        let held = self.memory();
        let mut order = [
            (held.decoder_bytes, BufferKind::Decoder),
            (held.reorder_bytes, BufferKind::Reorder),
            (held.fragment_bytes, BufferKind::Fragments),
        ];
        order.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        for (_, part) in order {
            let excess = excess(self);
            match part {
                BufferKind::Decoder => self.decoder.shed(excess),
                BufferKind::Fragments => self.fragments.shed(excess),
                BufferKind::Reorder => self.with_reorder(now, deliver, |reorder, release| {
                    reorder.shed(excess, release);
                }),
            }
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.reorder.poll_timeout()
    }

    pub(crate) fn report(&self) -> LaneReport {
        LaneReport {
            lane: self.lane.0,
            highest: self.run.as_ref().map(|run| run.highest).unwrap_or_default(),
            delivered: self.stats.delivered_packets,
            recovered: self.decoder.stats().recovered,
            lost: self.lost_before + self.run.as_ref().map_or(0, IdRun::lost),
        }
    }

    pub(crate) fn stats(&self) -> ReceiveStats {
        let decoder = self.decoder.stats();
        let mut stats = ReceiveStats {
            source_datagrams: decoder.new_sources,
            coded_datagrams: decoder.coded,
            recovered: decoder.recovered,
            redundant: decoder.redundant,
            order: self.reorder.stats(),
            ..self.stats.clone()
        };
        stats.drops.merge(&decoder.drops);
        stats.drops.merge(&self.fragments.drops);
        stats
    }

    fn note(&mut self, id: PacketId) {
        match &mut self.run {
            Some(run) if run.is_near(id) => run.note(id),
            run => {
                self.lost_before += run.as_ref().map_or(0, IdRun::lost);
                *run = Some(IdRun { first: id, highest: id, known: 1 });
            }
        }
    }

    /// Orders the symbols of `determined`; returns the turn of `as_sent`, which came uncoded.
    fn deliver(
        &mut self,
        now: Instant,
        mut determined: Vec<(PacketId, Bytes)>,
        as_sent: Option<PacketId>,
        deliver: Deliver<'_>,
    ) -> Turn {
        let mut turn_as_sent = Turn::Kept;
        for (id, symbol) in determined.drain(..) {
            self.note(id);
            let Some(mut unit) = self.join(now, id, &symbol) else { continue };
            unit.decoded = as_sent != Some(id);
            if let Some(sent) = unit.sent {
                unit.age = self.ages.on_packet(now, sent);
                if self.promise.expires && unit.age > self.promise.age_max {
                    // Its place counts as filled.
                    unit.packet = None;
                    self.stats.drops.count(DropReason::ArrivedExpired);
                }
            }
            let is_packet = unit.packet.is_some();
            let is_as_sent = !unit.decoded;
            if let Some(order) = self.opening.take() {
                self.reorder = Reorder::opening(order, unit.first);
            }
            let turn = self.with_reorder(now, deliver, |it, release| it.handle(now, unit, release));
            if turn == Turn::Discarded && is_packet {
                self.stats.drops.count(DropReason::OutOfOrder);
            }
            if is_as_sent {
                turn_as_sent = turn;
            }
        }
        self.determined = determined;
        turn_as_sent
    }

    fn join(&mut self, now: Instant, id: PacketId, symbol: &Bytes) -> Option<Unit> {
        let Ok(Symbol { position, .. }) = Symbol::parse(symbol) else {
            self.stats.drops.count(DropReason::Inconsistent);
            let (after, sent, age, decoded, packet) = (0, None, Duration::ZERO, false, None);
            return Some(Unit { first: id, last: id, id, after, sent, age, decoded, packet });
        };
        let body = symbol.slice(SYMBOL_HEADER..);
        let Joined { first, last, body } = match position {
            FragmentPosition::Whole => Joined { first: id, last: id, body },
            _ => self.fragments.insert(now, id, position, body)?,
        };
        let (after, packet) = split_predecessor(body);
        let (sent, packet) = split_stamp(packet);
        let (after, packet) = (after.unwrap_or(0), Some(packet));
        Some(Unit { first, last, id, after, sent, age: Duration::ZERO, decoded: false, packet })
    }

    /// Lets `what` release packets, which are counted and delivered unless they expired meanwhile.
    fn with_reorder<T>(
        &mut self,
        now: Instant,
        deliver: Deliver<'_>,
        what: impl FnOnce(&mut Reorder, Release<'_>) -> T,
    ) -> T {
        let mut release = |unit: Unit| {
            let Unit { id, decoded, packet: Some(packet), sent, .. } = unit else { return };
            if let Some(age) = sent.map(|sent| self.ages.age(now, sent)) {
                if self.promise.expires && age > self.promise.age_max {
                    return self.stats.drops.count(DropReason::ArrivedExpired);
                }
                self.stats.excess_delays.add(age);
            }
            self.stats.delivered_packets += 1;
            self.stats.delivered_bytes += packet.len() as u64;
            deliver(Delivery { id, decoded, packet });
        };
        what(&mut self.reorder, &mut release)
    }
}

#[derive(Clone, Copy)]
enum BufferKind {
    Decoder,
    Reorder,
    Fragments,
}

impl IdRun {
    /// Whether a packet belongs to this run: the decoder returns others only after a leap.
    fn is_near(&self, id: PacketId) -> bool {
        u64::from(id.distance(self.highest).unsigned_abs()) < WINDOW_IDS
    }

    fn note(&mut self, id: PacketId) {
        self.known += 1;
        if id.precedes(self.first) {
            self.first = id;
        }
        if self.highest.precedes(id) {
            self.highest = id;
        }
    }

    fn lost(&self) -> u64 {
        let span = self.highest.0.wrapping_sub(self.first.0);
        (u64::from(span) + 1).saturating_sub(self.known)
    }
}

#[cfg(test)]
mod tests;
