//! The receiving lanes of a session: from the peer's datagrams to inner packets and feedback.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::wire::{Datagram, DatagramError, Feedback, LaneReport, Load};
use roadweave_proto::{DropCounters, DropReason, Instant, LaneId, PacketId, Promise};

use super::memory::Holder;
use super::output::InnerOutput;
use crate::lane::{
    Arrival, Delivery, LANES_MAX, LaneReceiver, MemoryStats, Opening, Reassembly, ReceiveStats,
};

/// How often feedback with acknowledgements also reports what was received.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct ReceivingLanes {
    pub(super) lanes: BTreeMap<LaneId, LaneReceiver>,
    parts: Reassembly,
    /// What holds for the lanes until the peer makes a promise.
    pub(crate) opening: Opening,
    pub(super) acknowledges_on_all: bool,
    /// What lanes received before the peer restarted.
    past: BTreeMap<LaneId, ReceiveStats>,
    pub(super) output: InnerOutput,
    pub(super) peer_reports: BTreeMap<u8, LaneReport>,
    next_report: Instant,
}

impl ReceivingLanes {
    pub(super) fn new(output: InnerOutput) -> Self {
        Self { output, ..Self::default() }
    }

    pub(super) fn set_promise(&mut self, now: Instant, lane: LaneId, promise: Promise) {
        self.receive(now, lane, |receiver, deliver| receiver.set_promise(now, promise, deliver));
        self.acknowledges_on_all =
            self.lanes.values().any(|receiver| receiver.promise.acknowledge_on_all);
    }

    /// The peer has restarted, with its IDs: delivers what waits, and forgets the receivers.
    pub(crate) fn reset(&mut self, now: Instant) {
        for (lane, mut receiver) in std::mem::take(&mut self.lanes) {
            let mut deliver = |delivery| self.output.deliver(now, lane, delivery);
            receiver.handle_timeout(now, &mut deliver);
            receiver.flush(now, &mut deliver);
            self.past.entry(lane).or_default().add_past(&receiver.stats());
        }
        self.acknowledges_on_all = false;
    }

    /// Takes a source datagram of a carrier with another format: `symbol` with `id` of `lane`.
    pub(crate) fn handle_source(
        &mut self,
        now: Instant,
        lane: LaneId,
        id: PacketId,
        symbol: Bytes,
    ) -> Arrival {
        let mut arrival = Arrival::Refused;
        self.receive(now, lane, |receiver, deliver| {
            arrival = receiver.handle_source(now, id, symbol, deliver);
        });
        arrival
    }

    /// Returns the load of a speed test, which is of no lane.
    pub(super) fn handle_datagram(&mut self, now: Instant, datagram: Bytes) -> Option<Load> {
        let datagram = match Datagram::parse(datagram) {
            Ok(Datagram::Part(part)) => {
                if usize::from(part.lane.0) >= LANES_MAX {
                    self.output.drops.count(DropReason::UnknownMessage);
                    return None;
                }
                let receiver = self.lanes.get(&part.lane);
                let age_max = receiver.map_or(Promise::DEFAULT_AGE, LaneReceiver::keeps_for);
                Datagram::parse(self.parts.insert(now, part, age_max, &mut self.output.drops)?)
            }
            whole => whole,
        };
        match datagram {
            Ok(Datagram::Source { lane, id, symbol }) => {
                self.handle_source(now, lane, id, symbol);
            }
            Ok(Datagram::Coded(coded)) => self.receive(now, coded.lane, |receiver, deliver| {
                receiver.handle_coded(now, coded, deliver);
            }),
            Ok(Datagram::Feedback(feedback)) => {
                for report in feedback.lanes {
                    if usize::from(report.lane) < LANES_MAX {
                        self.peer_reports.insert(report.lane, report);
                    }
                }
            }
            Ok(Datagram::Load(load)) => return Some(load),
            Err(DatagramError::UnknownKind(_)) => {
                self.output.drops.count(DropReason::UnknownMessage);
            }
            // Parts are not nested.
            Ok(Datagram::Part(_)) | Err(_) => self.output.drops.count(DropReason::MalformedMessage),
        }
        None
    }

    fn receive(
        &mut self,
        now: Instant,
        lane: LaneId,
        handle: impl FnOnce(&mut LaneReceiver, &mut dyn FnMut(Delivery)),
    ) {
        if usize::from(lane.0) >= LANES_MAX {
            return self.output.drops.count(DropReason::UnknownMessage);
        }
        let it = self.lanes.entry(lane).or_insert_with(|| LaneReceiver::new(lane, self.opening));
        handle(it, &mut |delivery| self.output.deliver(now, lane, delivery));
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for (lane, receiver) in &mut self.lanes {
            receiver.handle_timeout(now, &mut |delivery| self.output.deliver(now, *lane, delivery));
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.lanes.values().filter_map(LaneReceiver::poll_timeout).min()
    }

    pub(super) fn poll_feedback(&mut self, now: Instant) -> Option<Feedback> {
        if now < self.next_report {
            return None;
        }
        self.next_report = now + REPORT_INTERVAL;
        Some(Feedback { lanes: self.lanes.values().map(LaneReceiver::report).collect() })
    }

    pub(super) fn memory(&self) -> MemoryStats {
        let reorder_bytes = self.output.symbols.as_ref().map_or(0, |queue| queue.memory() as u64);
        let fragment_bytes = self.parts.bytes as u64;
        let mut sum = MemoryStats { fragment_bytes, reorder_bytes, ..MemoryStats::default() };
        self.lanes.values().for_each(|receiver| sum.add(&receiver.memory()));
        sum
    }

    pub(super) fn holders(&self) -> impl Iterator<Item = (u64, Holder)> {
        let lanes = self.lanes.iter();
        let lanes = lanes.map(|(lane, it)| (it.memory().total(), Holder::Receiver(*lane)));
        lanes.chain([(self.parts.bytes as u64, Holder::Parts)])
    }

    pub(super) fn shed(&mut self, now: Instant, holder: &Holder, bytes: u64) {
        if let Holder::Receiver(lane) = *holder {
            let receiver = self.lanes.get_mut(&lane);
            let mut deliver = |delivery| self.output.deliver(now, lane, delivery);
            receiver.into_iter().for_each(|it| it.shed(now, bytes, &mut deliver));
        } else {
            self.parts.shed(bytes as usize, &mut self.output.drops);
        }
    }

    pub(super) fn stats(&self, lane: LaneId) -> ReceiveStats {
        let mut stats = self.lanes.get(&lane).map(LaneReceiver::stats).unwrap_or_default();
        self.past.get(&lane).into_iter().for_each(|past| stats.add_past(past));
        stats
    }

    pub(super) fn drops(&self) -> DropCounters {
        let mut drops = self.output.drops.clone();
        self.lanes.values().for_each(|receiver| drops.merge(&receiver.stats().drops));
        self.past.values().for_each(|past| drops.merge(&past.drops));
        drops
    }
}
