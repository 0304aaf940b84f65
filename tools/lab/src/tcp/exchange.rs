//! A connection with both of its ends: the vehicle connects, and data go one way.

use bytes::Bytes;
use roadweave_emulate::Direction;
use roadweave_proto::{Instant, earliest};

use super::segment::{Segment, data_max};
use super::socket::{Role, Socket, SocketConfig, SocketStats};
use crate::inner;

/// A connection with both of its ends.
#[derive(Debug)]
pub struct Exchange {
    direction: Direction,
    port: u16,
    /// What is told as the largest segment without options, bytes.
    mss: u16,
    bytes: Option<u64>,
    vehicle: Socket,
    cloud: Socket,
    has_answered: bool,
    completed: Option<Instant>,
}

impl Exchange {
    /// `direction`: the way of the data. Data to the vehicle are asked for by [`REQUEST`] bytes.
    /// `bytes`: how many; `None`: without an end.
    pub fn new(config: &SocketConfig, direction: Direction, port: u16, bytes: Option<u64>) -> Self {
        Self {
            direction,
            port,
            mss: (data_max(config.mtu) + TIMESTAMPS) as u16,
            bytes,
            vehicle: Socket::new(Role::Client, config),
            cloud: Socket::new(Role::Server, config),
            has_answered: false,
            completed: None,
        }
    }

    /// The vehicle connects.
    pub fn begin(&mut self, now: Instant) {
        self.vehicle.connect(now);
        let asks = self.direction == Direction::Down;
        self.vehicle.write(if asks { REQUEST } else { self.bytes.unwrap_or(ENDLESS) });
    }

    /// When [`Exchange::poll_transmit`] has something to send.
    pub fn poll_timeout(&self) -> Option<Instant> {
        earliest([self.vehicle.poll_timeout(), self.cloud.poll_timeout()])
    }

    /// The next IP packet that leaves at `now`, and its way. Call it until it returns `None`, when
    /// all that has come by `now` was handed over.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(Direction, Bytes)> {
        let (direction, segment) = match self.vehicle.poll_transmit(now) {
            Some(segment) => (Direction::Up, segment),
            None => (Direction::Down, self.cloud.poll_transmit(now)?),
        };
        Some((direction, segment.packet(direction, self.port, self.mss)))
    }

    /// Takes an IP packet at the end where `direction` leads; `false` when it is no segment of this
    /// connection.
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

    /// Bytes of data that have come in order.
    pub fn received(&self) -> u64 {
        self.ends().1.received()
    }

    /// When all were there.
    pub fn completed(&self) -> Option<Instant> {
        self.completed
    }

    /// What happened at the end that sends the data.
    pub fn stats(&self) -> SocketStats {
        self.ends().0.stats()
    }

    /// The end that sends the data.
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

/// What asks for data, bytes.
pub const REQUEST: u64 = 100;
/// More than goes through in any time.
const ENDLESS: u64 = 1 << 50;
/// Bytes of the timestamps' option.
const TIMESTAMPS: u32 = 12;

#[cfg(test)]
mod tests {
    use super::super::congestion::Algorithm;
    use super::*;

    #[test]
    fn a_connection_takes_its_own_segments_alone() {
        let config = SocketConfig { algorithm: Algorithm::Cubic, mtu: 1_500, seed: 1 };
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
