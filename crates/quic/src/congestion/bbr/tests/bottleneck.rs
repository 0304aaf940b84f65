//! One bottleneck and the flows that share it, in virtual time and without any QUIC: only
//! controllers, a pacer and a queue.
//!
//! ```text
//! flow: traffic > window and pacing > queue > link (rate) > delay, jitter, loss > acknowledged or lost
//! ```

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use noq_proto::congestion::Controller;
use roadweave_types::{Rate, SplitMix64};

use super::super::Bbr;

pub(super) const PACKET: u64 = 1200;
/// Everything happens at multiples of this.
const TICK: Duration = Duration::from_micros(250);

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What all flows go through; may be changed while the world stands still.
pub(super) struct Link {
    pub(super) mbps: f64,
    /// Without queue and jitter, there and back.
    pub(super) round_trip: Duration,
    /// Standard deviation of what is added to each packet's delay, milliseconds.
    pub(super) jitter_ms: f64,
    pub(super) loss: f64,
    pub(super) queue_max: u64,
}

/// A link of `mbps` with the queue of a base station.
pub(super) fn link(mbps: f64, round_trip: Duration) -> Link {
    Link { mbps, round_trip, jitter_ms: 0.0, loss: 0.0, queue_max: (mbps * 62_500.0) as u64 }
}

pub(super) enum Traffic {
    /// Always more to send.
    Bulk,
    /// 30 frames per second.
    Video {
        mbps: f64,
    },
    Silent,
}

pub(super) struct Flow {
    pub(super) bbr: Bbr,
    pub(super) traffic: Traffic,
    backlog: u64,
    in_flight: u64,
    budget: f64,
    next_frame: Instant,
    limited_until: Instant,
    latest_rtt: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Acknowledged,
    Lost,
}

/// When, in which order, for which flow, sent when, what.
type News = Reverse<(Instant, u64, usize, Instant, Fate)>;

pub(super) struct World {
    pub(super) link: Link,
    pub(super) flows: Vec<Flow>,
    pub(super) now: Instant,
    queue: VecDeque<(usize, Instant)>,
    credit: f64,
    news: BinaryHeap<News>,
    random: SplitMix64,
    packets: u64,
}

/// What happened in a span of time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    /// What arrived, by flow.
    pub(super) mbps: Vec<f64>,
    pub(super) rtt_mean: f64,
    pub(super) rtt_max: f64,
    /// The most that waited in front of the window or pacer, packets.
    pub(super) backlog_max: u64,
}

impl World {
    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    pub(super) fn new(link: Link, seed: u64) -> Self {
        Self {
            link,
            flows: Vec::new(),
            now: Instant::now(),
            queue: VecDeque::new(),
            credit: 0.0,
            news: BinaryHeap::new(),
            random: SplitMix64::new(seed),
            packets: 0,
        }
    }

    pub(super) fn with(mut self, traffic: Traffic) -> Self {
        self.add(traffic);
        self
    }

    pub(super) fn add(&mut self, traffic: Traffic) {
        let seed = (self.random.unit() * 1e9) as u64;
        self.flows.push(Flow {
            bbr: Bbr::new(PACKET as u16, SplitMix64::new(seed)),
            traffic,
            backlog: 0,
            in_flight: 0,
            budget: 0.0,
            next_frame: self.now,
            limited_until: self.now,
            latest_rtt: ms(100),
        });
    }

    pub(super) fn run(&mut self, span: Duration) -> Seen {
        let end = self.now + span;
        let mut delivered = vec![0u64; self.flows.len()];
        let (mut rtt_sum, mut rtt_max, mut rtts, mut backlog_max) = (0.0, 0.0f64, 0u32, 0);
        while self.now < end {
            self.now += TICK;
            let heard = self.hear();
            for &(flow, rtt) in &heard {
                delivered[flow] += PACKET;
                rtt_sum += rtt;
                rtt_max = rtt_max.max(rtt);
                rtts += 1;
            }
            for flow in 0..self.flows.len() {
                self.send(flow);
                if !matches!(self.flows[flow].traffic, Traffic::Bulk) {
                    backlog_max = backlog_max.max(self.flows[flow].backlog / PACKET);
                }
            }
            self.serve();
        }
        let mbps = |bytes: &u64| *bytes as f64 * 8e-6 / span.as_secs_f64();
        Seen {
            mbps: delivered.iter().map(mbps).collect(),
            rtt_mean: rtt_sum / f64::from(rtts.max(1)),
            rtt_max,
            backlog_max,
        }
    }

    /// Hands the news that are due to the controllers; returns what arrived, with its round-trip
    /// time.
    fn hear(&mut self) -> Vec<(usize, f64)> {
        let mut heard = Vec::new();
        let mut told = vec![false; self.flows.len()];
        while let Some(Reverse((at, ..))) = self.news.peek()
            && *at <= self.now
        {
            let Reverse((_, _, index, sent, fate)) = self.news.pop().expect("it was looked at");
            let flow = &mut self.flows[index];
            flow.in_flight -= PACKET;
            match fate {
                Fate::Lost => flow.bbr.on_lost(PACKET),
                Fate::Acknowledged => {
                    flow.latest_rtt = self.now - sent;
                    flow.bbr.on_acknowledged(self.now, sent, PACKET);
                    told[index] = true;
                    heard.push((index, flow.latest_rtt.as_secs_f64()));
                }
            }
        }
        for (index, _) in told.iter().enumerate().filter(|(_, told)| **told) {
            let flow = &mut self.flows[index];
            let app_limited = self.now > flow.limited_until;
            flow.bbr.on_batch_end(self.now, flow.in_flight, app_limited);
            check(&flow.bbr);
        }
        heard
    }

    fn send(&mut self, index: usize) {
        let flow = &mut self.flows[index];
        match flow.traffic {
            Traffic::Bulk => flow.backlog = 100 * PACKET,
            Traffic::Silent => flow.backlog = 0,
            Traffic::Video { mbps } => {
                while flow.next_frame <= self.now {
                    flow.backlog += (mbps * 1e6 / 8.0 / 30.0) as u64 / PACKET * PACKET;
                    flow.next_frame += Duration::from_nanos(33_333_333);
                }
            }
        }
        let fallback = flow.bbr.window as f64 * 1.25 / flow.latest_rtt.as_secs_f64();
        let rate = flow.bbr.pacing_rate.map_or(fallback, Rate::bytes_per_second);
        let burst = (rate * 0.002).max((PACKET * 4) as f64);
        flow.budget = (flow.budget + rate * TICK.as_secs_f64()).min(burst);
        while flow.backlog >= PACKET {
            let room = flow.in_flight + PACKET <= flow.bbr.window;
            if !room || flow.budget < PACKET as f64 {
                flow.limited_until = self.now + if room { ms(5) } else { flow.latest_rtt / 4 };
                if !room {
                    Controller::on_cwnd_limited(&mut flow.bbr);
                }
                return;
            }
            flow.budget -= PACKET as f64;
            flow.backlog -= PACKET;
            flow.in_flight += PACKET;
            let sent = self.now;
            let full = self.queue.len() as u64 * PACKET >= self.link.queue_max;
            if full || self.random.unit() < self.link.loss {
                // The library takes a packet for lost two round-trip times after it was sent.
                let at = sent + flow.latest_rtt * 2;
                self.packets += 1;
                self.news.push(Reverse((at, self.packets, index, sent, Fate::Lost)));
            } else {
                self.queue.push_back((index, sent));
            }
        }
    }

    fn serve(&mut self) {
        self.credit += self.link.mbps * 125_000.0 * TICK.as_secs_f64();
        while self.credit >= PACKET as f64
            && let Some((flow, sent)) = self.queue.pop_front()
        {
            self.credit -= PACKET as f64;
            let jitter = self.normal() * self.link.jitter_ms * 1e-3;
            let delay = (self.link.round_trip.as_secs_f64() + jitter).max(0.002);
            let at = self.now + Duration::from_secs_f64(delay);
            self.packets += 1;
            self.news.push(Reverse((at, self.packets, flow, sent, Fate::Acknowledged)));
        }
        if self.queue.is_empty() {
            self.credit = self.credit.min(PACKET as f64);
        }
    }

    /// Normally distributed, within three standard deviations.
    fn normal(&mut self) -> f64 {
        let sum: f64 = (0..12).map(|_| self.random.unit()).sum();
        (sum - 6.0).clamp(-3.0, 3.0)
    }
}

/// What holds at any time.
pub(super) fn check(bbr: &Bbr) {
    assert!(bbr.window >= 4 * PACKET, "{bbr:?}");
    assert!(bbr.window < 1 << 32, "{bbr:?}");
}
