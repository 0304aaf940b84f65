//! A transfer by the lab's TCP inside the tunnel.
//!
//! ```text
//! Exchange ─► IP packet, numbered in its identification ─► tunnel ─► arrival ─► Exchange
//! ```

use bytes::Bytes;
use roadweave_emulate::Direction;
use roadweave_proto::Instant;
use serde::Serialize;

use super::{Bulk, DataStream, Detail, Traffic, TrafficReport, TrafficSpec, TwoWay};
use crate::tcp::{Exchange, SocketConfig};
use crate::world::MTU;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TcpReport {
    /// Bytes received in order.
    pub received_bytes: u64,
    /// Bits per second from the first SYN to completion or the end.
    pub goodput_bps: f64,
    /// Time from the first SYN to the last byte; `None` if incomplete.
    pub completion_s: Option<f64>,
    /// The sender's final smoothed round-trip time; `None` without a connection.
    pub smoothed_rtt_ms: Option<f64>,
    /// Retransmissions.
    pub segments_again: u64,
    /// Recoveries that began with a lost segment.
    pub recoveries: u64,
    /// Recoveries and timeouts that were spurious.
    pub undone: u64,
    pub timeouts: u64,
    /// Send and arrival times of packets in the direction of the data.
    #[serde(skip)]
    pub stream: DataStream,
}

#[derive(Debug)]
pub struct TcpTraffic {
    run: TwoWay,
    exchange: Exchange,
}

impl TcpTraffic {
    pub fn new(spec: &TrafficSpec, tcp: Bulk, start: Instant, seed: u64) -> Self {
        let config = SocketConfig { algorithm: tcp.congestion, mtu: MTU, seed };
        let exchange = Exchange::new(&config, spec.direction, spec.port, tcp.bytes);
        Self { run: TwoWay::of(spec, start), exchange }
    }
}

impl Traffic for TcpTraffic {
    fn port(&self) -> u16 {
        self.run.base.port
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.run.poll_timeout(self.exchange.poll_timeout())
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<(Direction, Bytes)> {
        if !self.run.is_on(now) {
            return None;
        }
        if !std::mem::replace(&mut self.run.has_begun, true) {
            self.exchange.begin(now);
        }
        let (direction, packet) = self.exchange.poll_transmit(now)?;
        Some((direction, self.run.number(now, direction, packet)))
    }

    fn handle_arrival(&mut self, now: Instant, direction: Direction, packet: &Bytes) {
        let is_new = self.run.note_arrival(now, direction, packet);
        if self.run.base.count(is_new) && now < self.run.end {
            self.exchange.handle_packet(now, direction, packet);
        }
    }

    fn report(&self, end: Instant) -> TrafficReport {
        let completed = self.exchange.completed;
        let seconds = self.run.lasted(completed, end);
        let sender = self.exchange.sender();
        let (stats, rtt) = (sender.stats(), sender.smoothed_rtt());
        self.run.report(Detail::Tcp(Box::new(TcpReport {
            received_bytes: self.exchange.received(),
            goodput_bps: self.exchange.received() as f64 * 8.0 / seconds,
            completion_s: completed.map(|_| seconds),
            smoothed_rtt_ms: rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
            segments_again: stats.again,
            recoveries: stats.recoveries,
            undone: stats.undone,
            timeouts: stats.timeouts,
            stream: self.run.data.clone(),
        })))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use roadweave_quic::CongestionControl;

    use super::super::{FIRST_PORT, TrafficKind};
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Transfers over 20 ms; every `lost`th packet to the vehicle is lost.
    fn carry(tcp: Bulk, lost: usize, seconds: u64) -> TrafficReport {
        let spec = TrafficSpec {
            name: "tcp".into(),
            direction: Direction::Down,
            port: FIRST_PORT,
            begin: MS * 100,
            lasting: Duration::from_secs(seconds),
            kind: TrafficKind::Tcp(tcp),
        };
        let mut traffic = spec.build(Instant::ZERO, 1);
        let (mut way, mut count) = (VecDeque::<(Instant, Direction, Bytes)>::new(), 0);
        let end = Instant::ZERO + Duration::from_secs(seconds + 1);
        loop {
            let next = way.front().map(|(at, ..)| *at);
            let due = next.into_iter().chain(traffic.poll_timeout()).min();
            let Some(now) = due.filter(|due| *due < end) else { break };
            while way.front().is_some_and(|(at, ..)| *at <= now) {
                let (_, direction, packet) = way.pop_front().unwrap();
                traffic.handle_arrival(now, direction, &packet);
                traffic.handle_arrival(now, direction, &packet);
            }
            while let Some((direction, packet)) = traffic.poll_transmit(now) {
                count += usize::from(direction == Direction::Down);
                if direction == Direction::Up || count % lost != 0 {
                    way.push_back((now + MS * 20, direction, packet));
                }
            }
        }
        traffic.report(end)
    }

    #[test]
    fn it_comes_whole_in_spite_of_losses_and_counts_what_came() {
        let tcp = Bulk { bytes: Some(1_000_000), congestion: CongestionControl::Cubic };
        let report = carry(tcp, 50, 30);
        let Detail::Tcp(detail) = &report.detail else { panic!("{report:?}") };
        assert_eq!(detail.received_bytes, 1_000_000);
        assert!(detail.completion_s.is_some_and(|seconds| seconds > 0.2), "{detail:?}");
        assert!(detail.segments_again >= 15 && detail.recoveries > 0, "{detail:?}");
        assert_eq!(report.unexpected_packets, report.arrived_packets, "each came twice");
        assert_eq!(report.delay_ms.p99, 20.0);
        let lost = report.sent_packets - report.arrived_packets;
        assert!((15..25).contains(&lost), "{report:?}");
    }

    #[test]
    fn numbers_go_on_beyond_their_16_bits() {
        let report = carry(Bulk { bytes: None, congestion: CongestionControl::Bbr }, 1_000_000, 20);
        assert!(report.sent_packets > 140_000, "{}", report.sent_packets);
        assert!(report.arrived_packets >= report.sent_packets - 20_000, "{report:?}");
    }
}
