//! Both ends of a connection: the vehicle connects, and data flow in one direction.

use bytes::Bytes;
use roadweave_emulate::Direction;
use roadweave_proto::{Instant, earliest};

use super::segment::{Segment, data_max};
use super::socket::{Socket, SocketConfig, SocketRole};
use crate::inner;

#[derive(Debug)]
pub struct Exchange {
    direction: Direction,
    port: u16,
    mss: u16,
    bytes: Option<u64>,
    vehicle: Socket,
    cloud: Socket,
    has_answered: bool,
    pub completed: Option<Instant>,
}

impl Exchange {
    /// `direction` is that of the data; downwards the vehicle requests them with [`REQUEST`] bytes.
    /// `bytes` is their number; `None`: endless.
    pub fn new(config: &SocketConfig, direction: Direction, port: u16, bytes: Option<u64>) -> Self {
        Self {
            direction,
            port,
            mss: (data_max(config.mtu) + TIMESTAMPS) as u16,
            bytes,
            vehicle: Socket::new(SocketRole::Client, config),
            cloud: Socket::new(SocketRole::Server, config),
            has_answered: false,
            completed: None,
        }
    }

    pub fn begin(&mut self, now: Instant) {
        self.vehicle.connect(now);
        let asks = self.direction == Direction::Down;
        self.vehicle.write(if asks { REQUEST } else { self.bytes.unwrap_or(ENDLESS) });
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        earliest([self.vehicle.poll_timeout(), self.cloud.poll_timeout()])
    }

    /// The next IP packet to send at `now`, with its direction. Call it until it returns `None`,
    /// after passing all packets that arrived by `now`.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(Direction, Bytes)> {
        let (direction, segment) = match self.vehicle.poll_transmit(now) {
            Some(segment) => (Direction::Up, segment),
            None => (Direction::Down, self.cloud.poll_transmit(now)?),
        };
        Some((direction, segment.packet(direction, self.port, self.mss)))
    }

    /// Handles an IP packet at the end of `direction`; `false` if it is not of this connection.
    pub fn handle_packet(&mut self, now: Instant, direction: Direction, packet: &[u8]) -> bool {
        let socket = match direction {
            Direction::Up => &mut self.cloud,
            Direction::Down => &mut self.vehicle,
        };
        let (sent, came) = socket.position();
        let segment = Segment::parse(packet, sent, came);
        let Some(segment) = segment.filter(|_| inner::port(packet) == Some(self.port)) else {
            return false;
        };
        socket.handle_segment(now, &segment);
        if self.direction == Direction::Down
            && !self.has_answered
            && self.cloud.received() >= REQUEST
        {
            self.has_answered = true;
            self.cloud.write(self.bytes.unwrap_or(ENDLESS));
        }
        if self.completed.is_none() && self.bytes.is_some_and(|bytes| self.received() >= bytes) {
            self.completed = Some(now);
        }
        true
    }

    pub fn received(&self) -> u64 {
        self.ends().1.received()
    }

    pub fn sender(&self) -> &Socket {
        self.ends().0
    }

    fn ends(&self) -> (&Socket, &Socket) {
        match self.direction {
            Direction::Up => (&self.vehicle, &self.cloud),
            Direction::Down => (&self.cloud, &self.vehicle),
        }
    }
}

pub const REQUEST: u64 = 100;
const ENDLESS: u64 = 1 << 50;
const TIMESTAMPS: u32 = 12;

#[cfg(test)]
mod tests {
    use roadweave_quic::CongestionControl;

    use super::*;

    #[test]
    fn a_connection_takes_its_own_segments_alone() {
        let config = SocketConfig { algorithm: CongestionControl::Cubic, mtu: 1_500, seed: 1 };
        let exchange = |port| Exchange::new(&config, Direction::Down, port, Some(1));
        let (mut one, mut other) = (exchange(5_000), exchange(5_001));
        one.begin(Instant::ZERO);
        let (direction, syn) = one.poll_transmit(Instant::ZERO).expect("it connects");
        assert!(!other.handle_packet(Instant::ZERO, direction, &syn));
        assert_eq!(other.poll_transmit(Instant::ZERO), None, "nobody has connected");
        assert!(one.handle_packet(Instant::ZERO, direction, &syn));
        assert!(one.poll_transmit(Instant::ZERO).is_some(), "the answer");
        assert!(!one.handle_packet(Instant::ZERO, direction, b"no packet"));
    }
}
