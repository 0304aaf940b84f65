//! The receiving half of a lane: source and coded datagrams in, inner packets out, as soon as they
//! are known or when it is their turn.
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
use roadweave_proto::{
    Delays, DropCounters, DropReason, Instant, LaneId, Order, PacketId, Promise,
};

use crate::lane::ages::Ages;
use crate::lane::fragments::{Fragments, Joined};
use crate::lane::memory::MemoryStats;
use crate::lane::reorder::{Reorder, Turn, Unit};

mod stats;

pub use stats::ReceiveStats;

/// How a lane begins before the peer has told anything of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// The order from the first packet on that comes.
    pub(crate) order: Order,
    /// Whether the peer may send coded packets, for which packets must be kept.
    pub(crate) coded: bool,
    /// For how long nothing must have come until smaller IDs are believed
    /// ([`DecoderConfig::rewind_after`]).
    pub(crate) rewind_after: Duration,
}

impl Default for Opening {
    fn default() -> Self {
        let rewind_after = DecoderConfig::default().rewind_after;
        Self { order: Order::Pass, coded: true, rewind_after }
    }
}

/// What became of a source datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The datagram was the first of its packet, and in time.
    First,
    /// A copy of a packet that came before.
    Duplicate,
    /// The packet's turn was over.
    Late,
    /// The packet is so old that nobody knows whether it came before.
    Old,
    /// The datagram has no packet of the lane.
    Refused,
}

/// An inner packet whose turn it is.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The packet's ID, or that of the fragment that came last.
    pub(crate) id: PacketId,
    /// Whether it was computed from coded packets.
    pub(crate) decoded: bool,
    pub(crate) packet: Bytes,
}

/// The receiving half of a lane.
#[derive(Debug)]
pub(crate) struct LaneReceiver {
    lane: LaneId,
    decoder: Decoder,
    fragments: Fragments,
    reorder: Reorder,
    promise: Promise,
    ages: Ages,
    /// The order from the first packet on, before it came, unless the peer has promised another.
    opening: Option<Order>,
    /// None before the first packet.
    run: Option<Run>,
    /// What the runs before it lost.
    lost_before: u64,
    delivered_packets: u64,
    delivered_bytes: u64,
    excess_delays: Delays,
    drops: DropCounters,
    determined: Vec<(PacketId, Bytes)>,
}

/// Packets whose IDs follow one another, to know how many never came.
///
/// A lane is one run, unless the decoder had to look for it elsewhere: what a leap of its window
/// skips was not lost.
#[derive(Debug)]
struct Run {
    first: PacketId,
    highest: PacketId,
    /// Packets that are known.
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
            delivered_packets: 0,
            delivered_bytes: 0,
            excess_delays: Delays::default(),
            drops: DropCounters::default(),
            determined: Vec::new(),
        }
    }

    /// The peer promises something else from now on; hands out what then need not wait.
    pub(crate) fn set_promise(
        &mut self,
        now: Instant,
        promise: Promise,
        deliver: &mut dyn FnMut(Delivery),
    ) {
        self.opening = None;
        self.promise = promise;
        let kept = self.keeps_for();
        self.fragments.set_age_max(kept);
        self.decoder.set_expiry(if promise.coded { kept } else { Promise::DEFAULT_AGE });
        if promise.order != self.reorder.order() {
            let (reorder, mut out) = self.outlet(now, deliver);
            reorder.set_order(now, promise.order, &mut |unit| out.release(unit));
        }
    }

    /// For how long what came is kept that may be of use to what is yet to come.
    pub(crate) fn keeps_for(&self) -> Duration {
        self.promise.age_max.clamp(Promise::DEFAULT_AGE, Promise::AGE_MAX)
    }

    /// Whether the peer wants what comes acknowledged on all paths.
    pub(crate) fn acknowledges_on_all(&self) -> bool {
        self.promise.acknowledge_on_all
    }

    /// Takes a source datagram's symbol, and hands out the inner packets whose turn it is with it.
    pub(crate) fn handle_source(
        &mut self,
        now: Instant,
        id: PacketId,
        symbol: Bytes,
        deliver: &mut dyn FnMut(Delivery),
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

    /// Takes a coded datagram, and hands out the inner packets whose turn it is with it.
    pub(crate) fn handle_coded(
        &mut self,
        now: Instant,
        coded: Coded,
        deliver: &mut dyn FnMut(Delivery),
    ) {
        let range = CodedRange { start: coded.start, count: coded.count, seed: coded.seed };
        let mut determined = std::mem::take(&mut self.determined);
        self.decoder.on_coded(now, range, coded.payload, &mut determined);
        self.deliver(now, determined, None, deliver);
    }

    /// Lets go of what is too old to be of use, and hands out what has waited long enough.
    pub(crate) fn handle_timeout(&mut self, now: Instant, deliver: &mut dyn FnMut(Delivery)) {
        self.decoder.expire(now);
        let (reorder, mut out) = self.outlet(now, deliver);
        reorder.handle_timeout(now, &mut |unit| out.release(unit));
    }

    /// Hands out all that waits, in order: nothing more comes.
    pub(crate) fn flush(&mut self, now: Instant, deliver: &mut dyn FnMut(Delivery)) {
        let (reorder, mut out) = self.outlet(now, deliver);
        reorder.flush(&mut |unit| out.release(unit));
    }

    /// The memory that the receiving half of the lane holds, by kind.
    pub(crate) fn memory(&self) -> MemoryStats {
        MemoryStats {
            decoder_bytes: self.decoder.memory() as u64,
            reorder_bytes: self.reorder.memory() as u64,
            fragment_bytes: self.fragments.bytes() as u64,
            ..MemoryStats::default()
        }
    }

    /// Lets go of the oldest until `bytes` bytes less are held, or nothing is: what it has most of
    /// first. What waits for its turn goes out before it.
    pub(crate) fn shed(&mut self, now: Instant, bytes: u64, deliver: &mut dyn FnMut(Delivery)) {
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
                BufferKind::Reorder => {
                    let (reorder, mut out) = self.outlet(now, deliver);
                    reorder.shed(excess, &mut |unit| out.release(unit));
                }
            }
        }
    }

    /// When [`LaneReceiver::handle_timeout`] must be called, because a packet has waited long
    /// enough.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.reorder.poll_timeout()
    }

    /// What the peer is told of this lane.
    pub(crate) fn report(&self) -> LaneReport {
        LaneReport {
            lane: self.lane.0,
            highest: self.run.as_ref().map(|run| run.highest).unwrap_or_default(),
            delivered: self.delivered_packets,
            recovered: self.decoder.stats().recovered,
            lost: self.lost_before + self.run.as_ref().map_or(0, Run::lost),
        }
    }

    pub(crate) fn stats(&self) -> ReceiveStats {
        let decoder = self.decoder.stats();
        let mut drops = decoder.drops.clone();
        drops.merge(self.fragments.drops());
        drops.merge(&self.drops);
        ReceiveStats {
            delivered_packets: self.delivered_packets,
            delivered_bytes: self.delivered_bytes,
            source_datagrams: decoder.new_sources,
            coded_datagrams: decoder.coded,
            recovered: decoder.recovered,
            redundant: decoder.redundant,
            excess_delays: self.excess_delays,
            order: self.reorder.stats(),
            drops,
        }
    }

    fn note(&mut self, id: PacketId) {
        match &mut self.run {
            Some(run) if run.is_near(id) => run.note(id),
            run => {
                self.lost_before += run.as_ref().map_or(0, Run::lost);
                *run = Some(Run { first: id, highest: id, known: 1 });
            }
        }
    }

    /// Brings the symbols of `determined` into their order; `as_sent`: the one that came as it is,
    /// whose turn is returned.
    fn deliver(
        &mut self,
        now: Instant,
        mut determined: Vec<(PacketId, Bytes)>,
        as_sent: Option<PacketId>,
        deliver: &mut dyn FnMut(Delivery),
    ) -> Turn {
        let mut turn_as_sent = Turn::Kept;
        for (id, symbol) in determined.drain(..) {
            self.note(id);
            let Some(mut unit) = self.join(now, id, &symbol) else { continue };
            unit.decoded = as_sent != Some(id);
            if let Some(sent) = unit.sent {
                unit.age = self.ages.on_packet(now, sent);
                if self.promise.expires && unit.age > self.promise.age_max {
                    // Nobody need wait for it: its place is taken all the same.
                    unit.packet = None;
                    self.drops.count(DropReason::ArrivedExpired);
                }
            }
            let is_packet = unit.packet.is_some();
            let is_as_sent = !unit.decoded;
            if let Some(order) = self.opening.take() {
                self.reorder = Reorder::opening(order, unit.first);
            }
            let (reorder, mut out) = self.outlet(now, deliver);
            let turn = reorder.handle(now, unit, &mut |unit| out.release(unit));
            if turn == Turn::Discarded && is_packet {
                self.drops.count(DropReason::OutOfOrder);
            }
            if is_as_sent {
                turn_as_sent = turn;
            }
        }
        self.determined = determined;
        turn_as_sent
    }

    /// What a symbol is, or completes. What is no symbol is counted, and takes its place all the
    /// same.
    fn join(&mut self, now: Instant, id: PacketId, symbol: &Bytes) -> Option<Unit> {
        let Ok(Symbol { position, .. }) = Symbol::parse(symbol) else {
            self.drops.count(DropReason::Inconsistent);
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

    /// The order of the lane, and where the packets go whose turn it is `now`.
    fn outlet<'a>(
        &'a mut self,
        now: Instant,
        deliver: &'a mut dyn FnMut(Delivery),
    ) -> (&'a mut Reorder, Outlet<'a>) {
        let out = Outlet {
            now,
            promise: self.promise,
            ages: &self.ages,
            packets: &mut self.delivered_packets,
            bytes: &mut self.delivered_bytes,
            excess_delays: &mut self.excess_delays,
            drops: &mut self.drops,
            deliver,
        };
        (&mut self.reorder, out)
    }
}

/// What of a lane holds memory.
#[derive(Clone, Copy)]
enum BufferKind {
    Decoder,
    Reorder,
    Fragments,
}

/// Counts what goes out, and what has become too old for it while it waited.
struct Outlet<'a> {
    now: Instant,
    promise: Promise,
    ages: &'a Ages,
    packets: &'a mut u64,
    bytes: &'a mut u64,
    excess_delays: &'a mut Delays,
    drops: &'a mut DropCounters,
    deliver: &'a mut dyn FnMut(Delivery),
}

impl Outlet<'_> {
    fn release(&mut self, unit: Unit) {
        let Unit { id, decoded, packet: Some(packet), sent, .. } = unit else { return };
        if let Some(age) = sent.map(|sent| self.ages.age(self.now, sent)) {
            if self.promise.expires && age > self.promise.age_max {
                self.drops.count(DropReason::ArrivedExpired);
                return;
            }
            self.excess_delays.add(age);
        }
        *self.packets += 1;
        *self.bytes += packet.len() as u64;
        (self.deliver)(Delivery { id, decoded, packet });
    }
}

impl Run {
    /// Whether a packet belongs here: the decoder hands out others only after its window moved
    /// away.
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
