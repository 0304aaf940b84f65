//! A transfer over one emulated link, without a tunnel.

use std::time::Duration;

use bytes::Bytes;
use roadweave_emulate::{Direction, DuplexLink, Link};
use roadweave_proto::Instant;

use super::exchange::Exchange;
use super::socket::{SocketConfig, SocketStats};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fetched {
    /// Time from the first SYN to the last byte, or the time limit.
    pub took: Duration,
    pub bytes: u64,
    pub stats: SocketStats,
}

impl Fetched {
    pub fn goodput_mbps(&self) -> f64 {
        self.bytes as f64 * 8e-6 / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Transfers `bytes` in at most `time`; `None`: as many as possible.
pub fn fetch(
    link: &DuplexLink,
    config: &SocketConfig,
    (direction, bytes): (Direction, Option<u64>),
    time: Duration,
) -> Fetched {
    let mut ways: [Link<Bytes>; 2] = [Link::new(link.up.clone()), Link::new(link.down.clone())];
    let mut exchange = Exchange::new(config, direction, PORT, bytes);
    exchange.begin(Instant::ZERO);
    let (mut now, end) = (Instant::ZERO, Instant::ZERO + time);
    while exchange.completed.is_none() {
        while let Some((direction, packet)) = exchange.poll_transmit(now) {
            let _ = ways[direction as usize].push(now, packet.len(), packet);
        }
        let links = ways.iter().filter_map(Link::poll_timeout);
        let due = links.chain(exchange.poll_timeout()).min();
        let Some(due) = due.filter(|due| *due < end) else { break };
        now = due.max(now);
        for direction in [Direction::Up, Direction::Down] {
            while let Some(packet) = ways[direction as usize].poll(now) {
                exchange.handle_packet(now, direction, &packet);
            }
        }
    }
    Fetched {
        took: exchange.completed.unwrap_or(end).since(Instant::ZERO),
        bytes: exchange.received(),
        stats: exchange.sender().stats(),
    }
}

const PORT: u16 = 5_000;

#[cfg(test)]
mod tests;
