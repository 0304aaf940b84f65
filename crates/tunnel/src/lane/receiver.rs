//! The receiving half of a lane: source and coded datagrams in, inner packets out as they are known.

use bytes::Bytes;
use roadweave_coding::{CodedRange, Decoder, DecoderConfig, SourceOutcome};
use roadweave_types::{DropCounters, DropReason, Instant, LaneId, PacketId};
use roadweave_wire::{Coded, LaneReport, Position, SYMBOL_HEADER, Symbol};
use serde::{Deserialize, Serialize};

use crate::lane::fragments::Fragments;

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
    /// What was discarded, by reason.
    pub drops: DropCounters,
}

/// An inner packet that is known now.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The packet's ID, or that of the fragment that was missing last.
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
    highest: Option<PacketId>,
    /// Packet IDs from the first to the highest, to know how many never came.
    span: u64,
    known: u64,
    delivered_packets: u64,
    delivered_bytes: u64,
    drops: DropCounters,
    determined: Vec<(PacketId, Bytes)>,
}

impl LaneReceiver {
    pub(crate) fn new(lane: LaneId) -> Self {
        let config = DecoderConfig::default();
        Self {
            lane,
            decoder: Decoder::new(config),
            fragments: Fragments::new(config.expiry),
            highest: None,
            span: 0,
            known: 0,
            delivered_packets: 0,
            delivered_bytes: 0,
            drops: DropCounters::default(),
            determined: Vec::new(),
        }
    }

    /// Takes a source datagram's symbol, and hands out the inner packets that are known with it.
    pub(crate) fn handle_source(
        &mut self,
        now: Instant,
        id: PacketId,
        symbol: Bytes,
        deliver: impl FnMut(Delivery),
    ) {
        let mut determined = std::mem::take(&mut self.determined);
        if self.decoder.on_source(now, id, symbol, &mut determined) == SourceOutcome::New {
            self.note(id);
        }
        self.deliver(now, determined, Some(id), deliver);
    }

    /// Takes a coded datagram, and hands out the inner packets that are known with it.
    pub(crate) fn handle_coded(
        &mut self,
        now: Instant,
        coded: Coded,
        deliver: impl FnMut(Delivery),
    ) {
        let range = CodedRange { start: coded.start, count: coded.count, seed: coded.seed };
        let mut determined = std::mem::take(&mut self.determined);
        self.decoder.on_coded(now, range, coded.payload, &mut determined);
        self.deliver(now, determined, None, deliver);
    }

    /// Lets go of what is too old to be of use.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.decoder.expire(now);
    }

    /// What the peer is told of this lane.
    pub(crate) fn report(&self) -> LaneReport {
        LaneReport {
            lane: self.lane.0,
            highest: self.highest.unwrap_or_default(),
            delivered: self.delivered_packets,
            recovered: self.decoder.stats().recovered,
            lost: self.span.saturating_sub(self.known),
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
            drops,
        }
    }

    fn note(&mut self, id: PacketId) {
        match self.highest {
            None => {
                self.span = 1;
                self.highest = Some(id);
            }
            Some(highest) if highest.precedes(id) => {
                self.span += u64::from(id.distance(highest).unsigned_abs());
                self.highest = Some(id);
            }
            Some(_) => {}
        }
    }

    /// Hands out the inner packets of `determined`; `as_sent`: the one that came as it is.
    fn deliver(
        &mut self,
        now: Instant,
        mut determined: Vec<(PacketId, Bytes)>,
        as_sent: Option<PacketId>,
        mut deliver: impl FnMut(Delivery),
    ) {
        for (id, symbol) in determined.drain(..) {
            self.known += 1;
            self.note(id);
            let Ok(Symbol { position, .. }) = Symbol::parse(&symbol) else {
                self.drops.count(DropReason::Inconsistent);
                continue;
            };
            let body = symbol.slice(SYMBOL_HEADER..);
            let packet = match position {
                Position::Whole => Some(body),
                _ => self.fragments.insert(now, id, position, body),
            };
            if let Some(packet) = packet {
                self.delivered_packets += 1;
                self.delivered_bytes += packet.len() as u64;
                deliver(Delivery { id, decoded: as_sent != Some(id), packet });
            }
        }
        self.determined = determined;
    }
}
