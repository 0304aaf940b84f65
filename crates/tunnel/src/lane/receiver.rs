//! The receiving half of a lane: source and coded datagrams in, inner packets out, as soon as they are
//! known or when it is their turn.
//!
//! ```text
//! source, coded ─► Decoder ─► symbols ─► Fragments ─► Reorder ─► inner packets
//! ```

use std::time::Duration;

use bytes::Bytes;
use roadweave_coding::{CodedRange, Decoder, DecoderConfig, SourceOutcome, Subset, WINDOW_IDS};
use roadweave_types::{DropCounters, DropReason, Instant, LaneId, Order, PacketId};
use roadweave_wire::{Coded, LaneReport, Position, SYMBOL_HEADER, Sum, Symbol, split_succession};
use serde::{Deserialize, Serialize};

use crate::lane::fragments::{Fragments, Joined};
use crate::lane::reorder::{OrderStats, Reorder, Turn, Unit};

/// What one lane has received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveStats {
    /// Inner packets delivered.
    pub delivered_packets: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Source packets and fragments that came in before they were known.
    pub source_datagrams: u64,
    /// Coded datagrams that came in.
    pub coded_datagrams: u64,
    /// Packets that coded datagrams brought back.
    pub recovered: u64,
    /// Coded datagrams that told nothing new.
    pub redundant: u64,
    /// How packets waited for one another.
    pub order: OrderStats,
    /// What was discarded, by reason.
    pub drops: DropCounters,
}

impl ReceiveStats {
    /// Counts what earlier receivers of the lane did as well.
    pub(crate) fn add_past(&mut self, past: &Self) {
        self.delivered_packets += past.delivered_packets;
        self.delivered_bytes += past.delivered_bytes;
        self.source_datagrams += past.source_datagrams;
        self.coded_datagrams += past.coded_datagrams;
        self.recovered += past.recovered;
        self.redundant += past.redundant;
        self.order.waited_packets += past.order.waited_packets;
        self.order.late_packets += past.order.late_packets;
        self.order.timeouts += past.order.timeouts;
        self.order.forced += past.order.forced;
        self.drops.merge(&past.drops);
    }
}

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
    /// It was the first of its packet, and in time.
    First,
    /// A copy of a packet that came before.
    Duplicate,
    /// Its turn was over.
    Late,
    /// It is so old that nobody knows whether it came before.
    Old,
    /// It is no packet of the lane.
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
    /// The order from the first packet on, before it came, unless the peer has promised another.
    opening: Option<Order>,
    /// None before the first packet.
    run: Option<Run>,
    /// What the runs before it lost.
    lost_before: u64,
    delivered_packets: u64,
    delivered_bytes: u64,
    drops: DropCounters,
    determined: Vec<(PacketId, Bytes)>,
}

/// Packets whose IDs follow one another, to know how many never came.
///
/// A lane is one run, unless the decoder had to look for it elsewhere: what a leap of its window skips
/// was not lost.
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
            opening: (opening.order != Order::Pass).then_some(opening.order),
            run: None,
            lost_before: 0,
            delivered_packets: 0,
            delivered_bytes: 0,
            drops: DropCounters::default(),
            determined: Vec::new(),
        }
    }

    /// The peer promises another order from now on; hands out what then need not wait.
    pub(crate) fn set_order(
        &mut self,
        now: Instant,
        order: Order,
        deliver: &mut dyn FnMut(Delivery),
    ) {
        self.opening = None;
        if order == self.reorder.order() {
            return;
        }
        let mut out = Outlet {
            packets: &mut self.delivered_packets,
            bytes: &mut self.delivered_bytes,
            deliver,
        };
        self.reorder.set_order(now, order, &mut |unit| out.release(unit));
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

    /// Takes a sum of packets, and hands out the inner packets whose turn it is with it.
    pub(crate) fn handle_sum(&mut self, now: Instant, sum: Sum, deliver: &mut dyn FnMut(Delivery)) {
        let subset = Subset { start: sum.start, mask: sum.mask };
        let mut determined = std::mem::take(&mut self.determined);
        self.decoder.on_sum(now, subset, sum.payload, &mut determined);
        self.deliver(now, determined, None, deliver);
    }

    /// Lets go of what is too old to be of use, and hands out what has waited long enough.
    pub(crate) fn handle_timeout(&mut self, now: Instant, deliver: &mut dyn FnMut(Delivery)) {
        self.decoder.expire(now);
        let mut out = Outlet {
            packets: &mut self.delivered_packets,
            bytes: &mut self.delivered_bytes,
            deliver,
        };
        self.reorder.handle_timeout(now, &mut |unit| out.release(unit));
    }

    /// Hands out all that waits, in order: nothing more comes.
    pub(crate) fn flush(&mut self, deliver: &mut dyn FnMut(Delivery)) {
        let mut out = Outlet {
            packets: &mut self.delivered_packets,
            bytes: &mut self.delivered_bytes,
            deliver,
        };
        self.reorder.flush(&mut |unit| out.release(unit));
    }

    /// When [`LaneReceiver::handle_timeout`] must be called, because a packet has waited long enough.
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

    /// Brings the symbols of `determined` into their order; `as_sent`: the one that came as it is, whose
    /// turn is returned.
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
            let mut out = Outlet {
                packets: &mut self.delivered_packets,
                bytes: &mut self.delivered_bytes,
                deliver,
            };
            let is_packet = unit.packet.is_some();
            let is_as_sent = !unit.decoded;
            if let Some(order) = self.opening.take() {
                self.reorder = Reorder::opening(order, unit.first);
            }
            let turn = self.reorder.handle(now, unit, &mut |unit| out.release(unit));
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

    /// What a symbol is, or completes. What is no symbol is counted, and takes its place all the same.
    fn join(&mut self, now: Instant, id: PacketId, symbol: &Bytes) -> Option<Unit> {
        let Ok(Symbol { position, .. }) = Symbol::parse(symbol) else {
            self.drops.count(DropReason::Inconsistent);
            return Some(Unit { first: id, last: id, id, after: 0, decoded: false, packet: None });
        };
        let body = symbol.slice(SYMBOL_HEADER..);
        let Joined { first, last, body } = match position {
            Position::Whole => Joined { first: id, last: id, body },
            _ => self.fragments.insert(now, id, position, body)?,
        };
        let (after, packet) = split_succession(body);
        let (after, packet) = (after.unwrap_or(0), Some(packet));
        Some(Unit { first, last, id, after, decoded: false, packet })
    }
}

/// Counts what goes out.
struct Outlet<'a> {
    packets: &'a mut u64,
    bytes: &'a mut u64,
    deliver: &'a mut dyn FnMut(Delivery),
}

impl Outlet<'_> {
    fn release(&mut self, unit: Unit) {
        let Unit { id, decoded, packet: Some(packet), .. } = unit else { return };
        *self.packets += 1;
        *self.bytes += packet.len() as u64;
        (self.deliver)(Delivery { id, decoded, packet });
    }
}

impl Run {
    /// Whether a packet belongs here: the decoder hands out others only after its window moved away.
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
mod tests {
    use super::*;

    fn lane() -> LaneReceiver {
        LaneReceiver::new(LaneId(0), Opening::default())
    }

    /// Hands in whole packets of three bytes with these IDs; returns the report.
    fn arrive(lane: &mut LaneReceiver, millis: u64, ids: &[u32]) -> LaneReport {
        for id in ids {
            let symbol = Bytes::from_static(&[0, 1, 7]);
            lane.handle_source(Instant::from_millis(millis), PacketId(*id), symbol, &mut |_| {});
        }
        lane.report()
    }

    #[test]
    fn packets_before_the_first_one_do_not_hide_losses() {
        let report = arrive(&mut lane(), 0, &[5, 0, 1, 2, 3, 4, 10]);
        assert_eq!((report.highest, report.lost), (PacketId(10), 4));
    }

    #[test]
    fn losses_are_counted_across_the_wrap() {
        let report = arrive(&mut lane(), 0, &[u32::MAX - 1, 1, u32::MAX, 5]);
        assert_eq!((report.highest, report.lost), (PacketId(5), 4));
    }

    #[test]
    fn broken_ids_are_no_losses() {
        for wild in [1 << 30, 3 << 30] {
            let mut lane = lane();
            arrive(&mut lane, 0, &[wild]);
            let report = arrive(&mut lane, 1, &[0, 1, 2, 4]);
            assert_eq!((report.highest, report.lost), (PacketId(4), 1), "the first of a lane");
            assert_eq!(arrive(&mut lane, 900, &[wild]).lost, 1, "after a silence");
            let report = arrive(&mut lane, 901, &[6]);
            assert_eq!((report.highest, report.lost), (PacketId(6), 2));
        }
    }
}
