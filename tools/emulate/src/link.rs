//! One direction of one emulated link.
//!
//! ```text
//! push ─> [drop-tail queue, bytes] ─> [transmitter: capacity] ─> lost? ─> [propagation] ─> poll
//! ```
//!
//! A trace is known in advance and the queue is first in, first out, so `push` settles when a
//! packet departs, whether it is lost and when it arrives. A packet costs two heap operations, and
//! the link's timeout is exact.
//!
//! Source: the shape of mahimahi's src/frontend/link_queue.cc, with rates, delay and loss.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
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
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    arriving: BinaryHeap<Arriving<T>>,
    arriving_bytes: usize,
    /// Without reordering jitter, no later packet arrives before this.
    last_arrival: Instant,
    /// Bytes; larger packets are lost.
    mtu: usize,
    stats: LinkStats,
}

/// The settings of a [`Link`].
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
    /// The standard deviation.
    pub deviation: Duration,
    /// Whether packets may overtake each other; if not, a late packet delays those behind it.
    pub reorders: bool,
}

/// Counters of a link; `pushed == delivered + dropped + in_link` at all times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStats {
    /// Packets pushed.
    pub pushed: u64,
    /// Bytes pushed.
    pub pushed_bytes: u64,
    /// Packets delivered.
    pub delivered: u64,
    /// Bytes delivered.
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
struct Waiting {
    number: u64,
    departs: Instant,
    bytes: usize,
}

#[derive(Debug)]
struct Arriving<T> {
    at: Instant,
    /// Packets that arrive together keep their order.
    number: u64,
    bytes: usize,
    packet: T,
}

impl LinkSettings {
    /// Settings for `trace` with its default queue, starting at [`Instant::ZERO`].
    pub fn new(trace: Trace, seed: u64) -> Self {
        let queue_bytes = trace.default_queue_bytes();
        Self { trace, origin: Instant::ZERO, queue_bytes, burst_loss: None, jitter: None, seed }
    }
}

impl<T> Link<T> {
    /// A link without packets.
    pub fn new(settings: LinkSettings) -> Self {
        Self {
            transmitter: Transmitter::new(settings.trace.capacity().clone(), settings.origin),
            burst_loss: settings.burst_loss.map(LossProcess::new),
            random: Random::new(settings.seed),
            dead: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            arriving: BinaryHeap::new(),
            arriving_bytes: 0,
            last_arrival: Instant::ZERO,
            mtu: usize::MAX,
            stats: LinkStats::default(),
            settings,
        }
    }

    /// Takes in a packet of `bytes` bytes. `now` must not descend.
    ///
    /// `Ok` does not mean that it will arrive: a sender does not learn of loss on the way.
    ///
    /// # Errors
    /// [`DropReason::LinkQueueFull`] when the queue has no room, [`DropReason::LinkLoss`] when the
    /// link is dead or the packet exceeds the MTU. Both are counted.
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
        self.waiting.push_back(Waiting { number, departs, bytes });
        self.waiting_bytes += bytes;
        self.stats.queue_bytes_max = self.stats.queue_bytes_max.max(self.waiting_bytes);
        if self.is_lost(departs) {
            self.count_drop(DropReason::LinkLoss, bytes);
            return Ok(());
        }
        let at = self.arrival(departs);
        self.arriving.push(Arriving { at, number, bytes, packet });
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
        let next = self.arriving.peek()?;
        if next.at > now {
            return None;
        }
        let arrived = self.arriving.pop()?;
        self.arriving_bytes -= arrived.bytes;
        self.stats.in_link -= 1;
        self.stats.delivered += 1;
        self.stats.delivered_bytes += arrived.bytes as u64;
        Some(arrived.packet)
    }

    /// When the next packet arrives; `None` if no packet will.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.arriving.peek().map(|next| next.at).filter(|&at| at < Instant::FAR_FUTURE)
    }

    /// Kills or revives the link.
    ///
    /// A dead link silently loses what it holds and what is pushed, like an unplugged modem. (A
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
        let (mut held, under_way): (Vec<_>, Vec<_>) =
            self.arriving.drain().partition(|packet| packet.number >= first);
        held.sort_unstable_by_key(|packet| packet.number);
        self.last_arrival = under_way.iter().map(|packet| packet.at).fold(now, Instant::max);
        self.arriving.extend(under_way);
        let mut held = held.into_iter().peekable();
        for index in 0..self.waiting.len() {
            let Waiting { number, bytes, .. } = self.waiting[index];
            let departs = self.transmitter.transmit(now, bytes);
            self.waiting[index].departs = departs;
            // A missing packet was lost.
            if let Some(packet) = held.next_if(|packet| packet.number == number) {
                let at = self.arrival(departs);
                self.arriving.push(Arriving { at, ..packet });
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

    /// The counters.
    pub fn stats(&self) -> &LinkStats {
        &self.stats
    }

    /// The settings.
    pub fn settings(&self) -> &LinkSettings {
        &self.settings
    }

    fn forget_departed(&mut self, now: Instant) {
        while let Some(&Waiting { departs, bytes, .. }) = self.waiting.front()
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
        let delay = self.settings.trace.delay().at(departs.since(self.settings.origin));
        let Some(jitter) = self.settings.jitter else {
            self.last_arrival = self.last_arrival.max(departs + delay);
            return self.last_arrival;
        };
        let extra = self.random.normal() * jitter.deviation.as_nanos() as f64;
        let delay = Duration::from_nanos((nanos(delay) as f64 + extra).max(0.0) as u64);
        if jitter.reorders {
            return departs + delay;
        }
        self.last_arrival = self.last_arrival.max(departs + delay);
        self.last_arrival
    }
}

impl<T> Arriving<T> {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.number)
    }
}

/// Reversed, since the heap keeps the greatest on top.
impl<T> Ord for Arriving<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<T> PartialOrd for Arriving<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Arriving<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Arriving<T> {}

#[cfg(test)]
mod tests;
