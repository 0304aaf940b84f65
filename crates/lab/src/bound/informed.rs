//! The informed scheduler: it knows the links as they are, or were a round trip ago, and nothing of
//! the future.
//!
//! ```text
//! estimate of a link = its queue / its capacity + its delay, as seen        packet ─► smallest one
//!                       as seen: now, or when what is acknowledged now left
//! with copies          the earliest arrival over all links of a copy that takes no capacity
//! ```
//!
//! It measures nothing, knows what each link carries where a real sender has to try, and hears of
//! everything, but not sooner than an acknowledgement would tell. A packet that is lost leaves
//! again when that is heard. With copies every packet is on every link at once: no repair, copy or
//! code, whenever it leaves, beats the best of these, given where the packets themselves are. Where
//! they are is greedy, so that this is what can be reached and no proof; the gap to the clairvoyant
//! bound is what only the future tells. Loss counts where it is certain.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_emulate::{Capacity, Trace, Transmitter};
use roadweave_types::Instant;

/// What the informed scheduler may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Means {
    /// Whether it sees the links as they were a round trip ago, and not as they are.
    pub(super) is_late: bool,
    /// Whether a copy of every packet is on every link, at no cost.
    pub(super) copies: bool,
}

/// When each of the packets of (time of release, bytes), ascending by release, arrives; `None` for
/// what is never heard of again.
pub(super) fn arrivals(
    links: &[&Trace],
    origin: Instant,
    packets: impl Iterator<Item = (Instant, usize)>,
    means: Means,
) -> Vec<Option<Instant>> {
    let mut lanes: Vec<Lane<'_>> = links.iter().map(|trace| Lane::new(trace, origin)).collect();
    let packets = packets.map(|(released, bytes)| {
        let mut best: Option<Instant> = None;
        let mut at = released;
        for _ in 0..TRIES_MAX {
            let seen: Vec<f64> =
                lanes.iter().map(|lane| lane.estimate(at, bytes, means.is_late)).collect();
            let chosen = (0..seen.len()).min_by(|a, b| seen[*a].total_cmp(&seen[*b]))?;
            if seen[chosen].is_infinite() {
                at = at + LOOK_INTERVAL;
                continue;
            }
            if means.copies {
                let copies = lanes.iter().enumerate().filter(|(index, _)| *index != chosen);
                best = best
                    .into_iter()
                    .chain(copies.filter_map(|(_, lane)| lane.copy(at, bytes)))
                    .min();
            }
            let (arrives, heard) = lanes[chosen].send(at, bytes);
            best = best.into_iter().chain(arrives).min();
            if best.is_some() || heard == Instant::FAR_FUTURE {
                break;
            }
            at = heard;
        }
        best
    });
    packets.collect()
}

/// A link and what is on it.
struct Lane<'a> {
    trace: &'a Trace,
    origin: Instant,
    transmitter: Transmitter,
    last_arrival: Instant,
    /// Bytes put there in all.
    put: u64,
    /// When so many bytes in all had left, ascending.
    left: VecDeque<(Instant, u64)>,
}

impl<'a> Lane<'a> {
    fn new(trace: &'a Trace, origin: Instant) -> Self {
        Self {
            trace,
            origin,
            transmitter: Transmitter::new(trace.capacity().clone(), origin),
            last_arrival: Instant::ZERO,
            put: 0,
            left: VecDeque::new(),
        }
    }

    /// How long a packet of `bytes` bytes would take, seconds, as things are seen at `now`.
    fn estimate(&self, now: Instant, bytes: usize, is_late: bool) -> f64 {
        let delay = |at: Instant| self.trace.delay().at(at.since(self.origin));
        let lag = if is_late { delay(now) * 2 } else { Duration::ZERO };
        let seen = self.origin.max(Instant::ZERO + now.since(Instant::ZERO).saturating_sub(lag));
        let since = seen.since(self.origin);
        let rate = match &**self.trace.capacity() {
            Capacity::Rates(rates) => rates.at(since).as_bps(),
            Capacity::Opportunities(_) => self.trace.capacity().mean_rate().as_bps(),
        } as f64
            / 8.0;
        if rate <= 0.0 || self.trace.loss().at(since) >= 1.0 {
            return f64::INFINITY;
        }
        let gone = self.left.partition_point(|(at, _)| *at <= seen);
        let gone = gone.checked_sub(1).map_or(0, |last| self.left[last].1);
        let drained = rate * now.since(seen).as_secs_f64();
        let queue = ((self.put - gone) as f64 - drained).max(0.0);
        (queue + bytes as f64) / rate + delay(seen).as_secs_f64()
    }

    /// Sends a packet: when it arrives, if it does, and when its fate is heard of.
    fn send(&mut self, now: Instant, bytes: usize) -> (Option<Instant>, Instant) {
        let departs = self.transmitter.transmit(now, bytes);
        self.put += bytes as u64;
        self.left.push_back((departs, self.put));
        while self.left.len() > 2 && now.since(self.left[1].0) > KEPT {
            self.left.pop_front();
        }
        let arrives = self.arrival(departs);
        let delay = self.trace.delay().at(departs.since(self.origin));
        self.last_arrival = arrives.unwrap_or(self.last_arrival).max(self.last_arrival);
        (arrives, departs.max(now) + delay * 2)
    }

    /// When a copy would arrive that leaves no trace.
    fn copy(&self, now: Instant, bytes: usize) -> Option<Instant> {
        self.arrival(self.transmitter.clone().transmit(now, bytes))
    }

    fn arrival(&self, departs: Instant) -> Option<Instant> {
        let since = departs.since(self.origin);
        let arrives = departs != Instant::FAR_FUTURE && self.trace.loss().at(since) < 1.0;
        arrives.then(|| self.last_arrival.max(departs + self.trace.delay().at(since)))
    }
}

/// A packet is given up after so many attempts, and moments at which no link carried anything.
const TRIES_MAX: usize = 256;
/// How soon links are looked at again of which none carries anything.
const LOOK_INTERVAL: Duration = Duration::from_millis(4);
/// For how long what has left is remembered: longer than a packet is of use.
const KEPT: Duration = Duration::from_secs(2);
