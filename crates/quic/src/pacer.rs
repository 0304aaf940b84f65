//! A token bucket for each path: spreads the congestion window over the round trip.
//!
//! ```text
//! rate = what the congestion controller says, or 1.25 windows per round trip (RFC 9002 section 7.7),
//!        or, for packets that are paced by the window, two windows per round trip if that is more;
//!        at most RATE_HEADROOM times what the path has shown, at least 4 packets per round trip
//! budget grows at that rate up to the burst: what leaves in 2 ms, but no less than 4 packets
//! ```
//!
//! The bounds are for flows that do not fill the path. From a few acknowledgements that arrive
//! together a controller may derive many times the path's rate, and from a few probes so little
//! that the next packet would wait for half a second.
//!
//! A stream that leaves room shows the congestion control its own rate, not the path's. Paced at
//! that it would wait at windows half empty just when another path fails. Hence [`Pacing::Window`].

use std::time::Duration;

use roadweave_proto::{Instant, Pacing, Rate};

#[derive(Clone, Copy, Debug)]
pub(crate) struct PacerInput {
    pub(crate) pacing: Pacing,
    pub(crate) controller_rate: Option<Rate>,
    /// Bytes.
    pub(crate) window: u64,
    pub(crate) smoothed_rtt: Duration,
    pub(crate) delivered_rate: Rate,
    pub(crate) mtu: u16,
    pub(crate) rate_max: Option<Rate>,
}

#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    pub(crate) rate: Rate,
    burst: u64,
    /// May fall below zero by a burst.
    budget: f64,
    updated: Instant,
}

impl Pacer {
    pub(crate) fn new(now: Instant) -> Self {
        Self { rate: Rate::ZERO, burst: 0, budget: 0.0, updated: now }
    }

    pub(crate) fn update(&mut self, now: Instant, input: &PacerInput) {
        let first = self.rate == Rate::ZERO;
        self.fill(now);
        self.rate = rate(input);
        self.burst = burst(self.rate, input.mtu);
        if first {
            self.budget = self.burst as f64;
        }
        self.budget = self.budget.min(self.burst as f64);
    }

    fn fill(&mut self, now: Instant) {
        self.budget += self.rate.bytes_per_second() * now.since(self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
    }

    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.fill(now);
        // Packets that another pacer released cost at most a burst.
        let burst = self.burst as f64;
        self.budget = (self.budget.min(burst) - bytes as f64).max(-burst);
    }

    pub(crate) fn budget(&self) -> u64 {
        self.budget.max(0.0) as u64
    }

    pub(crate) fn next_release(&self, bytes: u64) -> Instant {
        let rate = self.rate.bytes_per_second();
        let batch = (rate * WAKE_INTERVAL.as_secs_f64()).max(bytes as f64);
        let missing = batch.min(self.burst as f64) - self.budget;
        if missing <= 0.0 || self.rate == Rate::ZERO {
            return self.updated;
        }
        // One nanosecond more, so that rounding causes no early wake-up.
        let wait = Duration::from_secs_f64(missing / rate);
        self.updated + wait + Duration::from_nanos(1)
    }
}

fn rate(input: &PacerInput) -> Rate {
    let rtt = input.smoothed_rtt.max(Duration::from_micros(100)).as_secs_f64();
    let windows = |number: f64| input.window as f64 * number / rtt;
    let controlled = input.controller_rate.map_or_else(|| windows(1.25), Rate::bytes_per_second);
    let wanted = match input.pacing {
        Pacing::Rate | Pacing::Controller => controlled,
        Pacing::Window => controlled.max(windows(2.0)),
    };
    let shown = input.delivered_rate.bytes_per_second() * RATE_HEADROOM;
    let beginning = f64::from(input.mtu) * INITIAL_WINDOW_PACKETS / rtt;
    let believed = wanted.min(shown.max(beginning).max(RATE_FLOOR));
    let least = f64::from(input.mtu) * PACKETS_MIN / rtt;
    let rate = Rate::from_bytes_per_second(believed.max(least) as u64).max(RATE_MIN);
    input.rate_max.map_or(rate, |most| rate.min(most.max(RATE_MIN)))
}

fn burst(rate: Rate, mtu: u16) -> u64 {
    let timely = (rate.bytes_per_second() * BURST_TIME.as_secs_f64()) as u64;
    timely.max(u64::from(mtu) * BURST_PACKETS_MIN)
}

/// BBR's start-up gain of 2.77 twice over, and a video frame in a slow flow at the link's speed.
const RATE_HEADROOM: f64 = 8.0;
/// Packets per round trip that are always allowed: the least window of BBR.
const PACKETS_MIN: f64 = 4.0;
/// Bytes per second below which headroom is not limited.
const RATE_FLOOR: f64 = 250_000.0;
const RATE_MIN: Rate = Rate::from_kbps(16);
/// RFC 9002 section 7.2, with room for the first doubling.
const INITIAL_WINDOW_PACKETS: f64 = 30.0;
const BURST_TIME: Duration = Duration::from_millis(2);
const BURST_PACKETS_MIN: u64 = 4;
/// Least time between two wake-ups, unless packets are rarer.
const WAKE_INTERVAL: Duration = Duration::from_micros(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn input(controller_rate: Option<u64>, delivered_rate: u64) -> PacerInput {
        PacerInput {
            pacing: Pacing::Rate,
            controller_rate: controller_rate.map(Rate::from_bytes_per_second),
            window: 120_000,
            smoothed_rtt: Duration::from_millis(50),
            delivered_rate: Rate::from_bytes_per_second(delivered_rate),
            mtu: 1200,
            rate_max: None,
        }
    }

    fn sent_in_a_second(input: &PacerInput) -> u64 {
        let mut pacer = Pacer::new(Instant::ZERO);
        let (mut now, mut sent) = (Instant::ZERO, 0);
        while now < Instant::from_millis(1000) {
            pacer.update(now, input);
            while pacer.budget() >= 1200 {
                pacer.on_sent(now, 1200);
                sent += 1200;
            }
            let next = pacer.next_release(1200);
            assert!(next > now, "time moves on");
            now = next;
        }
        sent
    }

    #[test]
    fn a_full_sender_gets_its_rate_within_the_bounds() {
        let window = PacerInput { pacing: Pacing::Window, ..input(Some(1_000_000), 900_000) };
        for (input, expected) in [
            (input(Some(1_000_000), 900_000), 1_000_000..=1_020_000),
            // Without a rate, 1.25 windows in a round trip.
            (input(None, 3_000_000), 2_970_000..=3_030_000),
            // By the window, two of them.
            (window, 4_750_000..=4_850_000),
            // Far above the delivery rate.
            (input(Some(33_000_000), 500_000), 0..=4_099_999),
            // Four packets in each round trip.
            (input(Some(2_800), 2_800), 96_000..=101_000),
        ] {
            let sent = sent_in_a_second(&input);
            assert!(expected.contains(&sent), "{sent}: {input:?}");
        }
    }

    #[test]
    fn an_idle_time_earns_no_more_than_a_burst() {
        let mut pacer = Pacer::new(Instant::ZERO);
        let input = input(Some(1_000_000), 900_000);
        pacer.update(Instant::ZERO, &input);
        pacer.update(Instant::from_millis(60_000), &input);
        assert_eq!(pacer.budget(), 4800);
    }
}
