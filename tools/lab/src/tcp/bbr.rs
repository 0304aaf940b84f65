//! BBR, version 1: window and pacing rate follow from the bandwidth and the least round trip.
//!
//! ```text
//! Startup ─ bandwidth grows no more ─► Drain ─ queue empty ─► ProbeBandwidth ◄─► ProbeRoundTrip
//!  gain 2.89                           0.35                   1.25 0.75 1 x 6     4 segments
//! ```
//!
//! Source: draft-cardwell-iccrg-bbr-congestion-control-00, sections by function. From Linux: the
//! allowances for aggregated acknowledgements and for bursts. Not modelled: Linux's long-term rate
//! behind a policer.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::{Instant, SplitMix64};

use super::congestion::{Acked, Congestion, CongestionPhase, INITIAL_WINDOW, Window};

#[derive(Clone, Debug)]
pub(super) struct Bbr {
    mode: Mode,
    random: SplitMix64,
    /// Bytes of data in a segment, and of its packet.
    data: f64,
    packet: f64,
    rounds: u64,
    round_end: u64,
    begins_round: bool,
    rates: MaxOf,
    least: Option<Duration>,
    least_at: Instant,
    growth: Growth,
    phase_at: Instant,
    /// When the probe of the round trip may end, and whether it has lasted a round.
    probed_at: Option<Instant>,
    probe_round_passed: bool,
    saved: u32,
    phase: CongestionPhase,
    conserves: bool,
    heaps: Heaps,
    pace: f64,
    has_pace_of_round_trip: bool,
}

/// The bandwidth to exceed by [`GROWTH`], and the number of rounds that did not.
#[derive(Clone, Debug, Default)]
struct Growth {
    rate: f64,
    rounds_without: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    ProbeBandwidth(usize),
    ProbeRoundTrip,
}

/// Maxima over the last rounds: (round, value), values descending.
#[derive(Clone, Debug, Default)]
struct MaxOf(VecDeque<(u64, f64)>);

/// ACK aggregation: acknowledgements beyond those expected from the bandwidth.
#[derive(Clone, Debug, Default)]
struct Heaps {
    since: Instant,
    acked: f64,
    highest: MaxOf,
}

impl MaxOf {
    fn add(&mut self, round: u64, value: f64, rounds: u64) {
        self.0.retain(|(at, other)| *other > value && at + rounds > round);
        self.0.push_back((round, value));
    }

    fn get(&self) -> f64 {
        self.0.front().map_or(0.0, |(_, value)| *value)
    }
}

impl Bbr {
    pub(super) fn new((data, packet): (u32, u32), seed: u64) -> Self {
        let mut bbr = Self {
            mode: Mode::Startup,
            random: SplitMix64::new(seed),
            data: data.into(),
            packet: packet.into(),
            rounds: 0,
            round_end: 0,
            begins_round: false,
            rates: MaxOf::default(),
            least: None,
            least_at: Instant::ZERO,
            growth: Growth::default(),
            phase_at: Instant::ZERO,
            probed_at: None,
            probe_round_passed: false,
            saved: 0,
            phase: CongestionPhase::Open,
            conserves: false,
            heaps: Heaps::default(),
            pace: 0.0,
            has_pace_of_round_trip: false,
        };
        bbr.pace = bbr.pace_of(f64::from(INITIAL_WINDOW) / FIRST_ROUND_TRIP.as_secs_f64(), HIGH);
        bbr
    }

    fn is_full(&self) -> bool {
        self.growth.rounds_without >= FULL_ROUNDS
    }

    fn pacing_gain(&self) -> f64 {
        match self.mode {
            Mode::Startup => HIGH,
            Mode::Drain => 1.0 / HIGH,
            Mode::ProbeBandwidth(part) => CYCLE[part],
            Mode::ProbeRoundTrip => 1.0,
        }
    }

    fn window_gain(&self) -> f64 {
        match self.mode {
            Mode::Startup | Mode::Drain => HIGH,
            Mode::ProbeBandwidth(_) => 2.0,
            Mode::ProbeRoundTrip => 1.0,
        }
    }

    /// Bytes of data per second for `rate` segments per second (section 4.2.1).
    fn pace_of(&self, rate: f64, gain: f64) -> f64 {
        rate * gain * self.packet * (1.0 - MARGIN)
    }

    /// `gain` times the bandwidth-delay product and `more`, segments (section 4.2.3.2).
    fn inflight(&self, gain: f64, more: f64) -> u32 {
        let Some(least) = self.least else { return INITIAL_WINDOW };
        let held = (self.rates.get() * least.as_secs_f64() * gain).ceil() + more;
        let together = held as u32 + 3 * self.burst();
        let even = together.div_ceil(2) * 2;
        even + if self.mode == Mode::ProbeBandwidth(0) { 2 } else { 0 }
    }

    /// Section 4.1.1.
    fn update_bandwidth(&mut self, acked: &Acked) {
        self.begins_round = false;
        let Some(rate) = acked.rate else { return };
        if rate.prior_delivered >= self.round_end {
            self.round_end = acked.delivered_total;
            self.rounds += 1;
            self.begins_round = true;
            self.conserves = false;
        }
        if !rate.is_app_limited || rate.rate >= self.rates.get() {
            self.rates.add(self.rounds, rate.rate, RATE_ROUNDS);
        }
    }

    fn update_heaps(&mut self, acked: &Acked) {
        let heaps = &mut self.heaps;
        let expected = self.rates.get() * acked.now.since(heaps.since).as_secs_f64();
        if heaps.acked <= expected || heaps.acked + f64::from(acked.delivered) >= 1e6 {
            (heaps.since, heaps.acked) = (acked.now, 0.0);
        }
        let expected = self.rates.get() * acked.now.since(heaps.since).as_secs_f64();
        heaps.acked += f64::from(acked.delivered);
        heaps.highest.add(self.rounds / 5, (heaps.acked - expected).max(0.0), 2);
    }

    fn allowance(&self) -> f64 {
        let most = self.rates.get() * HEAP_MAX.as_secs_f64();
        if self.is_full() { self.heaps.highest.get().min(most) } else { 0.0 }
    }

    /// Section 4.3.4.3.
    fn update_cycle(&mut self, acked: &Acked) {
        let Mode::ProbeBandwidth(part) = self.mode else { return };
        let least = self.least.unwrap_or_default();
        let is_long = acked.now.since(self.phase_at) > least;
        let before = acked.in_flight + acked.delivered;
        let is_over = match CYCLE[part] {
            gain if gain > 1.0 => is_long && (acked.lost > 0 || before >= self.inflight(gain, 0.0)),
            gain if gain < 1.0 => is_long || before <= self.inflight(1.0, 0.0),
            _ => is_long,
        };
        if is_over {
            self.begin_part(acked.now, (part + 1) % CYCLE.len());
        }
    }

    fn begin_part(&mut self, now: Instant, part: usize) {
        self.mode = Mode::ProbeBandwidth(part);
        self.phase_at = now;
    }

    /// Starts at a random part of the cycle, but not at the draining one.
    fn begin_cycle(&mut self, now: Instant) {
        let part = (CYCLE.len() - self.random.below(CYCLE.len() - 1)) % CYCLE.len();
        self.begin_part(now, part);
    }

    /// Sections 4.3.2 and 4.3.3.
    fn update_startup(&mut self, acked: &Acked, window: &mut Window) {
        let is_app_limited = acked.rate.is_some_and(|rate| rate.is_app_limited);
        if !self.is_full() && self.begins_round && !is_app_limited {
            if self.rates.get() >= self.growth.rate * GROWTH {
                self.growth = Growth { rate: self.rates.get(), rounds_without: 0 };
            } else {
                self.growth.rounds_without += 1;
            }
        }
        if self.mode == Mode::Startup && self.is_full() {
            self.mode = Mode::Drain;
            window.ssthresh = self.inflight(1.0, 0.0);
        }
        if self.mode == Mode::Drain && acked.in_flight <= self.inflight(1.0, 0.0) {
            self.begin_cycle(acked.now);
        }
    }

    /// Section 4.3.5.
    fn update_least(&mut self, acked: &Acked, window: &mut Window) {
        let is_old = acked.now.since(self.least_at) > LEAST_OF;
        if let Some(round_trip) = acked.round_trip
            && (self.least.is_none_or(|least| round_trip < least) || is_old && !acked.is_delayed)
        {
            (self.least, self.least_at) = (Some(round_trip), acked.now);
        }
        if is_old && self.mode != Mode::ProbeRoundTrip && self.least.is_some() {
            self.mode = Mode::ProbeRoundTrip;
            self.save(window);
            self.probed_at = None;
        }
        if self.mode != Mode::ProbeRoundTrip {
            return;
        }
        match self.probed_at {
            None if acked.in_flight <= WINDOW_MIN => {
                self.probed_at = Some(acked.now + PROBE);
                self.probe_round_passed = false;
                self.round_end = acked.delivered_total;
            }
            Some(until) => {
                self.probe_round_passed |= self.begins_round;
                if self.probe_round_passed && acked.now > until {
                    self.least_at = acked.now;
                    window.cwnd = window.cwnd.max(self.saved);
                    match self.is_full() {
                        true => self.begin_cycle(acked.now),
                        false => self.mode = Mode::Startup,
                    }
                }
            }
            None => {}
        }
    }

    fn save(&mut self, window: &Window) {
        let is_free = self.phase == CongestionPhase::Open && self.mode != Mode::ProbeRoundTrip;
        self.saved = if is_free { window.cwnd } else { self.saved.max(window.cwnd) };
    }

    fn set_pace(&mut self, acked: &Acked) {
        let mut pace = self.pace_of(self.rates.get(), self.pacing_gain());
        if let Some(smoothed) = acked.smoothed
            && !self.has_pace_of_round_trip
        {
            self.has_pace_of_round_trip = true;
            self.pace = self.pace_of(f64::from(INITIAL_WINDOW) / smoothed.as_secs_f64(), HIGH);
            pace = pace.max(self.pace);
        }
        if self.is_full() || pace > self.pace {
            self.pace = pace;
        }
    }

    /// Section 4.2.3.4: one round of packet conservation; afterwards the former window.
    fn recovers(&mut self, acked: &Acked, window: &mut Window) -> bool {
        let before = std::mem::replace(&mut self.phase, acked.phase);
        window.cwnd = window.cwnd.saturating_sub(acked.lost).max(1);
        if acked.phase == CongestionPhase::Recovery && before != CongestionPhase::Recovery {
            self.conserves = true;
            self.round_end = acked.delivered_total;
            window.cwnd = acked.in_flight + acked.delivered;
        } else if before != CongestionPhase::Open && acked.phase == CongestionPhase::Open {
            window.cwnd = window.cwnd.max(self.saved);
            self.conserves = false;
        }
        if self.conserves {
            window.cwnd = window.cwnd.max(acked.in_flight + acked.delivered);
        }
        self.conserves
    }

    /// Sections 4.2.3.3 to 4.2.3.6.
    fn set_window(&mut self, acked: &Acked, window: &mut Window) {
        if acked.delivered > 0 && !self.recovers(acked, window) {
            let target = self.inflight(self.window_gain(), self.allowance());
            let grown = window.cwnd + acked.delivered;
            if self.is_full() {
                window.cwnd = grown.min(target);
            } else if window.cwnd < target || acked.delivered_total < INITIAL_WINDOW.into() {
                window.cwnd = grown;
            }
            window.cwnd = window.cwnd.max(WINDOW_MIN);
        }
        if self.mode == Mode::ProbeRoundTrip {
            window.cwnd = window.cwnd.min(WINDOW_MIN);
        }
    }
}

impl Congestion for Bbr {
    fn on_ack(&mut self, acked: &Acked, window: &mut Window) {
        self.update_bandwidth(acked);
        self.update_heaps(acked);
        self.update_cycle(acked);
        self.update_startup(acked, window);
        self.update_least(acked, window);
        self.set_pace(acked);
        self.set_window(acked, window);
    }

    fn on_congestion(&mut self, _: Instant, _: CongestionPhase, window: &Window) -> u32 {
        self.save(window);
        window.ssthresh
    }

    fn on_timeout(&mut self) {
        self.phase = CongestionPhase::Loss;
        self.growth.rate = 0.0;
        self.begins_round = true;
    }

    fn undone(&self, window: &Window, _: u32) -> u32 {
        window.cwnd.max(self.saved)
    }

    fn pacing_rate(&self) -> Option<f64> {
        Some(self.pace)
    }

    /// Segments per millisecond at the pace (Linux's `tcp_tso_autosize`).
    fn burst(&self) -> u32 {
        ((self.pace / 1_024.0 / self.data) as u32).clamp(if self.pace < 150e3 { 1 } else { 2 }, 44)
    }

    fn rules_in_recovery(&self) -> bool {
        true
    }
}

/// 2 / ln 2: doubles the delivered amount in each round.
const HIGH: f64 = 2.885;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// The pace stays below the bandwidth by this share (Linux's `bbr_pacing_margin_percent`).
const MARGIN: f64 = 0.01;
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(1);
const RATE_ROUNDS: u64 = 10;
/// The bandwidth grows while each round exceeds the last maximum by this factor.
const GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;
/// How long the least round trip is valid, and how long it is probed.
const LEAST_OF: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_millis(200);
/// Segments.
const WINDOW_MIN: u32 = 4;
const HEAP_MAX: Duration = Duration::from_millis(100);
