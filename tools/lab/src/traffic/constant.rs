//! Numbered packets of constant size and rate.

use std::time::Duration;

use bytes::Bytes;
use roadweave_emulate::Direction;
use roadweave_proto::{Instant, Rate};

use super::{Base, DataStream, Detail, Traffic, TrafficReport, TrafficSpec};
use crate::inner;
use crate::video::quality::Percentiles;

/// Constant-rate UDP; each payload begins with the packet number, 8 bytes.
#[derive(Debug)]
pub struct ConstantTraffic {
    base: Base,
    start: Instant,
    interval: Duration,
    packet_bytes: usize,
    count: u64,
    stream: DataStream,
}

impl ConstantTraffic {
    /// Packets of `packet_bytes` bytes (36..=65,535) at `rate` from `start` on.
    pub fn new(spec: &TrafficSpec, rate: Rate, packet_bytes: usize, start: Instant) -> Self {
        let packet_bytes = packet_bytes.clamp(inner::HEADERS + NUMBER, usize::from(u16::MAX));
        let interval = rate.time_for(packet_bytes as u64).max(Duration::from_nanos(1));
        let count = spec.lasting.as_nanos().div_ceil(interval.as_nanos());
        Self {
            base: Base::of(spec),
            start: start + spec.begin,
            interval,
            packet_bytes,
            count: u64::try_from(count).unwrap_or(u64::MAX),
            stream: DataStream::default(),
        }
    }

    fn sent(&self) -> u64 {
        self.stream.log.packets.len() as u64
    }

    fn payload(&self, number: u64) -> Vec<u8> {
        let length = self.packet_bytes - inner::HEADERS;
        let mut payload = number.to_be_bytes().repeat(length.div_ceil(NUMBER));
        payload.truncate(length);
        payload
    }
}

impl Traffic for ConstantTraffic {
    fn port(&self) -> u16 {
        self.base.port
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let next = self.sent();
        let after = u128::from(next) * self.interval.as_nanos();
        let after = Duration::from_nanos(u64::try_from(after).unwrap_or(u64::MAX));
        (next < self.count).then(|| self.start + after)
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<(Direction, Bytes)> {
        if self.poll_timeout()? > now {
            return None;
        }
        let packet = inner::udp(self.base.direction, self.base.port, &self.payload(self.sent()));
        self.stream.note_sent(now);
        self.base.sent_bytes += packet.len() as u64;
        Some((self.base.direction, packet))
    }

    fn handle_arrival(&mut self, now: Instant, direction: Direction, packet: &Bytes) {
        let payload = inner::payload(packet);
        let number = payload.first_chunk().map(|number| u64::from_be_bytes(*number));
        let index = number.and_then(|number| usize::try_from(number).ok());
        let expected = direction == self.base.direction
            && index.is_some_and(|index| self.stream.note_arrival(now, index));
        self.base.count(expected);
    }

    fn report(&self, _end: Instant) -> TrafficReport {
        let delays = self.stream.delays();
        let detail = Detail::Stream(self.stream.clone());
        TrafficReport {
            delay_variation_ms: Some(Percentiles::of_sorted(&self.stream.delay_variations())),
            ..self.base.report(self.stream.log.packets.len(), &delays, detail)
        }
    }
}

const NUMBER: usize = 8;
