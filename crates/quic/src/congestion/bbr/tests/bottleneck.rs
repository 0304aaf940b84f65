//! One bottleneck and its flows in virtual time, without QUIC: controllers, a pacer and a queue.
//!
//! ```text
//! flow: traffic > window and pacing > queue > link (rate) > delay, jitter, loss > acknowledged or lost
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use noq_proto::congestion::Controller;
use roadweave_emulate::{Jitter, Link, LinkSettings, Timeline, Trace};
use roadweave_proto::{Instant as LinkInstant, Rate, RttEstimator, SplitMix64};

use super::super::Bbr;

pub(super) const PACKET: u64 = 1200;
const TICK: Duration = Duration::from_micros(250);

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bottleneck {
    pub(super) mbps: f64,
    /// There and back, without queue and jitter.
    pub(super) round_trip: Duration,
    /// Standard deviation, milliseconds.
    pub(super) jitter_ms: f64,
    pub(super) loss: f64,
    /// Bytes.
    pub(super) queue_max: u64,
}

pub(super) fn link(mbps: f64, round_trip: Duration) -> Bottleneck {
    Bottleneck { mbps, round_trip, jitter_ms: 0.0, loss: 0.0, queue_max: (mbps * 62_500.0) as u64 }
}

impl Bottleneck {
    /// The delay is that of the whole round trip: acknowledgements take no time.
    fn trace(&self) -> Trace {
        Trace::constant(Rate::from_bps((self.mbps * 1e6) as u64), self.round_trip)
            .with_loss(Timeline::constant(self.loss))
    }

    fn settings(&self, origin: LinkInstant, seed: u64) -> LinkSettings {
        let deviation = Duration::from_secs_f64(self.jitter_ms * 1e-3);
        let mut settings = LinkSettings::new(self.trace(), seed);
        settings.origin = origin;
        settings.queue_bytes = self.queue_max as usize;
        settings.jitter = (self.jitter_ms > 0.0).then_some(Jitter { deviation, reorders: true });
        settings
    }
}

pub(super) enum Traffic {
    Bulk,
    Video { mbps: f64 },
    Silent,
}

pub(super) struct Flow {
    pub(super) bbr: Bbr,
    pub(super) traffic: Traffic,
    backlog: u64,
    in_flight: BTreeMap<u64, Instant>,
    budget: f64,
    next_frame: Instant,
    limited_until: Instant,
    rtt: RttEstimator,
}

type Packet = (usize, u64);

pub(super) struct World {
    pub(super) link: Bottleneck,
    present: Bottleneck,
    emulated: Link<Packet>,
    pub(super) flows: Vec<Flow>,
    pub(super) now: Instant,
    began: Instant,
    random: SplitMix64,
    packets: u64,
}

#[derive(Debug)]
pub(super) struct Seen {
    pub(super) mbps: Vec<f64>,
    pub(super) rtt_mean: f64,
    pub(super) rtt_max: f64,
    pub(super) backlog_max: u64,
}

impl World {
    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    pub(super) fn new(link: Bottleneck, seed: u64) -> Self {
        let now = Instant::now();
        Self {
            link,
            present: link,
            emulated: Link::new(link.settings(LinkInstant::ZERO, seed)),
            flows: Vec::new(),
            now,
            began: now,
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
            in_flight: BTreeMap::new(),
            budget: 0.0,
            next_frame: self.now,
            limited_until: self.now,
            rtt: RttEstimator::new(ms(100)),
        });
    }

    pub(super) fn run_after(&mut self, before: Duration, span: Duration) -> Seen {
        self.run(before);
        self.run(span)
    }

    pub(super) fn run(&mut self, span: Duration) -> Seen {
        let end = self.now + span;
        self.change_link();
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
        }
        let mbps = |bytes: &u64| *bytes as f64 * 8e-6 / span.as_secs_f64();
        Seen {
            mbps: delivered.iter().map(mbps).collect(),
            rtt_mean: rtt_sum / f64::from(rtts.max(1)),
            rtt_max,
            backlog_max,
        }
    }

    fn link_now(&self) -> LinkInstant {
        LinkInstant::ZERO + (self.now - self.began)
    }

    fn change_link(&mut self) {
        if self.link == self.present {
            return;
        }
        let now = self.link_now();
        let Bottleneck { jitter_ms, queue_max, .. } = self.present;
        if (self.link.jitter_ms, self.link.queue_max) == (jitter_ms, queue_max) {
            self.emulated.restart_with(now, self.link.trace());
        } else {
            self.emulated = Link::new(self.link.settings(now, self.random.next_u64()));
        }
        self.present = self.link;
    }

    fn hear(&mut self) -> Vec<(usize, f64)> {
        let mut heard = Vec::new();
        let mut newest = vec![None; self.flows.len()];
        while let Some((index, number)) = self.emulated.poll(self.link_now()) {
            let flow = &mut self.flows[index];
            let Some(sent) = flow.in_flight.remove(&number) else { continue };
            let rtt = self.now - sent;
            flow.rtt.update(rtt);
            flow.bbr.on_acknowledged(self.now, sent, PACKET);
            newest[index] = newest[index].max(Some(number));
            heard.push((index, rtt.as_secs_f64()));
        }
        for (flow, newest) in self.flows.iter_mut().zip(newest) {
            let Some(newest) = newest else { continue };
            flow.lose_overtaken(self.now, newest);
            let app_limited = self.now > flow.limited_until;
            let in_flight = flow.in_flight.len() as u64 * PACKET;
            flow.bbr.on_batch_end(self.now, in_flight, app_limited);
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
        let fallback = flow.bbr.window as f64 * 1.25 / flow.rtt.latest().as_secs_f64();
        let rate = flow.bbr.pacing_rate.map_or(fallback, Rate::bytes_per_second);
        let burst = (rate * 0.002).max((PACKET * 4) as f64);
        flow.budget = (flow.budget + rate * TICK.as_secs_f64()).min(burst);
        while flow.backlog >= PACKET {
            let room = (flow.in_flight.len() as u64 + 1) * PACKET <= flow.bbr.window;
            if !room || flow.budget < PACKET as f64 {
                flow.limited_until = self.now + if room { ms(5) } else { flow.rtt.latest() / 4 };
                if !room {
                    Controller::on_cwnd_limited(&mut flow.bbr);
                }
                return;
            }
            flow.budget -= PACKET as f64;
            flow.backlog -= PACKET;
            self.packets += 1;
            flow.in_flight.insert(self.packets, self.now);
            let now = LinkInstant::ZERO + (self.now - self.began);
            // A sender does not learn of a full queue at once.
            let _ = self.emulated.push(now, PACKET as usize, (index, self.packets));
        }
    }
}

impl Flow {
    fn lose_overtaken(&mut self, now: Instant, newest: u64) {
        let delay = self.rtt.smoothed().max(self.rtt.latest()) * 2;
        while let Some(oldest) = self.in_flight.first_entry()
            && *oldest.key() < newest
            && now - *oldest.get() >= delay
        {
            oldest.remove();
            self.bbr.on_lost(PACKET);
        }
    }
}

pub(super) fn check(bbr: &Bbr) {
    assert!(bbr.window >= 4 * PACKET, "{bbr:?}");
    assert!(bbr.window < 1 << 32, "{bbr:?}");
}
