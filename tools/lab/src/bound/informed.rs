//! The informed scheduler: it knows the links now or a round trip ago, but not the future.
//!
//! ```text
//! packets by when they can leave next ─► link that would carry it soonest, as seen ─► arrives
//!          ▲                                                                       └─► reported lost
//!          └── seen to wait on a link that carries nothing, or reported lost ◄─────────┘
//! as seen: now, or as an acknowledgement that arrives now reports
//! free copies: the earliest arrival of a copy without cost, over all links and moments
//! insured:     a copy on the next best link, if no queue is seen there
//! ```
//!
//! It knows what each link carries, which a real sender must probe. With free copies no repair,
//! resent or coded, beats it for the same placement of packets. The placement is greedy, so the
//! result is reachable and not a bound; its gap to the clairvoyant bound is the value of knowing
//! the future. Only certain loss counts.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use roadweave_emulate::{Capacity, Trace, Transmitter};
use roadweave_proto::Instant;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Means {
    pub(super) is_late: bool,
    pub(super) copies: Copies,
    pub(super) deadline: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Copies {
    None,
    Free,
    /// At most this share of packets, once each, where there is room without a queue.
    Insured(f64),
}

/// When each packet of (release, bytes) first arrives; `None` if too late or never.
pub(super) fn arrivals(
    links: &[&Trace],
    origin: Instant,
    packets: impl Iterator<Item = (Instant, usize)>,
    horizon: Duration,
    means: Means,
) -> Vec<Option<Instant>> {
    let mut lanes: Vec<Lane<'_>> =
        links.iter().map(|trace| Lane::new(trace, origin, horizon)).collect();
    let mut packets: Vec<OraclePacket> = packets
        .map(|(released, bytes)| OraclePacket { released, bytes, sent: None, arrives: None })
        .collect();
    let turn = |(number, packet): (usize, &OraclePacket)| Reverse((packet.released, number));
    // By time, so that no link is queried about its past.
    let mut turns: BinaryHeap<_> = packets.iter().enumerate().map(turn).collect();
    let mut premium = 0.0;
    while let Some(Reverse((now, number))) = turns.pop() {
        let packet = &mut packets[number];
        let link = packet.take_turn(&mut lanes, now, means);
        if let (Some(link), Copies::Insured(share)) = (link, means.copies) {
            premium += share;
            if premium >= 1.0 && packet.insure(&mut lanes, link, now, means) {
                premium -= 1.0;
            }
        }
        let is_through = packet.arrives.is_some_and(|arrives| arrives <= now);
        if !is_through && now.since(packet.released) < means.deadline {
            turns.push(Reverse((now + LOOK_INTERVAL, number)));
        }
    }
    packets.into_iter().map(|packet| packet.arrives).collect()
}

struct OraclePacket {
    released: Instant,
    bytes: usize,
    sent: Option<Transmission>,
    arrives: Option<Instant>,
}

struct Transmission {
    link: usize,
    departs: Instant,
    lost: Option<Instant>,
}

impl OraclePacket {
    /// Sends the packet unless a transmission is known to bring it; returns the link.
    fn take_turn(&mut self, lanes: &mut [Lane<'_>], now: Instant, means: Means) -> Option<usize> {
        if means.copies == Copies::Free {
            let copy = lanes.iter().filter_map(|lane| lane.copy(now, self.bytes)).min();
            self.arrives = earliest(self.arrives, copy);
        }
        let is_under_way = self.sent.as_ref().is_some_and(|sent| {
            let lane = &lanes[sent.link];
            let seen = lane.seen(now, means.is_late);
            let stands = sent.departs > seen && !lane.carries(seen);
            !stands && sent.lost.is_none_or(|heard| heard > now)
        });
        if is_under_way {
            return None;
        }
        let estimate = |lane: &Lane<'_>| lane.estimate(now, self.bytes, means.is_late);
        let seen = lanes.iter().map(estimate).enumerate();
        let soonest = seen.filter_map(|(link, seen)| Some((link, seen?)));
        let (link, _) = soonest.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let (departs, arrives) = lanes[link].send(now, self.bytes);
        let lost = arrives.is_none().then(|| departs + lanes[link].delay(departs) * 2);
        self.sent = Some(Transmission { link, departs, lost });
        self.arrives = earliest(self.arrives, arrives);
        Some(link)
    }

    /// Sends a copy on another link than `link` if one has room; returns whether it did.
    fn insure(&mut self, lanes: &mut [Lane<'_>], link: usize, now: Instant, means: Means) -> bool {
        let estimate = |(other, lane): (usize, &Lane<'_>)| {
            let takes = lane.estimate(now, self.bytes, means.is_late)?;
            let way = lane.delay(lane.seen(now, means.is_late)).as_secs_f64();
            (other != link && takes - way < QUEUE_MAX.as_secs_f64()).then_some((other, takes))
        };
        let free = lanes.iter().enumerate().filter_map(estimate);
        let Some((other, _)) = free.min_by(|a, b| a.1.total_cmp(&b.1)) else { return false };
        let (_, arrives) = lanes[other].send(now, self.bytes);
        self.arrives = earliest(self.arrives, arrives);
        true
    }
}

struct Lane<'a> {
    trace: &'a Trace,
    origin: Instant,
    transmitter: Transmitter,
    last_arrival: Instant,
    put: u64,
    /// Total bytes that had left by each moment, ascending.
    left: VecDeque<(Instant, u64)>,
    /// For opportunities: the mean rate of each [`RATE_STEP`], bit/s.
    steps: Vec<f64>,
}

impl<'a> Lane<'a> {
    fn new(trace: &'a Trace, origin: Instant, horizon: Duration) -> Self {
        let steps = match &**trace.capacity() {
            Capacity::Rates(_) => Vec::new(),
            opportunities => opportunities.mean_rates(RATE_STEP, horizon),
        };
        Self {
            steps,
            trace,
            origin,
            transmitter: Transmitter::new(trace.capacity().clone(), origin),
            last_arrival: Instant::ZERO,
            put: 0,
            left: VecDeque::new(),
        }
    }

    fn seen(&self, now: Instant, is_late: bool) -> Instant {
        let lag = self.delay(now) * if is_late { 2 } else { 0 };
        self.origin + now.since(self.origin).saturating_sub(lag)
    }

    fn delay(&self, at: Instant) -> Duration {
        self.trace.delay().at(at.since(self.origin))
    }

    fn rate(&self, at: Instant) -> f64 {
        let since = at.since(self.origin);
        let bits = match &**self.trace.capacity() {
            Capacity::Rates(rates) => rates.at(since).as_bps() as f64,
            Capacity::Opportunities(_) => {
                let step = (since.as_nanos() / RATE_STEP.as_nanos()) as usize;
                self.steps.get(step.saturating_sub(1)).copied().unwrap_or(0.0)
            }
        };
        bits / 8.0
    }

    fn carries(&self, at: Instant) -> bool {
        self.rate(at) > 0.0 && self.trace.loss().at(at.since(self.origin)) < 1.0
    }

    /// Seconds to deliver `bytes` if the links stay as seen at `now`; `None` without capacity.
    fn estimate(&self, now: Instant, bytes: usize, is_late: bool) -> Option<f64> {
        let seen = self.seen(now, is_late);
        if !self.carries(seen) {
            return None;
        }
        let rate = self.rate(seen);
        let gone = self.left.partition_point(|(at, _)| *at <= seen);
        let gone = gone.checked_sub(1).map_or(0, |last| self.left[last].1);
        let drained = rate * now.since(seen).as_secs_f64();
        let queue = ((self.put - gone) as f64 - drained).max(0.0);
        Some((queue + bytes as f64) / rate + self.delay(seen).as_secs_f64())
    }

    fn send(&mut self, now: Instant, bytes: usize) -> (Instant, Option<Instant>) {
        let departs = self.transmitter.transmit(now, bytes);
        self.put += bytes as u64;
        self.left.push_back((departs, self.put));
        while self.left.len() > 1 && now.since(self.left[1].0) > KEPT {
            self.left.pop_front();
        }
        let arrives = self.arrival(departs);
        self.last_arrival = arrives.unwrap_or(self.last_arrival);
        (departs, arrives)
    }

    fn copy(&self, now: Instant, bytes: usize) -> Option<Instant> {
        self.arrival(self.transmitter.clone().transmit(now, bytes))
    }

    fn arrival(&self, departs: Instant) -> Option<Instant> {
        let since = departs.since(self.origin);
        let arrives = departs != Instant::FAR_FUTURE && self.trace.loss().at(since) < 1.0;
        arrives.then(|| self.last_arrival.max(departs + self.delay(departs)))
    }
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}

/// Longest queueing and transmission time of a copy.
const QUEUE_MAX: Duration = Duration::from_millis(2);
const LOOK_INTERVAL: Duration = Duration::from_millis(4);
const RATE_STEP: Duration = Duration::from_millis(100);
const KEPT: Duration = Duration::from_secs(2);
