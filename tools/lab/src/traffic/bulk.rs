//! A bulk transfer: a real QUIC connection inside the tunnel, which reacts to loss and delay.
//!
//! ```text
//! Transfer ─► packet ─► number, QUIC packet ─► UDP, IP ─► tunnel ─► arrival ─► Transfer
//!   the sender at one end, the receiver at the other; acknowledgements go the other way
//! ```
//!
//! A number before each QUIC packet identifies its send time and its duplicates.

mod transfer;

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use roadweave_emulate::Direction;
use roadweave_proto::Instant;
use roadweave_quic::CongestionControl;
use serde::Serialize;

use self::transfer::{Half, Transfer};
use super::{Base, DataStream, Detail, Traffic, TrafficReport, TrafficSpec};
use crate::inner;
use crate::world::MTU;

/// Parameters of a bulk transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bulk {
    /// Bytes to transfer; `None`: as many as possible.
    pub bytes: Option<u64>,
    /// Congestion control of the sender.
    pub congestion: CongestionControl,
}

/// Report of a bulk transfer.
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
    /// Congestion events of the sender.
    pub congestion_events: u64,
    /// Whether the connection failed.
    pub is_broken: bool,
    /// Send and arrival times of packets with data.
    #[serde(skip)]
    pub stream: DataStream,
}

#[derive(Debug)]
pub struct BulkTraffic {
    base: Base,
    begin: Instant,
    end: Instant,
    transfer: Box<Transfer>,
    has_begun: bool,
    data: DataStream,
    answers: DataStream,
}

impl BulkTraffic {
    pub fn new(spec: &TrafficSpec, bulk: Bulk, start: Instant, seed: u64) -> Self {
        let begin = start + spec.begin;
        Self {
            base: Base::of(spec),
            begin,
            end: begin + spec.lasting,
            transfer: Box::new(Transfer::new(bulk, seed)),
            has_begun: false,
            data: DataStream::default(),
            answers: DataStream::default(),
        }
    }

    fn stream(&mut self, direction: Direction) -> &mut DataStream {
        if direction == self.base.direction { &mut self.data } else { &mut self.answers }
    }

    fn wrap(&mut self, now: Instant, from: Half, quic: &[u8]) -> (Direction, Bytes) {
        let direction = match from {
            Half::Sender => self.base.direction,
            Half::Receiver => self.base.direction.opposite(),
        };
        let stream = self.stream(direction);
        let number = stream.log.packets.len() as u64;
        stream.note_sent(now);
        let mut payload = BytesMut::with_capacity(NUMBER + quic.len());
        payload.put_u64(number);
        payload.put_slice(quic);
        let packet = inner::udp(direction, self.base.port, &payload);
        self.base.sent_bytes += packet.len() as u64;
        (direction, packet)
    }

    fn lasted(&self, end: Instant) -> Duration {
        let completed = self.transfer.progress().completed;
        completed.unwrap_or(end.min(self.end)).since(self.begin)
    }
}

impl Traffic for BulkTraffic {
    fn port(&self) -> u16 {
        self.base.port
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let due = if self.has_begun { self.transfer.poll_timeout()? } else { self.begin };
        (due < self.end).then_some(due)
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<(Direction, Bytes)> {
        if now < self.begin || now >= self.end {
            return None;
        }
        if !self.has_begun {
            self.has_begun = true;
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
        let is_new = index.is_some_and(|index| self.stream(direction).note_arrival(now, index));
        if self.base.count(is_new) && now < self.end {
            let to = match direction == self.base.direction {
                true => Half::Receiver,
                false => Half::Sender,
            };
            self.transfer.handle_packet(now, to, BytesMut::from(&payload[NUMBER..]));
        }
    }

    fn report(&self, end: Instant) -> TrafficReport {
        let progress = self.transfer.progress();
        let lasted = self.lasted(end);
        let seconds = lasted.as_secs_f64().max(f64::MIN_POSITIVE);
        let detail = Detail::Bulk(Box::new(BulkReport {
            received_bytes: progress.received_bytes,
            goodput_bps: progress.received_bytes as f64 * 8.0 / seconds,
            completion_s: progress.completed.map(|_| seconds),
            smoothed_rtt_ms: progress.smoothed_rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
            lost_packets: progress.lost_packets,
            congestion_events: progress.congestion_events,
            is_broken: progress.is_broken,
            stream: self.data.clone(),
        }));
        let sent = self.data.log.packets.len() + self.answers.log.packets.len();
        self.base.report(sent, &self.data.delays(), detail)
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
