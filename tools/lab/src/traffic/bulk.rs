//! A bulk transfer: a real QUIC connection inside the tunnel, which reacts to loss and delay.
//!
//! ```text
//! Transfer ─► packet ─► number, QUIC packet ─► UDP, IP ─► tunnel ─► arrival ─► Transfer
//!   the sender at one end, the receiver at the other; acknowledgements go the other way
//! ```
//!
//! A number before each QUIC packet identifies its send time and its duplicates.

mod transfer;

use bytes::{BufMut, Bytes, BytesMut};
use roadweave_emulate::Direction;
use roadweave_proto::Instant;
use roadweave_quic::CongestionControl;
use serde::Serialize;

use self::transfer::{Half, Transfer};
use super::{DataStream, Detail, Traffic, TrafficReport, TrafficSpec, TwoWay};
use crate::inner;
use crate::world::MTU;

/// A transfer, by QUIC or by the lab's TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bulk {
    /// Bytes to transfer; `None`: as many as possible.
    pub bytes: Option<u64>,
    pub congestion: CongestionControl,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BulkReport {
    /// Bytes received in order.
    pub received_bytes: u64,
    /// Bits per second from the beginning, handshake included, to completion or the end.
    pub goodput_bps: f64,
    /// Time from the beginning to the last byte; `None` if incomplete.
    pub completion_s: Option<f64>,
    /// The sender's final smoothed round-trip time; `None` without a connection.
    pub smoothed_rtt_ms: Option<f64>,
    /// QUIC packets that the sender declared lost.
    pub lost_packets: u64,
    pub congestion_events: u64,
    pub is_broken: bool,
    /// Send and arrival times of packets with data.
    #[serde(skip)]
    pub stream: DataStream,
}

#[derive(Debug)]
pub struct BulkTraffic {
    run: TwoWay,
    transfer: Box<Transfer>,
}

impl BulkTraffic {
    pub fn new(spec: &TrafficSpec, bulk: Bulk, start: Instant, seed: u64) -> Self {
        Self { run: TwoWay::of(spec, start), transfer: Box::new(Transfer::new(bulk, seed)) }
    }

    fn wrap(&mut self, now: Instant, from: Half, quic: &[u8]) -> (Direction, Bytes) {
        let direction = match from {
            Half::Sender => self.run.base.direction,
            Half::Receiver => self.run.base.direction.opposite(),
        };
        let mut payload = BytesMut::with_capacity(NUMBER + quic.len());
        payload.put_u64(self.run.note_sent(now, direction));
        payload.put_slice(quic);
        let packet = inner::udp(direction, self.run.base.port, &payload);
        self.run.base.sent_bytes += packet.len() as u64;
        (direction, packet)
    }
}

impl Traffic for BulkTraffic {
    fn port(&self) -> u16 {
        self.run.base.port
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.run.poll_timeout(self.transfer.poll_timeout())
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<(Direction, Bytes)> {
        if !self.run.is_on(now) {
            return None;
        }
        if !std::mem::replace(&mut self.run.has_begun, true) {
            self.transfer.begin(now);
        }
        if self.transfer.poll_timeout().is_some_and(|due| due <= now) {
            self.transfer.handle_timeout(now);
        }
        let (from, quic) = self.transfer.poll_transmit(now)?;
        Some(self.wrap(now, from, &quic))
    }

    fn handle_arrival(&mut self, now: Instant, direction: Direction, packet: &Bytes) {
        let payload = inner::payload(packet);
        let index = payload.first_chunk().map(|number| u64::from_be_bytes(*number));
        let index = index.and_then(|number| usize::try_from(number).ok());
        let stream = self.run.stream(direction);
        let is_new = index.is_some_and(|index| stream.note_arrival(now, index));
        if self.run.base.count(is_new) && now < self.run.end {
            let to = match direction == self.run.base.direction {
                true => Half::Receiver,
                false => Half::Sender,
            };
            self.transfer.handle_packet(now, to, BytesMut::from(&payload[NUMBER..]));
        }
    }

    fn report(&self, end: Instant) -> TrafficReport {
        let progress = self.transfer.progress();
        let seconds = self.run.lasted(progress.completed, end);
        self.run.report(Detail::Bulk(Box::new(BulkReport {
            received_bytes: progress.received_bytes,
            goodput_bps: progress.received_bytes as f64 * 8.0 / seconds,
            completion_s: progress.completed.map(|_| seconds),
            smoothed_rtt_ms: progress.smoothed_rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
            lost_packets: progress.lost_packets,
            congestion_events: progress.congestion_events,
            is_broken: progress.is_broken,
            stream: self.run.data.clone(),
        })))
    }
}

/// Jain's fairness index of the goodputs of bulk transfers, between 1/n (one has everything) and 1
/// (equal); `None` for fewer than two. Source: R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure
/// of Fairness", DEC-TR-301, 1984.
pub fn fairness(reports: &[TrafficReport]) -> Option<f64> {
    let goodputs = reports.iter().filter_map(|report| match &report.detail {
        Detail::Bulk(bulk) => Some(bulk.goodput_bps),
        _ => None,
    });
    let (count, sum, squares) = goodputs.fold((0, 0.0, 0.0), |(count, sum, squares), goodput| {
        (count + 1, sum + goodput, squares + goodput * goodput)
    });
    (count > 1 && squares > 0.0).then(|| sum * sum / (f64::from(count) * squares))
}

const NUMBER: usize = 8;
/// The largest QUIC packet; with all headers it fills the tunnel's MTU.
const PAYLOAD_MAX: u16 = MTU - (inner::HEADERS + NUMBER) as u16;

#[cfg(test)]
mod tests;
