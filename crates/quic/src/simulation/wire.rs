//! The wire between the two ends.
//!
//! Emulated links are `roadweave_emulate::Link`. Tests read and forge packets: all is accessible.

use std::cmp::Ordering;
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_proto::{Instant, Rate, SplitMix64};

use crate::Ecn;

pub(super) struct Wire {
    pub(super) directions: [Direction; 2],
    pub(super) address: SocketAddr,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    Removed,
    Carried,
    Dropped,
}

#[derive(Clone)]
pub(super) struct Direction {
    pub(super) delay: Duration,
    pub(super) jitter: Duration,
    pub(super) loss: f64,
    pub(super) dead: bool,
    pub(super) rate: Option<Rate>,
    /// A packet that would wait longer is dropped.
    pub(super) queue: Duration,
    pub(super) mtu: usize,
    pub(super) marks: Marks,
    free_at: Instant,
    pub(super) delivered_bytes: u64,
    pub(super) waited: Vec<Duration>,
}

impl Wire {
    pub(super) fn new(index: u8, delay: Duration) -> Self {
        let direction = Direction {
            delay,
            jitter: Duration::ZERO,
            loss: 0.0,
            dead: false,
            rate: None,
            queue: Duration::from_millis(300),
            mtu: 1472,
            marks: Marks::Removed,
            free_at: Instant::ZERO,
            delivered_bytes: 0,
            waited: Vec::new(),
        };
        let address = SocketAddr::from(([100, 64, 0, index + 1], 10_000 + u16::from(index)));
        Self { directions: [direction.clone(), direction], address }
    }

    pub(super) fn with(mut self, change: impl Fn(&mut Direction)) -> Self {
        self.directions.iter_mut().for_each(change);
        self
    }

    pub(super) fn direction(&mut self, sender: usize) -> &mut Direction {
        &mut self.directions[sender]
    }

    pub(super) fn set_dead(&mut self, dead: bool) {
        self.directions.iter_mut().for_each(|direction| direction.dead = dead);
    }
}

pub(super) fn links(delays: &[u64]) -> Vec<Wire> {
    let link = |(i, delay): (usize, &u64)| Wire::new(i as u8, Duration::from_millis(*delay));
    delays.iter().enumerate().map(link).collect()
}

pub(super) fn links_with(delays: &[u64], change: impl Fn(&mut Direction)) -> Vec<Wire> {
    links(delays).into_iter().map(|link| link.with(&change)).collect()
}

impl Direction {
    pub(super) fn carry(
        &mut self,
        now: Instant,
        len: usize,
        random: &mut SplitMix64,
    ) -> Option<Instant> {
        let lost = random.unit() < self.loss;
        let late = self.jitter.mul_f64(random.unit());
        if self.dead || lost || len > self.mtu {
            return None;
        }
        let mut leaves = now;
        if let Some(rate) = self.rate {
            let starts = now.max(self.free_at);
            if starts - now > self.queue {
                return None;
            }
            leaves = starts + rate.time_for(len as u64 + IP_UDP_HEADER);
            self.free_at = leaves;
            self.waited.push(starts - now);
        }
        self.delivered_bytes += len as u64 + IP_UDP_HEADER;
        Some(leaves + self.delay + late)
    }
}

pub(super) struct Arrival {
    pub(super) at: Instant,
    pub(super) number: u64,
    pub(super) to: usize,
    pub(super) link: usize,
    pub(super) source: SocketAddr,
    pub(super) ecn: Option<Ecn>,
    pub(super) packet: Vec<u8>,
}

impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Arrival {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Arrival {}

const IP_UDP_HEADER: u64 = 28;
