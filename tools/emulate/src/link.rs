//! One direction of one emulated link.
//!
//! ```text
//! push ─> [drop-tail queue, bytes] ─> [transmitter: capacity] ─> lost? ─> [propagation] ─> poll
//! ```
//!
//! A trace is known in advance and the queue is first in, first out, so `push` determines when a
//! packet departs, whether it is lost and when it arrives. A packet costs two operations of an
//! ordered map, and the link's timeout is exact.
//!
//! Source: modelled on mahimahi's src/frontend/link_queue.cc, with rates, delay and loss added.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use roadweave_proto::{DropCounters, DropReason, Instant};
use serde::Serialize;

use crate::capacity::Transmitter;
use crate::loss::{GilbertElliott, LossProcess};
use crate::random::Random;
use crate::timeline::nanos;
use crate::trace::Trace;

/// One direction of one emulated link, carrying packets of type `T`.
#[derive(Debug)]
pub struct Link<T> {
    settings: LinkSettings,
    transmitter: Transmitter,
    burst_loss: Option<LossProcess>,
    random: Random,
    dead: bool,
    waiting: VecDeque<QueuedPacket>,
    waiting_bytes: usize,
    arriving: Arriving<T>,
    arriving_bytes: usize,
    /// Without reordering jitter, no later packet arrives before this.
    last_arrival: Instant,
    /// Bytes; larger packets are lost.
    mtu: usize,
    stats: LinkStats,
}

/// Packets with their bytes, by arrival and number: simultaneous packets keep their order.
type Arriving<T> = BTreeMap<(Instant, u64), (usize, T)>;

#[derive(Clone, Debug)]
pub struct LinkSettings {
    /// Capacity, delay and loss over time.
    pub trace: Trace,
    /// The moment at which the trace starts.
    pub origin: Instant,
    /// The queue's size, bytes; a packet that would exceed it is dropped.
    pub queue_bytes: usize,
    /// Loss in addition to the trace's.
    pub burst_loss: Option<GilbertElliott>,
    /// Delay that varies from packet to packet.
    pub jitter: Option<Jitter>,
    /// The seed of all random draws.
    pub seed: u64,
}

/// A normally distributed addition to each packet's delay; the total delay is never below zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    pub deviation: Duration,
    /// Whether packets may overtake each other; if not, a late packet delays all later ones.
    pub reorders: bool,
}

/// Counters of a link; `pushed == delivered + dropped + in_link` at all times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStats {
    pub pushed: u64,
    pub pushed_bytes: u64,
    pub delivered: u64,
    pub delivered_bytes: u64,
    /// Packets dropped or lost.
    pub dropped: DropCounters,
    /// Bytes dropped or lost.
    #[serde(skip)]
    pub dropped_bytes: u64,
    /// Packets queued or in flight.
    #[serde(skip)]
    pub in_link: u64,
    /// The largest queue so far, bytes.
    pub queue_bytes_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct QueuedPacket {
    number: u64,
    departs: Instant,
    bytes: usize,
}

impl LinkSettings {
    /// Settings for `trace` with its default queue, starting at [`Instant::ZERO`].
    pub fn new(trace: Trace, seed: u64) -> Self {
        let queue_bytes = trace.default_queue_bytes();
        Self { trace, origin: Instant::ZERO, queue_bytes, burst_loss: None, jitter: None, seed }
    }
}

impl<T> Link<T> {
    pub fn new(settings: LinkSettings) -> Self {
        Self {
            transmitter: Transmitter::new(settings.trace.capacity().clone(), settings.origin),
            burst_loss: settings.burst_loss.map(LossProcess::new),
            random: Random::new(settings.seed),
            dead: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            arriving: Arriving::new(),
            arriving_bytes: 0,
            last_arrival: Instant::ZERO,
            mtu: usize::MAX,
            stats: LinkStats::default(),
            settings,
        }
    }

    /// Accepts a packet of `bytes` bytes. `now` must not decrease.
    ///
    /// `Ok` does not mean that it will arrive: a sender does not learn of loss in transit.
    pub fn push(&mut self, now: Instant, bytes: usize, packet: T) -> Result<(), DropReason> {
        self.forget_departed(now);
        let number = self.stats.pushed;
        self.stats.pushed += 1;
        self.stats.pushed_bytes += bytes as u64;
        if self.dead || bytes > self.mtu {
            return Err(self.count_drop(DropReason::LinkLoss, bytes));
        }
        if self.waiting_bytes.saturating_add(bytes) > self.settings.queue_bytes {
            return Err(self.count_drop(DropReason::LinkQueueFull, bytes));
        }
        let departs = self.transmitter.transmit(now, bytes);
        self.waiting.push_back(QueuedPacket { number, departs, bytes });
        self.waiting_bytes += bytes;
        self.stats.queue_bytes_max = self.stats.queue_bytes_max.max(self.waiting_bytes);
        if self.is_lost(departs) {
            self.count_drop(DropReason::LinkLoss, bytes);
            return Ok(());
        }
        let at = self.arrival(departs);
        self.arriving.insert((at, number), (bytes, packet));
        self.arriving_bytes += bytes;
        self.stats.in_link += 1;
        Ok(())
    }

    /// Sets the MTU: larger packets are lost.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }

    /// The next packet that has arrived by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<T> {
        let next = self.arriving.first_entry().filter(|next| next.key().0 <= now)?;
        let (bytes, packet) = next.remove();
        self.arriving_bytes -= bytes;
        self.stats.in_link -= 1;
        self.stats.delivered += 1;
        self.stats.delivered_bytes += bytes as u64;
        Some(packet)
    }

    /// When the next packet arrives; `None` without a packet.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (&(at, _), _) = self.arriving.first_key_value()?;
        (at < Instant::FAR_FUTURE).then_some(at)
    }

    /// Kills or revives the link.
    ///
    /// A dead link silently loses its contents and further packets, like an unplugged modem. (A
    /// modem without coverage keeps its queue: that is a trace with capacity zero.)
    pub fn set_dead(&mut self, now: Instant, dead: bool) {
        if dead && !self.dead {
            self.stats.dropped.add(DropReason::LinkLoss, self.arriving.len() as u64);
            self.stats.dropped_bytes += self.arriving_bytes as u64;
            self.stats.in_link = 0;
            self.arriving.clear();
            self.arriving_bytes = 0;
            self.waiting.clear();
            self.waiting_bytes = 0;
            self.transmitter.reset(now);
            self.last_arrival = now;
        }
        self.dead = dead;
    }

    /// Restarts the trace and the random draws at `now`.
    ///
    /// Packets in flight arrive unchanged; queued packets depart by the restarted trace.
    pub fn restart(&mut self, now: Instant) {
        self.forget_departed(now);
        self.settings.origin = now;
        self.transmitter = Transmitter::new(self.settings.trace.capacity().clone(), now);
        self.random = Random::new(self.settings.seed);
        self.burst_loss = self.settings.burst_loss.map(LossProcess::new);

        // Numbers ascend in the queue: packets below its front have departed.
        let first = self.waiting.front().map_or(u64::MAX, |waiting| waiting.number);
        let (held, under_way): (Arriving<T>, Arriving<T>) =
            std::mem::take(&mut self.arriving).into_iter().partition(|it| it.0.1 >= first);
        self.last_arrival = under_way.keys().map(|(at, _)| *at).fold(now, Instant::max);
        self.arriving = under_way;
        let held = held.into_iter().map(|((_, number), packet)| (number, packet));
        let mut held: BTreeMap<u64, (usize, T)> = held.collect();
        for index in 0..self.waiting.len() {
            let QueuedPacket { number, bytes, .. } = self.waiting[index];
            let departs = self.transmitter.transmit(now, bytes);
            self.waiting[index].departs = departs;
            // A missing packet was lost.
            if let Some(packet) = held.remove(&number) {
                let at = self.arrival(departs);
                self.arriving.insert((at, number), packet);
            }
        }
    }

    /// Like [`Link::restart`], with another trace.
    pub fn restart_with(&mut self, now: Instant, trace: Trace) {
        self.settings.trace = trace;
        self.restart(now);
    }

    /// Bytes in the queue at `now`, including the whole packet that is being sent.
    pub fn queue_bytes(&mut self, now: Instant) -> usize {
        self.forget_departed(now);
        self.waiting_bytes
    }

    pub fn stats(&self) -> &LinkStats {
        &self.stats
    }

    pub fn settings(&self) -> &LinkSettings {
        &self.settings
    }

    fn forget_departed(&mut self, now: Instant) {
        while let Some(&QueuedPacket { departs, bytes, .. }) = self.waiting.front()
            && departs <= now
        {
            self.waiting.pop_front();
            self.waiting_bytes -= bytes;
        }
    }

    fn count_drop(&mut self, reason: DropReason, bytes: usize) -> DropReason {
        self.stats.dropped.count(reason);
        self.stats.dropped_bytes += bytes as u64;
        reason
    }

    fn is_lost(&mut self, departs: Instant) -> bool {
        let since_origin = departs.since(self.settings.origin);
        let in_burst =
            self.burst_loss.as_mut().is_some_and(|process| process.is_lost(&mut self.random));
        in_burst | self.random.chance(self.settings.trace.loss().at(since_origin))
    }

    fn arrival(&mut self, departs: Instant) -> Instant {
        let mut delay = self.settings.trace.delay().at(departs.since(self.settings.origin));
        if let Some(jitter) = self.settings.jitter {
            let extra = self.random.normal() * jitter.deviation.as_nanos() as f64;
            delay = Duration::from_nanos((nanos(delay) as f64 + extra).max(0.0) as u64);
            if jitter.reorders {
                return departs + delay;
            }
        }
        self.last_arrival = self.last_arrival.max(departs + delay);
        self.last_arrival
    }
}

#[cfg(test)]
mod tests;
